"""What `wrap` keeps of a model's own positions, and where the encoding that it makes lives."""

import copy

import pytest
import torch
from torch import nn

from rope_nd import RoPE, list_encodings, unwrap, wrap
from rope_nd.wrapping.families import trunk
from tests.rope_nd.wrapping.zoo import build, images


def without_table(model: nn.Module) -> None:
    model.pos_embed = None


def without_rope(model: nn.Module) -> None:
    model.rope = None


def without_bias(model: nn.Module) -> None:
    for name, p in model.named_parameters():
        if name.endswith(("relative_position_bias_table", "rel_pos_h", "rel_pos_w")):
            p.data.zero_()


@pytest.mark.parametrize(
    "kind, keep, strip",
    [
        ("eva-02", "absolute", without_rope),
        ("eva-02", "rotary", without_table),
        ("eva-02", ("absolute", "rotary"), lambda model: None),
        ("rope-vit, mixed and table", ("absolute", "bias"), without_rope),
        ("rope-vit, mixed and table", "rotary", without_table),
        ("dinov3", "absolute", without_rope),
        ("beit, shared and table", "bias", without_table),
        ("beit, shared and table", "absolute", without_bias),
        ("beit", True, lambda model: None),
        ("relpos, table", (), without_bias),
    ],
)
def test_what_is_kept_is_read_and_what_is_not_is_as_if_it_were_not_there(kind, keep, strip):
    plain, x = build(kind), images()
    kept = wrap(copy.deepcopy(plain), "none", keep_pos_embed=keep)
    strip(plain)
    torch.testing.assert_close(kept(x), plain(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "kind, keep, frozen",
    [
        ("eva-02", False, {"pos_embed"}),
        ("eva-02", "absolute", set()),
        ("rope-vit, mixed and table", False, {"pos_embed", "rope.freqs"}),
        ("rope-vit, mixed and table", "absolute", {"rope.freqs"}),
        ("tnt", False, {"patch_pos"}),
        ("naflex", False, {"embeds.pos_embed"}),
        ("naflex, factorized", False, {"embeds.pos_embed_y", "embeds.pos_embed_x"}),
        ("beit, shared and table", "absolute", {"rel_pos_bias.relative_position_bias_table"}),
        ("sam", False, {"pos_embed", "blocks.1.attn.rel_pos_h", "blocks.1.attn.rel_pos_w"}),
        (
            "convit",
            "absolute",
            {f"blocks.{i}.attn.{n}" for i in (0, 1) for n in ("gating_param", "pos_proj.weight", "pos_proj.bias")},
        ),
        ("gemma 4", False, {"encoder.patch_embed.position_embedding_table"}),
    ],
)
def test_what_is_not_kept_is_frozen_under_its_key_and_learns_again_when_unwrapped(kind, keep, frozen):
    model = build(kind)
    wrap(model, "axial", keep_pos_embed=keep)
    assert {name for name, p in model.named_parameters() if not p.requires_grad} == frozen
    model.train()(images()).square().sum().backward()
    assert all(p.grad is None for name, p in model.named_parameters() if name in frozen)
    assert all(p.requires_grad for p in unwrap(model).parameters())


def test_only_what_wrap_froze_is_thawed():
    model = build("vit")
    model.pos_embed.requires_grad_(False)
    assert not unwrap(wrap(model, "axial")).pos_embed.requires_grad
    wrap(model, "axial", keep_pos_embed=True)
    model.pos_embed.requires_grad_(True)
    assert unwrap(model).pos_embed.requires_grad


@pytest.mark.parametrize(
    "kind, layout",
    [("vit", "interleaved"), ("rope-vit", "interleaved"), ("dinov3", "half"), ("qwen 3", "half"), ("gemma 4", "half"),
     ("eva, m-rope", "half")],
)  # fmt: skip
def test_a_rotary_encoding_pairs_channels_as_the_model_did(kind, layout):
    assert trunk(wrap(build(kind), "axial")).encoding.layout == layout
    other = "half" if layout == "interleaved" else "interleaved"
    assert trunk(wrap(build(kind), "axial", layout=other)).encoding.layout == other


@pytest.mark.parametrize("kind", ["dinov3", "rope-vit, mixed", "eva-02", "gemma 4", "naflex, axial"])
@pytest.mark.parametrize("scaling", ["pi", "yarn", "ntk"])
def test_scaling_of_the_models_own_rotation_changes_nothing_at_its_size_and_something_above(kind, scaling):
    plain, x, large = build(kind), images(), images(2, 3, 64, 96)
    grid = {"trained_extent": (4, 4)} if kind.startswith(("gemma", "naflex")) else {}  # they say 48 x 48, 16 x 16
    scaled = wrap(copy.deepcopy(plain), "native", scaling=scaling, **grid)
    native = wrap(copy.deepcopy(plain), "native", **grid)
    torch.testing.assert_close(scaled(x), plain(x), atol=1e-5, rtol=1e-5)
    change = (scaled(large) - native(large)).abs().max()
    laid = {("dinov3", "pi"), ("eva-02", "pi"), ("eva-02", "yarn")}  # coordinates laid over the trained grid are interpolated
    assert change < 1e-5 if (kind, scaling) in laid else change > 1e-5  # and no pair of that EVA turns 0.75 times in 4 tokens


@pytest.mark.parametrize("name", list_encodings())
@pytest.mark.parametrize("kind", ["vit", "eva-02", "beit"])
def test_a_model_without_memory_is_wrapped_and_filled_later(kind, name):
    source = wrap(build(kind), name)
    with torch.device("meta"):
        empty = build(kind)
    wrap(empty, name)
    assert empty(torch.empty(2, 3, 32, 64, device="meta")).device.type == "meta"
    assert {t.device.type for t in (*empty.parameters(), *empty.encoding.buffers())} == {"meta"} if empty.encoding else True
    empty.to_empty(device="cpu").load_state_dict(source.state_dict())
    for module in empty.modules():  # timm's own buffers
        getattr(module, "init_non_persistent_buffers", lambda: None)()
    torch.testing.assert_close(empty(images()), source(images()))


def test_one_encoding_may_serve_as_a_module_for_any_family():
    for kind in ("vit", "eva-02", "beit", "cait", "tnt"):
        model = build(kind)
        prefix = 0 if kind == "cait" else model.num_prefix_tokens
        rope = RoPE(16, 2, "golden", heads=3, prefix_tokens=prefix)
        named = wrap(copy.deepcopy(model), "golden")
        torch.testing.assert_close(wrap(model, rope)(images(1, 3, 64, 32)), named(images(1, 3, 64, 32)))
        assert model.encoding is rope


def test_heads_of_keys_are_what_frequencies_are_made_for():
    model = wrap(build("sapiens 2"), "mixed")  # 4 and 2 key heads for 4 queries
    assert [rope.freqs.shape[0] for rope in model.encoding] == [2, 2]
    assert model(images(1, 3, 64, 48)).isfinite().all()
    assert wrap(build("sapiens 2"), "alibi").encoding.heads == 4
    assert wrap(build("vit, diff"), "alibi").encoding.heads == 6  # a differential head is two


@pytest.mark.parametrize("kind", ["cait", "convit"])
def test_attention_that_cannot_be_masked_says_so(kind):
    with pytest.raises(ValueError, match="cannot be masked"):
        wrap(build(kind), "axial").forward_features(images(), attn_mask=torch.zeros(16, 16))
