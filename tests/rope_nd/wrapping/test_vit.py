"""Wrapped timm models: equal to the original with nothing turned, right by hand with something turned, at any height and width."""

import copy
import math
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import timm
import torch
from timm.layers import set_fused_attn
from timm.models.vision_transformer import (
    Attention,
    Block,
    VisionTransformer,
)
from timm.optim import param_groups_weight_decay
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from rope_nd import RoPE, list_encodings, unwrap, wrap
from rope_nd.absolute import Sinusoidal
from rope_nd.bias import ALiBi
from rope_nd.learned import Learned
from rope_nd.registry import GENERATED
from rope_nd.wrapping import Where
from rope_nd.wrapping.attention import WrappedAttention
from rope_nd.wrapping.plain import WrappedVisionTransformer


def vit(seed: int = 0, gated: bool = False, **options) -> VisionTransformer:
    """Two layers, three heads of 16, a 4 x 4 grid of 8-pixel patches; no parameter is zero, the table is not small."""
    given = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 5, **options}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = VisionTransformer(**given)
        for block in model.blocks if gated else ():
            block.attn = Attention(48, num_heads=3, qkv_bias=True, gated=True)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * 0.1)
        if model.pos_embed is not None:
            model.pos_embed.add_(torch.randn(model.pos_embed.shape, generator=generator))
    return model.eval()


def images(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*(shape or (2, 3, 32, 32)), generator=torch.Generator().manual_seed(seed))


def still(model: nn.Module) -> nn.Module:
    """Wrapped with nothing turned and its own table: the original."""
    return wrap(model, "axial", keep_pos_embed=True, strength=0.0)


def close(a: torch.Tensor, b: torch.Tensor, atol: float = 1e-6, rtol: float = 1e-6) -> None:
    torch.testing.assert_close(a, b, atol=atol, rtol=rtol)


def close_gradients(a: nn.Module, b: nn.Module, atol: float = 1e-6) -> None:
    others = dict(b.named_parameters())
    assert {n for n, p in a.named_parameters() if p.grad is not None} == {n for n, p in others.items() if p.grad is not None}
    for name, p in a.named_parameters():
        if p.grad is not None:
            scale = max(1.0, others[name].grad.abs().max().item())
            assert (p.grad - others[name].grad).abs().max() <= atol * scale, name


def by_hand(model: nn.Module, x: torch.Tensor, points: torch.Tensor | None, kept: torch.Tensor | None = None) -> torch.Tensor:
    """Features of a wrapped axial ViT with dropped table, in complex numbers: `points` [N, 2] or [B, N, 2] of all patches."""
    batch = len(x)
    patches = model.patch_embed(x).reshape(batch, -1, 48)
    if points is not None:
        omega = 100.0 ** -(torch.arange(4, dtype=torch.float64) / 4)  # 8 pairs a head: four an axis
        angles = torch.cat([points.double()[..., a, None] * omega for a in (0, 1)], -1).expand(batch, -1, -1)  # [B, N, P]
    if kept is not None:
        patches = torch.stack([p[i] for p, i in zip(patches, kept)])
        angles = torch.stack([a[i] for a, i in zip(angles, kept)])
    prefix = [t.expand(batch, -1, -1) for t in (model.cls_token, model.reg_token) if t is not None]
    n = sum(t.shape[1] for t in prefix)
    tokens = model.norm_pre(torch.cat([*prefix, patches], 1))
    for block in model.blocks:
        q, k, v = block.attn.qkv(block.norm1(tokens)).reshape(batch, -1, 3, 3, 16).permute(2, 0, 3, 1, 4)
        if points is not None:
            turn = torch.polar(torch.ones_like(angles), angles)[:, None].to(torch.complex64)  # [B, 1, N, P]
            q, k = (
                torch.cat(
                    [
                        y[:, :, :n],
                        torch.view_as_real(torch.view_as_complex(y[:, :, n:].unflatten(-1, (8, 2)).contiguous()) * turn).flatten(
                            -2
                        ),
                    ],
                    2,
                )
                for y in (q, k)
            )
        mixed = ((q @ k.mT) / 4).softmax(-1) @ v
        tokens = tokens + block.attn.proj(mixed.transpose(1, 2).reshape(batch, -1, 48))
        tokens = tokens + block.mlp(block.norm2(tokens))
    return model.norm(tokens)


def cells(h: int, w: int) -> torch.Tensor:
    return torch.tensor([[i, j] for i in range(h) for j in range(w)], dtype=torch.float64)


# ---- nothing turned is the original

kinds = {
    "class token": {},
    "registers": {"reg_tokens": 3},
    "registers outside the table": {"reg_tokens": 3, "no_embed_class": True},
    "no_embed_class": {"no_embed_class": True},
    "qk_norm": {"qk_norm": True},
    "no class token, avg": {"class_token": False, "global_pool": "avg"},
    "avg with class token": {"global_pool": "avg"},
    "avg with prefix": {"global_pool": "avg", "pool_include_prefix": True, "fc_norm": False},
    "map": {"global_pool": "map", "class_token": False},
    "no pooling": {"global_pool": ""},
    "pre_norm": {"pre_norm": True},
    "no table": {"pos_embed": "none"},
    "dynamic": {"dynamic_img_size": True},
    "dynamic with registers": {"dynamic_img_size": True, "reg_tokens": 2, "no_embed_class": True},
    "scaled attention": {"scale_attn_norm": True, "scale_mlp_norm": True},
    "gated attention": {"gated": True},
    "layer scale": {"init_values": 0.3, "qkv_bias": False, "proj_bias": False},
    "wide patches": {"patch_size": (8, 4), "img_size": (32, 24)},
    "dropouts": {"pos_drop_rate": 0.2, "proj_drop_rate": 0.2, "attn_drop_rate": 0.2, "drop_path_rate": 0.3, "drop_rate": 0.2},
    "dropped patches": {"patch_drop_rate": 0.5, "reg_tokens": 1},
}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", kinds)
def test_with_nothing_turned_the_wrapped_model_is_the_original_in_outputs_and_gradients(kind, training, fused):
    set_fused_attn(fused)
    try:
        plain = vit(**kinds[kind])
    finally:
        set_fused_attn(True)
    assert all(block.attn.fused_attn is fused for block in plain.blocks)
    turned = still(copy.deepcopy(plain))
    assert type(turned) is WrappedVisionTransformer and all(type(b.attn) is WrappedAttention for b in turned.blocks)
    x = images(2, 3, *plain.patch_embed.img_size)
    for model in (plain, turned):
        torch.manual_seed(0)
        model.train(training)(x).square().sum().backward()
    torch.manual_seed(0)
    expected = plain(x)
    torch.manual_seed(0)
    close(turned(x), expected)
    close_gradients(turned, plain)


