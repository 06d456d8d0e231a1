from train import cli
from train.report import main

cli.run(main, "python -m train.report")
