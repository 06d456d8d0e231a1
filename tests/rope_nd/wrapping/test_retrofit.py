"""Between a model's own table and rotary positions: the ends, the way, what is refused."""

import copy
from itertools import pairwise

import pytest
import timm
import torch
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import nn

from rope_nd import fade, unwrap, wrap
from tests.rope_nd.wrapping.zoo import build, images

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3}
NAMES = {
    "dinov2": ("vit_small_patch14_dinov2", {"init_values": 0.5}),
    "clip": ("vit_base_patch32_clip_224", {"num_classes": 7}),
    "siglip": ("vit_base_patch16_siglip_224", {}),
    "deit": ("deit_tiny_distilled_patch16_224", {"num_classes": 5}),
}


def pretrained(kind: str) -> nn.Module:
    """A tiny model of a family, all of whose parameters say something."""
    torch.manual_seed(0)
    name, options = NAMES[kind]
    model = timm.create_model(name, **TINY, **options)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
    return model.eval()


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("encoding", ["axial", "dinov3", "mixed"])
def test_without_strength_a_model_that_keeps_its_table_is_the_original(kind, encoding):
    plain, x = pretrained(kind), torch.randn(2, 3, 32, 32)
    model = wrap(copy.deepcopy(plain), encoding, keep_pos_embed="absolute", strength=0.0)
    torch.testing.assert_close(model(x), plain(x), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(model.forward_features(x), plain.forward_features(x), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", NAMES)
def test_after_fading_the_state_dict_still_loads_into_the_original(kind):
    plain = pretrained(kind)
    model = fade(wrap(copy.deepcopy(plain), "axial", keep_pos_embed="absolute", strength=0), strength=1, absolute=0)
    again = pretrained(kind)
    for p in again.parameters():
        p.data.zero_()
    again.load_state_dict(model.state_dict(), strict=True)
    x = torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(again(x), plain(x), atol=0, rtol=0)


@pytest.mark.parametrize("kind", NAMES)
def test_the_end_of_fading_is_the_model_wrapped_without_its_table(kind):
    plain, x = pretrained(kind), torch.randn(2, 3, 48, 40)
    faded = fade(wrap(copy.deepcopy(plain), "axial", keep_pos_embed="absolute", strength=0), strength=1, absolute=0)
    torch.testing.assert_close(faded(x), wrap(plain, "axial")(x), atol=1e-6, rtol=1e-6)


def test_every_step_of_a_schedule_is_seen_at_once_and_is_that_of_a_model_made_so():
    plain, x = pretrained("dinov2"), torch.randn(1, 3, 32, 32)
    model, seen = wrap(copy.deepcopy(plain), "axial", keep_pos_embed="absolute", strength=0), []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0, 0.25):
        fade(model, strength=share)
        made = wrap(copy.deepcopy(plain), "axial", keep_pos_embed="absolute", strength=share)
        torch.testing.assert_close(model(x), made(x), atol=0, rtol=0)
        seen.append(model(x))
    assert torch.equal(seen[1], seen[5])
    assert all((a - b).abs().max() > 1e-4 for a, b in pairwise(seen))


def test_strength_may_differ_by_axis_and_none_leaves_what_was_set():
    model = wrap(pretrained("dinov2"), "axial", keep_pos_embed="absolute")
    fade(model, strength=(0.5, 0.25))
    fade(model, absolute=0.5)
    assert model.encoding.strength == (0.5, 0.25)
    assert model.wrapped.absolute == 0.5
    fade(model)
    assert (model.encoding.strength, model.wrapped.absolute) == ((0.5, 0.25), 0.5)


def test_strength_reaches_the_rotation_of_every_layer():
    model = fade(wrap(pretrained("dinov2"), "mixed", keep_pos_embed="absolute"), strength=0.0)
    assert [rope.strength for rope in model.encoding] == [(0.0, 0.0)] * 2


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_weight_is_that_of_the_table_for_prefix_and_patch_tokens(weight):
    plain, x = pretrained("deit"), torch.randn(2, 3, 32, 32)
    model = fade(wrap(copy.deepcopy(plain), "none", keep_pos_embed="absolute"), absolute=weight)
    plain.pos_embed.data *= weight
    torch.testing.assert_close(model(x), plain(x), atol=1e-6, rtol=1e-6)


def test_gradients_of_the_table_carry_its_weight():
    model, x = wrap(pretrained("dinov2"), "none", keep_pos_embed="absolute"), torch.randn(1, 3, 32, 32)
    fade(model, absolute=0.0)(x).sum().backward()
    assert model.pos_embed.grad.abs().max() == 0


def test_unwrapping_restores_the_whole_table():
    plain, x = pretrained("clip"), torch.randn(1, 3, 32, 32)
    model = unwrap(fade(wrap(copy.deepcopy(plain), "axial", keep_pos_embed="absolute"), absolute=0.2))
    torch.testing.assert_close(model(x), plain(x), atol=0, rtol=0)


@pytest.mark.parametrize("antialias", [True, False])
def test_the_table_shrinks_smoothed_or_not_as_asked(antialias):
    plain, x = pretrained("dinov2"), torch.randn(1, 3, 16, 16)
    model = wrap(copy.deepcopy(plain), "native", antialias=antialias)
    table = resample_abs_pos_embed(plain.pos_embed, (2, 2), (4, 4), 1, antialias=antialias)
    tokens = torch.cat((plain.cls_token, plain.patch_embed.proj(x).flatten(2).mT), dim=1) + table
    expected = plain.norm(plain.blocks(tokens))
    torch.testing.assert_close(model.forward_features(x), expected, atol=1e-5, rtol=1e-5)


def test_a_model_that_turns_already_fades_too():
    plain, x = build("eva-02"), images()
    model = fade(wrap(copy.deepcopy(plain), "native"), absolute=0)
    plain.pos_embed.data.zero_()
    torch.testing.assert_close(model(x), plain(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "make, given, told",
    [
        (lambda: pretrained("dinov2"), {"strength": 1.0}, "was not wrapped"),
        (lambda: wrap(pretrained("dinov2"), "alibi"), {"strength": 0.5}, "has none"),
        (lambda: wrap(pretrained("dinov2"), "axial"), {"absolute": 0.5}, "keep_pos_embed='absolute'"),
        (lambda: wrap(pretrained("dinov2"), "axial", keep_pos_embed=True), {"absolute": float("nan")}, "finite"),
        (lambda: wrap(pretrained("dinov2"), "axial"), {"strength": (1.0, 1.0, 1.0)}, "3 entries"),
        (lambda: wrap(build("naflex"), "axial", keep_pos_embed=True), {"absolute": 0.5}, "NaFlexVit"),
    ],
)
def test_what_cannot_be_faded_is_refused_by_name(make, given, told):
    with pytest.raises(ValueError, match=told):
        fade(make(), **given)


def test_a_refused_weight_changes_nothing():
    model = wrap(pretrained("dinov2"), "axial")
    with pytest.raises(ValueError, match="dropped its table"):
        fade(model, strength=0.5, absolute=0.5)
    assert model.encoding.strength == (1.0, 1.0)


@pytest.mark.parametrize("kind", ["naflex", "gemma 4"])
def test_a_table_that_is_resized_in_its_own_way_takes_no_choice(kind):
    with pytest.raises(ValueError, match="antialias=False"):
        wrap(build(kind), "axial", antialias=False)