@pytest.mark.parametrize("size", [(32, 32), (64, 64), (24, 56), (16, 8), (8, 8)])
@pytest.mark.parametrize("kind", ["class token", "registers outside the table", "no class token, avg"])
def test_a_kept_table_is_resized_as_timm_resizes_it(kind, size):
    dynamic = vit(**kinds[kind], dynamic_img_size=True)
    fixed = vit(**kinds[kind])
    fixed.load_state_dict(dynamic.state_dict())
    x = images(2, 3, *size)
    close(still(fixed)(x), dynamic(x))


def test_padded_images_are_taken_as_timm_takes_them():
    plain = vit(dynamic_img_size=True, dynamic_img_pad=True)
    turned, x = still(copy.deepcopy(plain)), images(2, 3, 27, 45)
    close(turned(x), plain(x))
    assert wrap(vit(dynamic_img_size=True, dynamic_img_pad=True), "axial").forward_features(x).shape == (2, 1 + 4 * 6, 48)


@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "deit3_small_patch16_224", "vit_small_patch14_reg4_dinov2", "vit_tiny_r_s16_p8_224"]
)
def test_named_timm_models_are_the_original_with_nothing_turned(name):
    small = {} if name.startswith("vit_tiny_r") else {"embed_dim": 48, "num_heads": 3}
    size = 56 if "patch14" in name else 64
    plain = timm.create_model(name, depth=2, img_size=size, num_classes=5, **small).eval()
    turned, x = still(copy.deepcopy(plain)), images(1, 3, size, size)
    close(turned(x), plain(x))
    assert turned(images(1, 3, 2 * size, size)).shape == (1, 5)


def test_with_something_turned_or_the_table_dropped_it_is_not_the_original():
    plain, x = vit(), images()
    for options in ({"keep_pos_embed": True}, {"strength": 0.0}, {"keep_pos_embed": True, "strength": 0.01}):
        assert (wrap(copy.deepcopy(plain), "axial", **options)(x) - plain(x)).abs().max() > 1e-4


def test_without_an_encoding_it_is_the_original_without_its_table():
    plain = vit(no_embed_class=True)
    bare = wrap(copy.deepcopy(plain), "none")
    with torch.no_grad():
        plain.pos_embed.zero_()
    close(bare(images()), plain(images()))
    kept = vit()
    close(wrap(copy.deepcopy(kept), "none", keep_pos_embed=True)(images()), kept(images()))


