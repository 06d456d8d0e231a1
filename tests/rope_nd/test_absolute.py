"""Absolute codes: learned tables are F.interpolate's at any size, sinusoidal and Fourier codes are those of the formula."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from rope_nd import grid
from rope_nd.absolute import Sinusoidal, fourier
from rope_nd.learned import Learned

tables = {1: (7,), 2: (4, 5), 3: (2, 3, 4), 4: (2, 3, 2, 3)}
larger = {
    1: [(7,), (14,), (19,), (3,)],
    2: [(4, 5), (8, 10), (9, 3), (1, 13)],
    3: [(2, 3, 4), (4, 3, 7)],
    4: [(2, 3, 2, 3), (3, 4, 5, 2)],
}
every_size = [(axes, extent) for axes, extents in larger.items() for extent in extents]


def resized(table: torch.Tensor, extent: tuple[int, ...], mode: str, antialias: bool = False) -> torch.Tensor:
    """The table [*T, C] at another extent, one axis at a time through F.interpolate: [N, C]."""
    for axis, size in enumerate(extent):
        moved = table.movedim(axis, -1)  # [.., T_a]
        rows = moved.reshape(1, -1, 1, moved.shape[-1])
        name = {"cubic": "bicubic", "linear": "bilinear"}[mode]
        rows = F.interpolate(rows, size=(1, size), mode=name, align_corners=False, antialias=antialias)
        table = rows.reshape(*moved.shape[:-1], size).movedim(-1, axis)
    return table.flatten(0, -2)


def formula(points: torch.Tensor, dim: int, theta: float = 10000.0) -> torch.Tensor:
    """code[2i] = sin(w_i x_a), code[2i + 1] = cos(w_i x_a), each axis its own channels; float64, [N, A] -> [N, C]."""
    axes, pairs, code = points.shape[-1], dim // 2, []
    counts = [pairs // axes + (a < pairs % axes) for a in range(axes)] if pairs % axes == 0 else None
    assert counts is not None, "the reference knows even splits"
    for a, count in enumerate(counts):
        for i in range(count):
            phase = points[..., a].double() * theta ** (-i / count)
            code += [phase.sin(), phase.cos()]
    return torch.stack(code + [torch.zeros_like(code[0])] * (dim % 2), -1)


# ---- learned


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("mode", ["cubic", "linear"])
@pytest.mark.parametrize("axes, extent", every_size)
def test_a_learned_table_is_resized_as_interpolate_resizes_it(axes, extent, mode, antialias):
    code = Learned(6, axes, trained_extent=tables[axes], mode=mode, antialias=antialias, std=1.0)
    torch.testing.assert_close(code.at(*extent), resized(code.table, extent, mode, antialias), atol=1e-5, rtol=1e-5)
    code = code.double()
    torch.testing.assert_close(code.at(*extent), resized(code.table, extent, mode, antialias), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("mode, name", [("cubic", "bicubic"), ("linear", "bilinear")])
def test_two_axes_are_bicubic_or_bilinear_interpolation_in_one_call(mode, name, antialias):
    code = Learned(6, 2, trained_extent=(14, 9), mode=mode, antialias=antialias, std=1.0)
    for extent in ((14, 9), (7, 5), (3, 31), (28, 2), (13, 8), (1, 1), (64, 64)):
        expected = F.interpolate(code.table.movedim(-1, 0)[None], extent, mode=name, align_corners=False, antialias=antialias)
        torch.testing.assert_close(code.at(*extent), expected[0].flatten(1).mT, atol=1e-5, rtol=1e-5)


def test_antialiasing_reads_every_entry_of_the_table_when_there_are_fewer_tokens():
    for antialias in (False, True):
        code = Learned(1, 1, trained_extent=(64,), antialias=antialias)
        code.at(4).sum().backward()
        assert bool(code.table.grad.ne(0).all()) == antialias


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("mode", ["cubic", "linear"])
@pytest.mark.parametrize("axes, extent", every_size)
def test_each_axis_may_be_stretched_or_not(axes, extent, mode, antialias):
    for first in (True, False):
        each = [(a % 2 == 0) == first for a in range(axes)]
        scaling = tuple("pi" if one else "none" for one in each)
        code = Learned(6, axes, trained_extent=tables[axes], mode=mode, antialias=antialias, scaling=scaling, std=1.0)
        size = [n if one else t for n, t, one in zip(extent, tables[axes], each)]
        stretched = resized(code.table, size, mode, antialias).unflatten(0, size)
        at = torch.minimum(grid(*extent).long(), torch.tensor(size) - 1)  # what is not stretched reads the border beyond
        torch.testing.assert_close(code.at(*extent), stretched[tuple(at.mT)], atol=1e-5, rtol=1e-5)
        assert code.sized == any(each)


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("scaling", ["pi", "none", None])
@pytest.mark.parametrize("mode", ["cubic", "linear"])
@pytest.mark.parametrize("axes", tables)
def test_the_trained_extent_reads_the_table_exactly(axes, mode, scaling, antialias):
    code = Learned(6, axes, trained_extent=tables[axes], mode=mode, scaling=scaling, antialias=antialias)
    assert torch.equal(code.at(*tables[axes]), code.table.flatten(0, -2))


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("axes, extent", every_size)
def test_without_scaling_token_i_reads_entry_i_and_the_border_beyond(axes, extent, antialias):
    code = Learned(6, axes, trained_extent=tables[axes], scaling="none", antialias=antialias)
    last = torch.tensor(tables[axes]) - 1
    at = torch.minimum(grid(*extent).long(), last)
    assert torch.equal(code.at(*extent), code.table[tuple(at.mT)])
    assert torch.equal(code(torch.full((1, axes), -3.0), extent)[0], code.table[(0,) * axes])
    assert torch.equal(code(torch.full((1, axes), 1e4), extent)[0], code.table[(-1,) * axes])


def test_float_positions_are_read_between_entries():
    code = Learned(6, 2, trained_extent=(4, 5), mode="linear", std=1.0)
    t = code.table
    points = torch.tensor([[1.25, 2.0], [0.5, 3.5]])
    expected = torch.stack([0.75 * t[1, 2] + 0.25 * t[2, 2], (t[0, 3] + t[0, 4] + t[1, 3] + t[1, 4]) / 4])
    torch.testing.assert_close(code(points), expected)
    cubic = Learned(6, 1, trained_extent=(6,), std=1.0)
    weights = torch.tensor([-0.09375, 0.59375, 0.59375, -0.09375])  # Keys' kernel, a = -0.75, half way
    torch.testing.assert_close(cubic(torch.tensor([[2.5]]))[0], weights @ cubic.table[1:5])
    fine = torch.linspace(0, 5, 5001)[:, None]
    assert (cubic(fine)[1:] - cubic(fine)[:-1]).abs().max() < 1e-2  # no jumps


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("axes", tables)
def test_batches_of_positions_are_read_a_sample_at_a_time(axes, antialias):
    code = Learned(6, axes, trained_extent=tables[axes], antialias=antialias, std=1.0)
    points = torch.rand(3, 8, axes) * 5
    extent = tuple(2 * n for n in tables[axes])
    got = code(points, extent)
    assert got.shape == (3, 8, 6)
    torch.testing.assert_close(got, torch.stack([code(p, extent) for p in points]))
    whole = code.at(*extent)
    torch.testing.assert_close(code(grid(*extent).flip(0), extent), whole.flip(0))
    torch.testing.assert_close(code(grid(*extent).long(), extent), whole)
    torch.testing.assert_close(code(grid(*extent), torch.tensor(extent)), whole)


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("mode", ["cubic", "linear"])
def test_learned_tables_have_right_gradients_for_table_and_positions(mode, antialias):
    torch.manual_seed(0)
    code = Learned(2, 2, trained_extent=(3, 4), mode=mode, antialias=antialias, std=1.0).double()
    points = (torch.rand(2, 5, 2, dtype=torch.float64) * 2).requires_grad_()

    def read(table: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(code, {"table": table}, (points, (5, 3)))

    assert torch.autograd.gradcheck(read, (code.table.detach().requires_grad_(), points))


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("axes, extent", [(2, (9, 7)), (1, (700,)), (1, (290,))])
def test_a_bfloat16_table_is_read_at_float32_coordinates(axes, extent, antialias):
    trained = (4, 5) if axes == 2 else (300,)
    code = Learned(8, axes, trained_extent=trained, antialias=antialias, std=1.0).bfloat16()
    assert code.table.dtype == code.at(*extent).dtype == torch.bfloat16
    assert torch.equal(code.at(*trained), code.table.flatten(0, -2))
    assert torch.equal(code.at(*extent), copy.deepcopy(code).float().at(*extent).bfloat16())


def test_a_learned_table_is_saved_and_drawn_again_after_meta():
    code = Learned(6, 2, trained_extent=(3, 4))
    assert set(code.state_dict()) == {"table"} == code.no_weight_decay() and code.table.shape == (3, 4, 6)
    with torch.device("meta"):
        empty = Learned(6, 2, trained_extent=(3, 4))
    empty.to_empty(device="cpu").reset_parameters()
    assert 0 < empty.table.std() < 0.05


# ---- sinusoidal


@pytest.mark.parametrize("axes, dim", [(1, 16), (1, 17), (2, 48), (2, 49), (3, 48), (4, 64), (4, 65)])
def test_sinusoidal_codes_are_those_of_the_formula(axes, dim):
    code = Sinusoidal(dim, axes)
    extent = (11, 7, 3, 2)[:axes]
    got = code.at(*extent)
    assert got.dtype == torch.float32 and got.shape == (math.prod(extent), dim)
    assert (got.double() - formula(grid(*extent), dim)).abs().max() < 1e-6
    points = torch.randn(3, 9, axes) * 1000
    batch = code(points)
    assert batch.shape == (3, 9, dim) and (batch.double() - formula(points, dim)).abs().max() < 1e-6
    torch.testing.assert_close(batch[1], code(points[1]), atol=0, rtol=0)
    assert (Sinusoidal(dim, axes, theta=100.0)(points).double() - formula(points, dim, 100.0)).abs().max() < 1e-6


@pytest.mark.parametrize("axes, dim", [(2, 6), (3, 32), (4, 30), (2, 50)])
def test_channels_that_do_not_divide_are_all_finite_and_every_axis_is_seen(axes, dim):
    code = Sinusoidal(dim, axes)
    still = code(torch.zeros(1, axes))
    for axis in range(axes):
        moved = code(torch.eye(axes)[axis : axis + 1])
        assert moved.shape == (1, dim) and moved.isfinite().all() and not torch.allclose(moved, still)


@pytest.mark.parametrize("axes", [1, 2, 3, 4])
def test_a_step_in_position_is_a_linear_map_of_the_code_the_same_everywhere(axes):
    code = Sinusoidal(8 * axes, axes, theta=30.0)
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(400, axes, generator=generator, dtype=torch.float64) * 400
    step = torch.tensor([3.0, -2.0, 1.5, 7.0], dtype=torch.float64)[:axes]
    here, there = (code(p).double() for p in (points, points + step))
    turn = torch.linalg.lstsq(here, there, driver="gelsd").solution
    assert (here @ turn - there).abs().max() < 1e-6
    torch.testing.assert_close(turn @ turn.mT, torch.eye(8 * axes).double(), atol=1e-4, rtol=0)  # a rotation
    assert (here - there).abs().max() > 0.5
    other = torch.rand(50, axes, generator=generator, dtype=torch.float64) * 400
    assert (code(other).double() @ turn - code(other + step).double()).abs().max() < 1e-5  # at points it was not fitted to


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_interpolation_is_the_same_as_squeezed_positions(axes):
    trained, extent = (4, 6, 2)[:axes], (10, 6, 3)[:axes]
    squeezed = grid(*extent, dtype=torch.float64) / torch.tensor([10 / 4, 1, 3 / 2])[:axes]
    code = Sinusoidal(24, axes, scaling="pi", trained_extent=trained)
    assert (code.at(*extent).double() - formula(squeezed, 24)).abs().max() < 1e-6
    assert torch.equal(code.at(*trained), Sinusoidal(24, axes).at(*trained))
    assert not torch.allclose(code.at(*extent), Sinusoidal(24, axes).at(*extent))
    assert torch.equal(code(grid(*extent)[2:5], extent), code.at(*extent)[2:5])  # a subset passes the whole extent


@pytest.mark.parametrize("cast", ["bfloat16", "half", "double"])
def test_cast_modules_and_autocast_keep_their_codes(cast):
    code = torch.nn.Sequential(Sinusoidal(32, 2, scaling="yarn", trained_extent=(4, 4)))
    before = code[0].at(20, 300)
    assert torch.equal(getattr(code, cast)()[0].at(20, 300), before) and before.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(code[0].at(20, 300), before)
    assert code.state_dict() == {} and len(before.unique(dim=0)) == 6000


@pytest.mark.parametrize("learned", [False, True])
def test_a_sinusoidal_code_takes_any_wave_vectors_and_coordinates(learned):
    vectors = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    code = Sinusoidal(11, 3, vectors, coordinates={"spacing": (2.0, 1.0, 0.5)}, learned=learned)
    rows = [
        [f((w * x).sum().item()) for w in vectors for f in (math.sin, math.cos)] + [0.0]
        for x in grid(3, 4, 2, dtype=torch.float64) * torch.tensor([2.0, 1.0, 0.5])
    ]
    assert (code.at(3, 4, 2).double() - torch.tensor(rows, dtype=torch.float64)).abs().max() < 1e-6
    assert set(code.state_dict()) == code.no_weight_decay() == ({"table.freqs"} if learned else set())
    golden = Sinusoidal(24, 2, "golden", theta=100.0)
    assert torch.equal(golden.at(4, 5)[:, ::2], golden.table.at(4, 5).sin)


# ---- fourier


def waves(vectors: torch.Tensor, extent: tuple[int, ...], dim: int) -> torch.Tensor:
    """code[2i] = sin(w_i . u), code[2i + 1] = cos(w_i . u) at u_a = (i_a + 1/2) / N_a, token by token; `[N, C]`, float64."""
    rows = []
    for index in grid(*extent).long().tolist():
        row = [0.0] * dim
        for i, w in enumerate(vectors.tolist()):
            phase = sum(w_a * (x + 0.5) / n for w_a, x, n in zip(w, index, extent))
            row[2 * i : 2 * i + 2] = [math.sin(phase), math.cos(phase)]
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("dim", [2, 24, 31])
@pytest.mark.parametrize("axes, extent", [(1, (1,)), (1, (13,)), (2, (5, 9)), (2, (1, 4)), (3, (2, 3, 4))])
def test_fourier_features_are_sines_of_their_wave_vectors_over_the_unit_grid(axes, extent, dim, learned):
    code = fourier(dim, axes, learned=learned, sigma=3.0)
    got = code.at(*extent)
    assert got.shape == (math.prod(extent), dim) and got.dtype == torch.float32
    assert (got.double() - waves(code.table.freqs[0], extent, dim)).abs().max() < 1e-6
    assert torch.equal(code(code.positions(*extent), extent), got)
    indices = grid(*extent).long()
    torch.testing.assert_close(code(code.place(indices, extent)), got, atol=0, rtol=0)


@pytest.mark.parametrize("sigma", [2.0, (1.0, 3.0, 10.0)])
def test_fourier_wave_vectors_are_gaussian_of_the_width_asked_for_and_the_seeds(sigma):
    code = fourier(20000, 3, sigma=sigma)
    cycles = code.table.freqs[0] / (2 * math.pi)
    wide = torch.tensor(sigma, dtype=torch.float64).expand(3)
    normal = cycles / wide
    assert normal.mean(0).abs().max() < 0.05 and (normal.mT.cov() - torch.eye(3)).abs().max() < 0.05
    assert (normal.abs() < 1).double().mean().sub(0.6827).abs() < 0.01
    same, other = (fourier(20000, 3, sigma=sigma, seed=seed).table.freqs for seed in (0, 1))
    assert torch.equal(same, code.table.freqs) and not torch.equal(other, code.table.freqs)


def test_fourier_codes_are_alike_by_a_gaussian_of_the_distance_in_any_direction():
    code, sigma = fourier(8192, 2, sigma=1.5), 1.5
    turn = torch.linspace(0, 6, 12, dtype=torch.float64)
    for distance in (0.02, 0.1, 0.2, 0.5):
        there = 0.4 + distance * torch.stack((turn.cos(), turn.sin()), -1)
        alike = (code(there) @ code(torch.full((1, 2), 0.4)).mT) / 4096
        assert (alike - math.exp(-2 * (math.pi * sigma * distance) ** 2)).abs().max() < 0.06


def test_fourier_features_are_laid_over_any_grid_or_keep_their_step():
    code = fourier(32, 2, scaling="pi", trained_extent=(3, 5))
    assert torch.equal(code.at(3, 5), fourier(32, 2).at(3, 5))
    torch.testing.assert_close(code.at(9, 5).unflatten(0, (9, 5))[1::3].flatten(0, 1), code.at(3, 5))  # the same places
    torch.testing.assert_close(code.at(9, 25), fourier(32, 2).at(9, 25))  # "pi" is what unit coordinates do
    keeps = fourier(32, 2, coordinates={"normalize": "unit", "by": "reference", "reference": (3, 5)})
    torch.testing.assert_close(keeps.at(7, 9).unflatten(0, (7, 9))[:3, :5].flatten(0, 1), code.at(3, 5))


def test_learned_fourier_features_are_trained_in_float32_and_saved_and_fixed_ones_are_not():
    code = fourier(24, 2, learned=True)
    before = code.at(5, 6).detach()
    assert set(code.state_dict()) == {"table.freqs"} == code.no_weight_decay() and code.table.freqs.dtype == torch.float32
    code.at(5, 6).square().sin().sum().backward()
    assert code.table.freqs.grad.isfinite().all() and code.table.freqs.grad.abs().amin() > 0
    assert torch.equal(code.bfloat16().at(5, 6), before) and code.table.freqs.dtype == torch.float32
    fixed = fourier(24, 2)
    kept = fixed.at(50, 64)
    assert torch.equal(fixed.bfloat16().at(50, 64), kept) and fixed.state_dict() == {} and not list(fixed.parameters())


# ---- all of them


def every_code(axes: int) -> dict[str, torch.nn.Module]:
    trained = tables[axes]
    return {
        "sinusoidal": Sinusoidal(24, axes, scaling="pi", trained_extent=trained),
        "fourier": fourier(24, axes),
        "learned": Learned(24, axes, trained_extent=trained, std=1.0),
        "learned, antialiased": Learned(24, axes, trained_extent=trained, antialias=True, std=1.0),
    }


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("name", every_code(1))
def test_codes_follow_their_tokens_in_any_order_and_batch(name, axes):
    code, extent = every_code(axes)[name], larger[axes][1]
    points, whole = code.positions(*extent), code.at(*extent)
    generator = torch.Generator().manual_seed(0)
    orders = torch.stack([torch.randperm(len(points), generator=generator) for _ in range(3)])
    torch.testing.assert_close(code(points[orders], extent), whole[orders])
    torch.testing.assert_close(code(points[orders[0]], extent), whole[orders[0]])


@pytest.mark.parametrize("extent", [(1,), (64,), (1, 1), (1, 64), (64, 64), (1, 1, 1), (8, 5, 11)])
@pytest.mark.parametrize("name", every_code(1))
def test_no_two_tokens_of_a_grid_are_alike_from_one_token_to_64_by_64(name, extent):
    got = every_code(len(extent))[name].at(*extent)
    assert got.shape == (math.prod(extent), 24) and got.isfinite().all() and len(got.unique(dim=0)) == len(got)


# ---- refused


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: Learned(8, 2), "trained_extent=None: a learned table needs its size, 2 token counts"),
        (lambda: Learned(8, 2, trained_extent=(4,)), "trained_extent=(4,)"),
        (lambda: Learned(8, 2, trained_extent=(4, 0)), "got 0"),
        (lambda: Learned(8, 1, trained_extent=(4,), scaling="yarn"), "unknown scaling for a learned table 'yarn'"),
        (lambda: Learned(8, 1, trained_extent=(4,), mode="cubik"), "did you mean 'cubic'"),
        (lambda: Learned(8, 2, trained_extent=(4, 4))(torch.zeros(3, 3)), "expected [N, 2]"),
        (lambda: Learned(8, 2, trained_extent=(4, 4))(torch.tensor([[0.0, float("nan")]])), "NaN"),
        (lambda: Learned(8, 2, trained_extent=(4, 4))(torch.zeros(3, 2).bfloat16()), "bfloat16"),
        (lambda: Learned(8, 2, trained_extent=(4, 4), scaling=("pi", "ntk")), "unknown scaling for a learned table 'ntk'"),
        (lambda: Learned(8, 2, trained_extent=(4, 4), scaling=["pi"]), "has 1 entries for 2 axes"),
        (lambda: Learned(8, 2, trained_extent=(4, 4)).at(4), "extent=(4,) has 1 entries: this encoding has axes=2"),
        (lambda: Learned(0, 2, trained_extent=(4, 4)), "dim=0: give a whole number of at least 1"),
        (lambda: Sinusoidal(3, 2), "dim=3 is too narrow for the sinusoidal code on axes=2: the least that works is dim=4"),
        (lambda: Sinusoidal(16, 0), "axes=0: give a whole number of at least 1"),
        (lambda: Sinusoidal(16, 2, heads=3), "heads=3 is for a rotary encoding: leave it out"),
        (lambda: Sinusoidal(16, 2, temperature="log"), "temperature='log' is for a rotary encoding"),
        (lambda: Sinusoidal(16, 2, torch.ones(3, 8, 2)), "a code has no heads, give [1, 8, 2]"),
        (lambda: Sinusoidal(16, 2, torch.ones(7, 2)), "freqs of shape [7, 2]"),
        (lambda: fourier(1, 2), "dim=1 is too narrow for the fourier code on axes=2: the least that works is dim=2"),
        (lambda: fourier(16, 2, sigma=(1.0, 2.0, 3.0)), "sigma=(1.0, 2.0, 3.0) has 3 entries"),
        (lambda: fourier(16, 2, scaling="pi"), "need trained_extent"),
        (lambda: fourier(16, 2).at(4), "axes=2"),
        (lambda: fourier(16, 2)(torch.zeros(3, 1)), "expected [N, 2]"),
        (lambda: Sinusoidal(16, 2, scaling="pi"), "need trained_extent"),
        (lambda: Sinusoidal(16, 2, thta=3), "no option 'thta'"),
        (lambda: Sinusoidal(16, 2).at(4), "axes=2"),
        (lambda: Sinusoidal(16, 2)(torch.zeros(3, 1)), "expected [N, 2]"),
    ],
)
def test_bad_input_is_named_with_its_mend(call, says):
    with pytest.raises(ValueError) as caught:
        call()
    assert says in str(caught.value)
