import tyro

from train.report import main

tyro.cli(main, prog="python -m train.report")
