"""Libraries that only some files need."""

import importlib
from typing import Any


class NeedError(ImportError, ValueError):
    """A library that a file needs is not installed."""


def need(module: str, extra: str) -> Any:
    """The module, imported now; where it is missing, an error that names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NeedError(f"this file needs {module}: pip install 'rope_nd[{extra}]' ({error})") from error
