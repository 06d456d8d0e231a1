"""Every command line: its help fits a screen, what is unknown is named with what is near, and pipes get plain text."""

import json
import os
import pty
import runpy
import sys
import traceback
from pathlib import Path

import pytest

from tests.promises.runs import TINY, apart, exit_code

# the options that must be given, an option with a slip of the pen, and the one that is meant
COMMANDS = {
    "rope_nd.bench": ((), "--rouds", "--rounds"),
    "rope_nd.coverage": ((), "--markdwn", "--markdown"),
    "rope_nd.explore": ((), "--sevre", "--serve"),
    "rope_nd.look": ((), "--qeury", "--query"),
    "rope_nd.presets": ((), "--hepl", "--help"),
    "rope_nd.properties": ((), "--trianed", "--trained"),
    "train": ((), "--encodng", "--encoding"),
    "train.brains": (("--to", "x"), "--sede", "--seed"),
    "train.breaks": (("x",), "--sampels", "--samples"),
    "train.calibrate": (("x",), "--imges", "--images"),
    "train.evaluate": ((), "--checkpont", "--checkpoint"),
    "train.extrapolate": ((), "--recpie", "--recipe"),
    "train.kills": (("--to", "x"), "--kils", "--kills"),
    "train.plan": ((), "--modle", "--model"),
    "train.precision": (("x",), "--samplse", "--samples"),
    "train.report": (("x",), "--outt", "--out"),
    "train.retrofit": (("--model", "x", "--data", "x"), "--weigts", "--weights"),
    "train.retrofit.fetch": (("--to", "x"), "--pixls", "--pixels"),
    "train.retrofit.picture": (("--run", "x", "--image", "x"), "--szies", "--sizes"),
    "train.sequence": ((), "--scalngs", "--scalings"),
}
LINES = 40
SMALL = ("--model-kwargs", *TINY, "--img-size", "16", "--classes", "0123", "--train-samples", "40", "--val-samples", "20")
RUN = (*SMALL, "--tests", "zoom", "--batch-size", "8", "--workers", "0", "--threads", "1", "--steps", "2", "--output", "runs")


def called(folder, module, *arguments, out="pipe", **environment):
    """Exit code, stdout and stderr of `python -m MODULE ..`; `out`: pipe, terminal (which has both), or closed (a pipe that
    nobody reads)."""
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    assert exit_code(apart(_outer, str(folder), module, arguments, out, environment)) == 0
    return json.loads((folder / "code").read_text()), *((folder / name).read_text() for name in ("out", "err"))


def _outer(folder, module, arguments, out, environment):
    os.chdir(folder)
    screen = os.open("out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    errors = os.open("err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    pid, terminal = pty.fork() if out == "terminal" else (os.fork(), None)
    if pid == 0:
        if out != "terminal":
            os.dup2(screen if out == "pipe" else _closed(), 1)
            os.dup2(errors, 2)
        _inner(module, arguments, environment)
    while terminal is not None and (piece := _read(terminal)):
        os.write(screen, piece)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    Path("code").write_text(json.dumps(code))


def _closed():
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def _read(terminal):
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the other side has ended
        return b""


def _inner(module, arguments, environment):
    """What Python does for -m, in a process that has imported torch already."""
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", buffering=1, closefd=False)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        os.environ.pop(name, None)
    os.environ.update({"TERM": "xterm", "COLUMNS": "80", **environment})
    for name in [name for name in sys.modules if name.split(".")[0] == "train" or name == module]:
        del sys.modules[name]
    sys.argv, code = [module, *arguments], 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as left:
        code = left.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = 120
    os._exit(code)


@pytest.mark.parametrize("module", COMMANDS)
def test_help_fits_a_screen_and_a_slip_of_the_pen_is_understood(module, tmp_path):
    needed, slip, meant = COMMANDS[module]
    code, out, err = called(tmp_path / "help", module, "--help")
    assert (code, err) == (0, "") and 5 <= len(out.splitlines()) <= LINES, out
    assert out.replace("\n", "").isprintable() and meant in out

    code, out, err = called(tmp_path / "slip", module, *needed, slip, "1")
    assert code == 2 and meant in err and slip in err and "Traceback" not in err and out == ""
    assert err.replace("\n", "").isprintable()


@pytest.mark.parametrize("module", COMMANDS)
def test_nobody_reading_is_no_fault_and_no_color_is_heard(module, tmp_path):
    code, _, err = called(tmp_path / "closed", module, "--help", out="closed")
    assert (code, err) == (141, "")
    code, out, _ = called(tmp_path / "plain", module, "--help", out="terminal", NO_COLOR="1")
    assert code == 0 and "\x1b" not in out


def test_a_terminal_has_colours_where_nobody_says_no(tmp_path):
    assert "\x1b[" in called(tmp_path / "colours", "train.evaluate", "--help", out="terminal")[1]
    assert "\x1b" not in called(tmp_path / "plain", "train.evaluate", "--help", "--no-color", out="terminal")[1]


@pytest.mark.parametrize("module", ["train", "train.retrofit"])
def test_all_options_are_named_in_short_and_told_of_at_length(module, tmp_path):
    short = called(tmp_path / "short", module, "--help")[1]
    code, long, _ = called(tmp_path / "long", module, "--help-all")
    told = {word.strip("│,") for word in long.split() if word.strip("│,").startswith("--")}
    named = {word.rstrip(".,") for word in short.split() if word.startswith("--")} - {"--help-all"}
    assert code == 0 and len(named) > 20
    assert named == {flag.split("=")[0] for flag in told if not flag.startswith("--no-") and flag != "--help"} & named
    assert all(flag in short for flag in ("--encoding", "--steps", "--lr", "--seed"))


@pytest.mark.parametrize(
    ("module", "arguments", "near"),
    [
        ("rope_nd.bench", ("--what", "rotaton"), "rotation"),
        ("rope_nd.coverage", ("vit_smal_patch16_224",), "vit_small_patch16_224"),
        ("train", (*RUN, "--encoding", "axail"), "axial"),
        ("train", (*RUN, "--model", "vit_tny_patch16_224"), "vit_tiny_patch16_224"),
        ("train", (*RUN, "--track", "wandbb"), "wandb"),
        ("train.extrapolate", ("--recipe", "ten_minuts", "--output", "runs"), "ten_minutes"),
    ],
)
def test_a_name_that_is_unknown_is_named_with_the_nearest(module, arguments, near, tmp_path):
    code, _, err = called(tmp_path, module, *arguments)
    assert code == 2 and near in err and "Traceback" not in err
    assert not (tmp_path / "runs").exists()


def test_training_shows_a_bar_and_the_time_left_on_a_terminal_alone(tmp_path):
    code, out, _ = called(tmp_path / "terminal", "train", *RUN, out="terminal")
    assert code == 0 and "2/2" in out and "0:00:00" in out
    code, out, err = called(tmp_path / "pipe", "train", *RUN)
    assert code == 0 and "2/2" not in out and "accuracy" in out and (out + err).replace("\n", "").isprintable()


def test_our_fault_is_no_exit_but_an_error():
    from rope_nd import _command

    def broken():
        raise RuntimeError("ours")

    with pytest.raises(RuntimeError, match="ours"):
        _command.run(broken)


def test_what_interrupts_ends_with_130():
    from rope_nd import _command

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as left:
        _command.run(interrupted)
    assert left.value.code == 130


def test_a_broken_pipe_that_is_not_the_output_is_a_fault():
    from rope_nd import _command

    def broken():
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        _command.run(broken)
