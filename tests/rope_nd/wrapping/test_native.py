"""The rotary encodings that timm's models come with: the same angles as a `RoPE`, at any size, and what scaling makes of them."""

import copy
import math
import pickle

import pytest
import torch
from timm.layers import pos_embed_sincos as timm_rope
from timm.layers.pos_embed_sincos import (
    RotaryEmbedding,
    RotaryEmbeddingCat,
    RotaryEmbeddingDinoV3,
    RotaryEmbeddingMixed,
    RotaryEmbeddingMRope,
)
from timm.models.gemma4_vit import Gemma4RotaryEmbedding2D
from torch import nn

from rope_nd import RoPE, unwrap, wrap
from rope_nd.wrapping.native import augmentation, layout_of, native
from tests.rope_nd.wrapping.zoo import build, images

shapes = [(4, 4), (3, 5), (7, 4), (1, 6), (9, 1), (12, 14)]
with_rope = [
    "eva-02",
    "rope-vit",
    "rope-vit, mixed",
    "rope-vit, mixed and table",
    "perception encoder",
    "dinov3",
    "eva, m-rope",
    "sapiens 2",
    "naflex, axial",
    "naflex, mixed",
    "naflex, dinov3",
    "qwen 3",
    "sam, rope",
    "gemma 4",
]
normalised = ["eva-02", "perception encoder", "dinov3", "sapiens 2", "naflex, dinov3", "sam, rope"]  # coordinates fit any grid
slow = ["eva-02", "perception encoder", "sam, rope"]  # of these, those whose pairs turn less than 0.75 times over the trained grid


def close(a: torch.Tensor, b: torch.Tensor, atol: float = 2e-6, rtol: float = 0.0) -> None:
    torch.testing.assert_close(a, b, atol=atol, rtol=rtol)


def trunk(model: nn.Module) -> nn.Module:
    return getattr(model, "encoder", model)


def cells(h: int, w: int) -> torch.Tensor:
    return torch.tensor([[i, j] for i in range(h) for j in range(w)], dtype=torch.float64)


def widened(rope: RoPE, shape: tuple[int, int]) -> torch.Tensor:
    """The tables of a rotation as timm has them: sines, then cosines, one for each channel."""
    rotation = rope.at(*shape)
    return torch.cat([timm_rope._rope_layout(table, rotation.layout == "half") for table in (rotation.sin, rotation.cos)], -1)


# ---- the same tables


@pytest.mark.parametrize("rotate_half", [False, True])
@pytest.mark.parametrize("grid_indexing", ["ij", "xy"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 100.0},
        {"grid_offset": 1.0},
        {"grid_offset": 0.5, "ref_feat_shape": (3, 5)},
        {"ref_feat_shape": (16, 16)},
        {"ref_feat_shape": (2, 9), "temperature": 50.0},
    ],
)
def test_tables_of_axial_rotations_are_timms(options, grid_indexing, rotate_half):
    rope = RotaryEmbeddingCat(32, in_pixels=False, grid_indexing=grid_indexing, rotate_half=rotate_half, **options)
    ours = native(rope, 32, 2)
    assert ours.at(2, 3).layout == layout_of(rope) == ("half" if rotate_half else "interleaved")
    for shape in shapes:
        close(widened(ours, shape), rope.get_embed(shape))


@pytest.mark.parametrize("rotate_half", [False, True])
@pytest.mark.parametrize("grid_indexing", ["ij", "xy"])
@pytest.mark.parametrize("periods", [{}, {"temperature": 10.0}, {"temperature": None, "min_period": 2.0, "max_period": 25.0}])
@pytest.mark.parametrize("normalize", ["separate", "min", "max"])
def test_tables_of_dinov3_are_timms(normalize, periods, grid_indexing, rotate_half):
    rope = RotaryEmbeddingDinoV3(
        32, normalize_coords=normalize, grid_indexing=grid_indexing, rotate_half=rotate_half, **periods
    ).eval()
    ours = native(rope, 32, 2)
    assert ours.at(2, 3).layout == ("half" if rotate_half else "interleaved")
    for shape in shapes:
        if normalize == "min":
            shape = (max(shape[0], 3), max(shape[1], 3))  # at 9 x 1 angles are large, and timm's float32 off by more
        close(widened(ours, shape), rope.get_embed(shape))


