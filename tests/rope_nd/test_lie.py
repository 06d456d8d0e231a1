"""Turns that are matrices: each is what its formula says, keeps what it says it keeps, trains, compiles and is refused by name."""

import copy
import itertools
import math

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from rope_nd import RoPE, grid, wrap
from rope_nd.freqs import axial, mixed
from rope_nd.lie import Blocks, CayleySTRING, CirculantSTRING, ComRoPE, HARoPE, LieRE, fold
from rope_nd.registry import Host, scalings
from rope_nd.registry import make as registered
from rope_nd.scaling import RULES
from rope_nd.wrapping.model import each

D, H = 16, 3
EXTENTS = {1: (7,), 2: (3, 5), 3: (2, 3, 4)}
CLASSES = {
    "liere": lambda axes, **o: LieRE(D, axes, **{"heads": H, **o}),
    "comrope_ap": lambda axes, **o: ComRoPE(D, axes, **{"kind": "ap", "heads": H, **o}),
    "comrope_ld": lambda axes, **o: ComRoPE(D, axes, **{"kind": "ld", "heads": H, **o}),
    "string_cayley": lambda axes, **o: CayleySTRING(D, axes, **{"heads": H, "learned": True, **o}),
    "string_circulant": lambda axes, **o: CirculantSTRING(D, axes, **{"heads": H, **o}),
    "harope": lambda axes, **o: HARoPE(D, axes, **{"heads": H, "learned": True, **o}),
}
NAMES = list(CLASSES)
RELATIVE = [name for name in NAMES if name != "liere"]
BLOCKS = ["liere", "comrope_ap", "comrope_ld"]
FOLDED = ["string_cayley", "string_circulant", "harope"]


