"""`python -m rope_nd.presets`: the published encodings as a table."""

from . import list_presets

rows = [("name", "axes", "paper", "used by")]
rows += [(p.name, "any" if p.axes is None else str(p.axes), p.paper, p.used_by) for p in list_presets()]
widths = [max(len(row[i]) for row in rows) for i in range(4)]
for row in rows:
    print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())