@pytest.mark.parametrize("grid_indexing", ["ij", "xy"])
def test_tables_of_mixed_rotations_are_timms_in_each_layer_and_head(grid_indexing):
    torch.manual_seed(0)
    rope = RotaryEmbeddingMixed(48, depth=3, num_heads=3, grid_indexing=grid_indexing)
    with torch.no_grad():
        rope.freqs.add_(torch.randn_like(rope.freqs) * 0.1)
    ours = native(rope, 16, 3)
    assert len(ours) == 3 and layout_of(rope) == "interleaved" and not list(ours.parameters())
    for shape in shapes:
        expected = rope.get_embed(shape)
        for layer, one in enumerate(ours):
            close(widened(one, shape), expected[layer], atol=4e-6 if shape == (12, 14) else 2e-6)


@pytest.mark.parametrize("dim, section", [(24, (4, 4, 4)), (64, (8, 12, 12)), (20, (2, 5, 1)), (16, (0, 0, 0)), (32, (4, 0, 6))])
def test_tables_of_m_rope_are_timms(dim, section):
    rope = RotaryEmbeddingMRope(dim, section, temperature=1000.0)
    ours = native(rope, dim, 2)
    assert ours.at(2, 3).layout == "half"
    for shape in shapes:
        close(widened(ours, shape), rope.get_embed(shape))


@pytest.mark.parametrize("head_dim, theta", [(16, 100.0), (64, 100.0), (72, 30.0)])
def test_tables_of_gemma_are_timms(head_dim, theta):
    rope = Gemma4RotaryEmbedding2D(head_dim, theta)
    ours = native(rope, head_dim, 2)
    for shape in shapes:
        places = cells(*shape).long().flip(-1)[None]  # column, row
        rotation = ours.at(*shape)
        for got, table in zip((rotation.cos, rotation.sin), rope(torch.zeros(1), places)):
            first, second, third, fourth = table[0].chunk(4, -1)  # columns twice, rows twice
            assert torch.equal(first, second) and torch.equal(third, fourth)
            close(got, torch.cat((first, third), -1))
        assert rotation.layout == "half"


@pytest.mark.parametrize("kind", with_rope)
@torch.no_grad()
def test_a_model_with_its_native_encoding_is_timms(kind):
    plain, x = build(kind), images()
    ours = wrap(copy.deepcopy(plain), "native")
    close(ours(x), plain(x), atol=1e-5)
    assert (ours(x) - wrap(copy.deepcopy(plain), "native", strength=0.0)(x)).abs().max() > 1e-4


# ---- learned frequencies stay where they are

mixed_kinds = ["rope-vit, mixed", "rope-vit, mixed and table", "naflex, mixed"]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", mixed_kinds)
def test_learned_frequencies_have_timms_gradients_under_timms_name(kind, training):
    plain = build(kind).train(training)
    ours, x = wrap(copy.deepcopy(plain), "native"), images()
    assert set(dict(ours.named_parameters())) == set(dict(plain.named_parameters())) and ours.rope.freqs.requires_grad
    for model in (ours, plain):
        model(x).square().sum().backward()
    grads = {name: p.grad for name, p in plain.named_parameters()}
    assert grads["rope.freqs"].flatten(2).abs().amax(-1).gt(0).all()  # both axes, every layer
    for name, p in ours.named_parameters():
        assert (p.grad is None) == (grads[name] is None), name
        if p.grad is not None:
            close(p.grad, grads[name], atol=2e-5 * max(1.0, grads[name].abs().max().item()))