# ---- something turned is right by hand, at any height and width


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("size", [(32, 32), (64, 64), (64, 32), (8, 40), (24, 8)])
@pytest.mark.parametrize("options", [{}, {"reg_tokens": 2, "pre_norm": True}, {"class_token": False, "global_pool": "avg"}])
def test_features_are_those_of_the_formula_at_any_height_and_width(options, size, training, fused):
    model = wrap(vit(**options), "axial").train(training)
    for block in model.blocks:
        block.attn.fused_attn = fused
    x, extent = images(2, 3, *size), (size[0] // 8, size[1] // 8)
    features = model.forward_features(x)
    assert features.shape == (2, model.num_prefix_tokens + extent[0] * extent[1], 48)
    close(features, by_hand(model, x, cells(*extent)), atol=2e-5, rtol=1e-5)
    assert (features - by_hand(model, x, None)).abs().max() > 1e-2  # the formula matters
    features.square().mean().backward()
    unread = {"pos_embed", "head.weight", "head.bias", "fc_norm.weight", "fc_norm.bias"}
    assert all(torch.isfinite(p.grad).all() and p.grad.any() for n, p in model.named_parameters() if n not in unread)
    assert model.pos_embed.grad is None


def averaged(name: str) -> dict[str, str]:
    """A class token has no bias and no parabola: read alone, it would leave those of the last layer without a gradient."""
    return {"global_pool": "avg"} if name in ("pape", "swin", "fire") else {}


@pytest.mark.parametrize("name", list_encodings())
@pytest.mark.parametrize("size", [(32, 32), (64, 64), (16, 72)])
def test_every_encoding_takes_any_size_forward_and_backward(name, size):
    model = wrap(vit(**averaged(name)), name).train()
    model(images(2, 3, *size)).square().sum().backward()
    learned = {n: p.grad for n, p in model.named_parameters() if n.startswith("encoding.")}
    unread = [n for n in learned if n.endswith("log_threshold") and size == (64, 64)]  # FIRE has one for grids up to the trained
    assert all(grad is not None and (grad.any() or n in unread) for n, grad in learned.items())
    with torch.no_grad():
        assert torch.isfinite(model.eval()(images(1, 3, *size))).all()


def test_biases_of_layers_are_made_one_after_the_other_not_all_at_once():
    model, order = wrap(vit(depth=3), "fire"), []
    for i in range(3):
        model.encoding[i].register_forward_pre_hook(lambda *_, i=i: order.append(f"bias {i}"))
        model.blocks[i].register_forward_pre_hook(lambda *_, i=i: order.append(f"block {i}"))
    model(images())
    assert order == ["block 0", "bias 0", "block 1", "bias 1", "block 2", "bias 2"]


@pytest.mark.slow
@pytest.mark.parametrize("size", [224, 448])
@pytest.mark.parametrize("name", list_encodings())
def test_vit_tiny_learns_with_every_encoding_in_ten_steps(name, size):
    torch.manual_seed(0)
    model = wrap(timm.create_model("vit_tiny_patch16_224", num_classes=3), name).train()
    x, labels = images(448 // size, 3, size, size), torch.arange(448 // size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    losses = []
    for _ in range(10):
        loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(math.isfinite(loss) for loss in losses) and sum(losses[-3:]) / 3 < 0.9 * losses[0], losses


@pytest.mark.parametrize("name", ["sinusoidal", "learned"])
def test_absolute_codes_are_added_to_the_patches_and_to_nothing_else(name):
    model = wrap(vit(reg_tokens=2), name)
    seen = []
    model.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    x = images(2, 3, 48, 24)
    model(x)
    close(seen[0][:, 3:], model.patch_embed(x) + model.encoding.at(6, 3))
    close(seen[0][:, :3], torch.cat([model.cls_token, model.reg_token], 1).expand(2, -1, -1))


def test_coordinates_given_by_name_are_used_for_every_encoding_that_has_them():
    centred = {"normalize": "centred"}
    for name in ("axial", "sinusoidal"):
        x = images()
        assert (wrap(vit(), name)(x) - wrap(vit(), name, coordinates=centred)(x)).abs().max() > 1e-4, name
    model, seen = wrap(vit(), "sinusoidal", coordinates=centred), []
    model.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(images())
    close(seen[0][:, 1:], model.patch_embed(images()) + model.encoding.at(4, 4))


@pytest.mark.parametrize(
    "make", [lambda: RoPE(16, 2, prefix_tokens=1), lambda: Sinusoidal(48, 2), lambda: Learned(48, 2, trained_extent=(4, 4))]
)
def test_a_module_may_be_given_instead_of_a_name(make):
    names = {RoPE: "axial", Sinusoidal: "sinusoidal", Learned: "learned"}
    module = make()
    named = wrap(vit(), names[type(module)])
    given = wrap(vit(), module)
    assert given.encoding is module
    if isinstance(module, Learned):
        module.load_state_dict(named.encoding.state_dict())
    close(given(images(2, 3, 40, 24)), named(images(2, 3, 40, 24)))


def test_learned_frequencies_are_one_set_a_layer_and_each_layer_reads_its_own():
    model, x = wrap(vit(), "mixed"), images()
    assert len(model.encoding) == 2 and not torch.equal(model.encoding[0].freqs, model.encoding[1].freqs)
    plain = model.forward_intermediates(x, intermediates_only=True)
    with torch.no_grad():
        model.encoding[1].freqs.mul_(1.5)
    moved = model.forward_intermediates(x, intermediates_only=True)
    assert torch.equal(plain[0], moved[0]) and not torch.allclose(plain[1], moved[1])


# ---- tokens are a set with coordinates


@pytest.mark.parametrize("name", ["axial", "mixed", "golden"])
@pytest.mark.parametrize("pool", ["avg", "token"])
def test_shuffling_tokens_with_their_coordinates_changes_nothing(pool, name):
    model, x = wrap(vit(global_pool=pool), name), images()
    order = torch.randperm(16, generator=torch.Generator().manual_seed(2))
    ropes = model.encoding if name == "mixed" else [model.encoding] * 2
    patches = model.patch_embed(x)

    def pooled(order: torch.Tensor, coordinates: torch.Tensor) -> torch.Tensor:
        tokens = torch.cat([model.cls_token.expand(2, -1, -1), patches[:, order]], 1)
        for block, rope in zip(model.blocks, ropes):
            tokens = block(tokens, Where(((rope.at(4, 4).keep(coordinates),),)))
        return model.forward_head(model.norm(tokens))

    same = torch.arange(16)
    close(pooled(same, same), model(x), atol=1e-5)
    close(pooled(order, order), model(x), atol=1e-5)
    assert (pooled(order, same) - model(x)).abs().max() > 1e-3


# ---- state dicts, copies, unwrap


@pytest.mark.parametrize("name", list_encodings())
def test_keys_are_the_originals_and_learned_values_under_encoding(name):
    before = set(vit().state_dict())
    model = wrap(vit(), name)
    added = set(model.state_dict()) - before
    learned = [] if model.encoding is None else [f"encoding.{n}" for n, _ in model.encoding.named_parameters()]
    assert before <= set(model.state_dict()) and added == set(learned)
    trained = {"learned", "mixed", "pope", "pape", "t5", "t5_joint", "swin", "fire", "harope", *GENERATED}
    assert bool(added) == (name in trained | {"string_cayley", "string_circulant"})
    model(images(1, 3, 64, 40))
    assert set(model.state_dict()) == before | added  # nothing is cached in it


@pytest.mark.parametrize("name", ["none", "axial", "sinusoidal", "golden", "learned", "mixed"])
@pytest.mark.parametrize("keep", [False, True])
def test_checkpoints_load_before_and_after_wrapping(name, keep):
    source, strict, x = vit(seed=3), name not in ("learned", "mixed"), images(2, 3, 40, 24)
    expected = wrap(copy.deepcopy(source), name, keep_pos_embed=keep)
    first, later = vit(), wrap(vit(), name, keep_pos_embed=keep)
    first.load_state_dict(source.state_dict(), strict=True)
    missing = later.load_state_dict(source.state_dict(), strict=strict)
    assert not missing.unexpected_keys and all(key.startswith("encoding.") for key in missing.missing_keys)
    wrap(first, name, keep_pos_embed=keep)
    for model in (first, later):
        own = {k: v for k, v in expected.state_dict().items() if k.startswith("encoding.")}
        model.load_state_dict({**model.state_dict(), **own}, strict=True)
        assert torch.equal(model(x), expected(x))
    back = vit()
    assert back.load_state_dict(later.state_dict(), strict=strict).missing_keys == []
    assert torch.equal(back(images()), source(images()))


def test_a_rotary_model_trained_at_one_size_loads_strictly_at_another():
    small, large = wrap(vit(img_size=32), "axial"), wrap(vit(img_size=32), "axial")
    large.set_input_size((64, 48))
    for name in ("axial", "mixed"):
        one, other = wrap(vit(pos_embed="none"), name), wrap(vit(pos_embed="none", img_size=(64, 48), seed=5), name)
        other.load_state_dict(one.state_dict(), strict=True)
        assert torch.equal(one(images(1, 3, 64, 48)), other(images(1, 3, 64, 48)))
    assert torch.equal(small(images(1, 3, 64, 48)), large(images(1, 3, 64, 48)))


@pytest.mark.parametrize("name", list_encodings())
@pytest.mark.parametrize("learns", [True, False])
def test_unwrap_gives_back_the_class_the_outputs_and_what_learns(name, learns):
    model, x = vit(), images()
    model.pos_embed.requires_grad_(learns)
    before, flags, keys = model(x), {n: p.requires_grad for n, p in model.named_parameters()}, list(model.state_dict())
    own = set(vars(model))
    wrap(model, name)
    assert not model.pos_embed.requires_grad
    assert unwrap(model) is model and type(model) is VisionTransformer
    assert all(type(b) is Block and type(b.attn) is Attention for b in model.blocks)
    assert torch.equal(model(x), before) and list(model.state_dict()) == keys and set(vars(model)) == own
    assert {n: p.requires_grad for n, p in model.named_parameters()} == flags and not hasattr(model, "encoding")
    with pytest.raises(AssertionError):
        model(images(1, 3, 64, 64))  # as strict as it was
    assert torch.equal(still(model)(x), before)  # and it can be wrapped again


def test_a_dropped_table_is_kept_as_it_was_through_training():
    model = wrap(vit(), "axial").train()
    table = model.pos_embed.clone()
    step = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    model(images()).sum().backward()
    step.step()
    assert torch.equal(model.pos_embed, table) and unwrap(model).pos_embed.requires_grad


@pytest.mark.parametrize("name", ["none", "axial", "mixed", "learned", "sinusoidal"])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies_give_the_same_and_are_independent(copied, name):
    model = wrap(vit(), name, temperature="log")
    other, x = copied(model), images(2, 3, 64, 24)
    expected = model(x)
    assert torch.equal(other(x), expected) and type(other) is WrappedVisionTransformer
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    assert torch.equal(model(x), expected)
    assert type(unwrap(other)) is VisionTransformer and type(model) is WrappedVisionTransformer


# ---- the rest of timm's interface


@pytest.mark.parametrize("kind", ["registers", "no class token, avg"])
@pytest.mark.parametrize("size", [(32, 32), (24, 56)])
@pytest.mark.parametrize("fmt", ["NCHW", "NLC"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"indices": 1},
        {"indices": [0]},
        {"indices": [0], "stop_early": True},
        {"indices": [-1, 0], "norm": True, "return_prefix_tokens": True},
        {"intermediates_only": True, "return_prefix_tokens": True},
        {"output_dict": True},
        {"output_dict": True, "return_prefix_tokens": True, "norm": True, "indices": [1]},
        {"output_dict": True, "intermediates_only": True, "stop_early": True, "indices": [0]},
        {"is_causal": True},
    ],
)
def test_intermediates_are_timms(options, fmt, size, kind):
    plain = vit(**kinds[kind], dynamic_img_size=True)
    turned, x = still(copy.deepcopy(plain)), images(2, 3, *size)
    got = turned.forward_intermediates(x, output_fmt=fmt, **options)
    expected = plain.forward_intermediates(x, output_fmt=fmt, **options)
    assert type(got) is type(expected) and (not isinstance(got, dict) or set(got) == set(expected))
    leaves, known = (
        torch.utils._pytree.tree_flatten(got),
        torch.utils._pytree.tree_flatten({k: expected[k] for k in got} if isinstance(got, dict) else expected),
    )
    assert leaves[1] == known[1]
    for a, b in zip(leaves[0], known[0]):
        close(a, b)


def test_intermediates_and_features_are_of_one_forward_pass():
    model, x = wrap(vit(reg_tokens=1), "mixed"), images(2, 3, 40, 16)
    final, maps = model.forward_intermediates(x)
    close(final, model.forward_features(x))
    assert [m.shape for m in maps] == [(2, 48, 5, 2)] * 2
    one = model.get_intermediate_layers(x, 1, reshape=True, norm=True)[0]
    close(one, final[:, 2:].mT.unflatten(2, (5, 2)))


def test_dropped_patches_do_not_tear_intermediate_maps():
    model = wrap(vit(patch_drop_rate=0.5), "axial").train()
    assert model.forward_intermediates(images(), intermediates_only=True)[0].shape == (2, 48, 4, 4)


def test_pruned_models_run():
    for name in ("axial", "mixed"):
        model, x = wrap(vit(depth=3), name), images()
        expected = model.forward_intermediates(x, indices=[0, 1], intermediates_only=True)[1]
        assert model.prune_intermediate_layers([0, 1]) == [0, 1]
        close(model.forward_intermediates(x, intermediates_only=True)[1], expected)


def test_set_input_size_follows_timm_and_moves_nothing_of_the_encoding():
    plain = vit()
    turned = still(copy.deepcopy(plain))
    for model in (plain, turned):
        model.set_input_size(img_size=(64, 48))
    close(turned(images(2, 3, 64, 48)), plain(images(2, 3, 64, 48)))
    assert turned.wrapped.trained_extent == (4, 4)
    close(unwrap(turned)(images(2, 3, 64, 48)), plain(images(2, 3, 64, 48)))
    rotary, x = wrap(vit(), "axial", scaling="ntk"), images(1, 3, 64, 48)
    before = rotary(x)
    rotary.set_input_size(img_size=(64, 48))
    assert torch.equal(rotary(x), before) and not rotary.pos_embed.requires_grad
    patches = wrap(vit(), "axial")
    patches.set_input_size(img_size=(32, 32), patch_size=(4, 4))
    assert patches.forward_features(images()).shape == (2, 65, 48)


def test_the_classifier_can_be_reset():
    model = wrap(vit(), "axial")
    model.reset_classifier(7, "avg")
    assert model(images(2, 3, 40, 24)).shape == (2, 7)
    close(model(images()), model.head(model.forward_features(images())[:, 1:].mean(1)))
    model.reset_classifier(0)
    assert model(images()).shape == (2, 48) and type(unwrap(model)) is VisionTransformer


# ---- dropped patches, checkpointing, threads, resolutions in flight


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("options", [{}, {"reg_tokens": 2}, {"class_token": False, "global_pool": "avg"}])
def test_kept_patches_keep_their_coordinates(options, ordered):
    model, x = wrap(vit(patch_drop_rate=0.4, **options), "axial").train(), images(3, 3, 40, 24)
    model.patch_drop.ordered = ordered
    torch.manual_seed(5)
    got = model.forward_features(x)
    torch.manual_seed(5)
    kept = torch.randn(3, 15).argsort(-1)[:, :9]
    kept = kept.sort(-1)[0] if ordered else kept
    close(got, by_hand(model, x, cells(5, 3), kept), atol=2e-5, rtol=1e-5)
    wrong = kept.flip(1)
    assert (got - by_hand(model, x, cells(5, 3), wrong)).abs().max() > 1e-2
    close(model.eval().forward_features(x), by_hand(model, x, cells(5, 3)), atol=2e-5, rtol=1e-5)


def test_kept_patches_are_scaled_as_the_whole_grid_and_carry_their_codes():
    for name, options in (("axial", {"scaling": "pi"}), ("sinusoidal", {}), ("learned", {}), ("mixed", {})):
        model, x = wrap(vit(patch_drop_rate=0.5, global_pool="avg"), name, **options), images(2, 3, 64, 32)
        model.patch_drop.prob = 1e-17  # all kept, in another order
        close(model.train()(x), model.eval()(x), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["none", "axial", "mixed", "learned"])
def test_gradient_checkpointing_gives_the_same_gradients(name):
    model = wrap(vit(patch_drop_rate=0.3, proj_drop_rate=0.1), name, augment={"shift": 1.0}).train()
    other = copy.deepcopy(model)
    other.set_grad_checkpointing()
    for m in (model, other):
        torch.manual_seed(3)
        m(images()).square().sum().backward()
    close_gradients(other, model)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", ["axial", "mixed", "learned"])
def test_two_resolutions_before_one_backward_give_the_sum_of_their_gradients(name, checkpointing):
    model = wrap(vit(), name, scaling="pi").train()
    model.set_grad_checkpointing(checkpointing)
    apart, together = copy.deepcopy(model), copy.deepcopy(model)
    small, large = images(2, 3, 32, 24), images(2, 3, 56, 64)
    for x in (small, large):
        apart(x).square().sum().backward()
    one, other = together(small), together(large)
    (one.square().sum() + other.square().sum()).backward()
    close_gradients(together, apart, atol=5e-6)


@pytest.mark.parametrize("name", ["axial", "mixed", "learned", "sinusoidal"])
def test_threads_give_the_numbers_of_one(name):
    model = wrap(vit(), name, scaling="pi", temperature="log")
    batches = [images(1, 3, 8 * h, 8 * w) for h, w in ((2, 3), (8, 9), (4, 4), (6, 1))] * 6
    with torch.inference_mode():
        plain = [model(x) for x in batches]

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return model(x)

    with ThreadPoolExecutor(2) as pool:
        for got, expected in zip(pool.map(run, batches), plain):
            close(got, expected)


def test_threads_train_with_the_gradients_of_one():
    base = wrap(vit(), "mixed").train()
    sizes = [(2, 3), (6, 5), (4, 4), (3, 7)] * 3

    def gradient(extent: tuple[int, int]) -> list[torch.Tensor]:
        parameters = [p for n, p in base.named_parameters() if n.startswith(("blocks", "encoding"))]
        return list(torch.autograd.grad(base(images(1, 3, 8 * extent[0], 8 * extent[1])).square().sum(), parameters))

    plain = [gradient(e) for e in sizes]
    with ThreadPoolExecutor(2) as pool:
        for got, expected in zip(pool.map(gradient, sizes), plain):
            for a, b in zip(got, expected):
                close(a, b, atol=1e-5 * max(1.0, b.abs().max().item()))


# ---- augmentation


@pytest.mark.parametrize("name", ["axial", "mixed", "sinusoidal", "learned"])
@pytest.mark.parametrize("augment", [{"shift": 2.0}, {"jitter": 1.5}, {"rescale": 2.0}])
def test_coordinates_are_augmented_in_training_only_once_a_sample_and_seeded(name, augment):
    model = wrap(vit(global_pool="avg"), name, augment=augment)
    x = images(1, 3, 32, 32).expand(3, -1, -1, -1)
    torch.manual_seed(0)
    one, other = model.train()(x), model(x)
    torch.manual_seed(0)
    again = model(x)
    assert torch.equal(one, again) and not torch.equal(one, other)
    distance = (one[:, None] - one[None]).abs().amax(-1)
    off = distance[~torch.eye(3, dtype=torch.bool)]
    assert (off > 1e-5).all()
    state = torch.get_rng_state()
    quiet = model.eval()(x)
    assert torch.equal(torch.get_rng_state(), state)
    close(quiet[:1].expand(3, -1), quiet)


def test_a_shift_is_not_seen_by_a_rotation_without_prefix_tokens():
    model = wrap(vit(class_token=False, global_pool="avg"), "mixed", augment={"shift": 5.0})
    close(model.train()(images()), model.eval()(images()), atol=1e-4, rtol=1e-4)


def test_augmented_coordinates_are_those_of_the_formula():
    model = wrap(vit(), "axial", augment={"shift": 1.0, "jitter": 1.4, "rescale": 1.3}).train()
    x = images(2, 3, 24, 40)
    torch.manual_seed(9)
    got = model.forward_features(x)
    torch.manual_seed(9)
    draw = torch.rand(2, 1, 5).double() * 2 - 1
    stretch = torch.exp(draw[..., 2:4] * math.log(1.4) + draw[..., 4:] * math.log(1.3))
    close(got, by_hand(model, x, (cells(3, 5) + draw[..., :2]) * stretch), atol=5e-5, rtol=1e-4)


# ---- above the trained size


@pytest.mark.parametrize("name", ["none", "learned", "sinusoidal", "axial", "mixed"])
@pytest.mark.parametrize("fused", [True, False])
def test_the_log_temperature_sharpens_all_scores_above_the_trained_size_and_none_at_it(name, fused):
    torch.manual_seed(0)
    plain = wrap(vit(), name)
    torch.manual_seed(0)
    hot = wrap(vit(), name, temperature="log")
    large, factor = images(2, 3, 64, 48), math.log(48) / math.log(16)
    for model in (plain, hot):
        for block in model.blocks:
            block.attn.fused_attn = fused
    for x in (images(), images(2, 3, 16, 24)):
        assert torch.equal(plain(x), hot(x))
    assert (plain(large) - hot(large)).abs().max() > 1e-4
    with torch.no_grad():  # queries times the factor are scores times the factor, and rotation is linear
        for block in plain.blocks:
            block.attn.qkv.weight[:48].mul_(factor)
            block.attn.qkv.bias[:48].mul_(factor)
    close(hot(large), plain(large), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "scaling", ["pi", "ntk", "dynamic_ntk", "yarn", "llama3", ["pi", "ntk"], {"yarn": {"slow": 0.1, "fast": 0.2}}]
)
@pytest.mark.parametrize("name", ["axial", "mixed", "sinusoidal"])
def test_scaling_changes_nothing_at_the_trained_size(name, scaling):
    plain, scaled = wrap(vit(), name), wrap(vit(), name, scaling=scaling)
    close(plain(images()), scaled(images()))
    close(plain(images(1, 3, 16, 32)), scaled(images(1, 3, 16, 32)))
    assert scaled(images(1, 3, 64, 64)).isfinite().all()


def test_interpolation_lays_a_larger_grid_over_the_trained_one():
    x = images(2, 3, 64, 48)
    for model in (wrap(vit(), "axial", scaling="pi"), wrap(vit(), "axial", scaling="pi", trained_extent=(2, 3))):
        trained = torch.tensor(model.wrapped.trained_extent)
        points = cells(8, 6) * (trained / torch.tensor([8, 6])).clamp(max=1)
        close(model.forward_features(x), by_hand(model, x, points), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("strength", [0.5, (0.0, 1.0)])
def test_strength_is_the_share_of_each_angle_that_is_turned(strength):
    model, x = wrap(vit(), "axial", strength=strength), images(2, 3, 24, 40)
    close(model.forward_features(x), by_hand(model, x, cells(3, 5) * torch.tensor(strength)), atol=2e-5, rtol=1e-5)


# ---- masks

masks = {
    "additive": lambda n: torch.randn(n, n, generator=torch.Generator().manual_seed(4)),
    "additive, a head": lambda n: torch.randn(2, 3, n, n, generator=torch.Generator().manual_seed(4)),
    "-inf": lambda n: torch.zeros(n, n).masked_fill(torch.rand(n, n, generator=torch.Generator().manual_seed(4)) < 0.3, -math.inf),
    "boolean": lambda n: torch.rand(n, n, generator=torch.Generator().manual_seed(4)) > 0.3,
    "boolean, a sample": lambda n: (torch.rand(2, 1, n, n, generator=torch.Generator().manual_seed(4)) > 0.3) | torch.eye(n).bool(),
}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("mask", [*masks, "causal"])
def test_masks_act_as_in_timm(mask, checkpointing, fused):
    plain = vit()
    turned, x = still(copy.deepcopy(plain)), images()
    given = {"is_causal": True} if mask == "causal" else {"attn_mask": masks[mask](17)}
    for model in (plain, turned):
        model.train().set_grad_checkpointing(checkpointing)
        for block in model.blocks:
            block.attn.fused_attn = fused
        model.forward_features(x, **given).square().mean().backward()
    close(turned.forward_features(x, **given), plain.forward_features(x, **given))
    close(turned(x, **given), plain(x, **given))
    close_gradients(turned, plain)
    assert (turned(x, **given) - turned(x)).abs().max() > 1e-4


# ---- half precision


@pytest.mark.parametrize("name", list_encodings())
def test_bfloat16_models_and_autocast_return_bfloat16_close_to_float32(name):
    model, x = wrap(vit(), name, scaling=None), images(2, 3, 64, 40)
    expected = model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = model(x)
        model.train()(x).float().sum().backward()
    assert inside.dtype == torch.bfloat16 and all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    low = copy.deepcopy(model.eval()).bfloat16()(x.bfloat16())
    assert low.dtype == torch.bfloat16
    for got in (inside, low):
        assert (got.float() - expected).norm() / expected.norm() < 0.05


def test_tables_of_a_bfloat16_model_are_those_of_the_float32_one():
    for name in ("axial", "mixed"):
        model = wrap(vit(), name)
        low = copy.deepcopy(model).bfloat16()
        one, other = (m.encoding if name == "axial" else m.encoding[1] for m in (model, low))
        assert torch.equal(one.at(4, 300).cos, other.at(4, 300).cos) and other.at(4, 300).sin.dtype == torch.float32


# ---- graphs

graphs = {
    "axial, own table": ("axial", {"keep_pos_embed": True}),
    "axial, yarn, log temperature": ("axial", {"scaling": "yarn", "temperature": "log"}),
    "mixed": ("mixed", {"scaling": "ntk"}),
    "learned": ("learned", {"temperature": "log"}),
    "sinusoidal": ("sinusoidal", {"scaling": "pi"}),
}
some_sizes = [(32, 40), (64, 64), (24, 56), (80, 16)]


@pytest.mark.parametrize("setup", list(graphs)[:4])
def test_compiles_in_one_frame_over_four_sizes_with_at_most_two_compilations(setup):
    torch._dynamo.reset()
    name, options = graphs[setup]
    model = wrap(vit(depth=1), name, **options)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    with torch.no_grad():
        for size in some_sizes:
            x = images(2, 3, *size)
            close(compiled(x), model(x), atol=1e-5, rtol=1e-5)
    assert 1 <= counter.frame_count <= 2


def test_compiled_training_gives_the_same_gradients():
    torch._dynamo.reset()
    model = wrap(vit(depth=1), "mixed").train()
    other = copy.deepcopy(model)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(other, fullgraph=True, dynamic=True, backend=counter)
    model(images(2, 3, 32, 40)).square().sum().backward()
    compiled(images(2, 3, 32, 40)).square().sum().backward()
    close_gradients(other, model, atol=2e-5)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("setup", list(graphs)[1:])
def test_exports_with_dynamic_height_and_width(setup):
    name, options = graphs[setup]
    model = wrap(vit(depth=1), name, **options)
    h, w = torch.export.Dim("h", min=2, max=64), torch.export.Dim("w", min=2, max=64)
    program = torch.export.export(model, (images(2, 3, 32, 40),), dynamic_shapes=({2: 8 * h, 3: 8 * w},), strict=False)
    for size in some_sizes:
        close(program.module()(images(2, 3, *size)), model(images(2, 3, *size)), atol=1e-5, rtol=1e-5)


# ---- training


@pytest.mark.parametrize(
    "name, options, expected",
    [
        ("axial", {}, set()),
        ("axial", {"learned": True}, {"encoding.0.freqs", "encoding.1.freqs"}),
        ("mixed", {}, {"encoding.0.freqs", "encoding.1.freqs"}),
        ("learned", {}, {"encoding.table"}),
        ("sinusoidal", {}, set()),
        ("none", {}, set()),
    ],
)
def test_learned_positions_are_not_decayed(name, options, expected):
    model = wrap(vit(), name, **options)
    assert model.no_weight_decay() == expected | vit().no_weight_decay()
    assert expected <= {n for n, _ in model.named_parameters()}
    groups = param_groups_weight_decay(model, 0.05, no_weight_decay_list=model.no_weight_decay())
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    plain = {id(p) for group in groups if not group["weight_decay"] for p in group["params"]}
    named = dict(model.named_parameters())
    assert all(id(named[n]) in plain for n in expected) and id(named["blocks.0.attn.qkv.weight"]) in decayed
    optimizer = timm.optim.create_optimizer_v2(model, "adamw", lr=0.0, weight_decay=0.5)
    undecayed = [id(p) for group in optimizer.param_groups if not group["weight_decay"] for p in group["params"]]
    assert {id(named[n]) for n in expected} <= set(undecayed)


def test_a_module_with_one_set_of_learned_frequencies_is_not_decayed_either():
    model = wrap(vit(), RoPE(16, 2, "mixed", heads=3, prefix_tokens=1))
    assert model.no_weight_decay() - vit().no_weight_decay() == {"encoding.freqs"}
    coded = wrap(vit(), Sinusoidal(48, 2, learned=True))
    assert coded.no_weight_decay() - vit().no_weight_decay() == {"encoding.table.freqs"}


@pytest.mark.parametrize("name", list_encodings())
def test_every_encoding_trains_and_then_runs_at_twice_the_size(name):
    torch.manual_seed(0)
    model = wrap(
        timm.create_model("vit_tiny_patch16_224", depth=2, embed_dim=48, num_heads=3, img_size=64, num_classes=5, **averaged(name)),
        name,
    ).train()
    before = {n: p.detach().clone() for n, p in model.named_parameters() if n.startswith("encoding.")}
    x, labels = images(10, 3, 64, 64), torch.arange(10) % 5
    step, losses = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 2e-3), []
    for _ in range(10):
        loss = nn.functional.cross_entropy(model(x), labels)
        step.zero_grad()
        loss.backward()
        step.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert all(not torch.equal(p, before[n]) for n, p in model.named_parameters() if n in before)
    with torch.no_grad():
        assert model.eval()(images(2, 3, 128, 128)).isfinite().all()


# ---- what is refused


class Mine(VisionTransformer):
    pass


small = {"pretrained": False, "num_classes": 2}


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: wrap(nn.Linear(2, 2), "axial"), "does not know Linear"),
        (lambda: wrap(timm.create_model("resnet10t", **small), "axial"), "does not know ResNet"),
        (
            lambda: wrap(
                timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1), embed_dim=12, num_heads=(1, 1), **small), "axial"
            ),
            "does not know SwinTransformer",
        ),
        (lambda: wrap(Mine(depth=1, embed_dim=12, num_heads=1), "axial"), "does not know Mine"),
        (lambda: wrap(wrap(vit(), "axial"), "axial"), "wrapped already"),
        (lambda: wrap(wrap(vit(), "none"), "learned"), "unwrap it first"),
        (lambda: unwrap(vit()), "VisionTransformer was not wrapped"),
        (lambda: unwrap(unwrap(wrap(vit(), "axial"))), "was not wrapped"),
        (lambda: wrap(vit(), "axail"), "did you mean 'axial'"),
        (lambda: wrap(vit(), "sinusiodal"), "did you mean 'sinusoidal'"),
        (lambda: wrap(vit(), "axial", thta=3), "no option 'thta'"),
        (lambda: wrap(vit(), "learned", theta=3), "encoding 'learned' has no option 'theta'"),
        (lambda: wrap(vit(), "sinusoidal", strength=0.5), "encoding 'sinusoidal' has none"),
        (lambda: wrap(vit(), "axial", augment={"shfit": 1.0}), "did you mean 'shift'"),
        (lambda: wrap(vit(), "axial", scaling="yarm"), "did you mean 'yarn'"),
        (lambda: wrap(vit(), "axial", temperature="logg"), "did you mean 'log'"),
        (lambda: wrap(vit(), "none", temperature=-1.0), "temperature=-1.0"),
        (lambda: wrap(vit(), "none", theta=3.0), "'none' has no options, got ['theta']"),
        (lambda: wrap(vit(), "none", scaling="pi"), "no positions to scale"),
        (lambda: wrap(vit(), "learned", scaling="yarn"), "choose one of 'pi', 'none'"),
        (lambda: wrap(vit(), RoPE(16, 2), theta=3.0), "encoding is a module: theta=3.0 must be given to it"),
        (lambda: wrap(vit(), RoPE(16, 2), scaling="pi"), "encoding is a module: scaling='pi'"),
        (lambda: wrap(vit(), RoPE(16, 2, prefix_tokens=1), strength=0.5), "strength=0.5"),
        (lambda: wrap(vit(), RoPE(16, 2, prefix_tokens=1), temperature="log"), "temperature='log'"),
        (lambda: wrap(vit(embed_dim=6, num_heads=3), "axial"), "head_dim=2 has 1 pairs for axes=2"),
        (lambda: wrap(vit(), "axial")(images(1, 3, 33, 32)), "33x32 is no multiple of the patch 8x8: resize to 32x32"),
        (lambda: wrap(vit(), "axial")(images(1, 3, 37, 3)), "resize to 40x8"),
        (lambda: wrap(vit(patch_size=(8, 4)), "none")(images(1, 3, 30, 30)), "no multiple of the patch 8x4"),
        (lambda: wrap(vit(), "axial")(images(3, 32, 32)), "input of shape [3, 32, 32]: expected [B, C, H, W]"),
        (lambda: wrap(vit(), "axial")(images(1, 3, 2, 32, 32)), "expected [B, C, H, W]"),
        (lambda: wrap(vit(), "axial").forward_intermediates(images(), output_fmt="NHWC"), "unknown output_fmt 'NHWC'"),
        (lambda: wrap(vit(), RoPE(16, 2)), "prefix_tokens=0 unturned, the model has 1 prefix tokens"),
        (lambda: wrap(vit(), RoPE(32, 2, prefix_tokens=1)), "made for head_dim=32, the model has 16"),
        (lambda: wrap(vit(), RoPE(16, 3, prefix_tokens=1)), "axes=3: image models have 2"),
        (lambda: wrap(vit(), RoPE(16, 2, "mixed", heads=2, prefix_tokens=1)), "frequencies for 2 heads, the model 3"),
        (lambda: wrap(vit(), Sinusoidal(32, 2)), "encoding has 32 channels, the model 48: make it with dim=48"),
        (lambda: wrap(vit(), Learned(32, 2, trained_extent=(4, 4))), "encoding has 32 channels, the model 48"),
        (lambda: wrap(vit(), ALiBi(4, 2)), "encoding has 4 heads, the model 3: make it with heads=3"),
        (lambda: wrap(vit(), nn.Linear(2, 2)), "encoding is a Linear: give a name, a RoPE, an Absolute or a Bias"),
        (
            lambda: wrap(vit(), nn.ModuleList([RoPE(16, 2, prefix_tokens=1)] * 3)),
            "a list of 3 modules: give one, or one for each of 2",
        ),
        (lambda: wrap(vit(), "alibi", scaling="yarn"), "has no scaling rule to choose: leave scaling out"),
        (lambda: wrap(vit(), "axial", keep_pos_embed="rotry"), "did you mean 'rotary'"),
        (lambda: wrap(vit(), "axial", trained_extent=14), "trained_extent=14: give the token count of each axis"),
        (lambda: wrap(vit(), "native", scaling="yarn"), "no rotary encoding of its own to scale"),
        (lambda: wrap(vit(), "native", theta=3.0), "'native' has no option 'theta'"),
        (lambda: wrap(vit(), "axial", augment={"batch": 2}), "augment has no option 'batch'"),
    ],
)
def test_what_cannot_be_wrapped_or_run_is_named_with_its_mend(call, says):
    with pytest.raises(ValueError) as caught:
        call()
    assert says in str(caught.value)