def make(name: str, axes: int = 2, *, moved: float = 0.2, **options) -> RoPE:
    """One of each, three heads of 16 channels, in float64, whose learned values are not their first ones."""
    rope, generator = CLASSES[name](axes, **options).double(), torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in rope.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * moved)
    return rope


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def qk(tokens: int, batch: int = 2, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    return normal(batch, H, tokens, D, seed=1, dtype=dtype), normal(batch, H, tokens, D, seed=2, dtype=dtype)


def scores(rotation, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    q, k = rotation.qk(q, k)
    return q @ k.mT


def close(a: torch.Tensor, b: torch.Tensor, tol: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, atol=tol, rtol=tol)


# ---- what the formulas say, in float64, one D x D matrix a token


def exp(x: torch.Tensor) -> torch.Tensor:
    """exp of a skew-symmetric matrix, by the eigenvectors of the Hermitian i x."""
    values, vectors = torch.linalg.eigh(1j * x)
    return (vectors * torch.exp(-1j * values) @ vectors.mH).real


def above(entries: torch.Tensor, size: int) -> torch.Tensor:
    """The skew-symmetric matrix with these numbers, negated, above its diagonal."""
    s, rest = torch.zeros(size, size, dtype=torch.float64), iter(entries)
    for i in range(size):
        for j in range(i + 1, size):
            value = next(rest)
            s[i, j], s[j, i] = -value, value
    return s


def pairs(angles: torch.Tensor) -> torch.Tensor:
    """RoPE's matrix for the angles of neighbouring channels."""
    blocks = [torch.tensor([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]], dtype=torch.float64) for a in angles.tolist()]
    return torch.block_diag(*blocks)


def caley(s: torch.Tensor) -> torch.Tensor:
    one = torch.eye(len(s), dtype=torch.float64)
    return (one - s) @ torch.linalg.inv(one + s)


def generators(rope: RoPE, name: str, head: int) -> list[torch.Tensor]:
    """A_a of each axis, `[D, D]`."""
    if name == "liere":
        blocks = rope.freqs[head].unflatten(0, (rope.blocks, -1))  # [J, b (b - 1) / 2, A]
        return [torch.block_diag(*[above(b[:, a], rope.block) for b in blocks]) for a in range(rope.axes)]
    if name == "string_circulant":
        c = rope.row[head]  # [A, D]
        full = [torch.stack([c[a][(torch.arange(D) - j) % D] for j in range(D)], dim=1) for a in range(rope.axes)]
        return [m - m.T for m in full]
    speeds = [[float(j % rope.axes == a) for a in range(rope.axes)] for j in range(rope.blocks)]
    theta = torch.tensor(speeds, dtype=torch.float64) if name == "comrope_ap" else rope.freqs[head]
    return [torch.block_diag(*[theta[j, a] * (p - p.T) for j, p in enumerate(rope.base[head])]) for a in range(rope.axes)]


def matrix(rope: RoPE, name: str, head: int, x: torch.Tensor) -> torch.Tensor:
    """R(x), `[D, D]`."""
    if name in (*BLOCKS, "string_circulant"):
        return exp(sum(x[a] * m for a, m in enumerate(generators(rope, name, head))))
    turn = pairs(rope.freqs[head % len(rope.freqs)] @ x)
    if name == "string_cayley":
        return turn @ caley(above(rope.entries[head], D))
    u, v = (caley(above(entries[head], D)) for entries in (rope.left, rope.right))
    return turn @ u @ torch.diag(rope.log_scale[head].exp()) @ v.T


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_each_token_is_turned_by_the_matrix_of_its_formula(axes, name):
    rope, extent = make(name, axes), EXTENTS[axes]
    points = grid(*extent, dtype=torch.float64) * 1.3 - 1
    q, k = qk(len(points))
    turned, keys = rope(points).qk(q, k)
    with torch.no_grad():
        each_token = [torch.stack([matrix(rope, name, h, x) for x in points]) for h in range(H)]  # [N, D, D] a head
    expected = torch.stack(each_token) @ q[..., None]
    assert turned.dtype == torch.float64
    close(turned, expected[..., 0], 1e-10)
    close(keys, (torch.stack(each_token) @ k[..., None])[..., 0], 1e-10)


@pytest.mark.parametrize("name", BLOCKS)
def test_tokens_on_a_grid_and_scattered_ones_are_turned_alike(name):
    rope, points = make(name), grid(6, 7, dtype=torch.float64)
    noise = 1e-7 * normal(*points.shape)  # no two tokens share a coordinate any more
    q, k = qk(42)
    close(scores(rope(points), q, k), scores(rope(points + noise), q, k), 1e-4)
    graph = torch.export.export(AtPoints(rope), (points, q), strict=False).module()  # where coordinates cannot be compared
    close(graph(points, q), rope(points)(q), 1e-10)


class AtPoints(nn.Module):
    def __init__(self, rope: RoPE) -> None:
        super().__init__()
        self.rope = rope

    def forward(self, points: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return self.rope(points)(q)


# ---- what is kept


@pytest.mark.parametrize("name", [name for name in NAMES if name != "harope"])
def test_norms_are_kept(name):
    rope, (q, _) = make(name), qk(15)
    close(rope(100 * normal(15, 2, seed=3))(q).norm(dim=-1), q.norm(dim=-1), 1e-10)


def test_harope_keeps_no_norms_once_it_has_learned():
    q, _ = qk(15)
    assert (make("harope").at(3, 5)(q).norm(dim=-1) / q.norm(dim=-1) - 1).abs().max() > 0.1
    close(make("harope", moved=0).at(3, 5)(q).norm(dim=-1), q.norm(dim=-1), 1e-12)


@pytest.mark.parametrize("name", RELATIVE)
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_scores_depend_on_differences_of_coordinates_only(axes, name):
    rope, points = make(name, axes), 4 * normal(12, axes, seed=3)
    q, k = qk(12)
    shift = torch.tensor([31.7, -12.1, 5.3], dtype=torch.float64)[:axes]
    close(scores(rope(points), q, k), scores(rope(points + shift), q, k), 1e-10)
    assert (scores(rope(points), q, k) - scores(rope(points * 1.5), q, k)).abs().max() > 0.1


def deviation(rope: RoPE, shift: float) -> float:
    """Change of the scores of a grid when it moves along both axes, over their standard deviation."""
    points, (q, k) = grid(8, 8, dtype=torch.float64), qk(64)
    here = scores(rope(points), q, k)
    return ((scores(rope(points + shift), q, k) - here).square().mean().sqrt() / here.std()).item()


def beside_pairs(spread: float, **options) -> LieRE:
    """A LieRE whose entries beside the pairs have been learned."""
    rope = LieRE(D, 2, heads=H, **options).double()
    with torch.no_grad():
        rope.freqs += spread * normal(*rope.freqs.shape, seed=5) * (rope.freqs == 0)
    return rope


def test_liere_is_relative_as_far_as_its_generators_commute_and_less_so_far_from_the_origin():
    assert deviation(beside_pairs(0.0), 16) < 1e-12  # as it begins
    assert LieRE(D, 1, heads=H).axes == 1 and deviation(make("liere", moved=0), 16) < 1e-12
    by_entry = [deviation(beside_pairs(s), 16) for s in (0.0001, 0.001, 0.01, 0.1)]
    by_shift = [deviation(beside_pairs(0.001), s) for s in (1, 4, 16, 64)]
    for found in (by_entry, by_shift):
        assert found[0] > 1e-5 and all(2 * a < b for a, b in itertools.pairwise(found[:3]))
    assert by_entry[-1] > 0.3
    points, q = 4 * normal(12, 1, seed=3), qk(12)
    close(scores(make("liere", 1)(points), *q), scores(make("liere", 1)(points + 31.7), *q), 1e-10)  # one axis commutes


# ---- what they are the same as


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("family, options", [("mixed", {"seed": 3}), ("axial", {"theta": 10.0}), ("golden", {})])
def test_liere_of_blocks_of_two_is_rope_of_the_same_frequencies(family, options, layout):
    plain = RoPE(D, 2, family, heads=H, layout=layout, learned=True, **options).double()
    rope = LieRE(D, 2, family, heads=H, layout=layout, block=2, **options).double()
    with torch.no_grad():
        for frequencies in (plain.freqs, rope.freqs):
            frequencies += 0.3 * normal(1, 8, 2)
    q, k = qk(15)
    for a, b in zip(rope.at(3, 5).qk(q, k), plain.at(3, 5).qk(q, k)):
        close(a, b, 1e-12)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("rotary_dim", [None, 8])
@pytest.mark.parametrize("name", ["liere", "string_cayley", "harope"])
def test_they_begin_as_the_rope_of_their_family(name, rotary_dim, layout):
    options = {"layout": layout, "rotary_dim": rotary_dim, "freqs": "mixed"}
    plain, (q, _) = RoPE(D, 2, heads=H, **options).double(), qk(15)
    close(make(name, moved=0, **options).at(3, 5)(q), plain.at(3, 5)(q), 1e-6)
    assert (make(name, **options).at(3, 5)(q) - plain.at(3, 5)(q)).abs().max() > 0.1


def test_circulant_string_begins_with_the_frequencies_of_its_family_and_keeps_the_mean_and_the_alternating_sum():
    rope = make("string_circulant", moved=0)
    close(rope.vectors(), axial(D // 2 - 1, 2).expand(H, -1, -1), 1e-6)
    learned, (q, _) = make("string_circulant"), qk(15)
    close(learned.vectors().mT, 2 * torch.fft.fft(learned.row).imag[..., 1 : D // 2], 1e-12)
    turned, signs = learned.at(3, 5)(q), 1.0 - 2 * (torch.arange(D) % 2)
    close(turned.mean(-1), q.mean(-1), 1e-12)
    close((turned * signs).mean(-1), (q * signs).mean(-1), 1e-12)


def test_liere_may_begin_uniformly_from_its_seed():
    first, again, other = (LieRE(D, 2, heads=H, start="uniform", seed=s).freqs for s in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other) and first.shape == (H, 2 * 28, 2)
    assert 0 <= first.min() < 0.1 and 6.2 < first.max() < 2 * math.pi


def test_comrope_begins_with_the_spread_asked_for_and_takes_speeds():
    assert abs(ComRoPE(64, 2, kind="ld", heads=6, sigma=0.3).base.std() - 0.3) < 0.02
    speeds = normal(1, 2, 2)
    assert torch.equal(ComRoPE(D, 2, kind="ld", speeds=speeds).freqs, speeds.float())
    assert ComRoPE(D, 3, kind="ap").block == 4 and ComRoPE(D, 3, kind="ld").block == 8  # a block for each axis


@pytest.mark.parametrize("name", FOLDED)
@pytest.mark.parametrize("bias", [False, True])
def test_folding_the_matrix_into_projections_gives_the_same_scores_with_plain_rope(name, bias):
    rope, x = make(name, prefix_tokens=1), normal(2, 16, 20)
    rotary_dim = D - 2 if name == "string_circulant" else None
    plain = RoPE(D, 2, rope.vectors().detach(), rotary_dim=rotary_dim, prefix_tokens=1, learned=True).double()

    def heads(layer: nn.Linear, weight: torch.Tensor, offset: torch.Tensor | None) -> torch.Tensor:
        return nn.functional.linear(x, weight, offset).unflatten(-1, (H, D)).transpose(1, 2)

    torch.manual_seed(0)
    layers = [nn.Linear(20, H * D, bias=bias, dtype=torch.float64) for _ in range(2)]
    q, k = (heads(layer, layer.weight, layer.bias) for layer in layers)
    folded = [heads(layer, rope.fold(layer.weight), rope.fold(layer.bias) if bias else None) for layer in layers]
    with torch.no_grad():
        plain.freqs.copy_(rope.vectors())
    close(scores(plain.at(3, 5), *folded), scores(rope.at(3, 5), q, k), 1e-10)
    assert (scores(plain.at(3, 5), q, k) - scores(rope.at(3, 5), q, k)).abs().max() > 0.1


def test_folding_serves_grouped_queries_and_keeps_the_dtype():
    turn = make("harope").matrix().detach()
    weight = normal(2 * H * D, 5, dtype=torch.float32)
    folded = fold(weight, turn)
    assert folded.dtype == torch.float32
    close(folded[D : 2 * D], (turn[0] @ weight[D : 2 * D].double()).float())
    with pytest.raises(ValueError, match="expected a multiple of 3 heads of 16"):
        fold(weight[: 2 * D], turn)


# ---- tokens


@pytest.mark.parametrize("name", NAMES)
def test_permuting_tokens_with_their_positions_permutes_the_output(name):
    rope, points = make(name), 3 * normal(15, 2, seed=3)
    order, (q, _) = torch.randperm(15, generator=torch.Generator().manual_seed(1)), qk(15)
    close(rope(points[order])(q[:, :, order]), rope(points)(q)[:, :, order], 1e-12)
    close(rope(points).keep(order)(q[:, :, order]), rope(points)(q)[:, :, order], 1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("heads", [None, H])
def test_each_sample_may_have_positions_of_its_own(heads, name):
    rope, (q, k) = make(name, heads=heads), qk(15)
    points = torch.stack((grid(3, 5, dtype=torch.float64), 3 * normal(15, 2, seed=3)))
    both = scores(rope(points), q, k)
    for i in range(2):
        close(both[i : i + 1], scores(rope(points[i]), q[i : i + 1], k[i : i + 1]), 1e-11)
    alike = scores(rope(points[:1].expand(2, -1, -1)), q, k)
    close(alike, scores(rope(points[0]), q, k), 1e-11)
    kept = torch.tensor([[0, 3, 5], [2, 1, 14]])
    rows = [x.gather(2, kept[:, None, :, None].expand(-1, H, -1, D)) for x in (q, k)]
    picked = torch.stack([both[i][:, kept[i]][:, :, kept[i]] for i in range(2)])
    close(scores(rope(points).keep(kept), *rows), picked, 1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_samples_of_several_sizes_are_turned_one_by_one(name):
    rope = make(name, scaling="pi", trained_extent=(2, 2))
    extents, (q, k) = torch.tensor([[2, 3], [3, 2]]), qk(6)
    points = torch.stack([grid(*e, dtype=torch.float64) for e in extents.tolist()])
    both = scores(each(rope, points, extents), q, k)
    for i, extent in enumerate(extents.tolist()):
        close(both[i : i + 1], scores(rope.at(*extent), q[i : i + 1], k[i : i + 1]), 1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_prefix_tokens_are_not_turned(name):
    rope, bare = make(name, prefix_tokens=2), make(name)
    q, k = qk(17)
    turned = rope.at(3, 5)(q)
    close(turned[:, :, 2:], bare.at(3, 5)(q[:, :, 2:]), 1e-12)
    if name not in ("string_cayley", "harope"):
        assert torch.equal(turned[:, :, :2], q[:, :, :2])
    else:  # in the same basis as the others, as at the origin
        origin = bare(torch.zeros(2, 2, dtype=torch.float64))
        close(turned[:, :, :2], origin(q[:, :, :2]), 1e-12)
    if name != "harope":
        close(scores(rope.at(3, 5), q, k)[:, :, :2, :2], (q @ k.mT)[:, :, :2, :2], 1e-12)
    with pytest.raises(ValueError, match="17 tokens"):
        bare.at(3, 5)(q)


@pytest.mark.parametrize("name", NAMES)
def test_grouped_queries_share_what_their_key_head_has(name):
    rope, (q, _) = make(name).at(3, 5), qk(15)
    wide = q.repeat_interleave(2, 1)
    close(rope(wide), rope(q).repeat_interleave(2, 1), 1e-12)
    with pytest.raises(ValueError, match="4 heads"):
        rope(q[:, :1].expand(-1, 4, -1, -1))


# ---- options


@pytest.mark.parametrize("name", NAMES)
def test_strength_is_the_share_of_each_turn(name):
    half, whole = make(name, strength=(0.5, 0.25)), make(name)
    q, k = qk(15)
    points = grid(3, 5, dtype=torch.float64)
    close(scores(half(points), q, k), scores(whole(points * torch.tensor([0.5, 0.25])), q, k), 1e-10)
    still, basis = scores(make(name, strength=0.0)(points), q, k), whole.matrix() if name == "harope" else torch.eye(D).double()
    close(still, q @ basis.mT @ basis @ k.mT, 1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_interpolation_squeezes_positions_and_the_temperature_is_one_factor(name):
    rope = make(name, scaling="pi", temperature="log", trained_extent=(3, 5))
    q, k = qk(60)
    factor = math.log(60) / math.log(15)
    squeezed = make(name)(grid(6, 10, dtype=torch.float64) / 2)
    close(scores(rope.at(6, 10), q, k), scores(squeezed, q, k) * factor, 1e-10)
    q, k = qk(15)
    close(scores(rope.at(3, 5), q, k), scores(make(name).at(3, 5), q, k), 1e-10)
    assert rope.sized and not make(name).sized
    with pytest.raises(ValueError, match="extent=None"):
        rope(grid(3, 5))


@pytest.mark.parametrize("name", NAMES)
def test_the_rules_that_have_a_meaning_are_those_the_registry_names(name):
    options = {
        "longrope": {"longrope": {"long": [2.0] * (7 if "circulant" in name else 8)}},
        "truncate": {"truncate": {"keep": 0.5}},
    }
    for rule in RULES:
        asked = {"scaling": options.get(rule, rule), "trained_extent": (3, 3)}
        if rule in scalings(name):
            q, k = qk(36)
            assert scores(make(name, **asked).at(6, 6), q, k).isfinite().all()
        else:
            with pytest.raises(ValueError, match="choose 'pi'"):
                make(name, **asked)
    assert scalings(name) == (("none", "pi") if name in BLOCKS else ("none", *RULES))


@pytest.mark.parametrize("name", NAMES)
def test_coordinates_and_places_are_those_of_any_rope(name):
    rope = make(name, coordinates={"normalize": "centred"})
    close(rope.positions(4, 6), grid(4, 6, normalize="centred", dtype=torch.float64), 1e-12)
    close(rope.place(torch.tensor([[1, 2]]), (4, 6)), rope.positions(4, 6)[None, 8], 1e-12)


# ---- precision, state, gradients


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_output_has_the_dtype_of_the_input_and_is_close_to_float64(name, dtype):
    exact, low = make(name), make(name).to(dtype)
    q, _ = qk(15)
    turned = low.at(3, 5)(q.to(dtype))
    assert turned.dtype == dtype and all(p.dtype == torch.float32 for p in low.float().parameters())
    error = (turned.double() - exact.at(3, 5)(q.to(dtype).double())).abs().max()
    assert error < 20 * torch.finfo(dtype).eps


@pytest.mark.parametrize("name", NAMES)
def test_casts_and_autocast_do_not_touch_what_is_learned_nor_the_tables(name):
    rope, (q, k) = make(name).float(), qk(15, dtype=torch.float32)
    there = copy.deepcopy(rope).bfloat16().half()
    expected = rope.at(30, 50)
    for other in (there, rope):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = other.at(30, 50)
            turned = other.at(3, 5).qk(q, k)
        assert torch.equal(found.cos, expected.cos) and torch.equal(found.sin, expected.sin)
        for a, b in zip(turned, rope.at(3, 5).qk(q, k)):
            assert a.dtype == torch.float32
            close(a, b, 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_only_learned_values_are_in_the_state_dict_and_none_of_them_decays(name):
    learned = {
        "liere": {"freqs"},
        "comrope_ap": {"base"},
        "comrope_ld": {"base", "freqs"},
        "string_cayley": {"entries"},
        "string_circulant": {"row"},
        "harope": {"left", "right", "log_scale"},
    }[name]
    rope = CLASSES[name](2, **({"learned": False} if name in ("string_cayley", "harope") else {}))
    assert set(rope.state_dict()) == learned == rope.no_weight_decay()
    assert all(t.shape[0] in (1, H) for t in (*rope.parameters(), *rope.buffers()))
    other, q = make(name, learned=False) if name in ("string_cayley", "harope") else make(name), qk(15)
    rope = rope.double()
    rope.load_state_dict(other.state_dict(), strict=True)
    assert torch.equal(scores(rope.at(3, 5), *q), scores(other.at(3, 5), *q))


@pytest.mark.parametrize("name", NAMES)
def test_meta_construction_then_to_empty_and_reset_gives_the_same_module(name):
    with torch.device("meta"):
        rope = CLASSES[name](2)
    assert all(t.is_meta for t in (*rope.parameters(), *rope.buffers()))
    rope.to_empty(device="cpu").reset_parameters()
    q = qk(15)
    assert torch.equal(scores(rope.at(3, 5), *q), scores(CLASSES[name](2).at(3, 5), *q))


def test_a_fixed_liere_is_remade_on_every_move():
    rope = LieRE(D, 2, start="uniform", learned=False)
    low = copy.deepcopy(rope).half()
    assert not list(rope.parameters()) and rope.freqs.dtype == low.freqs.dtype == torch.float64
    assert torch.equal(rope.freqs, low.freqs)


class Scores(nn.Module):
    def __init__(self, rope: RoPE, extent: tuple[int, ...] = (2, 2)) -> None:
        super().__init__()
        self.rope, self.extent = rope, extent

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return scores(self.rope.at(*self.extent), q, k)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("extent", [(2, 2), (4, 5)])  # token by token, and coordinate by coordinate
def test_gradients_are_those_of_the_function(extent, name):
    module = Scores(make(name, prefix_tokens=1), extent)
    names = [n for n, _ in module.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in module.parameters()]
    q, k = (x.requires_grad_() for x in qk(1 + extent[0] * extent[1], batch=1))

    def run(q: torch.Tensor, k: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(module, dict(zip(names, given)), (q, k))

    assert torch.autograd.gradcheck(run, (q, k, *values), fast_mode=True)
    run(q, k, *values).square().sum().backward()
    assert all(v.grad.abs().max() > 0 for v in values)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_learned_moves_from_its_first_values(name):
    rope, (q, k) = CLASSES[name](2), qk(15, dtype=torch.float32)
    scores(rope.at(3, 5), q, k).square().sum().backward()
    assert all(p.grad.any() for n, p in rope.named_parameters())
    if name == "liere":
        beside = rope.freqs.grad[rope.freqs == 0]
        assert (beside.abs() > 1e-4).float().mean() > 0.9


# ---- graphs


class Attending(nn.Module):
    def __init__(self, rope: RoPE) -> None:
        super().__init__()
        self.rope = rope

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, H · D, h, w]
        q = x.flatten(2).mT.unflatten(-1, (H, D)).transpose(1, 2)
        query, key = self.rope.at(*x.shape[-2:]).qk(q, q)
        return nn.functional.scaled_dot_product_attention(query, key, q, scale=D**-0.5)


def has_complex(graph: torch.fx.Graph) -> bool:
    values = [node.meta.get("val", node.meta.get("example_value")) for node in graph.nodes]
    return any(isinstance(v, torch.Tensor) and v.is_complex() for v in values)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_compiles_in_one_frame_whatever_the_extent_with_the_same_gradients(name):
    torch._dynamo.reset()
    model = Attending(make(name).float())
    other, counter = copy.deepcopy(model), CompileCounterWithBackend("eager")
    compiled = torch.compile(other, fullgraph=True, dynamic=True, backend=counter)
    for extent in [(4, 5), (7, 3), (5, 9)]:
        x = normal(2, H * D, *extent, dtype=torch.float32)
        close(compiled(x), model(x))
        for run in (compiled, model):
            run(x).square().sum().backward()
    assert counter.frame_count == 1
    for a, b in zip(other.parameters(), model.parameters()):
        close(a.grad, b.grad, 2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("autocast", [False, True])
def test_exports_with_dynamic_extents_and_no_complex_number(autocast, name):
    model = Attending(make(name).float())
    sides = {2: torch.export.Dim("h", min=2, max=64), 3: torch.export.Dim("w", min=2, max=64)}
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        program = torch.export.export(model, (normal(2, H * D, 4, 5).float(),), dynamic_shapes={"x": sides}, strict=False)
        for extent in [(4, 5), (7, 3), (5, 9)]:
            x = normal(2, H * D, *extent).float()
            close(program.module()(x), model(x), 2e-2 if autocast else 1e-5)
    assert not has_complex(program.graph)


# ---- training


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_training_of_a_toy_loss_is_finite_and_falls(name):
    torch.manual_seed(0)
    rope = CLASSES[name](2, prefix_tokens=1)
    qkv, head = nn.Linear(24, 3 * H * D), nn.Linear(H * D, 2)
    x, target = normal(6, 16, 24).float(), grid(3, 5) / 4  # where a token is
    step = torch.optim.AdamW([*rope.parameters(), *qkv.parameters(), *head.parameters()], 1e-2, weight_decay=0)
    losses, first = [], [p.detach().clone() for p in rope.parameters()]
    for _ in range(20):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            q, k, v = qkv(x).unflatten(-1, (3, H, D)).permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(*rope.at(3, 5).qk(q, k), v)
            out = head(y.transpose(1, 2).flatten(2)[:, 1:])
        loss = (out.float() - target).square().mean()
        step.zero_grad()
        loss.backward()
        step.step()
        losses.append(loss.item())
    assert all(map(math.isfinite, losses)) and losses[-1] < 0.7 * losses[0]
    assert all(not torch.equal(p, f) and p.isfinite().all() for p, f in zip(rope.parameters(), first))


def vit() -> VisionTransformer:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return VisionTransformer(img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3, num_classes=5, global_pool="avg")


@pytest.mark.parametrize("name", NAMES)
def test_a_wrapped_model_trains_at_two_sizes_with_one_encoding_a_layer(name):
    model = wrap(vit(), name, strength=0.9).train()
    assert len(model.encoding) == 2 and model.no_weight_decay() >= {f"encoding.{n}" for n, _ in model.encoding.named_parameters()}
    sets = [normal(10, 3, *size, seed=i).float() for i, size in enumerate([(32, 32), (48, 24)])]
    step, labels, losses = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 3e-3), torch.arange(10) % 5, []
    before = copy.deepcopy(model.encoding)
    for _ in range(8):
        loss = sum(nn.functional.cross_entropy(model(x), labels) for x in sets)
        step.zero_grad()
        loss.backward()
        step.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert all(not torch.equal(p, b) for p, b in zip(model.encoding.parameters(), before.parameters()))
    model.eval()
    low = copy.deepcopy(model).bfloat16()(sets[1].bfloat16())
    assert (low.float() - model(sets[1])).norm() / model(sets[1]).norm() < 0.05


@pytest.mark.parametrize("name", NAMES)
def test_augmented_positions_of_a_wrapped_model_are_each_samples_own(name):
    model = wrap(vit(), name, augment={"shift": 2.0, "rescale": 1.5}).train()
    x = normal(1, 3, 32, 32).float().expand(3, -1, -1, -1)
    torch.manual_seed(0)
    found = model(x)
    assert found.isfinite().all() and not torch.allclose(found[0], found[1])


# ---- what is refused


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: LieRE(20, 2), "20 channels are no multiple of block=8: the nearest block that works is 10, the nearest head_dim"),
        (lambda: LieRE(20, 2), "head_dim (or rotary_dim) 24"),
        (lambda: ComRoPE(12, 2, kind="ld"), "12 channels are no multiple of block=8: the nearest block that works is 6"),
        (lambda: LieRE(4, 2), "the nearest block that works is 4, the nearest head_dim (or rotary_dim) 8"),
        (lambda: LieRE(15, 2), "the nearest head_dim (or rotary_dim) 16"),
        (lambda: LieRE(16, 2, rotary_dim=12), "12 channels are no multiple of block=8"),
        (lambda: LieRE(16, 2, block=3), "block=3: give an even number"),
        (lambda: LieRE(16, 2, start="mixed"), "choose one of 'rope', 'uniform'"),
        (lambda: LieRE(16, 2, scaling="yarn"), "scaling='yarn' goes by frequencies"),
        (lambda: LieRE(16, 2, scaling=["pi", "ntk"]), "choose 'pi' or none"),
        (lambda: LieRE(16, 2, thta=3), "no option 'thta'"),
        (lambda: ComRoPE(16, 3, kind="ap", block=8), "2 blocks of 8 for axes=3: each axis needs one; the nearest head_dim"),
        (lambda: ComRoPE(16, 2, kind="ad"), "unknown kind 'ad'"),
        (lambda: ComRoPE(16, 2, kind="ap", sigma=0.0), "sigma=0.0"),
        (lambda: ComRoPE(16, 2, kind="ld", theta=100.0), "theta=100.0: ComRoPE begins with no frequencies"),
        (lambda: ComRoPE(16, 2, kind="ld", speeds=normal(1, 3, 2)), "expected [H or 1, 2, 2]"),
        (lambda: CirculantSTRING(16, 2, rotary_dim=8), "rotary_dim has no meaning for circulant generators"),
        (lambda: CirculantSTRING(2, 1), "head_dim=2"),
        (lambda: CayleySTRING(16, 2).at(3, 5)(normal(1, 1, 15, 8)), "has 8 channels, the basis 16"),
        (lambda: LieRE(16, 2).at(3, 5)(normal(1, 1, 15, 8)), "15 tokens of 8 channels"),
        (lambda: wrap(vit(), LieRE(16, 2)), "prefix_tokens=0 unturned, the model has 1"),
    ],
)
def test_bad_input_is_named_with_its_mend(call, says):
    with pytest.raises(ValueError) as caught:
        call()
    assert says in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_names_build_ropes_one_a_layer_with_seeds_of_their_own(name):
    made = registered(name, 2, Host(48, H, D, 3, (4, 4), 1))
    assert len(made) == 3 and all(isinstance(rope, RoPE) and rope.heads == H for rope in made)
    same = name in ("string_cayley", "string_circulant", "harope")  # all begin at the same frequencies
    first, second = (torch.cat([p.flatten() for p in rope.parameters()]) for rope in made[:2])
    assert torch.equal(first, second) == same


def test_a_rotation_by_blocks_gives_its_matrices_and_takes_any_rank():
    rope, (q, _) = make("liere", heads=None), qk(15)
    rotation = rope.at(3, 5)
    assert isinstance(rotation, Blocks) and rotation.matrices().shape == (15, 2, 8, 8)
    close(rotation(q[0, 0]), rotation(q)[0, 0], 1e-12)
    close(rotation(q[0]), rotation(q)[0], 1e-12)
    assert mixed(8, 2).shape == (1, 8, 2) and rotation.cos.shape == rotation.sin.shape == (15, 64)