@pytest.mark.parametrize("kind", mixed_kinds)
@torch.no_grad()
def test_checkpoints_load_strictly_both_ways(kind):
    source, x = build(kind, seed=3), images()
    ours = wrap(build(kind), "native")
    assert list(ours.state_dict()) == list(source.state_dict())
    ours.load_state_dict(source.state_dict(), strict=True)
    close(ours(x), source(x), atol=1e-5)
    assigned = wrap(build(kind), "native", scaling="ntk", trained_extent=(4, 4))
    assigned.load_state_dict(copy.deepcopy(source.state_dict()), strict=True, assign=True)
    close(assigned(x), source(x), atol=1e-5)
    back = build(kind)
    back.load_state_dict(assigned.state_dict(), strict=True)
    assert torch.equal(back(x), source(x))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("kind", mixed_kinds)
@torch.no_grad()
def test_a_copy_reads_its_own_frequencies(kind, copied):
    model, x = wrap(build(kind), "native"), images()
    other, expected = copied(model), model(x)
    assert torch.equal(other(x), expected) and other.rope.freqs is not model.rope.freqs
    other.rope.freqs.mul_(1.5)
    moved = other(x)
    assert (moved - expected).abs().max() > 1e-4 and torch.equal(model(x), expected)
    model.rope.freqs.mul_(1.5)
    assert torch.equal(model(x), moved)


@pytest.mark.parametrize("kind", mixed_kinds)
def test_trained_frequencies_are_undecayed_and_stay_when_unwrapped(kind):
    model, x = wrap(build(kind), "native").train(), images()
    assert "rope.freqs" in model.no_weight_decay()
    before = model.rope.freqs.detach().clone()
    step = torch.optim.SGD(model.parameters(), 0.5)
    model(x).square().sum().backward()
    step.step()
    assert (model.rope.freqs - before).abs().max() > 1e-5
    with torch.no_grad():
        expected = model.eval()(x)
        close(unwrap(model)(x), expected, atol=1e-5)


def test_frequencies_that_are_not_kept_are_frozen():
    model, x = wrap(build("rope-vit, mixed"), "axial"), images()
    expected = model(x)
    expected.sum().backward()
    assert not model.rope.freqs.requires_grad and model.rope.freqs.grad is None
    with torch.no_grad():
        model.rope.freqs.mul_(2)
    assert torch.equal(model(x), expected) and unwrap(model).rope.freqs.requires_grad
    kept = wrap(build("rope-vit, mixed"), "axial", keep_pos_embed="rotary")
    kept(x).sum().backward()
    assert kept.rope.freqs.grad.ne(0).any()


# ---- what is refused


class Mine(RotaryEmbeddingCat):
    pass


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: RotaryEmbedding(16, in_pixels=False), "does not know the rotary module RotaryEmbedding"),
        (lambda: Mine(16, in_pixels=False), "does not know the rotary module Mine"),
        (lambda: timm_rope.FourierEmbed(), "does not know the rotary module FourierEmbed"),
        (lambda: nn.Identity(), "does not know the rotary module Identity"),
        (lambda: RotaryEmbeddingCat(16), "coordinates of RotaryEmbeddingCat: it takes those of an index grid"),
        (lambda: RotaryEmbeddingCat(16, in_pixels=False, grid_type="centered"), "coordinates of RotaryEmbeddingCat"),
        (lambda: RotaryEmbeddingCat(16, in_pixels=False, grid_type="pixel"), "coordinates of RotaryEmbeddingCat"),
        (lambda: RotaryEmbeddingDinoV3(16, grid_offset=0.25), "grid_offset=0.25"),
    ],
)
def test_what_is_not_known_is_named(make, says):
    with pytest.raises(ValueError) as caught:
        native(make(), 16, 2)
    assert says in str(caught.value)
    model = build("rope-vit")
    model.rope, kind = make(), type(model)
    for options in ({"encoding": "native"}, {"encoding": "axial", "keep_pos_embed": "rotary"}):
        with pytest.raises(ValueError) as caught:
            wrap(model, **options)
        assert says in str(caught.value) and type(model) is kind and not hasattr(model, "encoding")


