"""Wrapped models of every kind compiled, exported and run by ONNX runtime: the same numbers at sizes that no graph was made for."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from rope_nd import wrap
from tests.rope_nd.wrapping.zoo import KINDS, build, images

# Tracing takes seconds: some kinds always run, the others are marked slow. SAM's windows, whose padding depends on the size, take
# tens of seconds, in timm's own code.
compiled_fast = ["eva-02", "beit", "convit", "tnt"]
exported_fast = ["beit", "cait", "qwen 3"]
sizes = [(32, 48), (64, 32), (48, 80), (32, 32), (80, 64)]  # the grid a model was made for is the fourth

BY_SIZE = {  # exported with their own tables these do not hold for all sizes: timm's code branches on the size
    "sam": "get_rel_pos interpolates a table where its length is not that of the image",
    "qwen 3, encoder": "resample_pos_embed_grid returns the table as it is where the size is the trained one",
}
BROKEN_BY_PATCHES = {  # batches of several sizes that timm cannot run in one graph
    "naflex": "_apply_learned_naflex_pos_embed is kept from the compiler",
    "naflex, factorized": "_apply_factorized_naflex_pos_embed is kept from the compiler",
    "naflex, mixed": "_apply_learned_naflex_pos_embed is kept from the compiler",
}


def close(a: torch.Tensor, b: torch.Tensor, atol: float = 1e-5, rtol: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, atol=atol * max(1.0, b.abs().max().item()), rtol=rtol)


def marked(names: list, fast: list) -> list:
    return [pytest.param(name, marks=() if name in fast else pytest.mark.slow) for name in names]


def compiled(model: nn.Module) -> tuple[nn.Module, CompileCounterWithBackend]:
    """In one frame, for any size, and how often it was compiled."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    return torch.compile(model, fullgraph=True, dynamic=True, backend=counter), counter


def exported(model: nn.Module, size: tuple[int, int], many: bool = True) -> nn.Module:
    """The graph of images of that size, for any number of them (if `many`), any height and width that are multiples of 16."""
    b, h, w = (torch.export.Dim(name, min=2, max=64) for name in "bhw")
    sides = ({**({0: b} if many else {}), 2: 16 * h, 3: 16 * w},)
    return torch.export.export(model, (images(2, 3, *size),), dynamic_shapes=sides, strict=False).module()


def same_at_all_sizes(run: nn.Module, model: nn.Module) -> None:
    with torch.no_grad():
        for size in sizes:
            x = images(2, 3, *size)
            close(run(x), model(x))


# ---- compiled


@pytest.mark.parametrize("kind", marked(list(KINDS), compiled_fast))
def test_every_kind_compiles_once_for_all_sizes(kind):
    model = wrap(build(kind), "axial")
    run, counter = compiled(model)
    same_at_all_sizes(run, model)
    assert 1 <= counter.frame_count <= 2


others = [
    ("eva-02", "mixed", {"scaling": "yarn", "temperature": "log"}),
    ("rope-vit, mixed", "native", {"scaling": "ntk"}),
    ("beit", "native", {}),
    ("cait", "alibi", {"temperature": "log"}),
    ("dinov3", "native", {"scaling": "yarn"}),
    ("sapiens 2", "mixed", {}),
    ("relpos, swin mlp", "native", {}),
    ("relpos, shared table, res-post", "alibi", {"keep_pos_embed": "bias"}),
    ("qwen 3", "native", {"scaling": "pi"}),
    ("convit", "learned", {"keep_pos_embed": "bias"}),
    ("tnt", "sinusoidal", {"scaling": "pi", "keep_pos_embed": "absolute"}),
    ("naflex, mixed", "native", {"temperature": "yarn"}),
    ("gemma 4", "learned", {"keep_pos_embed": "rotary"}),
    ("vit, diff", "alibi", {}),
    ("hybrid", "mixed", {}),
]


@pytest.mark.parametrize(
    "kind, name, options", [pytest.param(*o, marks=() if i < 2 else pytest.mark.slow) for i, o in enumerate(others)]
)
def test_other_encodings_compile_at_most_three_times(kind, name, options):
    model = wrap(build(kind), name, **options)
    run, counter = compiled(model)
    same_at_all_sizes(run, model)
    assert 1 <= counter.frame_count <= 3


@pytest.mark.slow
def test_compiled_training_gives_a_native_rotation_the_same_gradients():
    model = wrap(build("rope-vit, mixed"), "native").train()
    other = copy.deepcopy(model)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    run = torch.compile(other, fullgraph=True, dynamic=True, backend=counter)
    for size in ((32, 48), (64, 32)):
        for one in (run, model):
            one(images(2, 3, *size)).square().sum().backward()
    found = dict(other.named_parameters())
    assert found["rope.freqs"].grad.ne(0).any() and counter.frame_count <= 2
    for name, p in model.named_parameters():
        assert (p.grad is None) == (found[name].grad is None)
        if p.grad is not None:
            close(found[name].grad, p.grad, rtol=1e-4)


# ---- several sizes in one batch