def test_a_hybrid_refuses_sizes_that_would_lose_pixels():
    model = wrap(timm.create_model("vit_tiny_r_s16_p8_224", depth=1, img_size=64, num_classes=2).eval(), "axial")
    assert model.forward_features(images(1, 3, 96, 64)).shape[1] == 1 + 3 * 2  # 32 pixels a token
    with pytest.raises(ValueError, match="104x64 is no multiple of the patch 32x32: resize to 96x64"):
        model(images(1, 3, 104, 64))


@pytest.mark.parametrize(
    "options",
    [
        *({"axes": 0}, {"thta": 1}, {"scaling": "yarm"}, {"temperature": "logg"}, {"theta": "much"}),
        *(
            {"encoding": "fope", "sigma": "much"},
            {"encoding": "none", "trained_extent": 14},
            {"encoding": "none", "trained_extent": (4,)},
        ),
    ],
)
def test_a_refused_wrap_leaves_the_model_as_it_was(options):
    model = vit()
    with pytest.raises(TypeError if "sigma" in options else ValueError):
        wrap(model, **{"encoding": "axial", **options})
    assert type(model) is VisionTransformer and type(model.blocks[0].attn) is Attention and model.pos_embed.requires_grad
    assert torch.equal(model(images()), vit()(images())) and not hasattr(model, "encoding")