def test_pixel_bands_on_an_index_grid_are_not_taken_for_a_geometric_schedule():
    """timm lets the grid and the bands be chosen apart; what is not reproduced must not be taken for something else."""
    rope = RotaryEmbeddingCat(16, in_pixels=True, grid_type="index")
    try:
        ours = native(rope, 16, 2)
    except ValueError as error:
        assert "RotaryEmbeddingCat" in str(error)
    else:
        close(widened(ours, (3, 5)), rope.get_embed((3, 5)))


def test_scaling_needs_something_to_scale_and_other_options_are_refused():
    for options, says in (({"scaling": "yarn"}, "no rotary encoding of its own"), ({"strength": 0.5}, "no rotary encoding")):
        with pytest.raises(ValueError, match=says):
            wrap(build("vit"), "native", **options)
    with pytest.raises(ValueError, match="no option 'theta'"):
        wrap(build("rope-vit"), "native", theta=100.0)


# ---- scaling


@pytest.mark.parametrize("rule", ["pi", "ntk", "yarn", {"yarn": {"slow": 0.1, "fast": 0.3}}], ids=["pi", "ntk", "yarn", "ramp"])
@pytest.mark.parametrize("kind", with_rope)
@torch.no_grad()
def test_scaling_changes_nothing_at_the_trained_size_and_something_above_it(kind, rule):
    plain = build(kind)
    known = {"trained_extent": (4, 4)}
    unscaled, scaled = wrap(copy.deepcopy(plain), "native", **known), wrap(copy.deepcopy(plain), "native", scaling=rule, **known)
    for x in (images(), images(2, 3, 16, 32)):
        close(scaled(x), unscaled(x), atol=1e-5)
    close(scaled(images()), plain(images()), atol=1e-5)
    for x in (images(2, 3, 64, 64), images(2, 3, 32, 64)):
        if (rule == "pi" and kind in normalised) or (rule == "yarn" and kind in slow):  # interpolated as their coordinates are
            close(scaled(x), unscaled(x), atol=1e-5)
        else:
            assert (scaled(x) - unscaled(x)).abs().max() > 2e-5


def bands(count: int, theta: float) -> torch.Tensor:
    return theta ** -(torch.arange(count, dtype=torch.float64) / count)


def test_interpolated_angles_at_twice_the_size_are_those_of_the_trained_range():
    scaled = {"scaling": "pi", "trained_extent": (4, 6)}
    rope = native(RotaryEmbeddingCat(32, in_pixels=False, temperature=100.0, grid_indexing="xy"), 32, 2, **scaled)
    half = cells(8, 12) / 2
    angles = torch.cat([half[:, axis, None] * bands(8, 100.0) for axis in (1, 0)], -1)
    close(rope.at(8, 12).cos, angles.cos().float())
    close(rope.at(8, 12).sin, angles.sin().float())
    assert half.amax(0).lt(torch.tensor([4, 6])).all()
    whole = rope.at(4, 6)  # every second token of every second row is one of the trained grid
    double = rope.at(8, 12)
    close(double.sin.unflatten(0, (8, 12))[::2, ::2].flatten(0, 1), whole.sin)

    mixed = RotaryEmbeddingMixed(48, depth=2, num_heads=3, grid_indexing="ij")
    for layer, one in enumerate(native(mixed, 16, 2, **scaled)):
        angles = torch.einsum("na,ahp->hnp", half, mixed.freqs[:, layer].detach().double())
        close(one.at(8, 12).cos, angles.cos().float())


