"""A new timm is noticed: the functions that wrapping replaces, or follows, are the ones that it was written against.

`sources.json` holds a digest of each, for the timm version named in it. When one differs, what wrapping does may be out of date:
compare the function with ours, mend what must be, run the tests of this folder, and record what is now there with
`python -m tests.rope_nd.wrapping.test_guard`.
"""

import ast
import hashlib
import importlib
import inspect
import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
from timm.layers import pos_embed_rel, pos_embed_sincos
from timm.models import vision_transformer_sam

from rope_nd.wrapping.families import OURS
from rope_nd.wrapping.inflated import INFLATED

RECORD = Path(__file__).parent / "sources.json"
FOLLOWED = {  # not replaced, but written anew
    pos_embed_rel: ["resize_rel_pos_bias_table", "gen_relative_position_index", "gen_relative_log_coords", "RelPosMlp.get_bias"],
    pos_embed_sincos: [
        *("freq_bands", "_build_grid", "_rope_layout", "build_fourier_pos_embed", "get_mixed_freqs", "apply_rot_embed_cat"),
        *("RotaryEmbeddingDinoV3._compute_periods", "RotaryEmbeddingDinoV3._get_pos_embed_from_coords"),
        *("RotaryEmbeddingMRope.init_non_persistent_buffers", "RotaryEmbeddingMRope.get_embed", "RotaryEmbeddingMixed.get_embed"),
    ],
    vision_transformer_sam: ["get_decomposed_rel_pos_bias", "get_rel_pos"],
}


def watched() -> dict[str, Callable]:
    """timm's functions by name: those that a class of ours has its own of, and those that are followed."""
    found = {}
    for theirs, ours in [*OURS.items(), *INFLATED.items()]:
        between = [cls for cls in ours.__mro__ if cls.__module__.startswith("rope_nd")]
        for name in {name for cls in between for name, value in vars(cls).items() if inspect.isfunction(value)}:
            function = getattr(theirs, name, None)
            if inspect.isfunction(function) and not function.__module__.startswith("torch"):
                found[f"{theirs.__module__}.{theirs.__qualname__}.{name}"] = function
    for module, names in FOLLOWED.items():
        for name in names:
            thing = module
            for part in name.split("."):
                thing = getattr(thing, part, None)
            if thing is not None:
                found[f"{module.__name__}.{name}"] = thing
    return found


def digest(function: Callable) -> str:
    """Of what a function does: comments, docstrings and layout are nothing to it."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.decorator_list, node.returns = [], None
            body = node.body
            first_is_text = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
            node.body = body[1:] if first_is_text and len(body) > 1 else body
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:16]


def changes(recorded: dict[str, str]) -> list[str]:
    """Names of functions that differ from the record, are new in it, or are gone."""
    now = {name: digest(function) for name, function in watched().items()}
    return sorted(name for name in now.keys() | recorded.keys() if now.get(name) != recorded.get(name))


def test_what_wrapping_replaces_and_follows_is_as_recorded():
    record = json.loads(RECORD.read_text())
    changed = changes(record["functions"])
    assert not changed, f"timm {timm.__version__} is not timm {record['timm']} in: {', '.join(changed)}"


def test_the_forwards_of_every_family_are_watched():
    names = set(watched())
    for theirs in OURS:
        assert any(name.startswith(f"{theirs.__module__}.{theirs.__qualname__}.") for name in names), theirs
    assert "timm.models.eva.Eva.forward_features" in names and "timm.layers.attention.Attention.forward" in names
    assert len(names) > 60


@pytest.mark.parametrize("name", ["timm.layers.attention.Attention.forward", "timm.models.beit.Beit.forward_intermediates"])
def test_a_change_is_named(name):
    record = json.loads(RECORD.read_text())["functions"]
    assert changes({**record, name: "0" * 16}) == [name]
    assert changes({k: v for k, v in record.items() if k != name}) == [name]
    assert changes({**record, "timm.gone.forward": "0" * 16}) == ["timm.gone.forward"]


def test_only_what_a_function_does_counts(tmp_path, monkeypatch):
    bodies = {"plain": "return x + 1", "told": '"""Text."""\n    return x + 1  # a remark', "other": "return x + 2"}
    for name, body in bodies.items():
        (tmp_path / f"guard_{name}.py").write_text(f"def one(x):\n    {body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    plain, told, other = (digest(importlib.import_module(f"guard_{name}").one) for name in bodies)
    assert plain == told != other


if __name__ == "__main__":
    found = {name: digest(function) for name, function in sorted(watched().items())}
    RECORD.write_text(json.dumps({"timm": timm.__version__, "functions": found}, indent=1) + "\n")
    print(f"{len(found)} functions of timm {timm.__version__} recorded")
