"""`python -m rope_nd.coverage`: every transformer of the installed timm, and what `wrap` makes of it.

Each name is one of

- `native`: it came with a rotary encoding; ours of the same angles gives the same output, and could now be scaled
- `wrapped`: it takes a rotary encoding instead of its own positions
- `refused`: it does not attend over all tokens of one grid, or is not known; the reason says which

The first two are proven by running the model, cut down to two blocks (and to narrow ones where its class allows): as it is, and
with axial positions on a larger grid that is not square. `--json FILE` writes the rows, `--markdown FILE` a table.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import list_modules, model_entrypoint
from torch import Tensor, nn

from ._command import Parser, check_model, run
from .wrapping import unwrap, wrap
from .wrapping.families import CLASSIFIERS, MODELS, attentions, embedding, head_width, trunk
from .wrapping.refused import WHY

CONVOLUTIONAL = set(
    "byobnet convmixer convnext cspnet cspnext densenet dla dpn efficientnet fasternet focalnet ghostnet hardcorenas hgnet "
    "hrnet inception_next inception_resnet_v2 inception_v3 inception_v4 lcnetv2 mambaout nasnet nfnet pnasnet rdnet regnet "
    "repghost repvit res2net resnest resnet resnetv2 rexnet selecsls senet sknet starnet tresnet vgg vovnet xception "
    "xception_aligned".split()
)  # timm's files without a transformer; a file that is neither here nor known is reported
HYBRIDS = "mobilenetv4_hybrid"  # the transformers among the names of a file of convolutional networks
SUPPORTED = {cls.__name__: cls for cls in (*MODELS, *CLASSIFIERS)}


@dataclass(frozen=True)
class Row:
    """What `wrap` makes of a timm model."""

    name: str
    cls: str
    status: str
    reason: str


def names() -> list[str]:
    """Every transformer name of the installed timm, deprecated aliases left out."""
    found = set()
    for module in list_modules():
        if module not in CONVOLUTIONAL:
            found |= set(timm.list_models(module=module))
    return sorted(name for name in found if timms(name) and (module_of(name) != "mobilenetv3" or name.startswith(HYBRIDS)))


def timms(name: str) -> bool:
    """Whether timm itself has that name; others may have registered theirs."""
    return model_entrypoint(name).__module__.startswith("timm.")


def module_of(name: str) -> str:
    """timm's file that a model is made in."""
    return model_entrypoint(name).__module__.rsplit(".", 1)[-1]


def class_of(name: str) -> str:
    """The class of a model: as its maker is annotated, or else (none, or several in the file) by making it without memory."""
    maker = model_entrypoint(name)
    made = maker.__annotations__.get("return")
    if isinstance(made, type) and (made.__name__ in SUPPORTED or len(WHY.keys() & vars(sys.modules[maker.__module__]).keys()) == 1):
        return made.__name__
    with torch.device("meta"):
        return type(timm.create_model(name)).__name__


def rows(chosen: Sequence[str] | None = None) -> Iterator[Row]:
    """One row a name, in order."""
    for name in names() if chosen is None else chosen:
        cls = class_of(name)
        if cls not in SUPPORTED:
            yield Row(name, cls, "refused", WHY.get(cls, "is not known"))
            continue
        try:
            yield Row(name, cls, "native" if prove(name) else "wrapped", "")
        except Exception as error:  # a row says what failed: no name is left out
            yield Row(name, cls, "refused", f"{type(error).__name__}: {error}")


def prove(name: str) -> bool:
    """Run a cut-down model as it is and with axial positions; True if its own rotary encoding is reproduced."""
    torch.manual_seed(0)
    model = small(name).eval()
    inner, unit = trunk(model), pixels(model)
    with torch.no_grad():
        x = torch.rand(1, 3, 2 * unit, 2 * unit)
        expected = values(model(x))
        ours: Any = MODELS[type(inner)]
        rotary = getattr(inner, ours.own_rope, None) is not None
        wrap(model, "native")
        difference = (values(model(x)) - expected).abs().max().item()
        if not difference <= 1e-4 * max(1.0, expected.abs().max().item()):
            raise RuntimeError(f"with its own positions it differs from timm's by {difference:.1e}")
        wrap(unwrap(model), "axial")
        larger = values(model(torch.rand(1, 3, 4 * unit, 2 * unit)))
        if not bool(larger.isfinite().all()):
            raise RuntimeError("with axial positions it gives numbers that are not finite")
    return rotary