@pytest.mark.parametrize(
    "rope",
    [
        RotaryEmbeddingCat(32, in_pixels=False, ref_feat_shape=(4, 4), grid_offset=1.0),
        RotaryEmbeddingCat(32, in_pixels=False, ref_feat_shape=(7, 5)),
        RotaryEmbeddingDinoV3(32),
        RotaryEmbeddingDinoV3(32, normalize_coords="min"),
        RotaryEmbeddingDinoV3(32, normalize_coords="max", grid_indexing="xy"),
    ],
    ids=["reference, offset", "reference", "separate", "min", "max"],
)
def test_normalised_coordinates_are_interpolated_as_they_come_and_stretched_by_other_rules(rope):
    rope.eval()
    plain, pi, ntk = (native(rope, 32, 2, scaling=rule, trained_extent=(4, 4)) for rule in (None, "pi", "ntk"))
    close(pi.at(8, 8).cos, plain.at(8, 8).cos)
    close(pi.at(8, 8).sin, plain.at(8, 8).sin)
    close(widened(pi, (8, 8)), rope.get_embed((8, 8)))
    # the fastest pair keeps its frequency: neighbours are as far apart as at the trained size
    step = [r[1].sub(r[0]).abs() for r in (ntk.positions(8, 8), plain.positions(4, 4), plain.positions(8, 8))]
    close(step[0], step[1])
    assert step[0].sum() > 1.9 * step[2].sum()
    angles = (ntk.positions(8, 8)[:, None] * plain.vectors()[0]).sum(-1)
    fastest = plain.vectors()[0].norm(dim=-1).argmax()
    close(ntk.at(8, 8).cos[:, fastest], angles[:, fastest].cos().float())
    assert (ntk.at(8, 8).cos - plain.at(8, 8).cos).abs().max() > 0.1


def test_strength_is_the_share_of_each_angle():
    rope = RotaryEmbeddingCat(32, in_pixels=False, temperature=100.0)
    angles = torch.cat([cells(3, 5)[:, axis, None] * bands(8, 100.0) * share for axis, share in ((0, 0.5), (1, 0.25))], -1)
    close(native(rope, 32, 2, strength=(0.5, 0.25)).at(3, 5).sin, angles.sin().float())


# ---- augmentation


@pytest.mark.parametrize("make", [RotaryEmbeddingCat, RotaryEmbeddingDinoV3])
def test_the_models_own_augmentation_is_taken_over(make):
    options = {"in_pixels": False} if make is RotaryEmbeddingCat else {"rotate_half": False}
    rope = make(16, feat_shape=[4, 4], shift_coords=0.5, rescale_coords=1.5, **options)
    assert augmentation(rope) == {"shift": 0.5, "rescale": 1.5} and augmentation(Gemma4RotaryEmbedding2D(16)) == {}
    plain = build("rope-vit")
    plain.rope = rope
    model, x = wrap(copy.deepcopy(plain), "native"), images()
    assert model.wrapped.augment == {"shift": 0.5, "rescale": 1.5}
    close(model(x), plain.eval()(x), atol=1e-5)
    torch.manual_seed(0)
    one, other = model.train()(x), model(x)
    assert (one - other).abs().max() > 1e-5
    assert wrap(copy.deepcopy(plain), "native", augment={"jitter": 1.1}).wrapped.augment == {"jitter": 1.1}
    assert wrap(copy.deepcopy(plain), "axial").wrapped.augment == {}


def test_schedules_are_timms_to_the_last_bit_of_their_float32():
    rope = RotaryEmbeddingCat(64, in_pixels=False)
    assert torch.equal(native(rope, 64, 1).vectors()[0, :16, 0].float(), rope.bands)
    dinov3 = RotaryEmbeddingDinoV3(64)
    assert torch.equal((2 * math.pi / native(dinov3, 64, 1).vectors()[0, :16, 0]).float(), dinov3.periods)
