"""Tables of offsets: T5's buckets are the published ones, Swin's entries those of the offset, in between and beyond as promised."""

import math
from itertools import product

import pytest
import torch

from rope_nd.relative import T5, RelativeTable, T5Joint, bucket, bucket_starts

grids = [(7,), (4, 4), (3, 8), (1, 6), (2, 3, 4), (5, 1, 2)]


def close(a: torch.Tensor, b: torch.Tensor, atol: float = 1e-6) -> None:
    torch.testing.assert_close(a, b.to(a.dtype), atol=atol, rtol=0)


def cells(*extent: int) -> torch.Tensor:
    return torch.cartesian_prod(*(torch.arange(n) for n in extent)).reshape(-1, len(extent)).double()


def points(*shape: int, seed: int = 0, reach: float = 5.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * reach


def filled(encoding: torch.nn.Module, seed: int = 3) -> torch.nn.Module:
    """With entries that are not small."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in encoding.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return encoding


def published(offset: int, buckets: int = 32, reach: int = 128) -> int:
    """T5's bucket of key - query (Raffel 2020): bidirectional, exact for near offsets, logarithmic for far ones."""
    half = buckets // 2
    ahead, distance, exact = (half if offset > 0 else 0), abs(offset), half // 2
    if distance < exact:
        return ahead + distance
    far = exact + math.floor(math.log(distance / exact) / math.log(reach / exact) * (half - exact) + 1e-9)
    return ahead + min(far, half - 1)


# ---- T5's buckets


@pytest.mark.parametrize("buckets, reach", [(32, 128), (32, 20), (16, 64), (12, 40), (64, 512), (8, 13), (4, 9)])
def test_buckets_of_whole_offsets_are_the_published_ones(buckets, reach):
    offset = torch.arange(-1000, 1001)
    expected = torch.tensor([published(int(o), buckets, reach) for o in offset])
    assert torch.equal(bucket(offset.double(), buckets, reach), expected)
    assert torch.equal(bucket(offset.float(), buckets, reach), expected)


def test_buckets_of_t5_start_where_everybody_knows_they_do():
    assert bucket_starts(16, 128) == (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91)


@pytest.mark.parametrize("reach", [0, 1, 3, 7, 8])
def test_within_reach_of_the_exact_buckets_each_distance_has_its_own_and_what_is_beyond_shares_the_last(reach):
    offset = torch.arange(-50, 51).double()
    expected = [min(abs(int(o)), reach) + (16 if o > 0 and reach else 0) for o in offset]
    assert bucket(offset, 32, reach).tolist() == expected


def test_offsets_between_whole_numbers_are_rounded():
    offset = points(500, reach=30)
    assert bucket(offset, 32, 128).tolist() == [published(round(float(o))) for o in offset]


# ---- T5's tables


def t5_by_formula(encoding: T5, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    table = encoding.table.detach().double()
    bias = torch.zeros(encoding.heads, len(query), len(key), dtype=torch.float64)
    for i, x in enumerate(query.tolist()):
        for j, y in enumerate(key.tolist()):
            each = [published(round(b - a), encoding.buckets, reach) for a, b, reach in zip(x, y, encoding.max_distance)]
            if isinstance(encoding, T5Joint):
                bias[:, i, j] = table.view(*[encoding.buckets] * encoding.axes, -1)[tuple(each)]
            else:
                bias[:, i, j] = sum(table[axis, b] for axis, b in enumerate(each))
    return bias


@pytest.mark.parametrize("heads", [1, 5])
@pytest.mark.parametrize("extent", grids)
@pytest.mark.parametrize("cls, buckets, reach", [(T5, 32, 128), (T5, 8, 5), (T5Joint, 8, 5), (T5Joint, 6, 30)])
def test_t5_is_its_formula_on_grids(cls, buckets, reach, extent, heads):
    encoding = filled(cls(heads, len(extent), buckets=buckets, max_distance=reach))
    bias = encoding.at(*extent)
    assert bias.dtype == torch.float32 and bias.shape == (heads, math.prod(extent), math.prod(extent))
    close(bias, t5_by_formula(encoding, cells(*extent), cells(*extent)))


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("cls", [T5, T5Joint])
def test_t5_is_its_formula_between_any_points_and_batches_of_them(cls, axes):
    encoding = filled(cls(2, axes, buckets=8, max_distance=tuple(range(9, 9 + axes))))
    query, key = points(3, 5, axes, seed=1), points(3, 7, axes, seed=2)
    batch = encoding(query, key)
    assert batch.shape == (3, 2, 5, 7)
    for sample in range(3):
        close(batch[sample], t5_by_formula(encoding, query[sample], key[sample]))


def test_a_joint_table_can_be_any_sum_of_tables_and_more():
    summed, joint = filled(T5(3, 2, buckets=8, max_distance=10)), T5Joint(3, 2, buckets=8, max_distance=10)
    with torch.no_grad():
        joint.table.copy_((summed.table[0][:, None] + summed.table[1][None]).flatten(0, 1))
    assert torch.equal(joint.at(4, 9), summed.at(4, 9))
    filled(joint)
    at = cells(3, 3)
    square = torch.tensor([0, 1, 3, 4])  # the sum of tables is modular: f(0, 0) + f(1, 1) = f(0, 1) + f(1, 0)
    for encoding, is_sum in ((summed, True), (joint, False)):
        f = encoding(at[:1], at[square])[:, 0]
        assert torch.allclose(f[:, 0] + f[:, 3], f[:, 1] + f[:, 2], atol=1e-5) is is_sum


@pytest.mark.parametrize("trained", [(14, 14), (9,), (3, 20), (1, 5), (2, 8, 30), (16, 17)])
def test_a_larger_grid_reads_only_buckets_that_the_trained_one_had_read(trained):
    extent = tuple(3 * n + 1 for n in trained)

    def read(encoding: T5, size: tuple[int, ...]) -> torch.Tensor:
        encoding.zero_grad()
        corners = cells(*(2 for _ in size)) * (torch.tensor(size) - 1)
        encoding(corners, cells(*size), size).sum().backward()
        return encoding.table.grad != 0

    encoding = T5(1, len(trained), trained_extent=trained)
    seen, larger = read(encoding, trained), read(encoding, extent)
    assert seen.any() and torch.equal(seen | larger, seen)
    textual = T5(1, len(trained))
    assert textual.max_distance == (128,) * len(trained) and (read(textual, extent) & ~read(textual, trained)).any()


@pytest.mark.parametrize("cls", [T5, T5Joint])
def test_t5_starts_normal_and_small(cls):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        table = cls(12, 2, buckets=32, std=0.02).table
    assert abs(table.std().item() - 0.02) < 0.002 and table.mean().abs() < 0.002 and table.dtype == torch.float32
    assert T5(12, 2).table.shape == (2, 32, 12) and T5Joint(12, 2).table.shape == (1024, 12)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"buckets": 31}, r"buckets=31: .* even"),
        ({"buckets": 0}, r"buckets=0"),
        ({"max_distance": 0}, r"max_distance=0: .* at least 1"),
        ({"max_distance": (3, 4, 5)}, r"max_distance=\(3, 4, 5\): .* or 2 of them"),
        ({"max_distance": 7.5}, r"max_distance=7.5"),
        ({"trained_extent": (4,)}, r"trained_extent=\(4,\) has 1 entries for axes=2"),
        ({"trained_extent": (4, 0)}, r"trained_extent=\(4, 0\)"),
    ],
)
def test_t5_refuses_what_makes_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        T5(3, 2, **options)


