"""Image models as models of clips: the image model where nothing moves, right by hand where something does."""

import copy
import io
import math
import subprocess
import sys

import pytest
import timm
import torch
from timm.layers.pos_embed_sincos import RotaryEmbeddingDinoV3
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rope_nd import RoPE, list_encodings, unwrap, wrap
from tests.rope_nd.wrapping.zoo import build, images

taken = [
    "vit",
    "vit, table off the class token",
    "vit, diff",
    "vit, parallel things",
    "deit, distilled",
    "eva",
    "eva-02",
    "rope-vit, mixed and table",
    "perception encoder",
    "dinov3",
    "eva, m-rope",
    "sapiens 2",
]
rotary = ["eva-02", "rope-vit", "rope-vit, mixed", "perception encoder", "dinov3", "eva, m-rope", "sapiens 2"]


def clips(*shape: int, seed: int = 1) -> torch.Tensor:
    """Noise in [0, 1], `[2, 3, 6, 40, 24]` unless told otherwise."""
    return images(*(shape or (2, 3, 6, 40, 24)), seed=seed)


def still(x: torch.Tensor, frames: int) -> torch.Tensor:
    """An image `[B, C, H, W]` that stays: `[B, C, frames, H, W]`."""
    return x[:, :, None].expand(-1, -1, frames, -1, -1)


def close(a: torch.Tensor, b: torch.Tensor, atol: float = 1e-5, rtol: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, atol=atol, rtol=rtol, check_dtype=False)


def wide(**options) -> VisionTransformer:
    """Two heads of 64 channels, 32 pairs: 11, 11 and 10 for three axes."""
    torch.manual_seed(0)
    given = {"img_size": 32, "patch_size": 8, "embed_dim": 128, "depth": 2, "num_heads": 2, "num_classes": 5, **options}
    model = VisionTransformer(**given)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return model.eval()


# ---- a still clip is the image


@pytest.mark.parametrize("tubelet, inflate", [(1, "mean"), (2, "mean"), (3, "centre"), (4, (1, 2, 4, -3))])
@pytest.mark.parametrize("kind", taken)
def test_with_nothing_turned_a_still_clip_of_one_tube_is_the_image_to_the_model_as_it_was(kind, tubelet, inflate):
    plain, x = build(kind), images()
    options = {"tubelet": tubelet, "inflate": inflate, "keep_pos_embed": True, "strength": 0.0}
    video = wrap(copy.deepcopy(plain), "axial", axes=3, **options)
    assert tuple(video.patch_embed.proj.weight.shape[2:]) == (tubelet, 8, 8)
    close(video(still(x, tubelet)), plain(x))
    assert (video(still(images(seed=2), tubelet)) - plain(x)).abs().max() > 1e-3


@pytest.mark.parametrize("size", [(32, 32), (24, 56)])
@pytest.mark.parametrize("name", ["axial", "interleaved", "golden", "simplex", "mixed"])
def test_a_still_clip_of_one_tube_is_the_image_to_the_model_with_the_same_spatial_wave_vectors(name, size):
    video = wrap(wide(), name, axes=3, tubelet=2)
    ropes = video.encoding if name == "mixed" else [video.encoding]
    flat = [RoPE(64, 2, rope.vectors().detach()[..., 1:], prefix_tokens=1, heads=2) for rope in ropes]
    image = wrap(wide(), nn.ModuleList(flat) if name == "mixed" else flat[0])
    x = images(2, 3, *size)
    assert (video(still(x, 2)) - image(x)).abs().max() < 1e-5
    assert (video(still(x, 4)) - image(x)).abs().max() > 1e-4  # at later times its pairs turn further


@pytest.mark.parametrize("options", [{}, {"keep_pos_embed": True}, {"scaling": "yarn"}])
@pytest.mark.parametrize("name", ["axial", "mixed", "alibi", "liere", "pope", "pape"])
def test_a_still_clip_of_any_length_is_the_image_in_every_frame_with_factorised_attention(name, options):
    options = {} if name in ("alibi", "pape", "liere") else options
    given = {"axes": 3, "tubelet": 2, "trained_extent": (1, 4, 4)}
    factorised = wrap(build("vit"), name, attention="factorised", **given, **options)
    joint = wrap(build("vit"), name, **given, **options)
    x = images(2, 3, 32, 48)
    image, video = joint.forward_features(still(x, 2)), factorised.forward_features(still(x, 10))
    scale = image.abs().max()
    if "scaling" not in options:  # which may slow the pairs of height and width that also look along time
        assert (video[:, 3:].unflatten(1, (5, 24)) - image[:, None, 3:]).abs().max() < 1e-5 * scale
        assert (video[:, :3] - image[:, :3]).abs().max() < 1e-5 * scale
        assert (joint.forward_features(still(x, 10))[:, :3] - image[:, :3]).abs().max() > 1e-4
    moving = clips(2, 3, 10, 32, 48)
    if name in ("axial", "mixed", "liere"):  # the others know distances in time, not yet which way
        assert (factorised(moving) - factorised(moving.flip(2))).abs().max() > 1e-4


@pytest.mark.parametrize("kind", taken)
def test_models_with_their_own_positions_see_the_image_in_a_still_clip_with_factorised_attention(kind):
    plain, x = build(kind), images()
    if kind == "vit, diff":
        with pytest.raises(ValueError, match="not for DiffAttention"):
            wrap(plain, "native", axes=3, attention="factorised")
        return
    video = wrap(copy.deepcopy(plain), "native", axes=3, tubelet=2, attention="factorised")
    close(video(still(x, 6)), plain(x))


