"""LookHere and FIRE are their formulas for any axes and heads; what every bias, table or function, keeps in a model."""

import copy
import itertools
import math
import pickle

import pytest
import torch
from timm.models import vision_transformer as vit
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode

from rope_nd import wrap
from rope_nd.bias import ALiBi
from rope_nd.fields import FIRE, LookHere, pieces, towards
from rope_nd.relative import T5, RelativeTable, T5Joint

grids = [(7,), (4, 4), (3, 8), (1, 6), (2, 3, 4), (5, 1, 2)]


def close(a: torch.Tensor, b: torch.Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(a, b.to(a.dtype), atol=atol, rtol=1e-6)


def cells(*extent: int) -> torch.Tensor:
    return torch.cartesian_prod(*(torch.arange(n) for n in extent)).reshape(-1, len(extent)).double()


def points(*shape: int, seed: int = 0, reach: float = 5.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * reach


def filled(encoding: nn.Module, seed: int = 3) -> nn.Module:
    """With parameters that are not small, and FIRE's c and L above their initial values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in encoding.parameters():
            noise = torch.randn(p.shape, generator=generator)
            p.copy_(noise if p.numel() > 1 else p + 0.2 * noise.abs())
    return encoding


# ---- LookHere

root = math.sqrt(0.5)
eight = [(root, root), (-root, -root), (root, -root), (-root, root), (1, 0), (-1, 0), (0, 1), (0, -1)]  # four corners, four sides


def angle(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    return math.degrees(math.acos(max(-1.0, min(1.0, sum(x * y for x, y in zip(a, b)) / math.hypot(*a) / math.hypot(*b)))))


def by_sight(ways: list, slopes: list[float], fov: float, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    bias = torch.empty(len(ways), len(query), len(key), dtype=torch.float64)
    for h, (way, slope) in enumerate(zip(ways, slopes)):
        for i, x in enumerate(query.tolist()):
            for j, y in enumerate(key.tolist()):
                step = tuple(b - a for a, b in zip(x, y))
                seen = way is None or not any(step) or angle(step, way) <= fov / 2 + 1e-4
                bias[h, i, j] = -slope * math.hypot(*step) if seen else -math.inf
    return bias


@pytest.mark.parametrize("fov", [45, 90, 180])
@pytest.mark.parametrize("extent", [(4, 4), (3, 5)])
def test_twelve_heads_on_two_axes_are_those_of_the_paper(extent, fov):
    turn = math.pi / 8 if fov == 45 else 0.0
    ways = [(math.cos(turn) * y - math.sin(turn) * x, math.sin(turn) * y + math.cos(turn) * x) for y, x in eight]
    slopes = [1 / 2] * 8 + [1 / 4, 1 / 16, 1 / 64, 1 / 256]
    expected = by_sight([*ways, *[None] * 4], slopes, fov, cells(*extent), cells(*extent))
    bias = LookHere(12, 2, fov=fov).at(*extent)
    assert bias.dtype == torch.float32 and torch.equal(bias == -math.inf, expected == -math.inf)
    close(bias, expected)


def picture(bias: torch.Tensor) -> str:
    return "/".join("".join("x" if seen else "." for seen in row) for row in (bias > -math.inf).tolist())


@pytest.mark.parametrize(
    "fov, head, expected",
    [
        (180, 4, "...../...../xxxxx/xxxxx/xxxxx"),  # down
        (180, 0, "....x/...xx/..xxx/.xxxx/xxxxx"),  # down right
        (90, 5, "xxxxx/.xxx./..x../...../....."),  # up
        (90, 3, "..xxx/..xxx/..xxx/...../....."),  # up right
        (45, 4, "...../...../..xxx/...xx/....x"),  # an eighth: from right to down right, both included
    ],
)
def test_a_token_in_the_middle_sees_what_the_paper_draws(fov, head, expected):
    seen = {picture(b) for b in LookHere(12, 2, fov=fov)(torch.tensor([[2.0, 2.0]]), cells(5, 5))[:8, 0].unflatten(-1, (5, 5))}
    assert len(seen) == 8 and expected in seen
    if fov != 45:
        assert picture(LookHere(12, 2, fov=fov)(torch.tensor([[2.0, 2.0]]), cells(5, 5))[head, 0].unflatten(-1, (5, 5))) == expected


@pytest.mark.parametrize("heads, directed", [(1, 0), (2, 2), (3, 2), (4, 2), (5, 4), (6, 4), (8, 6), (12, 8), (16, 10), (24, 16)])
@pytest.mark.parametrize("axes", [1, 2, 3, 4])
def test_two_thirds_of_any_number_of_heads_are_directed_in_opposite_pairs(axes, heads, directed):
    views = LookHere(heads, axes, fov=90).views
    ways = [way for way, _ in views]
    assert [way is None for way in ways] == [False] * directed + [True] * (heads - directed)
    for there, back in zip(ways[:directed:2], ways[1:directed:2]):
        assert math.isclose(math.hypot(*there), 1.0) and all(math.isclose(a, -b) for a, b in zip(there, back))
    count = {1: 2, 2: 8, 3: 14, 4: 24}[axes]
    assert len(set(ways[:directed])) == min(directed, count)
    assert [slope for _, slope in views[:directed]] == [2.0 ** -(1 + h // count) for h in range(directed)]
    around = [slope for _, slope in views[directed:]]
    assert around == sorted(around, reverse=True) and set(around) <= {1 / 4, 1 / 16, 1 / 64, 1 / 256}
    assert around[:1] == [1 / 4] * (heads > directed)


def test_heads_that_look_all_around_share_four_slopes():
    assert [slope for _, slope in LookHere(8, 2, directed=0).views] == [4.0 ** -(1 + h // 2) for h in range(8)]
    assert [slope for _, slope in LookHere(5, 2, directed=0).views] == [1 / 4, 1 / 4, 1 / 16, 1 / 16, 1 / 64]


@pytest.mark.parametrize("axes, count", [(1, 2), (2, 8), (3, 14), (4, 24), (5, 42)])
def test_directions_are_corners_and_sides_and_no_more(axes, count):
    ways = towards(1000, axes)
    signs = {tuple(round(v / max(map(abs, way)), 6) for v in way) for way in ways}
    assert len(ways) == len(signs) == count
    sides = {tuple(float(s * (a == b)) for b in range(axes)) for a in range(axes) for s in (1, -1)}
    assert signs == sides | set(itertools.product((1.0, -1.0), repeat=axes))


@pytest.mark.parametrize(
    "axes, count, least", [(2, 4, 90), (2, 8, 45), (3, 6, 70.5), (3, 8, 70.5), (3, 14, 54.7), (4, 8, 90), (4, 24, 60)]
)
def test_directions_stay_far_from_each_other(axes, count, least):
    ways = towards(count, axes)
    assert len(ways) == count and min(angle(a, b) for a, b in itertools.combinations(ways, 2)) >= least - 0.1
    assert all(math.isclose(sum(parts), 0, abs_tol=1e-9) for parts in zip(*ways))  # none is favoured


@pytest.mark.parametrize("axes, fov", [(1, None), (2, None), (2, 45), (2, 180), (3, None), (3, 180)])
def test_twelve_heads_leave_no_token_unseen_by_those_that_are_directed(axes, fov):
    extent = (5,) * axes
    bias = LookHere(12, axes, fov=fov)(torch.full((1, axes), 2.0), cells(*extent))[:8, 0]
    assert (bias > -math.inf).any(0).all() and (bias == -math.inf).any(1).all()


@pytest.mark.parametrize("heads", [1, 2, 5, 12])
@pytest.mark.parametrize("extent", grids)
def test_looking_is_its_formula_on_grids_of_one_to_three_axes(extent, heads):
    encoding = LookHere(heads, len(extent), fov=100, slope=1.5, depth=0.25)
    ways, slopes = zip(*encoding.views)
    expected = by_sight(list(ways), [1.5 * 1.25 * m for m in slopes], 100, cells(*extent), cells(*extent))
    bias = encoding.at(*extent)
    assert bias.shape == (heads, math.prod(extent), math.prod(extent)) and torch.equal(bias == -math.inf, expected == -math.inf)
    close(bias, expected)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_looking_is_its_formula_between_any_points_and_batches_of_them(axes):
    encoding, query, key = LookHere(6, axes, fov=90), points(2, 4, axes, seed=1), points(2, 6, axes, seed=2)
    ways, slopes = zip(*encoding.views)
    batch = encoding(query, key)
    for sample in range(2):
        close(batch[sample], by_sight(list(ways), list(slopes), 90, query[sample], key[sample]))


def test_left_and_right_are_the_directions_of_one_axis():
    bias = LookHere(3, 1).at(3)
    left, right = (bias[h].isfinite().tolist() for h in (1, 0))
    assert left == [[True, False, False], [True, True, False], [True, True, True]] and right == torch.tensor(left).T.tolist()
    assert bias[2].isfinite().all()


def test_layers_look_alike_and_mind_distance_less_and_less():
    layers = LookHere.stack(5, 12, 2, fov=90)
    bias = torch.stack([layer.at(4, 3) for layer in layers])
    assert isinstance(layers, nn.ModuleList) and torch.equal(bias.isfinite(), bias[:1].isfinite().expand_as(bias))
    unit = LookHere(12, 2, fov=90, layer_slopes=(1.0, 1.0)).at(4, 3)
    for slope, own in zip((1.5, 1.25, 1.0, 0.75, 0.5), bias):
        close(own, slope * unit)
    assert len(LookHere.stack(1, 3, 2)) == 1 and LookHere.stack(1, 3, 2)[0].slope == 1.5


@pytest.mark.parametrize("fov", [1e-3, 45, 90, 180, 359])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_every_token_sees_itself_so_that_no_softmax_is_nan(axes, fov):
    for at in (cells(*(3,) * axes), points(20, axes), points(20, axes) + 1e5, torch.zeros(4, axes), points(9, axes).float()):
        bias = LookHere(16, axes, fov=fov)(at, at)
        assert bias.diagonal(dim1=1, dim2=2).eq(0).all() and bias.softmax(-1).isfinite().all()


def test_a_view_all_around_is_a_linear_bias():
    close(LookHere(3, 2, directed=0).at(4, 5), ALiBi(1, 2).at(4, 5) * 2**8 * torch.tensor([1 / 4, 1 / 16, 1 / 64])[:, None, None])
    assert torch.equal(LookHere(3, 2, fov=360, directed=3, depth=1).at(4, 5).isfinite(), torch.ones(3, 20, 20).bool())


@pytest.mark.parametrize(
    "options, message",
    [
        ({"fov": 0}, r"fov=0: give degrees above 0"),
        ({"fov": 400}, r"fov=400"),
        ({"directed": 4}, r"directed=4: give from 0 to 3"),
        ({"directed": -1}, r"directed=-1"),
        ({"depth": 2}, r"depth=2: give from 0"),
        ({"slope": -1.0}, r"slope=-1.0"),
        ({"layer_slopes": (1.0,)}, r"layer_slopes=\(1.0,\): .* \(first, last\)"),
        ({"layer_slopes": (1.0, -2.0)}, r"layer_slopes=\(1.0, -2.0\)"),
    ],
)
def test_looking_refuses_what_makes_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        LookHere(3, 2, **options)


# ---- FIRE


def fire_by_formula(encoding: FIRE, query: torch.Tensor, key: torch.Tensor, extent: tuple[int, ...]) -> torch.Tensor:
    c, threshold = (math.exp(p.item()) for p in (encoding.log_c, encoding.log_threshold))
    net = copy.deepcopy(nn.Sequential(encoding.hidden, nn.ReLU(), encoding.out)).double()
    ratio = torch.empty(len(query), len(key), 1, dtype=torch.float64)
    corners = list(itertools.product(*((0, n - 1) for n in extent)))
    for i, x in enumerate(query.tolist()):
        most = max(threshold, *(math.dist(x, corner) for corner in corners))
        for j, y in enumerate(key.tolist()):
            ratio[i, j] = math.log(c * math.dist(x, y) + 1) / math.log(c * most + 1)
    return net(ratio).detach().movedim(-1, 0)


@pytest.mark.parametrize("heads", [1, 5])
@pytest.mark.parametrize("threshold", [1.0, 4.0, 100.0])
@pytest.mark.parametrize("extent", grids)
def test_fire_is_its_formula_on_grids(extent, threshold, heads):
    encoding = filled(FIRE(heads, len(extent), threshold=threshold, c=0.7))
    bias = encoding.at(*extent)
    assert bias.dtype == torch.float32 and bias.shape == (heads, math.prod(extent), math.prod(extent))
    close(bias, fire_by_formula(encoding, cells(*extent), cells(*extent), extent))


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_fire_is_its_formula_between_any_points_and_batches_of_them(axes):
    encoding, extent = filled(FIRE(3, axes, width=8, threshold=3.0)), (9, 4, 6)[:axes]
    query, key = points(2, 4, axes, seed=1), points(2, 6, axes, seed=2)
    batch = encoding(query, key, extent)
    assert batch.shape == (2, 3, 4, 6)
    for sample in range(2):
        close(batch[sample], fire_by_formula(encoding, query[sample], key[sample], extent))


@pytest.mark.parametrize("width", [1, 2, 7, 32])
def test_pieces_are_the_network_and_have_its_gradients(width):
    generator = torch.Generator().manual_seed(width)
    shapes = ((width,), (width,), (4, width), (4,))
    layers = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]
    if width == 7:
        layers[0][2:4] = 0  # units that do not depend on z: one on, one off
        layers[1][2:4] = torch.tensor([1.0, -1.0])
    layers = [layer.requires_grad_() for layer in layers]
    z = torch.cat((torch.rand(200, generator=generator, dtype=torch.float64) * 2, torch.tensor([0.0, 50.0]))).requires_grad_()
    weight, offset, out, bias = layers
    expected = (weight * z[:, None] + offset).relu() @ out.T + bias
    ends, slopes, levels = pieces(*layers)
    at = torch.bucketize(z.detach(), ends)
    got = slopes[at] * z[:, None] + levels[at]
    close(got, expected, atol=1e-10)
    pull = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    for ours, theirs in zip(torch.autograd.grad(got, [*layers, z], pull), torch.autograd.grad(expected, [*layers, z], pull)):
        close(ours, theirs, atol=1e-9)


@pytest.mark.parametrize("extent", [(5,), (14, 14), (30, 3), (64, 64), (2, 9, 9)])
def test_fire_asks_its_function_for_numbers_from_zero_to_one_at_any_size(extent):
    """With a function that is the ratio itself."""
    encoding = FIRE(1, len(extent), width=1, trained_extent=(4,) * len(extent))
    with torch.no_grad():
        for p, value in zip((*encoding.hidden.parameters(), *encoding.out.parameters()), (1.0, 0.0, 1.0, 0.0)):
            p.fill_(value)
    corners = cells(*(2,) * len(extent)) * (torch.tensor(extent) - 1)
    ratio = encoding(corners, cells(*extent), extent)
    assert ratio.min() == 0 and ratio.max() <= 1 + 1e-6
    close(ratio.amax(-1), torch.ones(1, len(corners)))


def test_the_trained_grid_is_encoded_by_distance_alone_and_a_larger_one_squeezed():
    encoding = filled(FIRE(2, 2, trained_extent=(6, 6)))
    with torch.no_grad():
        encoding.log_threshold.fill_(math.log(5 * math.sqrt(2)))
    small, known, large = (encoding(cells(4, 4), cells(4, 4), (side, side)) for side in (4, 6, 20))
    close(small, known)
    close(known, known.mT)
    assert (large - known).abs().max() > 1e-2


def test_fire_learns_both_its_numbers_and_keeps_them_positive():
    encoding = FIRE(2, 2, trained_extent=(6, 6))
    assert math.isclose(math.exp(encoding.log_threshold.item()), math.dist((6, 6), (1, 1)), rel_tol=1e-6) and encoding.log_c == 0
    optimizer = torch.optim.SGD(encoding.parameters(), lr=1e-3)
    for _ in range(3):
        encoding.zero_grad()
        (encoding.at(6, 6) * torch.arange(36)).mean().backward()
        assert all(p.grad.abs().max() > 0 for p in encoding.parameters())
        optimizer.step()
    with torch.no_grad():
        encoding.log_c.fill_(-9.0)
        encoding.log_threshold.fill_(-9.0)
    assert encoding.at(6, 6).isfinite().all() and encoding.at(1, 1).isfinite().all()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"c": 0.0}, r"c=0.0"),
        ({"threshold": -1.0}, r"threshold=-1.0"),
        ({"width": 0}, r"width=0"),
        ({"trained_extent": (4,)}, r"trained_extent=\(4,\) has 1 entries for axes=2"),
    ],
)
def test_fire_refuses_what_makes_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        FIRE(3, 2, **options)


def test_fire_must_be_told_the_grid():
    with pytest.raises(ValueError, match=r"extent=None, but this FIRE depends on the size of the grid"):
        FIRE(3, 2)(cells(3, 3), cells(3, 3))


# ---- what every bias keeps

trained = {1: (5,), 2: (4, 4), 3: (2, 3, 2)}
kinds = {
    "t5": lambda heads, axes: T5(heads, axes, trained_extent=trained[axes]),
    "t5, joint": lambda heads, axes: T5Joint(heads, axes, buckets=8, trained_extent=trained[axes]),
    "table": lambda heads, axes: RelativeTable(heads, axes, trained_extent=trained[axes]),
    "table, counted": lambda heads, axes: RelativeTable(heads, axes, trained_extent=trained[axes], scaling="none"),
    "lookhere": lambda heads, axes: LookHere(heads, axes),
    "fire": lambda heads, axes: FIRE(heads, axes, trained_extent=trained[axes]),
}
learned = [kind for kind in kinds if kind != "lookhere"]
every, every_learned = pytest.mark.parametrize("kind", kinds), pytest.mark.parametrize("kind", learned)


@pytest.mark.parametrize("axes", [1, 2, 3])
@every
def test_permuting_tokens_with_their_positions_permutes_the_bias(kind, axes):
    encoding, at, extent = filled(kinds[kind](4, axes)), points(9, axes), (8,) * axes
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    assert torch.equal(encoding(at[order], at[order], extent), encoding(at, at, extent)[:, order][:, :, order])
    assert not torch.equal(encoding(at[order], at, extent), encoding(at, at, extent))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every
def test_a_batch_of_positions_is_its_samples_one_by_one(kind, dtype):
    encoding, query, key = filled(kinds[kind](3, 2)), points(3, 5, 2, seed=1).to(dtype), points(3, 7, 2, seed=2).to(dtype)
    batch = encoding(query, key, (6, 9))
    assert batch.shape == (3, 3, 5, 7) and batch.dtype == torch.float32
    assert torch.equal(batch, torch.stack([encoding(q, k, (6, 9)) for q, k in zip(query, key)]))
    assert torch.equal(encoding(query[0], key, (6, 9)), torch.stack([encoding(query[0], k, (6, 9)) for k in key]))


@pytest.mark.parametrize("extent", [(1, 1), (1, 9), (3, 8), (24, 24)])
@every
def test_any_grid_from_one_token_up_has_a_bias(kind, extent):
    encoding, tokens = filled(kinds[kind](3, 2)), math.prod(extent)
    bias = encoding.at(*extent)
    assert bias.shape == (3, tokens, tokens) and bias.dtype == torch.float32 and not bias.isnan().any()
    assert torch.equal(encoding(cells(*extent), cells(*extent), torch.tensor(extent)), bias)  # as a batch of sizes is told
    assert bias.softmax(-1).isfinite().all()


@pytest.mark.parametrize("kind", [kind for kind in kinds if kind != "fire"])  # which measures the way to the corners of the grid
def test_positions_far_out_keep_their_offsets(kind):
    encoding, at = filled(kinds[kind](3, 2)), cells(3, 4)
    close(encoding(at + 1e6, at + 1e6, (4, 4)), encoding(at, at, (4, 4)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every
def test_in_half_precision_only_what_is_learned_is_rounded(kind, dtype):
    encoding = filled(kinds[kind](6, 2))
    low = copy.deepcopy(encoding).to(dtype)
    rounded = copy.deepcopy(encoding)
    with torch.no_grad():
        for p in rounded.parameters():
            p.copy_(p.to(dtype))
    assert low.at(9, 14).dtype == torch.float32 and torch.equal(low.at(9, 14), rounded.at(9, 14))


@every
def test_autocast_does_not_round(kind):
    encoding = filled(kinds[kind](6, 2))
    expected = encoding.at(9, 14)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(encoding.at(9, 14), expected)


@pytest.mark.parametrize("axes", [1, 2, 3])
@every_learned
def test_gradients_reach_every_parameter_and_are_those_of_a_small_step(kind, axes):
    encoding, at = filled(kinds[kind](2, axes)).double(), points(6, axes, reach=2).abs()
    pull = points(2, 6, 6, seed=5)

    def loss() -> torch.Tensor:
        return (encoding(at, at, trained[axes]).double() * pull).sum()

    loss().backward()
    for p in encoding.parameters():
        step = points(1, *p.shape, seed=6)[0] / 5
        with torch.no_grad():
            p.add_(step * 1e-3)
            ahead = loss()
            p.sub_(step * 2e-3)
            behind = loss()
            p.add_(step * 1e-3)
        expected = (p.grad * step).sum().item()
        assert p.grad.isfinite().all() and p.grad.abs().max() > 1e-4
        assert abs((ahead - behind).item() / 2e-3 - expected) < 2e-2 * (1 + abs(expected))


@every
def test_what_is_learned_is_saved_copied_and_kept_from_weight_decay(kind):
    encoding = filled(kinds[kind](3, 2))
    names = {name for name, _ in encoding.named_parameters()}
    assert bool(names) is (kind != "lookhere") and set(encoding.state_dict()) == names == encoding.no_weight_decay()
    for other in (copy.deepcopy(encoding), pickle.loads(pickle.dumps(encoding))):
        assert torch.equal(other.at(3, 5), encoding.at(3, 5))
    other = kinds[kind](3, 2)
    other.load_state_dict(encoding.state_dict())
    assert torch.equal(other.at(3, 5), encoding.at(3, 5))


@every
def test_made_on_the_meta_device_and_reset_is_as_made(kind):
    with torch.device("meta"):
        encoding = kinds[kind](3, 2)
    encoding.to_empty(device="cpu")
    if kind != "lookhere":
        encoding.reset_parameters()
    else:
        assert torch.equal(encoding.at(3, 4), kinds[kind](3, 2).at(3, 4))
    for p, q in zip(encoding.parameters(), kinds[kind](3, 2).parameters()):
        assert p.isfinite().all() and p.dtype == torch.float32 and q.abs().max() / 10 <= p.abs().max() <= q.abs().max() * 10


@pytest.mark.parametrize(
    "cls, options, count",
    [(T5, {}, 0), (T5Joint, {}, 0), (RelativeTable, {"trained_extent": (4, 4)}, 3), (FIRE, {}, 3), (LookHere, {}, 3)],
)
def test_a_stack_is_one_for_all_layers_or_one_a_layer(cls, options, count):
    made = cls.stack(3, 6, 2, **options)
    assert isinstance(made, cls) if count == 0 else isinstance(made, nn.ModuleList) and len(made) == count
    for one in [made] if count == 0 else made:
        assert isinstance(one, cls) and (one.heads, one.axes) == (6, 2)
    assert len({id(p) for p in made.parameters()}) == len(list(made.parameters()))


@pytest.mark.parametrize("heads, axes", [(0, 2), (-1, 2), (2.0, 2), (True, 2), (3, 0)])
@pytest.mark.parametrize("cls", [T5, LookHere, FIRE])
def test_numbers_of_heads_and_axes_that_are_none_are_refused(cls, heads, axes):
    with pytest.raises(ValueError, match=r"(heads|axes)=.*: give a whole number of at least 1"):
        cls(heads, axes)


@every
def test_a_bias_that_holds_minus_infinity_says_so(kind):
    encoding = kinds[kind](12, 2)
    assert encoding.at(3, 4).isinf().any().item() is encoding.hides


@every
def test_positions_of_another_number_of_axes_are_refused(kind):
    with pytest.raises(ValueError, match=r"\[N, 2\]"):
        kinds[kind](2, 2)(points(4, 3), points(4, 3), (3, 3))


class Largest(TorchDispatchMode):
    """The most numbers that any tensor held."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in torch.utils._pytree.tree_leaves(out):
            if isinstance(t, torch.Tensor):
                self.count = max(self.count, t.untyped_storage().nbytes() // t.element_size())
        return out


@every
def test_no_tensor_is_larger_than_the_bias_itself(kind):
    encoding, tokens = kinds[kind](3, 2), 18 * 20
    with Largest() as largest:
        encoding.at(18, 20).nan_to_num(neginf=0).sum().backward() if kind != "lookhere" else encoding.at(18, 20)
    assert largest.count <= 3 * tokens * tokens


# ---- in a graph


class Grid(nn.Module):
    def __init__(self, *encodings: nn.Module) -> None:
        super().__init__()
        self.encodings = nn.ModuleList(encodings)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, H, height, width]
        return x.flatten(2)[..., None] + torch.stack([one.at(*x.shape[-2:]) for one in self.encodings])[:, None]


extents = [(4, 5), (3, 7), (9, 2)]
in_a_graph = ["t5", "table", "lookhere", "fire"]


def test_all_compile_in_one_frame_over_sizes():
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    model = Grid(*(filled(kinds[kind](3, 2)) for kind in in_a_graph))
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for extent in extents:
        x = torch.zeros(2, 3, *extent)
        close(compiled(x), model(x))
    assert counter.frame_count <= 2


def test_all_export_with_dynamic_sizes():
    model = Grid(*(filled(kinds[kind](3, 2)) for kind in in_a_graph))
    sides = {2: torch.export.Dim("h", min=2, max=64), 3: torch.export.Dim("w", min=2, max=64)}
    program = torch.export.export(model, (torch.zeros(2, 3, 4, 5),), dynamic_shapes={"x": sides}, strict=False)
    for extent in extents:
        x = torch.zeros(2, 3, *extent)
        close(program.module()(x), model(x))


# ---- in a model


def plain_vit() -> vit.VisionTransformer:
    """A class token and a register before a 4 x 4 grid, whose tokens are averaged."""
    given = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 4, "reg_tokens": 1}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return vit.VisionTransformer(**given, dynamic_img_size=True, global_pool="avg")


def images(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def wrapped(kind: str, layered: bool) -> nn.Module:
    made = [kinds[kind](3, 2) for _ in range(2 if layered else 1)]
    return wrap(plain_vit(), nn.ModuleList(made) if layered else made[0])


@pytest.mark.parametrize("layered", [False, True])
@every
def test_a_wrapped_model_trains(kind, layered):
    model = wrapped(kind, layered)
    x, y = images(8, 3, 32, 40), torch.arange(8) % 4
    before = [p.detach().clone() for p in model.encoding.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    losses = []
    for _ in range(6):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert all(not torch.equal(p, old) for p, old in zip(model.encoding.parameters(), before))
    assert all(f"encoding.{name}" in model.no_weight_decay() for name, _ in model.encoding.named_parameters())


@pytest.mark.parametrize("size", [(32, 32), (64, 24), (8, 48)])
@every
@torch.no_grad()
def test_a_wrapped_model_is_timms_with_the_bias_as_a_mask_and_none_on_prefix_tokens(kind, size):
    plain, x, encoding = plain_vit().eval(), images(2, 3, *size), filled(kinds[kind](3, 2))
    ours = wrap(copy.deepcopy(plain), encoding, keep_pos_embed=True)
    mask = nn.functional.pad(encoding.at(size[0] // 8, size[1] // 8), (2, 0, 2, 0))
    close(ours(x), plain(x, attn_mask=mask))
    assert (ours(x) - plain(x)).abs().max() > 1e-4


@torch.no_grad()
def test_each_layer_takes_its_own_bias_and_half_precision_stays_finite():
    plain, x = plain_vit().eval(), images(2, 3, 48, 32)
    stack = LookHere.stack(2, 3, 2)
    ours = wrap(copy.deepcopy(plain), stack)
    twice = wrap(copy.deepcopy(plain), nn.ModuleList([stack[0], stack[0]]))
    assert (ours(x) - twice(x)).abs().max() > 1e-5
    for dtype in (torch.bfloat16, torch.float16):
        low = copy.deepcopy(ours).to(dtype)(x.to(dtype))
        assert low.isfinite().all() and (low.float() - ours(x)).norm() < 0.05 * ours(x).norm() + 0.05
    causal = ours(x, is_causal=True)
    assert causal.isfinite().all()
