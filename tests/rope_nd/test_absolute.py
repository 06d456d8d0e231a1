"""Absolute codes: learned tables are F.interpolate's at any size, sinusoidal codes are those of the formula."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from rope_nd import grid
from rope_nd.absolute import Sinusoidal
from rope_nd.learned import Learned

tables = {1: (7,), 2: (4, 5), 3: (2, 3, 4), 4: (2, 3, 2, 3)}
larger = {
    1: [(7,), (14,), (19,), (3,)],
    2: [(4, 5), (8, 10), (9, 3), (1, 13)],
    3: [(2, 3, 4), (4, 3, 7)],
    4: [(2, 3, 2, 3), (3, 4, 5, 2)],
}
every_size = [(axes, extent) for axes, extents in larger.items() for extent in extents]


def resized(table: torch.Tensor, extent: tuple[int, ...], mode: str) -> torch.Tensor:
    """The table [*T, C] at another extent, one axis at a time through F.interpolate: [N, C]."""
    for axis, size in enumerate(extent):
        moved = table.movedim(axis, -1)  # [.., T_a]
        rows = moved.reshape(1, -1, 1, moved.shape[-1])
        rows = F.interpolate(rows, size=(1, size), mode={"cubic": "bicubic", "linear": "bilinear"}[mode], align_corners=False)
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


@pytest.mark.parametrize("mode", ["cubic", "linear"])
@pytest.mark.parametrize("axes, extent", every_size)
def test_a_learned_table_is_resized_as_interpolate_resizes_it(axes, extent, mode):
    code = Learned(6, axes, trained_extent=tables[axes], mode=mode, std=1.0)
    torch.testing.assert_close(code.at(*extent), resized(code.table, extent, mode), atol=1e-5, rtol=1e-5)
    code = code.double()
    torch.testing.assert_close(code.at(*extent), resized(code.table, extent, mode), atol=1e-12, rtol=1e-12)


def test_two_axes_are_bicubic_interpolation_in_one_call():
    code = Learned(6, 2, trained_extent=(4, 5), std=1.0)
    for extent in ((4, 5), (9, 8), (3, 11), (2, 2)):
        expected = F.interpolate(code.table.movedim(-1, 0)[None], size=extent, mode="bicubic", align_corners=False)
        torch.testing.assert_close(code.at(*extent), expected[0].flatten(1).mT, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scaling", ["pi", "none", None])
@pytest.mark.parametrize("mode", ["cubic", "linear"])
@pytest.mark.parametrize("axes", tables)
def test_the_trained_extent_reads_the_table_exactly(axes, mode, scaling):
    code = Learned(6, axes, trained_extent=tables[axes], mode=mode, scaling=scaling)
    assert torch.equal(code.at(*tables[axes]), code.table.flatten(0, -2))


@pytest.mark.parametrize("axes, extent", every_size)
def test_without_scaling_token_i_reads_entry_i_and_the_border_beyond(axes, extent):
    code = Learned(6, axes, trained_extent=tables[axes], scaling="none")
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


@pytest.mark.parametrize("axes", tables)
def test_batches_of_positions_are_read_a_sample_at_a_time(axes):
    code = Learned(6, axes, trained_extent=tables[axes], std=1.0)
    points = torch.rand(3, 8, axes) * 5
    extent = tuple(2 * n for n in tables[axes])
    got = code(points, extent)
    assert got.shape == (3, 8, 6)
    torch.testing.assert_close(got, torch.stack([code(p, extent) for p in points]))
    whole = code.at(*extent)
    torch.testing.assert_close(code(grid(*extent).flip(0), extent), whole.flip(0))
    torch.testing.assert_close(code(grid(*extent).long(), extent), whole)


@pytest.mark.parametrize("mode", ["cubic", "linear"])
def test_learned_tables_have_right_gradients_for_table_and_positions(mode):
    torch.manual_seed(0)
    code = Learned(2, 2, trained_extent=(3, 4), mode=mode, std=1.0).double()
    points = (torch.rand(2, 5, 2, dtype=torch.float64) * 3).requires_grad_()

    def read(table: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(code, {"table": table}, (points, (5, 6)))

    assert torch.autograd.gradcheck(read, (code.table.detach().requires_grad_(), points))


@pytest.mark.parametrize("axes, extent", [(2, (9, 7)), (1, (700,))])
def test_a_bfloat16_table_is_read_at_float32_coordinates(axes, extent):
    trained = (4, 5) if axes == 2 else (300,)
    code = Learned(8, axes, trained_extent=trained, std=1.0).bfloat16()
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
        (lambda: Sinusoidal(2, 2), "axes=2"),
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
