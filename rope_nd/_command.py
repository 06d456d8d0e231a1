"""What all command lines share: options with the nearest name where one is unknown, and how a command ends.

Exit codes: 0; 2 where the input is wrong, with one line that says what; 1 where the program is, with a traceback; 130 and 143 where
it was asked to end; 141 where nobody reads its output any more, as with `| head`.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from ._check import choose

PIPE = 141  # 128 and the number of SIGPIPE


class Parser(argparse.ArgumentParser):
    """Names the nearest option, or the nearest choice, where there is none of that name."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        known = [option for action in self._actions for option in action.option_strings]
        for option in (one.split("=")[0] for one in given[: given.index("--") if "--" in given else None]):
            if option.startswith("--") and not any(one.startswith(option) for one in known):
                self.error(f"unknown option {option}{nearest(option, known)}")
        return super().parse_known_args(given, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            try:
                choose("value", value, map(str, action.choices))
            except ValueError as error:
                raise argparse.ArgumentError(action, str(error)) from None

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n({self.prog} --help shows all options)\n")


def nearest(name: str, known: Sequence[str]) -> str:
    """Which name is likely to be meant, as the end of a line."""
    near = difflib.get_close_matches(name, known, n=1)
    return f": did you mean {near[0]}?" if near else ""


def check_model(name: str) -> str:
    """The name of one of timm's models, or a ValueError with the nearest."""
    import timm

    if not timm.is_model(name):
        near = nearest(name, timm.list_models())
        raise ValueError(f"model {name!r}: timm {timm.__version__} has no model of that name{near}")
    return name


def run(main: Callable[[], Any]) -> None:
    """Call `main` and end as a command does."""
    with ending():
        main()


@contextmanager
def ending() -> Iterator[None]:
    """Within it, what a command raises becomes its exit code. `--no-color` is taken from the command line: it sets NO_COLOR."""
    if "--no-color" in sys.argv:
        sys.argv.remove("--no-color")
        os.environ["NO_COLOR"] = "1"
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _unread():
            raise
        sys.exit(PIPE)
    except ValueError as error:
        sys.exit(told(error))
    except OSError as error:
        if error.filename is None:
            raise
        sys.exit(told(ValueError(f"{error.filename}: {error.strerror}")))
    except KeyboardInterrupt:
        sys.exit(130)


def told(error: ValueError, code: int = 2) -> int:
    """Print an error in one line; returns the exit code."""
    last = (str(error).strip().splitlines() or [type(error).__name__])[-1]  # a data worker's comes with its traceback before it
    print(f"error: {last.removeprefix('ValueError: ')}", file=sys.stderr)
    return code


def _unread() -> bool:
    """Whether nobody reads stdout any more; what is left in it then goes nowhere."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False