# ---- the model's own rotation, and time


@pytest.mark.parametrize("kind", rotary)
def test_with_time_added_the_clip_model_starts_as_the_image_model_and_learns_time(kind):
    plain, x = build(kind), images()
    video = wrap(copy.deepcopy(plain), "native", axes=3, tubelet=2, time="added")
    close(video(still(x, 2)), plain(x))
    features, frames = plain.forward_features(x), video.forward_features(still(x, 2))
    close(frames, features)
    moving = clips(2, 3, 6, 32, 32)
    close(video(moving), video(moving.flip(2)))  # no time yet
    video.train()(moving).square().sum().backward()
    times = [rope.time for rope in video.encoding]
    assert all(t.grad.abs().max() > 0 and t.shape[1:] == (video.encoding[0].pairs,) for t in times)
    assert {f"encoding.{i}.time" for i in range(len(video.blocks))} <= video.no_weight_decay()
    with torch.no_grad():
        for t in times:
            t.sub_(t.grad.sign() * 0.1)
    assert (video.eval()(moving) - video(moving.flip(2))).abs().max() > 1e-4
    fresh = wrap(build(kind, seed=1), "native", axes=3, tubelet=2, time="added")
    fresh.load_state_dict(video.state_dict())
    assert torch.equal(fresh(moving), video(moving))


def test_time_takes_over_the_slowest_pairs_and_leaves_the_others_as_they_were():
    own = wrap(build("rope-vit"), "native").encoding.freqs[0]  # [8, 2], axial, theta 100
    video = wrap(build("rope-vit"), "native", axes=3, time="slowest", time_share=0.375, time_theta=16.0)
    rows = video.encoding.freqs[0]
    order = sorted(range(8), key=lambda p: (own[p].norm().item(), p))
    assert video.encoding.axes == 3 and not list(video.encoding.parameters())
    close(rows[order[3:]], torch.cat((torch.zeros(5, 1), own[order[3:]]), 1), atol=0, rtol=0)
    expected = [[16.0 ** (-i / 3), 0, 0] for i in (2, 1, 0)]
    close(rows[order[:3]], torch.tensor(expected, dtype=torch.float64), atol=1e-12)
    moving = clips(2, 3, 4, 32, 32)
    assert (video(moving) - video(moving.flip(2))).abs().max() > 1e-4


def test_of_learned_wave_vectors_time_takes_over_the_slowest_in_each_layer_and_head_and_is_learned():
    model = build("rope-vit, mixed")
    own = copy.deepcopy(model)
    video = wrap(model, "native", axes=3, tubelet=2, time="slowest")
    for layer, rope in enumerate(video.encoding):
        flat, rows = wrap(copy.deepcopy(own), "native").encoding[layer].vectors(), rope.vectors()
        for head in range(3):
            slow = flat[head].norm(dim=-1).argsort()[:2]
            assert set(rope.time[head].nonzero().flatten().tolist()) == set(slow.tolist())
            assert not rows[head, slow, 1:].any() and rows[head, slow, 0].all()
        fast = rope.time == 0
        assert torch.equal(rows[fast][:, 1:], flat[fast]) and not rows[fast][:, 0].any()
    video.train()(clips(2, 3, 6, 32, 32)).square().sum().backward()
    assert model.rope.freqs.grad.ne(0).any() and all((r.time.grad != 0).any() for r in video.encoding)
    assert all(not r.time.grad[r.time == 0].any() for r in video.encoding)
    other = wrap(build("rope-vit, mixed", seed=4), "native", axes=3, tubelet=2, time="slowest")
    other.load_state_dict(video.state_dict())
    x = clips(1, 3, 4, 32, 32)
    assert torch.equal(other.eval()(x), video.eval()(x))


@pytest.mark.parametrize("kind", rotary)
@pytest.mark.parametrize("scaling", ["pi", "yarn", "ntk"])
def test_scaling_of_the_models_own_rotation_is_by_axis(kind, scaling):
    plain, x = build(kind), images()
    given = {"axes": 3, "tubelet": 2, "frames": 4}
    scaled = wrap(copy.deepcopy(plain), "native", scaling=[None, scaling, scaling], **given)
    bare = wrap(copy.deepcopy(plain), "native", **given)
    close(scaled(still(x, 2)), plain(x))
    long, large = clips(1, 3, 16, 32, 32), clips(1, 3, 4, 64, 64)
    close(scaled(long), bare(long))
    flat, deep = (wrap(copy.deepcopy(plain), "native", scaling=scaling, **axes) for axes in ({}, given))
    close(deep(still(large[:, :, 0], 2)), flat(large[:, :, 0]))


@pytest.mark.parametrize("normalize", ["min", "max"])
def test_coordinates_that_go_by_the_shortest_or_longest_side_do_not_go_by_the_number_of_frames(normalize):
    plain = build("dinov3")
    plain.rope = RotaryEmbeddingDinoV3(16, normalize_coords=normalize, rotate_half=True).eval()
    image, x = wrap(copy.deepcopy(plain), "native"), images(2, 3, 24, 48)
    for frames in (2, 40):
        video = wrap(copy.deepcopy(plain), "native", axes=3, tubelet=2, attention="factorised")
        close(video(still(x, frames)), image(x))


