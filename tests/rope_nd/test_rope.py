"""The module: precision through casts, meta devices, copies and checkpoints; construction errors."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from rope_nd import RoPE, grid
from rope_nd.freqs import FAMILIES, axial

casts = {
    "half": lambda m: m.half(),
    "bfloat16": lambda m: m.bfloat16(),
    "float": lambda m: m.float(),
    "to bfloat16": lambda m: m.to(torch.bfloat16),
    "half and back": lambda m: m.half().float(),
    "bfloat16 and back": lambda m: m.bfloat16().float(),
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "shared memory": lambda m: m.share_memory(),
}


@pytest.mark.parametrize("cast", casts)
@pytest.mark.parametrize("family", ["axial", "mixed", "golden"])
def test_phases_survive_casts_and_copies(cast, family):
    model = nn.Sequential(RoPE(32, 2, family, heads=2, scaling="yarn", trained_extent=(4, 4)))
    before = model[0].at(20, 300)
    after = casts[cast](model)[0].at(20, 300)
    assert torch.equal(before.cos, after.cos) and torch.equal(before.sin, after.sin) and after.cos.dtype == torch.float32


def test_gradients_stay_with_learned_frequencies_through_a_cast():
    rope = RoPE(16, 2, "mixed")
    rope.at(3, 3).cos.sum().backward()
    before = rope.freqs.grad.clone()
    assert torch.equal(rope.half().freqs.grad, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_touch_phases(dtype):
    points = torch.tensor([[65536.0, 3.0], [65537.0, 4.0]])
    for family in ("axial", "mixed"):
        rope = RoPE(64, 2, family)
        plain = rope(points)
        with torch.autocast("cpu", dtype=dtype):
            inside = rope(points)
        assert torch.equal(plain.cos, inside.cos) and torch.equal(plain.sin, inside.sin)


@pytest.mark.parametrize("family", FAMILIES)
def test_meta_construction_then_to_empty_and_reset_gives_the_same_tables(family):
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2), RoPE(32, 3, family, heads=2))
    assert model[1].freqs.is_meta
    model.to_empty(device="cpu")
    model[1].reset_parameters()
    expected = RoPE(32, 3, family, heads=2)
    assert torch.equal(model[1].freqs, expected.freqs) and torch.equal(model[1].at(2, 3, 4).sin, expected.at(2, 3, 4).sin)


def test_fixed_frequencies_need_no_reset_after_to_empty():
    with torch.device("meta"):
        rope = RoPE(32, 2)
    assert torch.equal(rope.to_empty(device="cpu").freqs, RoPE(32, 2).freqs)


def test_only_learned_values_are_in_the_state_dict():
    assert RoPE(64, 2, scaling="ntk", trained_extent=(14, 14)).state_dict() == {}
    mixed = RoPE(64, 2, "mixed", heads=3)
    assert set(mixed.state_dict()) == {"freqs"} and mixed.freqs.dtype == torch.float32 and mixed.no_weight_decay() == {"freqs"}
    other = RoPE(64, 2, "mixed", heads=3, seed=1)
    buffer = io.BytesIO()
    torch.save(mixed.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True), strict=True)
    assert torch.equal(other.at(9, 4).cos, mixed.at(9, 4).cos)  # at any extent
    assert RoPE(64, 2, "golden", learned=True, heads=3).learned and not RoPE(64, 2, "mixed", learned=False).learned


def test_positions_above_256_stay_distinct_in_a_bfloat16_model():
    rope = RoPE(64, 1, theta=10000).bfloat16()
    rotation = rope.at(2048)
    q = torch.randn(1, 1, 1, 64).expand(-1, -1, 2048, -1).bfloat16()
    assert len(rotation.cos.unique(dim=0)) == 2048
    turned = rotation(q)[0, 0]
    assert (turned[1:] != turned[:-1]).any(-1).all()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(rope.at(2048).cos, rotation.cos)


@pytest.mark.parametrize("theta", [100.0, 10000.0])
def test_fixed_tables_are_within_1e_6_of_float64_up_to_65536(theta):
    points = torch.tensor([[0.0], [1], [255], [257], [4096], [65535], [65536], [65535.5], [-65536]])
    phase = points.double() * theta ** (-torch.arange(32).double() / 32)
    for rope in (RoPE(64, 1, theta=theta), RoPE(64, 1, theta=theta).bfloat16()):
        rotation = rope(points)
        assert (rotation.cos.double() - phase.cos()).abs().max() < 1e-6
        assert (rotation.sin.double() - phase.sin()).abs().max() < 1e-6


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_learned_tables_are_within_1e_4_an_axis_of_float64_at_1024(axes):
    rope = RoPE(64, axes, "mixed", heads=4, theta=10)
    points = torch.full((1, axes), 1024.0)
    phase = torch.einsum("na,hpa->hnp", points.double(), rope.freqs.detach().double())
    rotation = rope(points)
    worst = max((rotation.cos.double() - phase.cos()).abs().max(), (rotation.sin.double() - phase.sin()).abs().max())
    assert worst < 1e-4 * axes


def test_a_table_for_a_short_grid_after_a_long_one_is_a_slice_of_it():
    rope = RoPE(32, 1)
    long, short = rope.at(100), rope.at(7)
    assert torch.equal(short.cos, long.cos[:7])


def test_changed_frequencies_change_the_next_table():
    rope = RoPE(32, 1, "mixed")
    before = rope.at(5).cos
    with torch.no_grad():
        rope.freqs.mul_(2)
    assert not torch.equal(before, rope.at(5).cos)


def test_inference_mode_then_a_training_step():
    rope = RoPE(16, 2, "mixed")
    with torch.inference_mode():
        rope.at(3, 3)(torch.randn(1, 1, 9, 16))
    x = torch.randn(1, 1, 9, 16, requires_grad=True)
    rope.at(3, 3)(x).sum().backward()
    assert x.grad is not None and rope.freqs.grad is not None


def test_the_grid_of_at_is_what_positions_gives_and_chunks_equal_the_whole():
    rope = RoPE(32, 2, coordinates={"spacing": (0.5, 1), "offset": (3, 0)})
    whole = rope.at(4, 6)
    assert torch.equal(rope(rope.positions(4, 6)).cos, whole.cos)
    assert torch.equal(rope(rope.positions(4, 6)[5:11]).cos, whole.cos[5:11])


def test_a_kept_subset_with_the_whole_extent_is_scaled_as_the_whole():
    rope = RoPE(32, 2, scaling="ntk", trained_extent=(4, 4))
    assert torch.allclose(rope(grid(8, 8)[10:20], extent=(8, 8)).cos, rope.at(8, 8).cos[10:20], atol=1e-6)


def test_given_wave_vectors_are_used_as_they_are():
    table = axial(16, 2, split=(10, 6))
    assert torch.equal(RoPE(32, 2, table).freqs, table) and torch.equal(RoPE(32, 2, table[0]).freqs, table)


def test_two_threads_get_the_numbers_of_one():
    from concurrent.futures import ThreadPoolExecutor

    rope, x = RoPE(32, 2, "mixed", scaling="yarn", trained_extent=(4, 4)), torch.randn(1, 1, 200, 32)
    extents = [(2, 3), (8, 9), (10, 20), (5, 5)] * 8
    plain = [rope.at(*e)(x[:, :, : e[0] * e[1]]) for e in extents]
    with ThreadPoolExecutor(4) as pool:
        threaded = list(pool.map(lambda e: rope.at(*e)(x[:, :, : e[0] * e[1]]), extents))
    assert all(torch.equal(a, b) for a, b in zip(plain, threaded))


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: RoPE(4, 3), "head_dim=4 has 2 pairs for axes=3"),
        (lambda: RoPE(33, 2), "nearest that works is 32"),
        (lambda: RoPE(0, 2), "head_dim=0"),
        (lambda: RoPE(64, 0), "axes=0"),
        (lambda: RoPE(64, 2, heads=0.5), "heads=0.5"),
        (lambda: RoPE(64, 2, rotary_dim=80), "rotary_dim=80"),
        (lambda: RoPE(64, 2, "axail"), "did you mean 'axial'"),
        (lambda: RoPE(64, 2, layout="interleave"), "did you mean 'interleaved'"),
        (lambda: RoPE(64, 2, coordinates={"normalise": "unit"}), "did you mean 'normalize'"),
        (lambda: RoPE(64, 2, leftovers="spread"), "no option 'leftovers'"),
        (lambda: RoPE(64, 2, torch.zeros(31, 2)), "expected [H or 1, 32, 2]"),
        (lambda: RoPE(64, 2, torch.zeros(3, 32, 2), heads=2), "expected [2 or 1, 32, 2]"),
        (lambda: RoPE(64, 2, torch.full((32, 2), float("nan"))), "NaN"),
        (lambda: RoPE(64, 2, torch.zeros(32, 2), theta=3.0), "no meaning"),
        (lambda: RoPE(64, 2).at(14), "axes=2"),
        (lambda: RoPE(64, 2).at(14, -14), "got -14"),
        (lambda: RoPE(64, 2)(torch.zeros(4, 3)), "expected [N, 2]"),
        (lambda: RoPE(64, 2)(torch.tensor([[0.0, float("inf")]])), "NaN or infinity"),
        (lambda: RoPE(64, 2, trained_extent=(14, 0)), "got 0"),
    ],
)
def test_bad_input_is_named_with_its_mend(call, says):
    with pytest.raises(ValueError) as caught:
        call()
    assert says in str(caught.value)
