"""A long run takes no more memory at its end than soon after its start."""

import json
import os
from pathlib import Path

import pytest

from tests.promises.runs import apart, exit_code, pictures, tiny
from train.engine import Trainer


def resident() -> int:
    """Bytes of this process that lie in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def trained(folder: Path) -> None:
    """2,000 steps on pictures, with all that draws at random, a checkpoint every 100; what lies in memory after each."""
    data = pictures(folder / "data")
    drawn = {
        "aa": "rand-m9-mstd0.5-inc1",
        "mixup": 0.2,
        "drop_path": 0.2,
        "model_ema": True,
        "shift_coords": 1.0,
        "encoding": "mixed",
    }
    config = tiny(dataset="folder", data_dir=str(data), classes=None, steps=2000, save_every=100, train_sizes=(8, 16), **drawn)
    found = []

    def report(event: dict) -> None:
        if event["event"] == "saved":
            found.append(resident())

    Trainer(config, folder / "run", report).fit()
    (folder / "found.json").write_text(json.dumps(found))


@pytest.mark.slow
def test_memory_is_flat_over_2000_steps(tmp_path):
    assert exit_code(apart(trained, tmp_path), within=900) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found) == 20
    early, late = sorted(found[4:8])[-1], sorted(found[-4:])[-1]  # after 500 to 800 steps, and after 1,700 to 2,000
    assert late - early < 8 * 2**20, [f"{n / 2**20:.0f} MB" for n in found]
