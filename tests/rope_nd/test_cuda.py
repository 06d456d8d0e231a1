"""On a CUDA device: the same tables and the same turning as on the CPU. Skipped where there is none."""

import pytest
import torch

from rope_nd import RoPE, grid

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("family", ["axial", "mixed", "golden"])
@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_tables_and_rotations_equal_those_of_the_cpu(family, layout):
    rope = RoPE(64, 2, family, heads=4, layout=layout, scaling="yarn", trained_extent=(4, 4), temperature="log", prefix_tokens=1)
    q, k = torch.randn(2, 2, 4, 1 + 7 * 300, 64)
    expected = rope.at(7, 300).qk(q, k)
    moved = rope.half().cuda()
    assert moved.freqs.dtype == (torch.float32 if moved.learned else torch.float64)
    for one, other in zip(moved.at(7, 300).qk(q.cuda(), k.cuda()), expected):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_touch_phases_at_large_offsets(dtype):
    rope, points = RoPE(64, 2, theta=10000).cuda(), grid(3, 5, offset=65536).cuda()
    with torch.autocast("cuda", dtype=dtype):
        inside = rope(points)
    assert torch.equal(inside.cos, rope(points).cos)
    phase = points.double() @ rope.freqs[0].T
    assert (inside.cos.double() - phase.cos()).abs().max() < 1e-6


def test_meta_construction_materialises_on_the_device():
    with torch.device("meta"):
        rope = RoPE(32, 3)
    assert torch.equal(rope.to_empty(device="cuda").freqs.cpu(), RoPE(32, 3).freqs)


def test_nan_positions_are_refused_there_too():
    with pytest.raises(ValueError, match="NaN"):
        RoPE(32, 2).cuda()(torch.full((3, 2), float("nan"), device="cuda"))
