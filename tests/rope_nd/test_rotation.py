"""Turning: norms, relativity, layouts, prefix tokens, heads, batches, kernels, gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from rope_nd import RoPE, Rotation, angles, convert_layout, grid, rotate
from rope_nd.freqs import FAMILIES
from rope_nd.lie import HARoPE, LieRE
from rope_nd.polar import PoPE
from rope_nd.variants import FoPE

families = [*FAMILIES, "random learned"]
widths = st.integers(8, 128).map(lambda pairs: 2 * pairs)


def make(family: str, head_dim: int, axes: int, **options) -> RoPE:
    if family == "random learned":
        table = torch.randn(2, head_dim // 2, axes, generator=torch.Generator().manual_seed(axes))
        return RoPE(head_dim, axes, table, learned=True, heads=2, **options)
    return RoPE(head_dim, axes, family, heads=2, **options)


def reference(x: torch.Tensor, points: torch.Tensor, table: torch.Tensor, layout: str) -> torch.Tensor:
    """Each pair by its own 2 x 2 matrix, in float64: [B, H, N, D], [N, A], [H|1, P, A]."""
    phase = torch.einsum("na,hpa->hnp", points.double(), table.double())
    out, pairs = x.double().clone(), table.shape[1]
    for p in range(pairs):
        i, j = (2 * p, 2 * p + 1) if layout == "interleaved" else (p, p + pairs)
        c, s = phase[..., p].cos(), phase[..., p].sin()
        out[..., i], out[..., j] = x[..., i].double() * c - x[..., j].double() * s, x[..., i].double() * s + x[..., j].double() * c
    return out


@given(st.sampled_from(families), st.integers(1, 6), widths, st.sampled_from(["interleaved", "half"]))
@settings(max_examples=120, deadline=None)
def test_norms_are_kept_and_scores_depend_on_differences_alone(family, axes, head_dim, layout):
    rope = make(family, head_dim, axes, layout=layout)
    gen = torch.Generator().manual_seed(head_dim)
    points = torch.randn(5, axes, generator=gen).double() * 7  # fractions and negatives
    moved = points + torch.randn(axes, generator=gen).double() * 5
    q, k = torch.randn(2, 1, 2, 5, head_dim, generator=gen)
    here, there = rope(points), rope(moved)
    torch.testing.assert_close(here(q).norm(dim=-1), q.norm(dim=-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(here(q) @ here(k).mT, there(q) @ there(k).mT, rtol=1e-5, atol=1e-6 * head_dim)


@given(st.sampled_from(families), st.integers(1, 6), widths, st.sampled_from(["interleaved", "half"]))
@settings(max_examples=60, deadline=None)
def test_every_path_equals_the_float64_reference(family, axes, head_dim, layout):
    rope = make(family, head_dim, axes, layout=layout)
    points = torch.randn(4, axes, generator=torch.Generator().manual_seed(axes)) * 9
    x = torch.randn(2, 2, 4, head_dim, generator=torch.Generator().manual_seed(head_dim))
    torch.testing.assert_close(rope(points)(x).double(), reference(x, points, rope.freqs.detach(), layout), rtol=1e-5, atol=1e-5)


@given(st.integers(1, 6), widths, st.sampled_from([0, "spread", "unrotated"]), st.data())
@settings(max_examples=80, deadline=None)
def test_one_step_along_an_axis_changes_that_axis_pairs_only(axes, head_dim, leftover, data):
    rope = RoPE(head_dim, axes, leftover=leftover)
    axis = data.draw(st.integers(0, axes - 1))
    points = torch.randn(3, axes, generator=torch.Generator().manual_seed(axis))
    step = torch.nn.functional.one_hot(torch.tensor(axis), axes)
    changed = (angles(points + step, rope.freqs) != angles(points, rope.freqs)).any(-2)[0]  # [P]
    assert torch.equal(changed, rope.freqs[0, :, axis] != 0)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_zero_angle_is_the_identity(layout):
    for family in families:
        rope, x = make(family, 32, 3, layout=layout), torch.randn(2, 2, 4, 32)
        assert torch.equal(rope(torch.zeros(4, 3))(x), x)


def test_two_rotations_add_and_the_opposite_undoes():
    rope, a, b = RoPE(32, 2), torch.randn(6, 2), torch.randn(6, 2)
    x = torch.randn(1, 2, 6, 32)
    torch.testing.assert_close(rope(a)(rope(b)(x)), rope(a + b)(x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(rope(-a)(rope(a)(x)), x, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rotary_dim", [None, 16])
@pytest.mark.parametrize("source, target", [("interleaved", "half"), ("half", "interleaved")])
def test_the_layout_converter_is_exact_both_ways(source, target, rotary_dim):
    weight, bias, tokens = torch.randn(4 * 32, 24), torch.randn(4 * 32), torch.randn(1, 9, 24)
    points = grid(3, 3)

    def heads(w, b, layout):
        x = torch.nn.functional.linear(tokens, w, b).unflatten(-1, (4, 32)).transpose(1, 2)
        return RoPE(32, 2, layout=layout, rotary_dim=rotary_dim)(points)(x)

    new = [convert_layout(t, 32, source, target, rotary_dim=rotary_dim) for t in (weight, bias)]
    back = [convert_layout(t, 32, target, source, rotary_dim=rotary_dim) for t in new]
    assert torch.equal(back[0], weight) and torch.equal(back[1], bias)
    old, now = heads(weight, bias, source), heads(*new, target)
    moved = convert_layout(old.movedim(-1, 0), 32, source, target, rotary_dim=rotary_dim).movedim(0, -1)
    assert torch.allclose(moved, now, atol=1e-5)
    assert torch.allclose(old @ old.mT, now @ now.mT, atol=1e-4)


def test_prefix_tokens_are_never_turned():
    rotation, x = RoPE(32, 2, prefix_tokens=3).at(2, 5), torch.randn(2, 4, 13, 32)
    assert torch.equal(rotation(x)[:, :, :3], x[:, :, :3])
    assert torch.equal(rotation(x)[:, :, 3:], RoPE(32, 2).at(2, 5)(x[:, :, 3:]))


def test_partial_width_passes_the_other_channels_through():
    x = torch.randn(1, 2, 6, 64)
    for layout in ("interleaved", "half"):
        turned = RoPE(64, 2, rotary_dim=16, layout=layout).at(2, 3)(x)
        assert torch.equal(turned[..., 16:], x[..., 16:])
        assert torch.equal(turned[..., :16], RoPE(16, 2, layout=layout).at(2, 3)(x[..., :16]))


def test_batched_positions_equal_one_sample_at_a_time():
    for heads in (1, 4):
        rope = RoPE(32, 2, "mixed", heads=heads)
        points, x = torch.randn(3, 7, 2), torch.randn(3, 4, 7, 32)
        each = torch.cat([rope(points[b])(x[b : b + 1]) for b in range(3)])
        assert torch.allclose(rope(points)(x), each, atol=1e-6)


def test_grouped_query_heads_share_their_key_heads_frequencies():
    rope = RoPE(32, 2, "mixed", heads=2)
    rotation, q, k = rope.at(3, 3), torch.randn(1, 6, 9, 32), torch.randn(1, 2, 9, 32)
    scores = rotation(q) @ rotation(k).repeat_interleave(3, 1).mT
    moved = rope(grid(3, 3) + 5)
    assert torch.allclose(scores, moved(q) @ moved(k).repeat_interleave(3, 1).mT, atol=1e-4)


def test_a_kept_subset_is_turned_as_in_the_whole():
    for rope in (RoPE(16, 2), RoPE(16, 2, "mixed", heads=4)):
        rotation, x = rope.at(4, 4), torch.randn(3, 4, 16, 16)
        indices = torch.stack([torch.randperm(16)[:5] for _ in range(3)])
        pick = indices[:, None, :, None].expand(-1, 4, -1, 16)
        assert torch.equal(rotation.keep(indices)(x.gather(2, pick)), rotation(x).gather(2, pick))
        assert torch.equal(rotation.keep(indices[0])(x[:, :, indices[0]]), rotation(x)[:, :, indices[0]])
        whole = rope(grid(4, 4).expand(3, -1, -1))
        assert torch.equal(whole.keep(indices)(x.gather(2, pick)), rotation(x).gather(2, pick))


def test_one_token_with_an_offset_equals_its_place_in_the_grid():
    x = torch.randn(1, 1, 12, 16)
    whole = RoPE(16, 2).at(3, 4)(x)
    assert torch.allclose(RoPE(16, 2)(torch.tensor([[2.0, 3.0]]))(x[:, :, 11:]), whole[:, :, 11:], atol=1e-6)


def test_strided_views_of_a_packed_projection_turn_as_copies_do():
    packed = torch.randn(2, 6, 3, 4, 16)  # B, N, 3, H, D
    q = packed[:, :, 0].transpose(1, 2)
    rotation = RoPE(16, 2).at(2, 3)
    assert torch.equal(rotation(q), rotation(q.contiguous()))
    assert torch.allclose(rotation(q.mT.contiguous().mT), rotation(q), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("work", [torch.float32, None])
def test_the_output_has_the_input_dtype_and_the_precision_asked_for(dtype, layout, work):
    rotation = RoPE(32, 2, layout=layout, rotate_dtype=work, prefix_tokens=1).at(3, 4)
    q = torch.randn(1, 2, 13, 32, dtype=dtype)
    q_, k_ = rotation.qk(q, q)
    assert q_.dtype == k_.dtype == dtype
    exact = RoPE(32, 2, layout=layout, prefix_tokens=1).at(3, 4)(q.double())
    rounding = torch.finfo(dtype).eps * (0.5 if work else 2) if dtype != torch.float64 else 1e-6
    assert ((q_.double() - exact).abs() <= rounding * q.double().abs().amax() + 1e-6).all()


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("family", ["axial", "mixed"])
def test_gradients_are_right_in_float64_for_inputs_and_learned_frequencies(layout, family):
    rope = RoPE(8, 2, family, heads=2, layout=layout, learned=True, prefix_tokens=1).double()
    q, points = torch.randn(1, 2, 5, 8).double().requires_grad_(), grid(2, 2, dtype=torch.float64)

    def turn(x, freqs):
        return torch.func.functional_call(rope, {"freqs": freqs}, (points,))(x)

    freqs = rope.freqs.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(turn, (q, freqs))
    assert torch.autograd.gradgradcheck(turn, (q, freqs))


def test_vmap_over_positions_equals_the_batch():
    rope, points, x = RoPE(16, 2), torch.randn(3, 5, 2), torch.randn(3, 4, 5, 16)
    batched = rope(points)(x)
    assert torch.allclose(torch.func.vmap(lambda p, t: rope(p)(t))(points, x), batched, atol=1e-6)
    per_head = RoPE(16, 2, "mixed", heads=4)
    assert torch.allclose(torch.func.vmap(lambda p, t: per_head(p)(t))(points, x), per_head(points)(x), atol=1e-6)


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: RoPE(32, 2).at(2, 3)(torch.zeros(1, 1, 7, 32)), "7 tokens, the rotation is for 6 and 0 prefix tokens"),
        (lambda: RoPE(32, 2).at(2, 3)(torch.zeros(1, 1, 6, 16)), "head_dim must be at least 32"),
        (lambda: RoPE(32, 2, "mixed", heads=4).at(2, 3)(torch.zeros(1, 6, 6, 32)), "6 heads, the frequencies 4"),
        (lambda: RoPE(32, 2)(torch.zeros(3, 6, 2))(torch.zeros(2, 1, 6, 32)), "batch of 2, the positions were given for 3"),
        (lambda: RoPE(32, 2)(torch.zeros(3, 6, 2))(torch.zeros(6, 32)), "give [B, H, N, D]"),
        (lambda: rotate(torch.zeros(3, 8), torch.zeros(3, 4), torch.zeros(3, 4), "halves"), "did you mean 'half'"),
        (lambda: Rotation.from_angles(torch.zeros(1, 2, 3), "halve"), "did you mean 'half'"),
        (lambda: RoPE(32, 2).at(2, 3).packed_(torch.zeros(1, 6, 3 * 32)), "give [B, N, 3, H, D]"),
        (lambda: RoPE(32, 2).at(2, 3).packed_(torch.zeros(1, 7, 3, 1, 32)), "7 tokens, the rotation is for 6"),
        (lambda: RoPE(32, 2).at(2, 3).packed_(torch.zeros(1, 6, 3, 1, 16)), "head_dim must be at least 32"),
        (lambda: convert_layout(torch.zeros(30, 2), 16, "half", "interleaved"), "multiple of head_dim"),
        (lambda: convert_layout(torch.zeros(32), 16, "half", "interleaved", rotary_dim=7), "even"),
    ],
)
def test_bad_input_is_named_with_its_mend(call, says):
    with pytest.raises(ValueError) as caught:
        call()
    assert says in str(caught.value)


def packed(rotation: Rotation, qkv: torch.Tensor) -> torch.Tensor:
    """What packed_ should give, by way of qk: `[3, B, H, N, D]`."""
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    return torch.stack((*rotation.qk(q, k), v))


turns = {
    "shared": {},
    "half, prefix, part of the width": {"layout": "half", "prefix_tokens": 2, "rotary_dim": 8},
    "per head": {"freqs": "mixed", "heads": 4, "prefix_tokens": 1},
    "per key head": {"freqs": "mixed", "heads": 2, "learned": False},
    "log temperature": {"temperature": "log", "trained_extent": (2, 2), "prefix_tokens": 1},
    "low precision": {"rotate_dtype": None},
}


@pytest.mark.parametrize("name", turns)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_packed_projection_turned_in_place_equals_qk_bit_by_bit(name, dtype):
    rope = RoPE(16, 2, **turns[name])
    for rotation in (rope.at(3, 4), rope(grid(3, 4).expand(2, -1, -1) + torch.randn(2, 1, 2), (3, 4))):
        qkv = torch.randn(2, rotation.tokens, 3, 4, 16).to(dtype)
        for x in (qkv, qkv[:1].expand(2, -1, -1, -1, -1).clone(), qkv.transpose(0, 1).contiguous().transpose(0, 1)):
            with torch.no_grad():
                expected, before = packed(rotation, x), x.clone()
                turned = rotation.packed_(x)
            in_place = name != "low precision" or dtype in (torch.float32, torch.float64)
            assert not in_place or [part.data_ptr() for part in turned] == [x[:, :, i].data_ptr() for i in range(3)]
            assert torch.equal(torch.stack(turned), expected) and torch.equal(x[:, :, 2], before[:, :, 2])


@pytest.mark.parametrize("name", ["shared", "per head", "half, prefix, part of the width", "log temperature"])
def test_gradients_of_a_packed_projection_are_those_of_qk_twice_over(name):
    rope = RoPE(16, 2, **turns[name]).double()
    qkv = torch.randn(1, rope.at(2, 2).tokens, 3, 4, 16, dtype=torch.float64, requires_grad=True)
    freqs = rope.freqs.detach().clone().requires_grad_(rope.learned)

    def turn(x, freqs, in_place=True):
        rotation = torch.func.functional_call(rope, {"freqs": freqs}, (grid(2, 2, dtype=torch.float64), (2, 2)))
        return torch.stack(rotation.packed_(x.clone())) if in_place else packed(rotation, x)

    inputs, weight = [qkv, freqs][: 1 + rope.learned], torch.randn(3, 1, 4, qkv.shape[1], 16, dtype=torch.float64)
    grads = []
    for in_place in (True, False):
        first = torch.autograd.grad((turn(qkv, freqs, in_place).sin() * weight).sum(), inputs, create_graph=True)
        grads.append((*first, *torch.autograd.grad(sum(g.square().sum() for g in first), inputs)))
    for one, other in zip(*grads):
        torch.testing.assert_close(one, other)


def test_the_gradient_that_arrives_is_not_written_into():
    rotation, qkv = RoPE(16, 2).at(2, 2), torch.randn(1, 4, 3, 2, 16, requires_grad=True)
    g = torch.randn(3, 1, 2, 4, 16)
    before = g.clone()
    torch.autograd.backward(rotation.packed_(qkv * 1), list(g))
    assert torch.equal(g, before) and not torch.equal(qkv.grad, g.permute(1, 3, 0, 2, 4))
    x = torch.randn(1, 2, 4, 16, requires_grad=True)
    g = torch.randn(1, 2, 4, 16)
    before = g.clone()
    rotation(x).backward(g)
    assert torch.equal(g, before)


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.view(1, 4, 3, 2, 16)])
def test_a_leaf_that_learns_is_never_written_into(view):
    leaf, rotation = torch.randn(1, 4, 3, 2, 16, requires_grad=True), RoPE(16, 2).at(2, 2)
    before = leaf.detach().clone()
    torch.stack(rotation.packed_(view(leaf))).square().sum().backward()
    assert torch.equal(leaf.detach(), before)
    torch.testing.assert_close(leaf.grad, 2 * before)
    with torch.no_grad():
        q, _, _ = rotation.packed_(leaf.clone())
    assert not torch.equal(q, before[:, :, 0].transpose(1, 2))


def test_a_turn_in_place_is_noticed_by_what_needed_the_old_values():
    rotation, w = RoPE(16, 2).at(2, 2), torch.randn(1, 4, 3, 2, 16, requires_grad=True)
    qkv = w.sigmoid()  # keeps its output
    loss = sum(x.sum() for x in rotation.packed_(qkv))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def plain(rotation: Rotation, x: torch.Tensor) -> torch.Tensor:
    """The turn by operations whose gradients PyTorch knows, float32 arithmetic, interleaved, no prefix."""
    cos, sin = rotation._tables(x.shape)
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)


@pytest.mark.parametrize("dtype, near", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_gradients_equal_those_of_the_plain_formula(dtype, near, layout):
    torch.manual_seed(0)
    rope, x = RoPE(16, 2, "mixed", heads=3, layout=layout), torch.randn(4, 3, 30, 16).to(dtype).requires_grad_()
    wanted = RoPE(16, 2, rope.freqs.detach(), heads=3, learned=True)
    weight = torch.randn(4, 3, 30, 16).to(dtype)
    order = torch.arange(16).view(2, 8).T.flatten() if layout == "half" else torch.arange(16)
    (rope.at(5, 6)(x) * weight).sum().backward()
    found, x.grad = x.grad, None
    (plain(wanted.at(5, 6), x[..., order]) * weight[..., order]).sum().backward()
    torch.testing.assert_close(found, x.grad, rtol=near, atol=near)
    scale = wanted.freqs.grad.abs().max()
    assert (rope.freqs.grad - wanted.freqs.grad).abs().max() < near * scale


def test_gradients_of_strange_gradients_are_right():
    rotation, x = RoPE(16, 2).at(3, 3), torch.randn(2, 2, 9, 16, requires_grad=True)
    (expanded,) = torch.autograd.grad(rotation(x).sum(), x)  # a gradient without memory of its own
    (whole,) = torch.autograd.grad(rotation(x), x, torch.ones(2, 2, 9, 16))
    torch.testing.assert_close(expanded, whole)
    many = torch.randn(3, 2, 2, 9, 16)
    (batched,) = torch.autograd.grad(rotation(x), x, many, is_grads_batched=True)
    torch.testing.assert_close(batched, torch.stack([torch.autograd.grad(rotation(x), x, g)[0] for g in many]))


@pytest.mark.parametrize("freqs", ["axial", "mixed"])
def test_transforms_of_functions_and_forward_mode_give_the_same_gradients(freqs):
    rope, x, v = RoPE(16, 2, freqs, heads=2), torch.randn(2, 2, 9, 16), torch.randn(2, 2, 9, 16)
    rotation = rope.at(3, 3)

    def total(x):
        return rotation(x).sin().sum()

    by_tape = torch.autograd.grad(total(x.requires_grad_()), x)[0].detach()
    x = x.detach()
    torch.testing.assert_close(torch.func.grad(total)(x), by_tape)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(total))(x[:, None])[:, 0], by_tape)
    torch.testing.assert_close(torch.func.jvp(total, (x,), (v,))[1], (by_tape * v).sum())
    with torch.autograd.forward_ad.dual_level():
        out = total(torch.autograd.forward_ad.make_dual(x, v))
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(out).tangent, (by_tape * v).sum())


def test_tracing_fake_meta_and_negated_tensors_are_turned_by_the_formula():
    rotation, x = RoPE(16, 2).at(3, 3), torch.randn(1, 2, 9, 16)
    on_meta = Rotation(rotation.cos.to("meta"), rotation.sin.to("meta"))
    assert on_meta(x.to("meta")).shape == x.shape
    traced = torch.jit.trace(lambda x: rotation(x), x)
    graph = make_fx(lambda x: rotation(x))(x)
    other = torch.randn(1, 2, 9, 16)
    torch.testing.assert_close(traced(other), rotation(other))
    torch.testing.assert_close(graph(other), rotation(other))
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        assert rotation(fake.from_tensor(x)).shape == x.shape
    negated = torch.view_as_complex(torch.randn(1, 2, 9, 16, 2)).conj().imag  # a view whose sign is not in memory
    assert negated.is_neg()
    torch.testing.assert_close(rotation(negated), rotation(negated.clone().resolve_neg()))


def test_what_turns_otherwise_is_respected_by_the_packed_form():
    for rope in (HARoPE(16, 2, heads=2), LieRE(16, 2, heads=2), FoPE(16, 2, trained_extent=(3, 3))):
        qkv = torch.randn(1, 9, 3, 2, 16)
        expected = packed(rope.at(3, 3), qkv)
        torch.testing.assert_close(torch.stack(rope.at(3, 3).packed_(qkv)), expected)
    q, k, v = PoPE(16, 2, heads=2).at(3, 3).packed_(torch.randn(1, 9, 3, 2, 16))
    assert q.shape[-1] == k.shape[-1] == 32 and v.shape[-1] == 16


@pytest.mark.parametrize("freqs", ["axial", "mixed"])
@pytest.mark.parametrize("dtype, near", [(torch.float32, 1e-6), (torch.bfloat16, 0)])
def test_the_gradient_of_a_packed_projection_is_one_tensor_and_that_of_its_parts(freqs, dtype, near):
    rope, x = RoPE(64, 2, freqs, heads=3, prefix_tokens=1), torch.randn(2, 13, 3, 3, 64).to(dtype)
    slopes = torch.randn(3, 2, 3, 13, 64).to(dtype).unbind(0)
    found = []
    for in_place in (True, False):
        leaf, rotation = x.clone().requires_grad_(), rope.at(3, 4)
        turned = rotation.packed_(leaf * 1) if in_place else packed(rotation, leaf).unbind(0)
        torch.autograd.backward(turned, slopes)
        found.append((leaf.grad, rope.freqs.grad))
        rope.freqs.grad = None
    assert (found[0][0].float() - found[1][0].float()).abs().max() <= near
    if rope.learned:
        torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-4, atol=1e-2)