def test_a_product_table_too_large_says_how_many_buckets_fit():
    with pytest.raises(ValueError, match=r"buckets=32: 32\^5 entries are too many; give at most 16"):
        T5Joint(2, 5)
    assert T5Joint(1, 5, buckets=16).table.shape == (2**20, 1)


# ---- a table of offsets


def table_by_formula(encoding: RelativeTable, query: torch.Tensor, key: torch.Tensor, ratio: tuple[float, ...]) -> torch.Tensor:
    """Multilinear between the entries around (query - key) ratio + T - 1, the border beyond."""
    table = encoding.table.detach().double().view(*(2 * n - 1 for n in encoding.extent), -1)
    bias = torch.zeros(encoding.heads, len(query), len(key), dtype=torch.float64)
    for i, x in enumerate(query.tolist()):
        for j, y in enumerate(key.tolist()):
            at = [min(max((a - b) * r + n - 1, 0), 2 * n - 2) for a, b, r, n in zip(x, y, ratio, encoding.extent)]
            for up in product((0, 1), repeat=len(at)):
                entry = [min(math.floor(p) + u, 2 * n - 2) for p, u, n in zip(at, up, encoding.extent)]
                share = math.prod(p - math.floor(p) if u else 1 - (p - math.floor(p)) for p, u in zip(at, up))
                bias[:, i, j] += share * table[tuple(entry)]
    return bias


