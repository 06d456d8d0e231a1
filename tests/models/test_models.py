"""Entries of timm's registry: timm's own tools find, make, cut, feed and load them, and they are what their docstrings say."""

import copy
import math
import re
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.data import create_transform, resolve_data_config
from timm.models import list_modules, model_entrypoint
from timm.optim import create_optimizer_v2
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import models
from rope_nd import RoPE, wrap

IMAGE, VIDEO, VOLUME = "rope_vit_tiny_patch16_224", "rope_video_vit_tiny_patch16_224", "rope_volume_vit_tiny_patch16_96"
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2}
INPUTS = {IMAGE: (2, 3, 24, 40), VIDEO: (2, 3, 6, 24, 40), VOLUME: (2, 1, 16, 24, 40)}
GRIDS = {IMAGE: (3, 5), VIDEO: (3, 3, 5), VOLUME: (2, 3, 5)}


def make(name: str, **options) -> nn.Module:
    """A small model of that name, no parameter zero."""
    torch.manual_seed(0)
    model = timm.create_model(name, **{**SMALL, "num_classes": 5, **options}).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return model


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def close(a: torch.Tensor, b: torch.Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, atol=atol, rtol=1e-5, check_dtype=False)


# ---- in the registry


def test_timm_lists_the_names_and_none_of_them_is_timms_own():
    assert set(timm.list_models("rope_*vit_*")) == set(models.NAMES) and len(models.NAMES) == 9
    assert timm.list_models("*rope_vit*") == sorted(models.image.default_cfgs)
    assert {"image", "video", "volume"} <= set(list_modules())
    assert timm.list_models(module="video") == sorted(models.video.default_cfgs)
    assert not timm.list_models("rope_*", pretrained=True)
    source = "".join(file.read_text() for file in (Path(timm.__file__).parent / "models").glob("*.py"))
    assert "def vit_tiny_patch16_224(" in source and not any(f"def {name}(" in source for name in models.NAMES)


@pytest.mark.parametrize("name", models.NAMES)
def test_a_docstring_states_the_parameters_and_the_multiplications(name):
    stated = re.fullmatch(
        r"ViT-(?:Ti|S|B)/16.*: ([\d.]+) M parameters without a head, ([\d.]+) GMACs at ([\dx ]+)\.", model_entrypoint(name).__doc__
    )
    size = [int(n) for n in stated[3].split(" x ")]
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=0).eval()
    channels, height, width = model.default_cfg["input_size"]
    assert size[-2:] == [height, width]
    tube, dim, depth = model.patch_embed.proj.weight[0].numel(), model.embed_dim, 12
    tokens = channels * math.prod(size) // tube
    macs = tokens * dim * tube + depth * (12 * tokens * dim**2 + 2 * tokens**2 * dim)  # stem; qkv, proj, mlp; scores and sums
    count = (tube + 1) * dim + depth * (12 * dim**2 + 13 * dim) + 2 * dim
    assert sum(p.numel() for p in model.parameters()) == count
    if "tiny" in name:
        with FlopCounterMode(display=False) as counted, torch.no_grad():
            model(torch.empty(1, channels, *size, device="meta"))
        assert counted.get_total_flops() == 2 * macs
    assert stated[1] == f"{count / 1e6:.1f}" and stated[2] == f"{macs / 1e9:#.3g}".rstrip(".")


@pytest.mark.parametrize("name", models.NAMES)
def test_weights_that_do_not_exist_are_refused_with_the_way_to_start_from_images(name):
    with pytest.raises(ValueError, match=rf"{name} has no pretrained weights.*from images, .*vit_\w+_patch16_224"):
        timm.create_model(name, pretrained=True)


@pytest.mark.parametrize("name, classes", [(IMAGE, 1000), (VIDEO, 400), (VOLUME, 0)])
def test_timms_configuration_is_that_of_a_frame_and_its_transforms_take_it(name, classes):
    model = timm.create_model(name, **SMALL)
    assert model.num_classes == classes and model.default_cfg is model.pretrained_cfg
    assert model.default_cfg["architecture"] == name and model.default_cfg["first_conv"] == "patch_embed.proj"
    config = resolve_data_config(model=model)
    assert config["input_size"] == ((1, 96, 96) if name == VOLUME else (3, 224, 224))
    assert config["mean"] == config["std"] == (0.5,) * config["input_size"][0]
    picture = create_transform(**config)(torch.rand(config["input_size"][0], 300, 260))
    assert tuple(picture.shape) == config["input_size"]