def patches(*extents: tuple[int, int], length: int) -> dict[str, torch.Tensor]:
    """A padded batch of grids of 8 x 8 patches, with the places of their patches."""
    coord, valid = torch.zeros(len(extents), length, 2, dtype=torch.long), torch.zeros(len(extents), length, dtype=torch.bool)
    for i, (h, w) in enumerate(extents):
        coord[i, : h * w] = torch.cartesian_prod(torch.arange(h), torch.arange(w))
        valid[i, : h * w] = True
    return {"patches": images(len(extents), length, 192), "patch_coord": coord, "patch_valid": valid}


batches = [patches((4, 6), (2, 2), length=24), patches((5, 5), (8, 6), length=60), patches((3, 3), (8, 4), length=40)]
by_patches = [
    ("naflex", "axial", {"scaling": "yarn", "temperature": "log"}),
    ("gemma 4", "native", {}),
    ("naflex, mixed", "mixed", {}),
    ("naflex, dinov3", "alibi", {"keep_pos_embed": "rotary"}),
    ("naflex, axial", "native", {"scaling": "ntk"}),
    ("gemma 4", "learned", {"keep_pos_embed": "rotary"}),
]


@pytest.mark.parametrize(
    "kind, name, options", [pytest.param(*o, marks=() if i < 2 else pytest.mark.slow) for i, o in enumerate(by_patches)]
)
def test_batches_of_several_sizes_compile_once(kind, name, options):
    model = wrap(build(kind), name, trained_extent=(4, 4), **options)
    if kind == "naflex, dinov3":  # its own table stays out
        assert "absolute" not in model.wrapped.kept
    run, counter = compiled(model)
    with torch.no_grad():
        for batch in batches:
            close(run(batch), model(batch))
    assert 1 <= counter.frame_count <= 2


@pytest.mark.parametrize("kind", BROKEN_BY_PATCHES)
def test_tables_that_timm_keeps_from_the_compiler_break_its_graph_and_ours(kind):
    for model in (build(kind), wrap(build(kind), "axial", keep_pos_embed="absolute")):
        run, _ = compiled(model)
        with pytest.raises(torch._dynamo.exc.Unsupported, match="naflex_pos_embed"), torch.no_grad():
            run(batches[0])


# ---- exported


@pytest.mark.parametrize("kind", marked(list(KINDS), exported_fast))
def test_every_kind_is_exported_with_dynamic_height_and_width(kind):
    model = wrap(build(kind), "axial")
    same_at_all_sizes(exported(model, (32, 48), many="gemma" not in kind), model)  # whose images may differ in size


with_own = [
    "rope-vit, mixed",
    "beit",
    "relpos, table",
    "deit, distilled",
    "eva-02",
    "dinov3",
    "relpos, swin mlp",
    "cait",
    "convit",
    "tnt",
    "deepseek",
    "qwen 3",
]


@pytest.mark.parametrize("kind", marked(with_own, with_own[:2]))
def test_models_with_their_own_positions_are_exported_from_a_size_that_is_not_the_trained_one(kind):
    """The graph must also serve images with one side, or both, of the trained size."""
    model = wrap(build(kind), "native")
    same_at_all_sizes(exported(model, (48, 80)), model)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rope-vit, mixed", "beit", "relpos, table", "deit, distilled"])
def test_models_with_their_own_positions_are_exported_from_the_trained_size(kind):
    model = wrap(build(kind), "native")
    same_at_all_sizes(exported(model, (32, 32)), model)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BY_SIZE)
def test_tables_that_timm_resizes_by_a_branch_hold_timms_graph_to_a_size_and_ours(kind):
    for model in (build(kind), wrap(build(kind), "native")):
        run = exported(model, (48, 80))
        with pytest.raises(AssertionError, match="Guard failed"):
            same_at_all_sizes(run, model)


# ---- ONNX

by_onnx = [
    ("dinov3", "native", {}),
    ("beit", "axial", {}),
    ("vit", "mixed", {"scaling": "yarn", "temperature": "log"}),
    ("cait", "alibi", {}),
    ("vit", "alibi", {}),
]


def run_by_onnx(model: nn.Module, path, example: tuple[int, int], others: list[tuple[int, int]]) -> None:
    runtime = pytest.importorskip("onnxruntime")
    h, w = torch.export.Dim("h", min=2, max=64), torch.export.Dim("w", min=2, max=64)
    sides = ({2: 8 * h, 3: 8 * w},)
    program = torch.onnx.export(model, (images(2, 3, *example),), dynamo=True, dynamic_shapes=sides, verbose=False)
    program.save(path)
    session = runtime.InferenceSession(path)
    for size in (example, *others):
        x = images(2, 3, *size)
        got = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
        close(got, model(x).detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "kind, name, options", [pytest.param(*o, marks=() if i < 1 else pytest.mark.slow) for i, o in enumerate(by_onnx)]
)
def test_onnx_runtime_gives_the_same_numbers_at_other_sizes(kind, name, options, tmp_path):
    run_by_onnx(wrap(build(kind), name, **options), tmp_path / "model.onnx", (48, 40), [(64, 24), (32, 32)])


@pytest.mark.slow
def test_onnx_runtime_reads_relative_tables_at_other_sizes(tmp_path):
    run_by_onnx(wrap(build("beit"), "native"), tmp_path / "model.onnx", (48, 40), [(64, 24), (80, 16), (32, 48), (32, 32)])