def small(name: str) -> nn.Module:
    """The model of that name with two blocks, narrow where its class allows, on a grid of two units."""
    cls = class_of(name)
    with torch.device("meta"):
        full: Any = timm.create_model(name, **_shallow(name, cls))
    inner = trunk(full)
    layer = attentions(inner.blocks[0])[0]
    side = 2 * pixels(full)
    options = _shallow(name, cls) | ({} if cls in ("NaFlexVit",) or "Gemma4" in cls else {"img_size": side})
    if cls == "ConVit":
        options |= {"num_heads": 2}
    elif module_of(name) not in ("vitamin", "vision_transformer_hybrid") and cls != "TNT":
        options |= {"embed_dim": 2 * head_width(layer) * (2 if hasattr(layer, "lambda_init") else 1), "num_heads": 2}
    return timm.create_model(name, **options)


def _shallow(name: str, cls: str) -> dict[str, Any]:
    if module_of(name) == "vitamin":
        return {"depth": 2}
    extra: dict[str, dict[str, Any]] = {"ConVit": {"local_up_to_layer": 1}, "VisionTransformerSAM": {"global_attn_indexes": (1,)}}
    sapiens = {"num_kv_heads": (2, 1)} if "sapiens" in name else {}
    return {"depth": 2, **extra.get(cls, {}), **sapiens}


def pixels(model: nn.Module) -> int:
    """The least side of an image, in pixels, that fits the patches (and the merging of patches) of a model."""
    inner = trunk(model)
    embed = embedding(inner)
    patch = max(embed.feat_ratio(as_scalar=False) if hasattr(embed, "feat_ratio") else embed.patch_size)
    merged = getattr(inner, "merge_size", getattr(inner, "downsample_ratio", getattr(inner, "pooling_kernel_size", 1)))
    return int(patch) * int(merged)


def values(output: Any) -> Tensor:
    """The numbers of an output: a tensor, or the first of several."""
    return output if isinstance(output, Tensor) else values(output[0])


def markdown(found: Sequence[Row]) -> str:
    """The rows as a table, by class."""
    counts = Counter(row.status for row in found)
    total = ", ".join(f"{counts[status]} {status}" for status in ("native", "wrapped", "refused"))
    lines = [
        f"timm {timm.__version__}: {len(found)} transformers, {total}.",
        "",
        "| class | status | names | reason |",
        "|---|---|---|---|",
    ]
    groups: dict[tuple[str, str, str], list[str]] = {}
    for row in found:
        groups.setdefault((row.cls, row.status, row.reason), []).append(row.name)
    order = {"native": 0, "wrapped": 1, "refused": 2}
    for (cls, status, reason), members in sorted(groups.items(), key=lambda item: (order[item[0][1]], item[0][0])):
        lines.append(f"| {cls} | {status} | {len(members)}: {', '.join(members)} | {reason} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = Parser(prog="python -m rope_nd.coverage", description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="model names; all transformers by default")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--markdown", type=Path, help="write a table to this file")
    given = parser.parse_args(arguments)
    found = []
    for row in rows([check_model(name) for name in given.names] or None):
        found.append(row)
        print(f"{row.status:8} {row.name:48} {row.cls:26} {row.reason}", flush=True)
    counts = Counter(row.status for row in found)
    print(", ".join(f"{counts[s]} {s}" for s in ("native", "wrapped", "refused")), f"of {len(found)} with timm {timm.__version__}")
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n")
    if given.markdown:
        given.markdown.write_text(markdown(found))


if __name__ == "__main__":
    run(main)