@pytest.mark.parametrize("scaling", ["pi", "none"])
@pytest.mark.parametrize("extent", grids)
def test_at_the_trained_size_each_pair_reads_the_entry_of_its_offset(extent, scaling):
    encoding = filled(RelativeTable(3, len(extent), trained_extent=extent, scaling=scaling))
    table, at = encoding.table.detach().view(*(2 * n - 1 for n in extent), 3), cells(*extent).long()
    index = at[:, None] - at[None] + torch.tensor(extent) - 1  # as Swin makes it
    assert torch.equal(encoding.at(*extent), table[tuple(index.unbind(-1))].permute(2, 0, 1))


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize(
    "trained, extent", [((5,), (9,)), ((4, 4), (6, 3)), ((3, 2), (3, 7)), ((2, 3, 2), (3, 2, 3)), ((1, 4), (3, 4))]
)
def test_other_sizes_read_between_the_entries_stretched_or_counted(trained, extent, heads):
    at = cells(*extent)
    for scaling, ratio in (("pi", tuple(t / n for t, n in zip(trained, extent))), ("none", (1.0,) * len(extent))):
        encoding = filled(RelativeTable(heads, len(trained), trained_extent=trained, scaling=scaling))
        close(encoding.at(*extent), table_by_formula(encoding, at, at, ratio))


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_any_points_and_batches_of_them_are_read_between_entries(axes):
    trained, extent = (4, 3, 2)[:axes], (5, 7, 2)[:axes]
    query, key = points(2, 4, axes, seed=1, reach=2), points(2, 6, axes, seed=2, reach=2)
    encoding = filled(RelativeTable(3, axes, trained_extent=trained))
    batch = encoding(query, key, extent)
    assert batch.shape == (2, 3, 4, 6)
    for sample in range(2):
        expected = table_by_formula(encoding, query[sample], key[sample], tuple(t / n for t, n in zip(trained, extent)))
        close(batch[sample], expected)


def test_interpolated_offsets_that_are_the_same_share_of_the_image_read_the_same_entry():
    encoding = filled(RelativeTable(2, 2, trained_extent=(4, 6)))
    fine = encoding.at(8, 18).unflatten(2, (8, 18)).unflatten(1, (8, 18))
    assert torch.equal(fine[:, ::2, ::3, ::2, ::3].flatten(3).flatten(1, 2), encoding.at(4, 6))


def test_counted_offsets_stay_and_those_beyond_the_table_read_its_border():
    encoding = filled(RelativeTable(2, 1, trained_extent=(4,), scaling="none"))
    large = encoding.at(10)
    assert torch.equal(large[:, :4, :4], encoding.at(4)) and torch.equal(large[:, 5:9, 5:9], encoding.at(4))
    border = large[:, 0, 3:]
    assert torch.equal(border, border[:, :1].expand(-1, 7)) and torch.equal(border[:, 0], encoding.table[0])


def test_a_stretched_table_must_be_told_the_grid_and_a_counted_one_need_not():
    at, trained = cells(3, 5), (3, 4)
    for extent in (None, (5,), (3, 5, 1)):
        with pytest.raises(ValueError, match=r"extent=.*RelativeTable depends on the size of the grid: .* 2 of them"):
            RelativeTable(2, 2, trained_extent=trained)(at, at, extent)
    for scaling in ("none", None):
        counted = RelativeTable(2, 2, trained_extent=trained, scaling=scaling)
        assert not counted.sized and torch.equal(counted(at, at), counted.at(3, 5))


@pytest.mark.parametrize("pair", [((2, 0), (0, 0)), ((0, 0), (2, 0)), ((0, 3), (0, 0)), ((1, 0), (0, 2))])
def test_directions_are_told_apart(pair):
    """Unlike a function of distance: bias(i, j) and bias(j, i) are two entries."""
    for encoding in (T5(2, 2), T5Joint(2, 2), RelativeTable(2, 2, trained_extent=(4, 4), scaling="none")):
        here, there = (torch.tensor([p], dtype=torch.float64) for p in pair)
        assert not torch.equal(filled(encoding)(here, there), encoding(there, here))


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, r"trained_extent=None: .* 2 token counts"),
        ({"trained_extent": (4,)}, r"trained_extent=\(4,\)"),
        ({"trained_extent": (4, 0)}, r"trained_extent=\(4, 0\)"),
        ({"trained_extent": (4, 4), "scaling": "yarn"}, r"scaling for a table of offsets 'yarn': choose one of 'pi', 'none'"),
        ({"trained_extent": (1000, 1000)}, r"3996001 offsets is too large; use bias 't5' or 'fire'"),
    ],
)
def test_a_table_of_offsets_refuses_what_makes_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        RelativeTable(3, 2, **options)