def test_the_models_own_augmentation_leaves_time_where_it_is():
    plain = build("dinov3")
    plain.rope = RotaryEmbeddingDinoV3(16, rotate_half=True, shift_coords=0.3, jitter_coords=1.5, rescale_coords=2.0)
    model = wrap(plain, "native", axes=3, tubelet=2, time="slowest")
    assert model.wrapped.augment == {"shift": (0.0, 0.3, 0.3), "jitter": (1.0, 1.5, 1.5), "rescale": 2.0}
    x, seen = still(images(), 2), []
    model.encoding.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model.train()(x)
    assert seen[0].shape == (2, 16, 3) and not seen[0][..., 0].any()
    assert (seen[0][0] - seen[0][1]).abs().max() > 1e-2  # a draw a sample


# ---- right by hand


def by_hand(model: nn.Module, patches: torch.Tensor, points: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
    """Features of a wrapped ViT with dropped table, float64, in complex numbers: patches [B, N, C], points [B, N, A]."""
    model, batch, heads = copy.deepcopy(model).double(), len(patches), model.blocks[0].attn.num_heads
    turn = torch.exp(1j * (points.double() @ freqs.double().mT))[:, None]  # [B, 1, N, P]
    prefix = [t.expand(batch, -1, -1) for t in (model.cls_token, model.reg_token) if t is not None]
    n, tokens = sum(t.shape[1] for t in prefix), torch.cat([*prefix, patches.double()], 1)
    for block in model.blocks:
        q, k, v = block.attn.qkv(block.norm1(tokens)).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = block.attn.q_norm(q), block.attn.k_norm(k)
        q, k = (torch.view_as_complex(y.unflatten(-1, (-1, 2)).contiguous()) for y in (q, k))
        q, k = (torch.cat((y[:, :, :n], y[:, :, n:] * turn), 2) for y in (q, k))
        scores = (q @ k.conj().mT).real / math.sqrt(v.shape[-1])
        tokens = tokens + block.attn.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        tokens = tokens + block.mlp(block.norm2(tokens))
    return model.norm(tokens)


def cells(*extent: int) -> torch.Tensor:
    return torch.cartesian_prod(*(torch.arange(n, dtype=torch.float64) for n in extent))


@pytest.mark.parametrize("options", [{}, {"theta": (10.0, 100.0, 50.0), "split": (4, 14, 14)}, {"leftover": "unrotated"}])
def test_features_are_those_of_the_formula_for_three_five_and_seven_tokens(options):
    model, x = wrap(wide(), "axial", axes=3, tubelet=2, **options), clips(2, 3, 6, 40, 56)
    theta, split = options.get("theta", (100.0,) * 3), options.get("split", (10, 10, 10) if options else (11, 11, 10))
    rows = torch.zeros(32, 3, dtype=torch.float64)
    start = 0
    for axis, (base, count) in enumerate(zip(theta, split)):
        rows[start : start + count, axis] = base ** (-torch.arange(count, dtype=torch.float64) / count)
        start += count
    weight = model.patch_embed.proj.weight
    tubes = x.unfold(2, 2, 2).unfold(3, 8, 8).unfold(4, 8, 8)  # [B, C, 3, 5, 7, 2, 8, 8]
    patches = torch.einsum("bcthwijk,dcijk->bthwd", tubes, weight).flatten(1, 3) + model.patch_embed.proj.bias
    expected = by_hand(model, patches, cells(3, 5, 7).expand(2, -1, -1), rows)
    close(model.forward_features(x), expected, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize("name", list_encodings())
def test_every_encoding_takes_clips_of_any_size_forward_and_backward(name):
    model = wrap(wide(global_pool="avg"), name, axes=3, tubelet=2, frames=6).train()
    model(clips(2, 3, 6, 40, 56)).square().sum().backward()
    learned = {n: p.grad for n, p in model.named_parameters() if n.startswith("encoding.")}
    assert all(g is not None and (g.any() or n.endswith("log_threshold")) for n, g in learned.items())
    own = [n for n, p in model.named_parameters() if p.grad is None]
    assert own == ["pos_embed"]
    for attention in ("joint", "factorised"):
        model = wrap(wide(), name, axes=3, tubelet=2, attention=attention).eval()
        x, spacing = clips(2, 3, 8, 16, 24), torch.tensor([[1.0, 1.0, 1.0], [0.5, 1.0, 2.0]])
        with torch.no_grad():
            one, each = model(x, spacing=spacing[0]), model(x, spacing=spacing)
        close(one, model(x).detach(), atol=1e-4)
        close(each[:1], one[:1], atol=1e-4)
        laid = {"none", "swin", "learned", "fourier"}  # over the clip, however long it takes
        assert (each[1] - one[1]).abs().max() > 1e-6 or name in laid


@pytest.mark.parametrize("name", ["wan", "vjepa2", "vjepa2_published", "cosmos", "hunyuan_video", "ltx"])
def test_presets_of_three_axes_serve(name):
    x, model = clips(1, 3, 6, 16, 24), wrap(wide(), name, axes=3, tubelet=2)
    assert (model(x) - model(x.flip(2))).abs().max() > 1e-5
    with pytest.raises(ValueError, match=r"preset 'eva02' has 2 axes, asked for axes=3"):
        wrap(wide(), "eva02", axes=3)


@pytest.mark.parametrize("attention", ["joint", "factorised"])
def test_a_clip_backwards_is_another_clip_to_a_rotary_model_and_the_same_without_positions(attention):
    x = clips()
    for name, differs in (("axial", True), ("mixed", True), ("none", False)):
        model = wrap(build("vit"), name, axes=3, tubelet=2, attention=attention)
        change = (model(x) - model(x.flip(2))).abs().max()
        assert change > 1e-3 if differs else change < 1e-5, name


def test_factorised_attention_is_the_product_of_attention_along_time_and_within_frames():
    model = wrap(wide(), "axial", axes=3, tubelet=1, attention="factorised")
    layer, rows = model.blocks[1].attn, model.encoding.freqs[0]
    tokens, where = model.start(clips(2, 3, 3, 16, 24))
    got = layer(tokens, where)
    q, k, v = layer.double().qkv(tokens.double()).unflatten(-1, (3, 2, 64)).permute(2, 0, 3, 1, 4)  # [B, H, 1 + 18, D]
    at = cells(3, 2, 3)
    q, k = (torch.view_as_complex(y.unflatten(-1, (32, 2)).contiguous()) for y in (q, k))

    def scores(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bhqp,bhkp->bhqk", query, key.conj()).real / 8

    space, time = (torch.exp(1j * ((at * torch.tensor(axes)) @ rows.mT)) for axes in ([0, 1, 1], [1, 0, 0]))
    mixed, first = torch.zeros(2, 2, 18, 64, dtype=torch.float64), []
    for t in range(3):
        here = slice(1 + 6 * t, 7 + 6 * t)
        turned = [torch.cat((y[:, :, :1], y[:, :, here] * space[6 * t : 6 * t + 6]), 2) for y in (q, k)]
        y = scores(*turned).softmax(-1) @ torch.cat((v[:, :, :1], v[:, :, here]), 2)
        first.append(y[:, :, :1])
        mixed[:, :, 6 * t : 6 * t + 6] = y[:, :, 1:]
    out = torch.zeros_like(mixed)
    for place in range(6):
        turned = [(y[:, :, 1:] * time)[:, :, place::6] for y in (q, k)]
        out[:, :, place::6] = scores(*turned).softmax(-1) @ mixed[:, :, place::6]
    y = torch.cat((torch.stack(first).mean(0), out), 2).transpose(1, 2).flatten(2)
    close(got, layer.proj(y), atol=1e-5)


# ---- time in seconds


def scores(where, extent: tuple[int, ...], batch: int = 1) -> torch.Tensor:
    """Scores of one query and key content, put in every place: `[B, H, N, N]`, without the class token."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, batch, 2, 1, 64, generator=generator, dtype=torch.float64)
    n = math.prod(extent)
    q, k = where.turn(*(y.expand(-1, -1, 1 + n, -1).contiguous() for y in (q, k)), 0)
    return (q @ k.mT)[..., 1:, 1:]


@pytest.mark.parametrize("name", ["axial", "mixed", "golden", "alibi"])
def test_scores_of_tokens_at_the_same_two_times_do_not_change_with_the_frame_rate(name):
    model = wrap(wide(), name, axes=3, tubelet=2, spacing=(1 / 24, 1.0, 1.0))

    def told(fps: float, frames: int) -> torch.Tensor:
        _, where = model.start(clips(1, 3, frames, 16, 16), spacing=(1 / fps, 1, 1))
        found = where.bias(0)[:, 1:, 1:] if name == "alibi" else scores(where, (frames // 2, 2, 2))[0]
        return found.unflatten(1, (-1, 4)).unflatten(3, (-1, 4))  # [H, T, S, T, S]

    slow, usual, fast = told(12, 4), told(24, 8), told(48, 16)
    close(usual[:, ::2, :, ::2], slow, atol=1e-5)
    close(fast[:, ::4, :, ::4], slow, atol=1e-5)
    assert (usual[:, :2, :, :2] - slow).abs().max() > 1e-2
    _, bare = model.start(clips(1, 3, 8, 16, 16))
    if name != "alibi":
        close(scores(bare, (4, 2, 2))[0], usual.flatten(1, 2).flatten(2), atol=1e-5)


def test_samples_of_one_batch_may_have_their_own_rates_and_beginnings():
    for name in ("axial", "mixed", "alibi", "sinusoidal"):
        for attention in ("joint", "factorised"):
            model = wrap(wide(), name, axes=3, tubelet=2, spacing=(1 / 24, 1.0, 1.0), attention=attention)
            x = clips(3, 3, 6, 16, 24)
            spacing = torch.tensor([[1 / 24, 1, 1], [1 / 12, 1, 1], [1 / 60, 2, 1]])
            offset = torch.tensor([[0.0, 0, 0], [0.5, 0, 8], [-1.0, 16, 0]])
            batch = model(x, spacing=spacing, offset=offset)
            for i in range(3):
                close(batch[i : i + 1], model(x[i : i + 1], spacing=spacing[i], offset=offset[i].tolist()))


# ---- tokens with coordinates, subsets, budgets


def test_tokens_with_the_coordinates_of_the_grid_are_the_clip():
    for name in ("axial", "mixed", "alibi", "sinusoidal"):
        model, x = wrap(wide(), name, axes=3, tubelet=2, spacing=(0.5, 1.0, 1.0)), clips(2, 3, 6, 16, 24)
        coords = cells(3, 2, 3) * torch.tensor([2 * 0.5, 8.0, 8.0])  # seconds and pixels, of the first in each tube
        tokens = model.patch_embed(x)
        close(model.forward_tokens(tokens, coords), model.forward_features(x))
        order = torch.randperm(18)
        shuffled = model.forward_tokens(tokens[:, order], coords[order])
        close(shuffled[:, 1:], model.forward_features(x)[:, 1 + order])


@pytest.mark.parametrize("axes", [1, 2, 4, 5])
def test_points_of_any_number_of_axes_are_right_by_hand(axes):
    model = wrap(wide(reg_tokens=2), "axial", axes=axes)
    generator = torch.Generator().manual_seed(0)
    tokens, coords = torch.randn(2, 9, 128, generator=generator), torch.rand(2, 9, axes, generator=generator) * 20
    unit = 8.0 if axes == 2 else 1.0  # a stem counts pixels
    rows = model.encoding.freqs[0]
    expected = by_hand(model, tokens, coords.double() / unit, rows)
    close(model.forward_tokens(tokens, coords), expected, atol=1e-5 * expected.abs().max().item())
    assert model.forward_head(model.forward_tokens(tokens, coords[0])).shape == (2, 5)
    if axes != 2:
        with pytest.raises(ValueError, match=f"a model with axes={axes} has no stem: call forward_tokens"):
            model(images())


@pytest.mark.parametrize("name", ["axial", "mixed", "alibi", "sinusoidal", "learned"])
@pytest.mark.parametrize("keep", [True, False])
def test_encoding_the_visible_tubes_is_encoding_all_with_attention_restricted_to_them(name, keep):
    model, x = wrap(wide(), name, axes=3, tubelet=2, keep_pos_embed=keep), clips(2, 3, 6, 16, 24)
    kept = torch.tensor([[0, 3, 4, 11, 17], [2, 5, 9, 10, 12]])
    visible = torch.zeros(2, 1, 1, 19, dtype=torch.bool)
    visible[..., 0] = True
    visible.scatter_(-1, kept[:, None, None] + 1, True)
    expected = model.forward_features(x, attn_mask=visible)
    got = model.forward_features(x, keep=kept)
    assert got.shape == (2, 6, 128)
    close(got[:, 0], expected[:, 0])
    close(got[:, 1:], expected[:, 1:].gather(1, kept[..., None].expand(-1, -1, 128)))
    maps = model.forward_intermediates(x, keep=kept, output_fmt="NLC", norm=True, intermediates_only=True)
    close(maps[-1], got[:, 1:])
    moved = {"spacing": (2.0, 1.0, 1.0), "offset": (3.0, 0.0, 8.0)}
    close(
        model.forward_features(x, keep=kept, **moved)[:, 0],
        model.forward_features(x, attn_mask=visible, **moved)[:, 0],
    )


@pytest.mark.parametrize("name", list_encodings())
def test_every_encoding_takes_points_of_four_axes(name):
    model = wrap(wide(), name, axes=4)
    generator = torch.Generator().manual_seed(0)
    tokens, coords = torch.randn(2, 12, 128, generator=generator), torch.rand(2, 12, 4, generator=generator) * 8
    features = model.forward_tokens(tokens, coords)
    assert features.isfinite().all()
    order = torch.arange(11, -1, -1)
    close(model.forward_tokens(tokens[:, order], coords[:, order])[:, 1:], features[:, 1 + order], atol=1e-4)
    assert (model.forward_tokens(tokens, coords[:, order]) - features).abs().max() > 1e-6 or name == "none"


def test_the_models_own_rotation_goes_with_the_tokens_that_are_kept():
    kept, x = torch.tensor([[1, 5, 20, 40], [0, 2, 31, 47]]), clips(2, 3, 6, 32, 32)
    for options in ({"keep_pos_embed": True}, {"keep_pos_embed": "rotary"}):
        model = wrap(build("eva-02"), "axial", axes=3, tubelet=2, **options)
        whole = model.forward_features(x, keep=torch.arange(48))
        close(whole, model.forward_features(x))
        assert (model.forward_features(x, keep=kept) - model.forward_features(x, keep=kept.flip(0))).abs().max() > 1e-4
        alone = [model.forward_features(x[i : i + 1], keep=kept[i]) for i in range(2)]
        close(model.forward_features(x, keep=kept), torch.cat(alone))


def test_a_module_of_three_axes_may_be_given():
    x = clips(1, 3, 4, 16, 24)
    rope = RoPE(64, 3, "golden", heads=2, prefix_tokens=1)
    model = wrap(wide(), rope, axes=3, tubelet=2)
    assert model.encoding is rope
    close(model(x), wrap(wide(), "golden", axes=3, tubelet=2)(x))


@pytest.mark.parametrize("drop, attention", [("random", "joint"), ("uniform", "joint"), ("tube", "joint"), (None, "factorised")])
def test_a_budget_leaves_so_many_tubes_in_training_with_their_own_positions(drop, attention):
    given = {"axes": 3, "tubelet": 2, "tokens": 8, "attention": attention}
    model = wrap(wide(), "axial", **given, **({} if drop is None else {"drop": drop})).train()
    x, kept = clips(4, 3, 6, 16, 24), []
    kinds = type(model)
    plain = kinds._kept
    try:
        kinds._kept = lambda self, *args: kept.append(plain(self, *args)) or kept[-1]
        torch.manual_seed(0)
        features = model.forward_features(x)
    finally:
        del kinds._kept
    indices = kept[0][1]
    tubes = drop in (None, "tube")
    assert features.shape == (4, 1 + (6 if tubes else 8), 128) and indices.diff(dim=1).gt(0).all()
    assert len({tuple(row) for row in indices.tolist()}) > 1 and 0 <= indices.min() and indices.max() < 18
    if tubes:
        assert (indices.unflatten(1, (3, 2)) % 6 == indices[:, None, :2] % 6).all()
        assert (indices.unflatten(1, (3, 2)) // 6 == torch.arange(3)[:, None]).all()
    if drop == "uniform":
        assert set(indices.diff(dim=1).unique().tolist()) == {2, 3}  # 18 / 8 tokens apart
    if attention == "joint":
        close(features, model.eval().forward_features(x, keep=indices))
    else:  # a still clip still is the image, for what is left of it
        torch.manual_seed(0)
        frames = model.forward_features(still(x[:, :, 0], 6))[:, 1:].unflatten(1, (3, 2))
        close(frames, frames[:, :1].expand_as(frames))
    assert model.eval().forward_features(x).shape[1] == 19
    assert model.train().forward_features(x[:, :, :2]).shape[1] == 7  # fewer than the budget
    maps = model.forward_intermediates(x, intermediates_only=True)
    assert maps[0].shape == (4, 128, 3, 2, 3)


def test_timms_patch_dropout_goes_on_from_what_the_budget_left():
    model, x = wrap(wide(patch_drop_rate=0.5), "axial", axes=3, tubelet=2, tokens=8).train(), clips(2, 3, 6, 16, 24)
    assert model.forward_features(x).shape[1] == 1 + 4
    ordinary = wrap(wide(patch_drop_rate=0.5), "axial", axes=3, tubelet=2).train()
    assert ordinary.forward_features(x).shape[1] == 1 + 9
    eva = wrap(build("rope-vit"), "axial", axes=3, tokens=5).train()
    assert eva.forward_features(clips(2, 3, 2, 32, 32)).shape[1] == eva.num_prefix_tokens + 5


# ---- checkpoints, copies, unwrap


@pytest.mark.parametrize("kind", taken)
@pytest.mark.parametrize("assign", [False, True])
def test_image_checkpoints_load_strictly_before_and_after_wrapping(kind, assign):
    source, x = build(kind, seed=3), clips(1, 3, 4, 32, 32)
    given = {"axes": 3, "tubelet": 2, "inflate": (1, 3)}
    expected = wrap(copy.deepcopy(source), "axial", **given)
    keys = set(source.state_dict())
    later = wrap(build(kind), "axial", **given)
    later.load_state_dict(copy.deepcopy(source.state_dict()), strict=True, assign=assign)
    assert set(later.state_dict()) == keys and torch.equal(later(x), expected(x))
    again = wrap(build(kind, seed=5), "axial", **given)
    again.load_state_dict(expected.state_dict(), strict=True)
    assert torch.equal(again(x), expected(x))
    weight = source.patch_embed.proj.weight
    close(later.patch_embed.proj.weight, torch.stack((weight / 4, weight * 3 / 4), 2), atol=0, rtol=1e-6)


@pytest.mark.parametrize("kind", taken)
def test_unwrap_gives_back_the_image_model(kind):
    plain, x = build(kind), images()
    own, flags = set(vars(plain)), {n: p.requires_grad for n, p in plain.named_parameters()}
    expected, keys = plain(x), list(plain.state_dict())
    model = wrap(copy.deepcopy(plain), "axial", axes=3, tubelet=3)
    back = unwrap(model)
    assert back is model and type(back) is type(plain) and set(vars(back)) == own
    assert [type(m) for m in back.modules()] == [type(m) for m in plain.modules()]
    assert list(back.state_dict()) == keys and {n: p.requires_grad for n, p in back.named_parameters()} == flags
    close(back(x), expected)


@pytest.mark.parametrize("name, time", [("axial", None), ("mixed", None), ("native", "added"), ("native", "slowest")])
def test_copies_give_the_same_and_are_independent(name, time):
    model = wrap(build("rope-vit, mixed"), name, axes=3, tubelet=2, **({} if time is None else {"time": time}))
    x, saved = clips(1, 3, 4, 24, 32), io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    expected = model(x)
    for other in (copy.deepcopy(model), torch.load(saved, weights_only=False)):
        assert torch.equal(other(x), expected)
        with torch.no_grad():
            for p in other.parameters():
                p.zero_()
        assert torch.equal(model(x), expected)


# ---- timm's interface


def test_intermediate_maps_have_the_shapes_of_clips():
    model, x = wrap(wide(reg_tokens=2), "axial", axes=3, tubelet=2), clips(2, 3, 6, 16, 24)
    final, maps = model.forward_intermediates(x, output_fmt="NTHWC", norm=True)
    assert [tuple(m.shape) for m in maps] == [(2, 3, 2, 3, 128)] * 2
    close(maps[-1].flatten(1, 3), final[:, 3:])
    first = model.forward_intermediates(x, output_fmt="NCTHW", norm=True, intermediates_only=True)[-1]
    assert torch.equal(first, maps[-1].permute(0, 4, 1, 2, 3))
    token, prefix = model.forward_intermediates(x, [1], True, True, output_fmt="NLC", intermediates_only=True)[0]
    assert torch.equal(token, final[:, 3:]) and torch.equal(prefix, final[:, :3])
    assert torch.equal(model.get_intermediate_layers(x, 1, reshape=True, norm=True)[0], first)
    with pytest.raises(ValueError, match="unknown output_fmt 'NHWC'"):
        model.forward_intermediates(x, output_fmt="NHWC")


def test_a_feature_extractor_gives_maps_of_clips():
    small = {"img_size": 64, "depth": 3, "embed_dim": 48, "num_heads": 3}
    extractor = wrap(timm.create_model("vit_tiny_patch16_224", features_only=True, **small), "axial", axes=3, tubelet=2)
    maps = extractor(clips(1, 3, 4, 32, 48))
    assert [tuple(m.shape) for m in maps] == [(1, 48, 2, 2, 3)] * 3


@pytest.mark.parametrize("attention", ["joint", "factorised"])
def test_checkpointed_blocks_give_the_same_gradients(attention):
    gradients = []
    for checkpointed in (False, True):
        model = wrap(build("rope-vit, mixed"), "native", axes=3, tubelet=2, attention=attention).train()
        model.set_grad_checkpointing(checkpointed)
        model(clips(), spacing=torch.tensor([[1.0, 1, 1], [2.0, 1, 1]])).square().sum().backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*gradients)) and len(gradients[0]) == len(gradients[1])


@pytest.mark.parametrize("pool", ["avg", "token", "map"])
def test_pooling_and_head_are_timms(pool):
    model = wrap(wide(global_pool=pool, class_token=pool != "map"), "axial", axes=3, tubelet=2)
    x = clips(2, 3, 6, 16, 24)
    assert torch.equal(model(x), model.forward_head(model.forward_features(x)))
    assert model(x).shape == (2, 5)


# ---- what is refused


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda m: m(images()), r"input of shape \[2, 3, 32, 32\]: expected \[B, C, T, H, W\]"),
        (lambda m: m(clips(2, 6, 3, 32, 32)), r"has 6 channels, the model 3: expected \[B, C, T, H, W\]"),
        (lambda m: m(clips(1, 3, 7, 30, 32)), r"7x30x32 is no multiple of the tube 2x8x8 in \[B, C, T, H, W\]: resize to 8x32x32"),
        (lambda m: m(clips(), spacing=(1.0, 1.0)), r"spacing of shape \[2\]: give \[3\], a number an axis, or \[2, 3\]"),
        (lambda m: m(clips(), spacing=(0.0, 1.0, 1.0)), "spacing=.* must be positive: seconds between frames"),
        (lambda m: m(clips(), offset=(float("nan"), 1.0, 1.0)), "offset=.* is not a finite number"),
        (lambda m: m(clips(), extent=(4, 4)), r"extent=\(4, 4\) has 2 entries for 3 axes"),
        (lambda m: m(clips(), keep=torch.ones(3, 4).long()), r"of shape \[3, 4\]: give token indices \[B, K\], here \[2, K\]"),
        (lambda m: m.forward_tokens(torch.ones(1, 4, 7), torch.ones(4, 3)), r"give \[B, N, 48\] and \[N, 3\]"),
        (lambda m: m.forward_intermediates(clips(), keep=torch.arange(3)), "give output_fmt='NLC'"),
    ],
)
def test_input_that_does_not_fit_is_named(make, says):
    with pytest.raises(ValueError, match=says):
        make(wrap(build("vit"), "axial", axes=3, tubelet=2))


@pytest.mark.parametrize(
    "kind, name, options, says",
    [
        ("cait", "axial", {"axes": 3}, "axes=3: wrap knows Cait for images alone; other axes are for VisionTransformer, "),
        ("naflex", "axial", {"axes": 3}, "wrap knows NaFlexVit for images alone"),
        ("hybrid", "axial", {"axes": 3}, "does not know how to inflate HybridEmbed"),
        ("vit", "axial", {"tubelet": 2}, r"tubelet=2 is for axes=3, \[B, C, T, H, W\], and axes=2"),
        ("vit", "axial", {"axes": 4, "tubelet": 2}, "tubelet=2 is for axes=3"),
        ("vit", "axial", {"axes": 0}, "axes=0: give 2 for images"),
        ("vit", "axial", {"axes": 3, "tubelet": 0}, "tubelet=0: give a whole number"),
        ("vit", "axial", {"axes": 3, "tubelet": 2, "frames": 7}, "frames=7 is no multiple of tubelet=2"),
        ("vit", "axial", {"axes": 3, "frames": 4, "trained_extent": (2, 4, 4)}, "give one of them"),
        ("vit", "axial", {"axes": 3, "tubelet": 2, "inflate": (1, -1)}, "give 2 numbers, .* whose sum is not zero"),
        ("vit", "axial", {"axes": 3, "inflate": "center"}, "unknown inflate 'center'.*did you mean 'centre'"),
        ("vit", "axial", {"axes": 3, "drop": "random", "attention": "factorised"}, "factorised attention needs the same places"),
        ("vit", "axial", {"axes": 3, "spacing": (1.0, 2.0)}, "give 3 positive numbers"),
        ("vit", "axial", {"axes": 3, "time": "added"}, "time='added' is for encoding 'native' of a model that turns"),
        ("dinov3", "native", {"axes": 3, "time_share": 0.5}, "time_share=0.5 is for time='slowest'"),
        ("dinov3", "native", {"axes": 3, "time": "slowest", "time_share": 1.5}, "time_share=1.5 must be between 0 and 1"),
        ("dinov3", "native", {"axes": 4}, "axes=4: a model's own rotation of height and width can be given time"),
        ("vit", RoPE(16, 2, prefix_tokens=3), {"axes": 3}, "the RoPE has axes=2: make it with axes=3"),
    ],
)
def test_what_cannot_be_wrapped_is_named_and_left_as_it_was(kind, name, options, says):
    model = build(kind)
    cls, keys = type(model), [(n, tuple(t.shape)) for n, t in model.state_dict().items()]
    with pytest.raises(ValueError, match=says):
        wrap(model, name, **options)
    assert type(model) is cls and [(n, tuple(t.shape)) for n, t in model.state_dict().items()] == keys


def test_factorised_attention_names_what_it_cannot_take():
    model, x = wrap(build("vit"), "axial", axes=3, tubelet=2, attention="factorised"), clips()
    for given in ({"is_causal": True}, {"attn_mask": torch.zeros(48, 48)}, {"keep": torch.arange(4)}):
        with pytest.raises(ValueError, match="factorised attention takes none of them"):
            model(x, **given)
    with pytest.raises(ValueError, match="patch_drop does not leave"):
        wrap(wide(patch_drop_rate=0.5), "axial", axes=3, attention="factorised")
    with pytest.raises(ValueError, match="tokens=2 is less than one in each of 3 frames"):
        wrap(build("vit"), "axial", axes=3, tubelet=2, attention="factorised", tokens=2).train()(x)
    with pytest.raises(ValueError, match="own table belongs to a grid"):
        kept = wrap(build("vit"), "axial", axes=3, keep_pos_embed=True)
        kept.forward_tokens(torch.ones(1, 4, 48), torch.ones(4, 3))


# ---- graphs


sizes = [(4, 32, 48), (8, 24, 32), (2, 48, 40), (6, 32, 32)]


factorised = {"attention": "factorised"}
compiled = [
    ("vit", "axial", {}, False),
    ("vit", "axial", factorised, True),
    ("vit", "alibi", {}, False),
    ("rope-vit, mixed", "native", {}, True),
    ("vit", "mixed", {"scaling": "yarn", "keep_pos_embed": True}, False),
    ("vit", "mixed", {"scaling": "yarn", **factorised}, False),
    ("dinov3", "native", {"time": "slowest", "scaling": "yarn"}, True),
]


@pytest.mark.parametrize(
    "kind, name, options, seconds", [pytest.param(*o, marks=pytest.mark.slow if i else ()) for i, o in enumerate(compiled)]
)
def test_one_compilation_serves_clips_of_all_sizes(kind, name, options, seconds):
    torch._dynamo.reset()
    model, counter = wrap(build(kind), name, axes=3, tubelet=2, **options), CompileCounterWithBackend("eager")
    run = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    with torch.no_grad():
        for i, size in enumerate(sizes):
            told = {"spacing": torch.tensor([1.0 + i, 1.0, 1.0])} if seconds else {}
            x = clips(2, 3, *size)
            close(run(x, **told), model(x, **told))
    assert 1 <= counter.frame_count <= 2 + ("keep_pos_embed" in options)  # timm branches where the table need not be resized


@pytest.mark.parametrize("attention", ["joint", "factorised"])
@pytest.mark.slow
def test_a_clip_model_is_exported_for_any_frames_height_and_width(attention):
    model = wrap(build("vit"), "axial", axes=3, tubelet=2, attention=attention)
    t, h, w = (torch.export.Dim(name, min=2, max=32) for name in "thw")
    sides = {"x": {2: 2 * t, 3: 8 * h, 4: 8 * w}}
    run = torch.export.export(model, (clips(2, 3, 6, 40, 24),), dynamic_shapes=sides, strict=False).module()
    for size in (size for size in sizes if size[0] > 2):
        x = clips(2, 3, *size)
        close(run(x), model(x))


# ---- memory


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that is made."""

    found = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.found = max([self.found, *(t.numel() for t in tree_leaves(out) if isinstance(t, torch.Tensor))])
        return out


@pytest.mark.parametrize("name, attention, growth", [("alibi", "factorised", 2), ("axial", "factorised", 2), ("alibi", "joint", 4)])
def test_the_largest_tensor_grows_as_the_clip_with_factorised_attention(name, attention, growth):
    model, found = wrap(build("vit"), name, axes=3, attention=attention), []
    for frames in (8, 16):
        with torch.no_grad(), Largest() as largest:
            model(clips(1, 3, frames, 64, 64))
        found.append(largest.found)
    assert 0.9 * growth < found[1] / found[0] <= growth


program = """
import resource, sys, timm, torch
from rope_nd import wrap
torch.set_num_threads(1)
attention, name = sys.argv[1:]
vit = timm.create_model("vit_small_patch16_224", depth=2, num_classes=5)
model = wrap(vit, name, axes=3, tubelet=2, attention=attention).eval()
with torch.inference_mode():
    features = model.forward_features(torch.zeros(1, 3, 64, 256, 256))
print(features.shape[1], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["factorised axial", "factorised alibi", *(f"joint {name}" for name in list_encodings())])
def test_eight_thousand_tokens_take_less_than_four_gigabytes(name):
    run = subprocess.run([sys.executable, "-c", program, *name.split()], capture_output=True, text=True, check=True)
    tokens, peak = run.stdout.split()
    assert int(tokens) == 1 + 8192 and float(peak) < 4, peak
