"""torchrun starts a run again of which a process was killed: it goes on from its newest checkpoint, and ends with the same bits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.promises.runs import TINY, free_port

DYING = """
import os, signal
from train import __main__, cli
from train.engine import Trainer

class Dying(Trainer):
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        look = self._look
        def looking(**told):
            if self.progress.step == 7 and (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", DIES):
                os.kill(os.getpid(), signal.SIGKILL)
            look(**told)
        self._look = looking

__main__.Trainer = Dying
cli.run(__main__.main, "python -m train")
"""


@pytest.mark.slow
@pytest.mark.parametrize("alone, fsdp", [(False, False), (True, True)], ids=["static", "standalone, shared out"])
def test_a_process_that_was_killed_is_started_again_by_torchrun(alone, fsdp, tmp_path):
    fixed = ["--model-kwargs", *TINY, "--img-size", "16", "--classes", "0123", "--train-samples", "90", "--val-samples", "20"]
    fixed += ["--batch-size", "3", "--threads", "1", "--workers", "0", "--save-every", "5", "--steps", "12", "--tests", "zoom"]
    where = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    found = []
    for name, dies in (("killed", "0"), ("whole", "never")):
        script = tmp_path / f"{name}.py"
        script.write_text(f"DIES = {dies!r}\n" + DYING)
        meet = ["--standalone"] if alone else ["--master-port", str(free_port())]
        torchrun = [sys.executable, "-m", "torch.distributed.run", *meet, "--nproc-per-node", "2", "--max-restarts", "1"]
        command = [*torchrun, script, *fixed, "--output", tmp_path, "--experiment", name, *["--fsdp"] * fsdp]
        ended = subprocess.run(command, env=where, cwd=tmp_path, capture_output=True, text=True, timeout=200)
        assert ended.returncode == 0, ended.stderr[-2000:]
        assert ("failed (exitcode: " in ended.stderr) is (name == "killed"), ended.stderr[-2000:]
        found.append((tmp_path / name / "model.safetensors").read_bytes())
    assert found[0] == found[1]
