"""Codes of one coordinate, set side by side: each is its formula on every axis, at every size, whatever it is cast to."""

import copy
import math
import pickle
from fractions import Fraction
from itertools import product

import pytest
import torch
from torch import nn

from rope_nd import grid
from rope_nd.codes import CODES, Code, binary

names = sorted(CODES)
trained = {1: (9,), 2: (5, 7), 3: (2, 3, 5)}
sizes = {1: [(1,), (4,), (23,)], 2: [(1, 1), (5, 7), (3, 11), (12, 2)], 3: [(1, 1, 1), (2, 3, 5), (4, 1, 6)]}
every_size = [(axes, extent) for axes, extents in sizes.items() for extent in extents]


def psi(mother: str, t: float) -> float:
    """The mother wavelets, one number at a time."""
    if mother == "haar":
        return 1.0 if 0 <= t < 0.5 else -1.0 if 0.5 <= t < 1 else 0.0
    bell = math.exp(-t * t / 2) / math.pi**0.25
    return bell * math.cos(5 * t) if mother == "morlet" else 2 / math.sqrt(3) * (1 - t * t) * bell


def numbers(name: str, x, width: int, length: int, *, bits=16, block=8, theta=10000.0, mother="ricker", scales=None) -> list[float]:
    """What a code gives for one coordinate of one axis, as its formula says; Python numbers, exact where `x` is."""
    found: list[float] = []
    if name == "integer":
        found = [x if j % 2 == 0 else -x for j in range(width)]
    elif name == "binary":
        number = min(max(math.floor(x), 0), 2 ** min(bits, width) - 1)
        found = [1 if number >> j & 1 else -1 for j in range(min(bits, width))]
    elif name == "hierarchical":
        for part in (math.floor(x / block), x - block * math.floor(x / block)):
            for i in range(width // 4):
                phase = part * theta ** (-i / (width // 4))
                found += [math.sin(phase), math.cos(phase)]
    elif name == "wavelet":
        scales = scales or min(width, int(math.log2(length)) + 1)
        for s in range(scales):
            shifts = 1 + int((width - scales) * 2 ** (scales - 1 - s) / (2**scales - 1))
            found += [psi(mother, (x - k * length / shifts) / 2**s) for k in range(shifts)]
    return [float(v) for v in found] + [0.0] * (width - len(found))


def reference(name: str, points, dim: int, lengths: tuple[int, ...], **options) -> torch.Tensor:
    """The codes of a list of points, `[N, C]` in float64; an option that is a tuple holds one value an axis."""
    axes, rows = len(lengths), []
    for point in points:
        row: list[float] = []
        for a, x in enumerate(point):
            mine = {k: v[a] if isinstance(v, tuple) else v for k, v in options.items()}
            row += numbers(name, x, dim // axes, lengths[a], **mine)
        rows.append(row + [0.0] * (dim - len(row)))
    return torch.tensor(rows, dtype=torch.float64)


def near(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), expected, atol=1e-7, rtol=1e-7)


def cells(extent: tuple[int, ...]) -> list[tuple[int, ...]]:
    return list(product(*(range(n) for n in extent)))


# ---- the formula


@pytest.mark.parametrize("dim", [24, 53])
@pytest.mark.parametrize("axes, extent", every_size)
@pytest.mark.parametrize("name", names)
def test_a_code_is_its_formula_on_every_axis(name, axes, extent, dim):
    got = Code(dim, axes, name, trained_extent=trained[axes]).at(*extent)
    assert got.shape == (math.prod(extent), dim)
    near(got, reference(name, cells(extent), dim, trained[axes]))


@pytest.mark.parametrize("axes", trained)
@pytest.mark.parametrize("name", names)
def test_real_coordinates_negative_ones_too_have_a_code(name, axes):
    points = torch.randn(40, axes, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 20
    near(Code(40, axes, name, trained_extent=trained[axes])(points), reference(name, points.tolist(), 40, trained[axes]))


@pytest.mark.parametrize("dim", [24, 38])
@pytest.mark.parametrize(
    "name, options",
    [
        ("binary", {"bits": 3}),
        ("binary", {"bits": (2, 9)}),
        ("hierarchical", {"block": 3, "theta": 50.0}),
        ("hierarchical", {"block": (2, 2.5), "theta": (10.0, 100.0)}),
        ("wavelet", {"mother": "morlet"}),
        ("wavelet", {"mother": "haar", "scales": 2}),
        ("wavelet", {"mother": ("haar", "ricker"), "scales": (1, 5)}),
    ],
)
def test_options_are_one_for_all_axes_or_one_an_axis(name, options, dim):
    near(Code(dim, 2, name, trained_extent=(5, 7), **options).at(6, 17), reference(name, cells((6, 17)), dim, (5, 7), **options))


@pytest.mark.parametrize("name", names)
def test_a_step_along_one_axis_changes_the_channels_of_that_axis_alone(name):
    code = Code(50, 3, name, trained_extent=(6, 6, 6))
    still = code(torch.full((1, 3), 2.0))[0]
    for axis in range(3):
        moved = code(2 + torch.eye(3)[axis : axis + 1])[0] != still
        assert moved.any() and not moved[: 16 * axis].any() and not moved[16 * (axis + 1) :].any()


def test_binary_numbers_count():
    line = Code(4, 1, "binary").at(16)
    assert ((line > 0).long() * torch.tensor([1, 2, 4, 8])).sum(-1).tolist() == list(range(16))


def test_beyond_its_bits_a_binary_code_stays_at_the_end_and_does_not_start_over():
    code = Code(8, 2, "binary")  # four bits an axis
    far = torch.tensor([[15.0, 0.0], [16.0, -1.0], [17.5, -0.25], [1e9, -1e9]])
    assert torch.equal(code(far), code(far[:1]).expand(4, -1)) and not torch.equal(code(far[1:2]), code.at(1, 1))
    wide = Code(200, 2, "binary")
    assert len(wide(torch.tensor([[0.0, 65534.0], [0.0, 65535.0], [0.0, 65536.0]])).unique(dim=0)) == 2
    assert len(Code(200, 2, "binary", bits=20)(torch.tensor([[0.0, 65535.0], [0.0, 65536.0]])).unique(dim=0)) == 2


def test_hierarchical_offsets_repeat_in_every_block_and_block_numbers_do_not():
    line = Code(16, 1, "hierarchical", block=5).at(20).unflatten(0, (4, 5))  # [blocks, offsets, C]
    assert torch.equal(line[:, :, 8:], line[:1, :, 8:].expand(4, -1, -1))
    assert torch.equal(line[:, :, :8], line[:, :1, :8].expand(-1, 5, -1)) and len(line[:, 0, :8].unique(dim=0)) == 4


@pytest.mark.parametrize("mother", ["ricker", "morlet", "haar"])
def test_wavelets_are_about_places_in_the_trained_extent_unless_squeezed(mother):
    code = Code(64, 2, "wavelet", mother=mother, trained_extent=(8, 8))
    assert code.at(8, 8).abs().sum(-1).min() > 0.1
    assert code(torch.full((1, 2), 200.0)).abs().max() < 1e-6
    squeezed = Code(64, 2, "wavelet", mother=mother, trained_extent=(8, 8), scaling="pi")
    assert squeezed.at(64, 64).abs().sum(-1).min() > 0.1


# ---- scaling


@pytest.mark.parametrize("scaling", [None, "none", "pi", "per axis"])
@pytest.mark.parametrize("axes, extent", [*every_size, (2, (15, 21)), (2, (4, 49)), (1, (63,))])
@pytest.mark.parametrize("name", names)
def test_pi_squeezes_larger_grids_into_the_trained_one_axis_by_axis(name, axes, extent, scaling):
    each = [scaling == "pi"] * axes if scaling != "per axis" else [a == axes - 1 for a in range(axes)]
    given = scaling if scaling != "per axis" else ["pi" if one else None for one in each]
    ratio = [min(Fraction(1), Fraction(t, n)) if one else 1 for t, n, one in zip(trained[axes], extent, each)]
    points = [tuple(x * r for x, r in zip(cell, ratio)) for cell in cells(extent)]  # exact
    code = Code(48, axes, name, scaling=given, trained_extent=trained[axes])
    near(code.at(*extent), reference(name, points, 48, trained[axes]))
    assert code.sized == any(each)


def test_a_squeezed_token_that_falls_on_a_trained_one_is_not_rounded_below_it():
    squeezed, plain = (Code(8, 1, "binary", scaling=scaling, trained_extent=(14,)) for scaling in ("pi", None))
    assert 55 * (14 / 110) < 7 and torch.equal(squeezed.at(110)[55], plain.at(14)[7])


@pytest.mark.parametrize("name", names)
def test_within_the_trained_extent_pi_changes_nothing(name):
    points = torch.rand(3, 20, 2) * 7
    plain, squeezed = (Code(24, 2, name, trained_extent=(5, 7), scaling=scaling) for scaling in (None, "pi"))
    for extent in ((5, 7), (1, 7), (4, 2)):
        assert torch.equal(squeezed(points, extent), plain(points)) and torch.equal(squeezed.at(*extent), plain.at(*extent))


@pytest.mark.parametrize("name", names)
def test_extents_may_be_a_tensor_and_subsets_pass_the_whole_grids(name):
    code = Code(24, 2, name, trained_extent=(5, 7), scaling="pi")
    whole, points = code.at(10, 28), grid(10, 28)
    for extent in ((10, 28), [10, 28], torch.tensor([10, 28]), torch.tensor([10, 28], dtype=torch.int32)):
        assert torch.equal(code(points[40:90:3], extent), whole[40:90:3])


# ---- tokens, batches, sizes


@pytest.mark.parametrize("scaling", ["none", "pi"])
@pytest.mark.parametrize("axes", trained)
@pytest.mark.parametrize("name", names)
def test_codes_follow_their_tokens_in_any_order_and_batch(name, axes, scaling):
    code, extent = Code(40, axes, name, trained_extent=trained[axes], scaling=scaling), sizes[axes][-1]
    points, whole = grid(*extent), code.at(*extent)
    generator = torch.Generator().manual_seed(0)
    orders = torch.stack([torch.randperm(len(points), generator=generator) for _ in range(3)])  # [B, N]
    assert torch.equal(code(points[orders], extent), whole[orders])
    assert torch.equal(code(points.long(), extent), whole) and torch.equal(code(points.double(), extent), whole)
    assert torch.equal(code.place(points.long(), extent), points) and torch.equal(code.positions(*extent), points)


@pytest.mark.parametrize("extent", [(1,), (64,), (1, 1), (1, 64), (14, 14), (31, 17), (64, 64), (1, 1, 1), (8, 5, 11), (8, 14, 14)])
@pytest.mark.parametrize("name", names)
def test_no_two_tokens_of_a_grid_are_alike_from_one_token_to_64_by_64(name, extent):
    got = Code(48, len(extent), name, trained_extent=extent).at(*extent)
    assert got.shape == (math.prod(extent), 48) and got.isfinite().all() and len(got.unique(dim=0)) == len(got)


# ---- casts, devices, states, graphs


@pytest.mark.parametrize("cast", ["bfloat16", "half", "double"])
@pytest.mark.parametrize("name", names)
def test_cast_modules_and_autocast_keep_their_codes(name, cast):
    model = nn.Sequential(Code(48, 2, name, trained_extent=(9, 9), scaling="pi"))
    before = model[0].at(20, 300)
    assert torch.equal(getattr(model, cast)()[0].at(20, 300), before) and before.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model[0].at(20, 300), before)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other[0].at(20, 300), before)


@pytest.mark.parametrize("name", names)
def test_nothing_is_saved_or_learned_and_grids_are_made_where_the_module_is(name):
    code = Code(48, 2, name, trained_extent=(4, 4))
    assert code.state_dict() == {} and not list(code.parameters()) and code.no_weight_decay() == set()
    with torch.device("meta"):
        empty = Code(48, 2, name, trained_extent=(4, 4))
        assert empty.at(3, 5).is_meta
    assert torch.equal(empty.to_empty(device="cpu").at(3, 5), code.at(3, 5))
    assert code.to("meta").at(3, 5).is_meta
    assert f"'{name}'" in repr(code)


class Added(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.code = Code(24, 2, name, trained_extent=(4, 4), scaling="pi")

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, 24, H, W]
        return x.flatten(2).mT + self.code.at(*x.shape[-2:])


@pytest.mark.parametrize("name", names)
def test_one_graph_takes_any_extent(name):
    torch._dynamo.reset()
    model, graphs = Added(name), []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    sides = {2: torch.export.Dim("h", min=2, max=64), 3: torch.export.Dim("w", min=2, max=64)}
    program = torch.export.export(model, (torch.randn(2, 24, 5, 7),), dynamic_shapes={"x": sides}, strict=False).module()
    for extent in ((5, 7), (3, 9), (12, 8)):
        x = torch.randn(2, 24, *extent)
        torch.testing.assert_close(compiled(x), model(x))
        torch.testing.assert_close(program(x), model(x))
    assert len(graphs) == 1


# ---- a code of one's own, and what is refused


def test_a_function_is_a_code():
    def parity(x, width, length=None, *, sign=1):
        return (sign * (x.floor() % 2))[..., None]

    got = Code(7, 2, parity, sign=(1, -1), scaling="pi", trained_extent=(2, 2)).at(4, 2)
    rows = [[(h // 2) % 2, 0, 0, -(w % 2), 0, 0, 0] for h, w in cells((4, 2))]
    assert torch.equal(got, torch.tensor(rows, dtype=torch.float32))
    wide = Code(4, 2, lambda x, width, length: x[..., None].expand(*x.shape, 3))
    with pytest.raises(ValueError, match="gave 3 channels: it was asked for at most 2"):
        wide.at(2, 2)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("name, each, options", [("integer", 1, {}), ("binary", 1, {}), ("hierarchical", 4, {}), ("wavelet", 1, {}),
                                                 ("wavelet", 6, {"scales": 6})])  # fmt: skip
def test_too_few_channels_are_refused_with_the_least_that_works(name, each, options, axes):
    least = each * axes
    code = Code(least, axes, name, trained_extent=trained[axes], **options)
    assert (code.at(*trained[axes]) != code(torch.zeros(1, axes))).any(0).unflatten(0, (axes, each)).any(1).all()
    if least > 1:
        says = f"dim={least - 1} is too narrow for the {name} code on axes={axes}: the least that works is dim={least}"
        with pytest.raises(ValueError, match=says):
            Code(least - 1, axes, name, trained_extent=trained[axes], **options)


@pytest.mark.parametrize(
    "call, says",
    [
        (
            lambda: Code(8, 2, "binry"),
            "unknown code 'binry': choose one of 'integer', 'binary', 'hierarchical', 'wavelet'",
        ),
        (lambda: Code(0, 2), "dim=0: give a whole number of at least 1"),
        (lambda: Code(8, True), "axes=True"),
        (lambda: Code(8, 2, scaling="pi"), "scaling='pi' needs trained_extent, tokens an axis, for example (14, 14)"),
        (lambda: Code(8, 2, scaling="yarn"), "unknown scaling for a code 'yarn': choose one of 'pi', 'none'"),
        (lambda: Code(8, 2, scaling=["pi"]), "has 1 entries for 2 axes"),
        (lambda: Code(8, 2, scaling=("pi", "ntk"), trained_extent=(4, 4)), "'ntk'"),
        (lambda: Code(8, 2, trained_extent=(4,)), "trained_extent=(4,): give the token count of each of axes=2"),
        (lambda: Code(8, 2, trained_extent=4), "trained_extent=4"),
        (lambda: Code(8, 2, trained_extent=(4, 0)), "got 0"),
        (lambda: Code(8, 2, "binary", bit=3), "code 'binary' has no option 'bit' (did you mean 'bits'?): it takes bits"),
        (lambda: Code(8, 2, "integer", theta=3.0), "code 'integer' has no option 'theta'"),
        (lambda: Code(8, 2, "binary", bits=0), "bits=0: give a whole number from 1 to 52"),
        (lambda: Code(8, 2, "binary", bits=53), "bits=53"),
        (lambda: Code(8, 2, "binary", bits=(3, 4, 5)), "has 3 entries for axes=2"),
        (lambda: Code(8, 2, "hierarchical", block=0), "block=0: give a positive number"),
        (lambda: Code(8, 2, "hierarchical", theta=-1.0), "theta=-1.0"),
        (lambda: Code(8, 2, "wavelet"), "trained_extent=None: wavelets cover the trained extent"),
        (lambda: Code(8, 2, "wavelet", trained_extent=(4, 4), mother="riker"), "did you mean 'ricker'"),
        (lambda: Code(8, 2, "wavelet", trained_extent=(4, 4), scales=0), "scales=0: give a whole number of at least 1"),
        (lambda: Code(8, 2).at(4), "has 1 entries: this encoding has axes=2"),
        (lambda: Code(8, 2).at(4, 0), "got 0"),
        (lambda: Code(8, 2)(torch.zeros(3, 3)), "expected [N, 2]"),
        (lambda: Code(8, 2)(torch.zeros(3, 2).bfloat16()), "bfloat16"),
        (lambda: Code(8, 2)(torch.tensor([[0.0, float("nan")]])), "NaN"),
        (lambda: Code(8, 2, scaling="pi", trained_extent=(4, 4))(torch.zeros(3, 2)), "extent=None, but scaling='pi' depends on it"),
        (lambda: Code(8, 2, scaling="pi", trained_extent=(4, 4))(torch.zeros(3, 2), (4,)), "extent=(4,) has 1 entries"),
        (lambda: binary(torch.zeros(2), 3, bits=2.5), "bits=2.5"),
    ],
)
def test_bad_input_is_named_with_its_mend(call, says):
    with pytest.raises(ValueError) as caught:
        call()
    assert says in str(caught.value)
