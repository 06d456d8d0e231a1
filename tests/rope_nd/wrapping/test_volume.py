"""Image models as models of volumes: cubes of any size, spacing in millimetres, parts that know where they were cut out."""

import math

import pytest
import timm
import torch
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer

from rope_nd import list_encodings, unwrap, wrap
from tests.rope_nd.wrapping.zoo import build


def vit(**options) -> VisionTransformer:
    """One channel, cubes of eight, two heads of 32."""
    torch.manual_seed(0)
    given = {"img_size": 32, "patch_size": 8, "in_chans": 1, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 3}
    model = VisionTransformer(**{**given, **options})
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return model.eval()


def volume(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.rand(*(shape or (2, 1, 24, 40, 32)), generator=torch.Generator().manual_seed(seed))


def close(a: torch.Tensor, b: torch.Tensor, atol: float = 1e-5, rtol: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, atol=atol, rtol=rtol, check_dtype=False)


def turned(model, x: torch.Tensor, **places) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotated queries and keys of the first layer, `[B, H, *extent, D]`, without the class token."""
    tokens, where = model.start(x, **places)
    attn = model.blocks[0].attn
    q, k, _ = attn.qkv(model.blocks[0].norm1(tokens)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
    return tuple(y[:, :, 1:].unflatten(2, where.extent) for y in where.turn(q, k, 0))


def test_a_cube_of_one_slice_repeated_is_the_slice():
    plain, x = vit(), volume(2, 1, 32, 32)
    given = {"axes": 3, "tubelet": 8, "keep_pos_embed": True, "strength": 0.0}
    cubes = wrap(vit(), "axial", **given)
    assert tuple(cubes.patch_embed.proj.weight.shape) == (64, 1, 8, 8, 8)
    assert (cubes(x[:, :, None].expand(-1, -1, 8, -1, -1)) - plain(x)).abs().max() < 1e-5
    assert cubes(volume(1, 1, 48, 40, 24)).shape == (1, 3)
    close(unwrap(cubes)(x), plain(x))


@pytest.mark.parametrize("name", ["axial", "mixed", "golden", "wavelet_rotary", "wan"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_volume_cut_along_one_axis_has_the_queries_and_keys_of_the_whole(axis, name):
    spacing = (2.5, 0.8, 0.8)  # millimetres
    model = wrap(vit(), name, axes=3, tubelet=8, spacing=spacing)
    x, cut = volume(), [slice(None)] * 3
    cut[axis] = slice(8, 24)
    offset = [0.0, 0.0, 0.0]
    offset[axis] = 8 * spacing[axis]
    whole, part = turned(model, x), turned(model, x[(..., *cut)], offset=offset)
    tokens = [slice(None)] * 3
    tokens[axis] = slice(1, 3)
    for one, other in zip(whole, part):
        assert (one[(..., *tokens, slice(None))] - other).abs().max() < 1e-5
    for one, other in zip(whole, turned(model, x[(..., *cut)])):
        assert (one[(..., *tokens, slice(None))] - other).abs().max() > 1e-2  # told nothing, it begins at zero


@pytest.mark.parametrize("name, options", [("axial", {"scaling": "yarn"}), ("axial", {"coordinates": {"normalize": "centred"}}),
                                           ("axial", {"temperature": "log"}), ("dinov3", {})])  # fmt: skip
def test_a_cut_of_encodings_that_go_by_the_size_needs_that_of_the_whole(name, options):
    if name == "dinov3":  # the model's own: centred coordinates, time and all
        torch.manual_seed(0)
        source = Eva(
            img_size=32, patch_size=8, in_chans=1, embed_dim=64, depth=2, num_heads=2, use_rot_pos_emb=True, use_abs_pos_emb=False,
            rope_type="dinov3", attn_type="rope", qkv_bias=True,
        )  # fmt: skip
        model = wrap(source.eval(), "native", axes=3, tubelet=8, time="slowest")
    else:
        model = wrap(vit(), name, axes=3, tubelet=8, trained_extent=(2, 2, 2), **options)
    x = volume(2, 1, 24, 40, 32)
    whole = turned(model, x)
    part = turned(model, x[..., 16:], offset=(0.0, 0.0, 16.0), extent=(3, 5, 4))
    alone = turned(model, x[..., 16:], offset=(0.0, 0.0, 16.0))
    for one, other in zip(whole, part):
        assert (one[..., 2:, :] - other).abs().max() < 1e-5
    assert (whole[0][..., 2:, :] - alone[0]).abs().max() > 1e-4


def test_anisotropic_voxels_are_placed_in_millimetres_sample_by_sample():
    model = wrap(vit(), "axial", axes=3, tubelet=8, spacing=(1.0, 1.0, 1.0))
    spacing = torch.tensor([[3.0, 0.5, 0.5], [1.0, 1.0, 2.0]])
    x = volume()
    q, _ = turned(model, x, spacing=spacing)
    bare, _ = turned(wrap(vit(), "none", axes=3, tubelet=8), x)
    rows = model.encoding.freqs[0]  # [16, 3]
    at = torch.cartesian_prod(*(torch.arange(n, dtype=torch.float64) for n in (3, 5, 4)))
    for i in range(2):
        phase = (at * spacing[i]) @ rows.mT  # a token of 8 voxels at 1 mm is 8 mm: 3 mm voxels, tokens 3 apart
        pairs = torch.view_as_complex(bare[i].flatten(1, 3).double().unflatten(-1, (16, 2)))
        expected = torch.view_as_real(pairs * torch.exp(1j * phase)).flatten(-2)
        close(q[i].flatten(1, 3), expected, atol=1e-5)
    for i in range(2):
        close(model(x, spacing=spacing)[i], model(x[i : i + 1], spacing=spacing[i])[0])


def test_the_trained_spacing_is_the_unit():
    x = volume()
    thick = wrap(vit(), "axial", axes=3, tubelet=8, spacing=(5.0, 1.0, 1.0))
    close(thick(x), thick(x, spacing=(5.0, 1.0, 1.0)))
    close(thick(x, spacing=(2.5, 1.0, 1.0)), wrap(vit(), "axial", axes=3, tubelet=8)(x, spacing=(0.5, 1.0, 1.0)))


def test_of_two_volumes_one_may_be_cut_elsewhere():
    model, x = wrap(vit(), "mixed", axes=3, tubelet=8), volume()
    offset = torch.tensor([[0.0, 8.0, 0.0], [16.0, 0.0, -8.0]])
    both = model(x, offset=offset)
    for i in range(2):
        close(both[i], model(x[i : i + 1], offset=offset[i])[0])
    assert (both - model(x)).abs().max() > 1e-4  # the class token, which is not turned, knows where it is
    pooled = wrap(vit(class_token=False, global_pool="avg"), "axial", axes=3, tubelet=8)
    close(pooled(x, offset=offset), pooled(x))  # tokens among themselves do not


@pytest.mark.parametrize("extent", [(3, 5, 7), (1, 1, 1), (1, 2, 9)])
@pytest.mark.parametrize("name", ["axial", "simplex", "mixed", "alibi", "learned", "liere", "pope"])
def test_any_extent_is_taken(name, extent):
    model = wrap(vit(), name, axes=3, tubelet=4, keep_pos_embed=True)
    x = volume(1, 1, 4 * extent[0], 8 * extent[1], 8 * extent[2])
    features = model.forward_features(x)
    assert features.shape == (1, 1 + math.prod(extent), 64) and features.isfinite().all()


def test_a_kept_table_is_that_of_the_image_in_every_slice():
    model, seen = wrap(vit(), "none", axes=3, tubelet=8, keep_pos_embed=True), []
    model.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    x = volume(1, 1, 24, 32, 32)
    model(x)
    tokens = seen[0][:, 1:].unflatten(1, (3, 4, 4))
    table = model.pos_embed[:, 1:].unflatten(1, (1, 4, 4))
    patches = model.patch_embed(x).unflatten(1, (3, 4, 4))
    close(tokens, patches + table)
    close(seen[0][:, :1], model.cls_token + model.pos_embed[:, :1])


@pytest.mark.parametrize("keep", [True, "absolute", "rotary"])
def test_a_model_that_turned_before_may_keep_that_within_slices(keep):
    plain, x = build("eva-02"), torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    depth = wrap(build("eva-02"), "axial", axes=3, tubelet=2, keep_pos_embed=keep, strength=(1.0, 0.0, 0.0))
    still = depth(x[:, :, None].expand(-1, -1, 2, -1, -1))
    image = wrap(plain, "none", keep_pos_embed=keep)
    close(still, image(x))
    moving = torch.rand(2, 3, 6, 32, 32, generator=torch.Generator().manual_seed(2))
    assert (depth(moving) - depth(moving.flip(2))).abs().max() > 1e-4


@pytest.mark.parametrize("name", list_encodings())
def test_every_encoding_learns_from_a_volume(name):
    model = wrap(vit(global_pool="avg"), name, axes=3, tubelet=8, frames=16).train()
    before = model(volume(), spacing=(2.0, 1.0, 1.0))
    before.square().mean().backward()
    torch.optim.SGD([p for p in model.parameters() if p.grad is not None], 1e-4).step()
    assert model(volume(), spacing=(2.0, 1.0, 1.0)).square().mean() < before.square().mean()


def test_a_model_without_memory_is_wrapped_and_filled_from_images_later():
    source = vit()
    with torch.device("meta"):
        empty = VisionTransformer(img_size=32, patch_size=8, in_chans=1, embed_dim=64, depth=2, num_heads=2, num_classes=3)
    wrap(empty.eval(), "axial", axes=3, tubelet=8)
    empty.to_empty(device="cpu").load_state_dict(source.state_dict())
    close(empty(volume()), wrap(source, "axial", axes=3, tubelet=8)(volume()), atol=0, rtol=0)


def test_half_precision_keeps_places_apart():
    model, x = wrap(vit(), "axial", axes=3, tubelet=8, spacing=(0.1, 1.0, 1.0)), volume(1, 1, 16, 16, 16)
    offset = (300.0, 0.0, 0.0)
    exact = turned(model, x, offset=offset)
    half = turned(model.bfloat16(), x.bfloat16(), offset=offset)
    assert half[0].dtype == torch.bfloat16
    for one, other in zip(exact, half):
        assert (one - other).abs().max() < 0.05 * one.abs().max()
    assert (half[0][:, :, 0] - half[0][:, :, 1]).abs().max() > 0.1  # tokens 375 and 376


def test_padding_grows_volumes_to_whole_cubes():
    model = wrap(vit(dynamic_img_size=True, dynamic_img_pad=True), "axial", axes=3, tubelet=8)
    x = volume(1, 1, 21, 30, 17)
    close(model(x), model(torch.nn.functional.pad(x, (0, 7, 0, 2, 0, 3))))


def test_a_named_timm_model_of_one_channel_serves():
    small = {"in_chans": 1, "img_size": 64, "embed_dim": 48, "num_heads": 3, "depth": 2, "num_classes": 2}
    model = wrap(timm.create_model("vit_tiny_patch16_224", **small).eval(), "axial", axes=3, tubelet=16, frames=64)
    assert model.wrapped.trained_extent == (4, 4, 4) and model(volume(2, 1, 32, 48, 16)).shape == (2, 2)
    with pytest.raises(ValueError, match=r"has 3 channels, the model 1: expected \[B, C, T, H, W\]"):
        model(volume(2, 3, 32, 48, 16))