# ---- made and used


def by_hand(model: nn.Module, clip: torch.Tensor, tube: tuple[int, int, int], freqs: torch.Tensor) -> torch.Tensor:
    """A clip model of two heads in float64: tubes, blocks with pairs turned by hand, norm, mean, head."""
    w = {name: value.double() for name, value in model.state_dict().items()}
    extent = [n // of for n, of in zip(clip.shape[2:], tube)]
    t, p, q = tube
    x = clip.double().unflatten(4, (-1, q)).unflatten(3, (-1, p)).unflatten(2, (-1, t))  # [B, C, T, t, H, p, W, q]
    x = torch.einsum("bcitjukv,dctuv->bijkd", x, w["patch_embed.proj.weight"]).flatten(1, 3) + w["patch_embed.proj.bias"]
    at = torch.cartesian_prod(*(torch.arange(n, dtype=torch.float64) for n in extent))  # [N, 3]
    turn = torch.exp(1j * (at @ freqs.mT))  # [N, P]

    def norm(y, name):
        y = (y - y.mean(-1, keepdim=True)) / (y.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
        return y * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(y, name):
        return y @ w[f"{name}.weight"].mT + w[f"{name}.bias"]

    for i in range(2):
        b = f"blocks.{i}"
        q, k, v = linear(norm(x, f"{b}.norm1"), f"{b}.attn.qkv").unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)  # [B, H, N, D]
        q, k = (torch.view_as_complex(y.unflatten(-1, (-1, 2)).contiguous()) * turn for y in (q, k))  # [B, H, N, P]
        scores = (q @ k.mH).real / math.sqrt(v.shape[-1])
        x = x + linear((scores.softmax(-1) @ v).transpose(1, 2).flatten(2), f"{b}.attn.proj")
        y = linear(norm(x, f"{b}.norm2"), f"{b}.mlp.fc1")
        x = x + linear(y * (1 + torch.erf(y / math.sqrt(2))) / 2, f"{b}.mlp.fc2")
    return linear(norm(x, "norm").mean(1), "head")


@pytest.mark.parametrize("name, tube", [(VIDEO, (2, 8, 8)), (VOLUME, (8, 8, 8))])
def test_a_model_is_tubes_turned_blocks_and_the_mean_of_normed_tokens(name, tube):
    model, x = make(name, theta=50.0), noise(*INPUTS[name])
    freqs = torch.zeros(16, 3, dtype=torch.float64)  # heads of 32: 6, 5 and 5 pairs
    for axis, (first, count) in enumerate(((0, 6), (6, 5), (11, 5))):
        freqs[first : first + count, axis] = 50.0 ** (-torch.arange(count, dtype=torch.float64) / count)
    close(model(x), by_hand(model, x, tube, freqs))


@pytest.mark.parametrize("name", INPUTS)
def test_an_entry_is_timms_model_wrapped(name):
    axes = {} if name == IMAGE else {"axes": 3, "tubelet": 2 if name == VIDEO else 8}
    given = {"class_token": False, "global_pool": "avg", "fc_norm": False, "pos_embed": "none", "num_classes": 5}
    ours, channels = make(name), INPUTS[name][1]
    twin = wrap(timm.create_model("vit_tiny_patch16_224", **SMALL, **given, in_chans=channels), "axial", **axes).eval()
    twin.load_state_dict(ours.state_dict())
    assert torch.equal(ours(noise(*INPUTS[name])), twin(noise(*INPUTS[name])))


@pytest.mark.parametrize("name", INPUTS)
def test_heads_come_and_go_as_timm_has_it(name):
    x, model = noise(*INPUTS[name]), make(name, num_classes=0)
    pooled = model(x)
    close(pooled, model.forward_features(x).mean(1))
    model.reset_classifier(7)
    assert model(x).shape == (2, 7) and model.num_classes == 7
    model.reset_classifier(0)
    assert torch.equal(model(x), pooled)


@pytest.mark.parametrize("name", INPUTS)
def test_features_only_gives_maps_in_the_order_of_the_array(name):
    seen, x = [], noise(*INPUTS[name])
    whole, net = make(name), make(name, features_only=True, out_indices=(0, -1))
    net.model.load_state_dict(whole.state_dict(), strict=False)
    for block in whole.blocks:
        block.register_forward_hook(lambda _, args, out: seen.append(out))
    whole(x)
    maps = net(x)
    assert net.feature_info.channels() == [64, 64] and net.feature_info.reduction() == [8, 8]
    for found, tokens in zip(maps, seen, strict=True):
        grid = tokens.unflatten(1, GRIDS[name])
        close(found, grid.permute(0, 3, 1, 2) if name == IMAGE else grid)  # [B, C, H, W] as timm's; [B, T, H, W, C]
    if name != IMAGE:
        farther = net(x, spacing=(3.0, 1.0, 1.0))
        assert (farther[1] - maps[1]).abs().max() > 1e-4
        whole(x, spacing=(3.0, 1.0, 1.0))
        close(farther[1], seen[-1].unflatten(1, GRIDS[name]))


@pytest.mark.parametrize("encoding", ["mixed", "alibi", "sinusoidal", "none", "golden", "pope"])
@pytest.mark.parametrize("name", INPUTS)
def test_the_encoding_is_an_argument_and_so_are_its_options(name, encoding):
    x = noise(*INPUTS[name])
    one, other = make(name, encoding=encoding), make(name)
    assert one(x).isfinite().all() and (one(x) - other(x)).abs().max() > 1e-4
    with pytest.raises(ValueError, match="thta"):
        make(name, encoding=encoding, thta=3.0) if encoding != "none" else make(name, thta=3.0)


def test_a_module_is_an_encoding_and_a_table_is_there_only_where_it_is_read():
    rope = RoPE(32, 2, theta=100.0)
    assert torch.equal(make(IMAGE, encoding=rope)(noise(2, 3, 32, 32)), make(IMAGE)(noise(2, 3, 32, 32)))
    assert "pos_embed" not in make(IMAGE).state_dict()
    table = make(IMAGE, keep_pos_embed=True)
    assert table.pos_embed.shape == (1, 16, 64) and table.pos_embed.requires_grad
    assert make(IMAGE, encoding="native").pos_embed is not None


def test_arguments_of_timms_model_and_of_wrap_arrive():
    model = make(VIDEO, class_token=True, global_pool="token", reg_tokens=4, qk_norm=True, in_chans=2, drop_path_rate=0.1)
    assert model.num_prefix_tokens == 5 and model.wrapped.trained_extent == (8, 4, 4)
    assert model(noise(1, 2, 4, 16, 8)).shape == (1, 5)
    assert make(VIDEO, frames=12, tubelet=3).wrapped.trained_extent == (4, 4, 4)
    assert make(VIDEO, trained_extent=(3, 4, 4)).wrapped.trained_extent == (3, 4, 4)
    given = make(VIDEO, spacing=(0.1, 1.0, 1.0), attention="factorised", scaling="yarn").wrapped.inflation
    assert (given.spacing, given.attention, given.tubelet) == ((0.1, 1.0, 1.0), "factorised", 2)
    with pytest.raises(ValueError, match="frames=15 is no multiple of tubelet=2"):
        make(VIDEO, frames=15)
    with pytest.raises(ValueError, match=r"frames=8 is for axes=3"):
        make(IMAGE, frames=8)


@pytest.mark.parametrize(
    "options, extent, kernel",
    [({}, (4, 4, 4), (8, 8, 8)), ({"img_size": 64, "patch_size": 16}, (4, 4, 4), (16, 16, 16)),
     ({"tubelet": 4, "frames": 24}, (6, 4, 4), (4, 8, 8)), ({"trained_extent": (2, 4, 4)}, (2, 4, 4), (8, 8, 8))],
)  # fmt: skip
def test_volumes_are_cubes_of_cubes_unless_told_otherwise(options, extent, kernel):
    model = make(VOLUME, **options)
    assert model.wrapped.trained_extent == extent and model.patch_embed.proj.kernel_size == kernel


@pytest.mark.parametrize(
    "name, shape, expected",
    [(IMAGE, (1, 3, 2, 16, 16), r"expected \[B, C, H, W\]"), (VIDEO, (1, 3, 16, 16), r"expected \[B, C, T, H, W\]"),
     (VOLUME, (1, 3, 8, 16, 16), r"has 3 channels, the model 1: expected \[B, C, T, H, W\]"),
     (VIDEO, (1, 3, 3, 16, 16), "resize to 4x16x16")],
)  # fmt: skip
def test_a_wrong_shape_is_refused_with_what_was_expected(name, shape, expected):
    with pytest.raises(ValueError, match=expected):
        make(name)(noise(*shape))


def test_without_prefix_tokens_a_model_does_not_mind_where_the_whole_is():
    x, offset = noise(*INPUTS[VOLUME]), (40.0, -16.0, 8.0)
    for attention in ("joint", "factorised"):
        model = make(VOLUME, spacing=(3.0, 1.0, 1.0), attention=attention)
        close(model(x, offset=offset), model(x))
    classed = make(VOLUME, spacing=(3.0, 1.0, 1.0), class_token=True)
    assert (classed(x, offset=offset) - classed(x)).abs().max() > 1e-4


# ---- saved, loaded, compiled, trained


@pytest.mark.parametrize("encoding", ["axial", "mixed", "learned"])
@pytest.mark.parametrize("name", INPUTS)
def test_weights_go_out_and_come_back_through_timm(name, encoding, tmp_path):
    model, x = make(name, encoding=encoding), noise(*INPUTS[name])
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    again = timm.create_model(
        name, **SMALL, num_classes=5, encoding=encoding, checkpoint_path=str(tmp_path / "model.safetensors")
    ).eval()
    assert torch.equal(again(x), model(x))
    with pytest.raises(RuntimeError, match="size mismatch"):
        make(name, encoding=encoding, embed_dim=128).load_state_dict(model.state_dict())


def test_weights_of_the_image_entry_are_those_of_the_clip_entry():
    image, video, x = make(IMAGE), make(VIDEO, strength=(1.0, 0.0, 0.0)), noise(2, 3, 32, 32)
    video.load_state_dict(image.state_dict())
    bare = make(IMAGE, encoding="none")
    bare.load_state_dict(image.state_dict())
    close(video(x[:, :, None].expand(-1, -1, 2, -1, -1)), bare(x))


@pytest.mark.slow
@pytest.mark.parametrize("name", INPUTS)
def test_a_model_compiles_whole_and_is_exported(name):
    model, x = make(name), noise(*INPUTS[name])
    expected = model(x)
    close(torch.compile(model, fullgraph=True, backend="eager")(x), expected)
    sides = {axis: torch.export.Dim.DYNAMIC for axis in range(2, x.ndim)}
    run = torch.export.export(model, (x,), dynamic_shapes=(sides,), strict=False).module()
    close(run(x), expected)
    turned = noise(*INPUTS[name][:-2], 40, 24)
    close(run(turned), model(turned))


@pytest.mark.parametrize("name", INPUTS)
def test_a_model_learns_from_scratch(name):
    torch.manual_seed(0)
    model = timm.create_model(name, **SMALL, num_classes=4).train()
    tube = model.patch_embed.proj.weight.shape[1:]
    x = noise(4, *tube).repeat(1, 1, *(2 for _ in tube[1:]))  # a class is a pattern, the same in each tube
    names = {n for n, p in model.named_parameters() if p.requires_grad}
    optimizer, first = create_optimizer_v2(model, "adamw", lr=3e-3, weight_decay=0.05), None
    for _ in range(8):
        loss = nn.functional.cross_entropy(model(x), torch.arange(4))
        first = loss.item() if first is None else first
        optimizer.zero_grad()
        loss.backward()
        assert {n for n, p in model.named_parameters() if p.grad is not None} == names
        optimizer.step()
    assert loss.item() < first / 2


# ---- from images

SOURCES = {
    "a table": ("vit_tiny_patch16_224", {}),
    "timm's rotation": ("vit_small_patch16_rope_mixed_224", {}),
    "ours": (IMAGE, {}),
    "ours, half of it": (IMAGE, {"strength": (0.5, 0.7), "scaling": "yarn"}),
    "ours, learned": (IMAGE, {"encoding": "mixed", "reg_tokens": 2}),
    "ours and a table": (IMAGE, {"keep_pos_embed": True}),
    "ours, as published": (IMAGE, {"encoding": "dinov3"}),
}


@pytest.mark.parametrize("attention", ["joint", "factorised"])
@pytest.mark.parametrize("source", SOURCES)
def test_a_still_clip_of_one_tube_is_the_image_to_the_model_as_it_was(source, attention):
    name, options = SOURCES[source]
    flat, x = make(name, **options), noise(2, 3, 32, 40 if source == "ours" else 32)
    expected = flat(x)
    video = models.video.from_image(copy.deepcopy(flat), attention=attention)
    assert video.wrapped.trained_extent == (8, 4, 4)
    close(video(x[:, :, None].expand(-1, -1, 2, -1, -1)), expected)
    if attention == "factorised":
        close(video(x[:, :, None].expand(-1, -1, 10, -1, -1)), expected)


@pytest.mark.parametrize("source", [source for source in SOURCES if source != "a table"])
def test_time_is_learned_where_height_and_width_turned_before(source):
    name, options = SOURCES[source]
    video, clip = models.video.from_image(make(name, **options)), noise(2, 3, 6, 32, 32)
    close(video(clip), video(clip.flip(2)))  # no time yet
    video(clip).square().sum().backward()
    times = {n: p for n, p in video.named_parameters() if n.endswith(".time")}
    assert len(times) == 2 and all(p.shape == (2, 16) and p.grad.abs().max() > 0 for p in times.values())
    assert set(times) <= video.no_weight_decay()
    with torch.no_grad():
        for p in times.values():
            p.sub_(p.grad.sign() * 0.1)
    assert (video(clip) - video(clip.flip(2))).abs().max() > 1e-4
    again = models.video.from_image(make(name, **options))
    again.load_state_dict(video.state_dict())
    assert torch.equal(again(clip), video(clip))


def test_beside_a_table_time_turns_alone_and_from_the_start():
    video, clip = models.video.from_image(make("vit_tiny_patch16_224")), noise(2, 3, 6, 32, 32)
    assert video.pos_embed.requires_grad and video.encoding.strength == (1.0, 0.0, 0.0)
    assert (video(clip) - video(clip.flip(2))).abs().max() > 1e-4


@pytest.mark.parametrize("source", ["a table", "timm's rotation", "ours"])
def test_a_volume_of_one_slice_repeated_is_that_slice_in_gray(source):
    flat, x = make(SOURCES[source][0]), noise(2, 1, 32, 32)
    cubes = models.volume.from_image(copy.deepcopy(flat), spacing=(3.0, 1.0, 1.0))
    assert cubes.patch_embed.proj.weight.shape == (64, 1, 8, 8, 8) and cubes.wrapped.trained_extent == (4, 4, 4)
    close(cubes(x[:, :, None].expand(-1, -1, 8, -1, -1)), flat(x.expand(-1, 3, -1, -1)))
    rgb = models.volume.from_image(copy.deepcopy(flat), in_chans=3, tubelet=4, frames=24)
    assert rgb(noise(1, 3, 8, 16, 16)).shape == (1, 5) and rgb.wrapped.trained_extent == (6, 4, 4)
    with pytest.raises(ValueError, match="in_chans=4: the model has 1 channels"):
        models.volume.from_image(make(SOURCES[source][0], in_chans=1), in_chans=4)


def test_a_checkpoint_of_images_is_loaded_by_name_strictly_and_gets_a_new_head(tmp_path):
    flat, x = make("vit_tiny_patch16_224"), noise(2, 3, 32, 32)
    torch.save(flat.state_dict(), tmp_path / "image.pth")
    given = {"model": {**SMALL, "num_classes": 5}}
    still = x[:, :, None].expand(-1, -1, 2, -1, -1)
    video = models.video.from_image("vit_tiny_patch16_224", tmp_path / "image.pth", **given).eval()
    close(video(still), flat(x))
    headless = models.video.from_image("vit_tiny_patch16_224", tmp_path / "image.pth", num_classes=0, **given).eval()
    close(headless(still), flat.forward_head(flat.forward_features(x), pre_logits=True))
    assert models.volume.from_image("vit_tiny_patch16_224", tmp_path / "image.pth", num_classes=3, **given).num_classes == 3
    with pytest.raises(RuntimeError, match="Unexpected key"):
        models.video.from_image("vit_tiny_patch16_224", tmp_path / "image.pth", model={**SMALL, "num_classes": 5, "depth": 1})


def test_another_encoding_is_taken_as_wrap_has_it_and_must_be_told_where_time_cannot_be_added():
    flat = make(IMAGE, encoding="pope")
    with pytest.raises(ValueError, match="the model has PoPE: give encoding"):
        models.video.from_image(copy.deepcopy(flat))
    video = models.video.from_image(flat, encoding="golden", theta=30.0)
    assert type(video.encoding) is RoPE and video.encoding.axes == 3 and video(noise(2, 3, 6, 24, 40)).shape == (2, 5)
