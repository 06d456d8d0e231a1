"""`python -m rope_nd.presets`: the published encodings as a table."""

from collections.abc import Sequence

from .._command import Parser, run
from . import list_presets


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    Parser(prog="python -m rope_nd.presets", description="The published encodings: axes, papers and users.").parse_args(arguments)
    rows = [("name", "axes", "paper", "used by")]
    rows += [(p.name, "any" if p.axes is None else str(p.axes), p.paper, p.used_by) for p in list_presets()]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())


if __name__ == "__main__":
    run(main)
