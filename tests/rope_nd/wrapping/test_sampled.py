"""NaFlexVit and Gemma 4: patches of several sizes in one padded batch, each with the place that its coordinates tell."""

import copy

import pytest
import torch
from timm.data.naflex_dataset import NaFlexCollator
from timm.layers import PatchDropoutWithIndices
from timm.models.naflexvit import NaFlexVit, batch_patchify
from torch import nn

from rope_nd import unwrap, wrap
from tests.rope_nd.wrapping.zoo import KINDS, build, images

naflex_kinds = [kind for kind in KINDS if kind.startswith("naflex")]
kinds = [*naflex_kinds, "gemma 4", "gemma 4, encoder"]
sizes = [(32, 32), (64, 48), (16, 80), (48, 48)]  # the trained grid, above it, both, above it
setups = {
    "none": ("none", {}),
    "axial": ("axial", {}),
    "mixed": ("mixed", {}),
    "golden": ("golden", {}),
    "alibi": ("alibi", {}),
    "sinusoidal": ("sinusoidal", {}),
    "learned": ("learned", {}),
    "learned, not stretched": ("learned", {"scaling": "none"}),
    "native": ("native", {}),
    "axial, yarn, log": ("axial", {"scaling": "yarn", "temperature": "log"}),
    "mixed, ntk, log": ("mixed", {"scaling": "ntk", "temperature": "log"}),
    "golden, log": ("golden", {"temperature": "log"}),
    "sinusoidal, yarn, log": ("sinusoidal", {"scaling": "yarn", "temperature": "log"}),
    "learned, yarn temperature": ("learned", {"temperature": "yarn"}),
    "alibi, log": ("alibi", {"temperature": "log"}),
    "axial, centred": ("axial", {"coordinates": {"normalize": "centred"}}),
    "native, log": ("native", {"temperature": "log"}),
    "axial on the model's own": ("axial", {"keep_pos_embed": True, "scaling": "pi"}),
    "learned on the model's own": ("learned", {"keep_pos_embed": True, "temperature": "log"}),
}
has_rope = ["naflex, axial", "naflex, mixed", "naflex, dinov3", "gemma 4", "gemma 4, encoder"]


def close(a: torch.Tensor, b: torch.Tensor, atol: float = 1e-5, rtol: float = 1e-5) -> None:
    """To 1e-5, of the largest number where that is above one."""
    torch.testing.assert_close(a, b, atol=atol * max(1.0, b.abs().max().item()), rtol=rtol)


def far(a: torch.Tensor, b: torch.Tensor, least: float = 1e-3) -> bool:
    return (a - b).abs().max().item() > least


def pictures(*shapes: tuple[int, int]) -> list[torch.Tensor]:
    return [images(3, *shape, seed=i) for i, shape in enumerate(shapes or sizes)]


def cells(h: int, w: int) -> torch.Tensor:
    return torch.tensor([[i, j] for i in range(h) for j in range(w)])


def sampled(given: list[torch.Tensor], length: int | None = None) -> dict[str, torch.Tensor]:
    """Pictures as timm's collator batches them, padded to the longest or to `length` patches."""
    items = []
    for picture in given:
        patches, grid = batch_patchify(picture[None], (8, 8))
        valid = torch.ones(patches.shape[1], dtype=torch.bool)
        items.append(({"patches": patches[0], "patch_coord": cells(*grid), "patch_valid": valid}, 0))
    batch, _ = NaFlexCollator(length or max(len(item["patches"]) for item, _ in items))(items)
    return {key: batch[key] for key in ("patches", "patch_coord", "patch_valid")}


def wrapped(kind: str, encoding: str, **options) -> nn.Module:
    return wrap(build(kind), encoding, trained_extent=(4, 4), **options)


def trunk(model: nn.Module) -> nn.Module:
    return getattr(model, "encoder", model)


def tokens(model: nn.Module, batch: dict[str, torch.Tensor] | torch.Tensor) -> torch.Tensor:
    """Features of all tokens, prefix tokens first."""
    inner = trunk(model)
    if not isinstance(batch, dict) or not isinstance(inner, NaFlexVit):
        return inner.forward_features(batch)
    return inner.forward_features(**batch)["patches"]


def valid_tokens(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Features of the tokens that are no padding, of all samples one after the other."""
    prefix = trunk(model).num_prefix_tokens
    seen = torch.cat([torch.ones(len(batch["patches"]), prefix, dtype=torch.bool), batch["patch_valid"]], 1)
    return tokens(model, batch)[seen]


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def same_gradients(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(got) == set(expected)
    for name, gradient in expected.items():
        close(got[name], gradient, rtol=1e-4)


# ---- several sizes in one batch


few = ("none", "mixed", "learned", "axial, yarn, log", "native, log", "learned on the model's own")
several = [(kind, setup) for kind in kinds for setup in (few if kind in ("naflex, factorized", "naflex, axial") else setups)]


@pytest.mark.parametrize("kind, setup", several)
@torch.no_grad()
def test_each_sample_of_a_batch_of_several_sizes_is_the_image_run_alone(kind, setup):
    name, options = setups[setup]
    model, given = wrapped(kind, name, **options), pictures()
    batch = sampled(given, 52)  # the longest sample has 48 patches: all are padded
    features, out = tokens(model, batch), model(batch)
    for i, picture in enumerate(given):
        alone = tokens(model, picture[None])[0]
        close(features[i, : len(alone)], alone)
        whole = model(picture[None])[0]
        close(out[i, : len(whole)] if whole.ndim == 2 else out[i], whole)


@pytest.mark.parametrize("kind", has_rope)
@torch.no_grad()
def test_a_native_rotation_may_be_scaled_above_the_trained_grid_sample_by_sample(kind):
    given = pictures()
    plain = valid_tokens(wrapped(kind, "native"), sampled(given))
    for rule in ("yarn", "ntk"):
        model = wrapped(kind, "native", scaling=rule, temperature="log")
        batch = sampled(given)
        features = tokens(model, batch)
        for i, picture in enumerate(given):
            alone = tokens(model, picture[None])[0]
            close(features[i, : len(alone)], alone)
        scaled, first = valid_tokens(model, batch), 16 + trunk(model).num_prefix_tokens
        close(scaled[:first], plain[:first])  # the first sample has the trained size
        assert far(scaled[first:], plain[first:])


@pytest.mark.parametrize("name", ["mixed", "alibi", "learned", "native"])
@pytest.mark.parametrize(
    "options",
    [
        {"class_token": True, "global_pool": "token", "reg_tokens": 2, "use_key_only_attn_mask": True},
        {"global_pool": "avgmax", "pool_include_prefix": True, "pre_norm": True},
        {"global_pool": "max", "reg_tokens": 0, "rope_type": "axial", "num_kv_heads": 1, "qkv_fused": False},
        {"global_pool": "avg", "rope_type": "mrope", "rope_mrope_section": (2, 3, 3), "pos_embed": "factorized"},
    ],
    ids=["class token", "avgmax", "grouped keys", "m-rope"],
)
@torch.no_grad()
def test_so_it_is_with_other_prefixes_poolings_masks_and_heads(options, name):
    torch.manual_seed(0)
    plain = NaFlexVit(
        **{"img_size": 32, "num_classes": 5, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3, **options}
    ).eval()
    model, given = wrap(plain, name, trained_extent=(4, 4)), pictures()
    out = model(sampled(given, 60))
    for one, picture in zip(out, given):
        close(one, model(picture[None])[0])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["axial", "mixed", "learned", "alibi", "native"])
@pytest.mark.parametrize("kind", ["naflex", "naflex, mixed", "gemma 4"])
def test_images_of_one_size_are_the_same_by_pixels_and_by_patches(kind, name, training):
    augment = {"shift": 1.0, "jitter": 1.2, "rescale": 1.3} if training else {}
    model, x = wrapped(kind, name, augment=augment).train(training), images(2, 3, 48, 24)
    outputs = []
    for batch in (x, sampled(list(x)), sampled(list(x), 20)):
        torch.manual_seed(3)
        outputs.append(model(batch))
    close(outputs[1], outputs[0])
    close(outputs[2], outputs[0])
    if training and name in ("axial", "mixed"):
        torch.manual_seed(4)
        assert far(model(sampled(list(x))), outputs[1], 1e-5)  # another draw


def test_augmentation_is_one_draw_a_sample():
    model = wrapped("naflex, axial", "axial", augment={"shift": 3.0}).train()
    picture = images(3, 32, 48)
    one, other = model(sampled([picture, picture]))
    assert far(one, other, 1e-5)
    one, other = model.eval()(sampled([picture, picture]))
    close(one, other)


# ---- coordinates are honoured


@pytest.mark.parametrize("setup", [name for name in setups if "own" not in name])
@pytest.mark.parametrize("kind", ["naflex", "naflex, mixed", "naflex, dinov3", "gemma 4"])
@torch.no_grad()
def test_patches_may_come_in_any_order_with_their_coordinates(kind, setup):
    name, options = setups[setup]
    model = wrapped(kind, name, **options)
    if name == "native" and kind != "gemma 4":  # timm adds a table in the order of the grid, whatever the coordinates are
        model.embeds.pos_embed_type = "none"
    batch = sampled(pictures((32, 48), (24, 16)))
    order = torch.randperm(24, generator=torch.Generator().manual_seed(2))
    moved = {key: value[:, order] for key, value in batch.items()}
    first = trunk(model).num_prefix_tokens
    at = torch.cat([torch.arange(first), first + order])
    close(model(moved), model(batch))
    close(tokens(model, moved)[0], tokens(model, batch)[0, at])
    if name != "none" and not (kind == "naflex" and name == "native"):  # those have no positions
        wrong = {**moved, "patch_coord": batch["patch_coord"]}
        assert far(tokens(model, wrong)[0], tokens(model, batch)[0, at])


def bare(reg_tokens: int, rope_type: str = "axial") -> NaFlexVit:
    """A NaFlexVit with a rotation of its own and no table."""
    torch.manual_seed(0)
    given = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 5}
    model = NaFlexVit(**given, reg_tokens=reg_tokens, rope_type=rope_type, rope_temperature=100.0, pos_embed="none")
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return model.eval()


def shifted(batch: dict[str, torch.Tensor], by: tuple[int, int] = (2, 3)) -> dict[str, torch.Tensor]:
    return {**batch, "patch_coord": batch["patch_coord"] + torch.tensor(by) * batch["patch_valid"][..., None]}


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize(
    "name, options, relative",
    [
        ("axial", {}, True),
        ("mixed", {}, True),
        ("golden", {}, True),
        ("native", {}, True),
        ("none", {}, True),
        ("alibi", {}, True),
        ("sinusoidal", {}, False),
        ("learned", {}, False),
        ("learned", {"scaling": "none"}, False),
        ("axial", {"scaling": "yarn"}, False),  # the shifted crop tells of a larger grid
        ("axial", {"coordinates": {"normalize": "centred"}}, False),
    ],
)
@torch.no_grad()
def test_a_shifted_crop_is_the_same_to_what_is_relative_and_another_to_what_is_absolute(name, options, relative, prefix):
    model = wrap(bare(prefix), name, trained_extent=(4, 4), **options)
    batch = sampled(pictures((32, 24), (24, 32), (16, 16)))
    same, moved = tokens(model, batch), tokens(model, shifted(batch))
    seen = torch.cat([torch.ones(3, prefix, dtype=torch.bool), batch["patch_valid"]], 1)
    if relative and not (prefix and name in ("axial", "mixed", "golden", "native")):
        close(moved[seen], same[seen])
    else:  # prefix tokens are not turned: what they see of a patch depends on where it is
        assert far(moved[seen], same[seen], 1e-4)


@pytest.mark.parametrize(
    "name, relative", [("axial", True), ("mixed", True), ("alibi", True), ("learned", False), ("sinusoidal", False)]
)
@torch.no_grad()
def test_so_it_is_in_gemma(name, relative):
    model, batch = wrapped("gemma 4", name), sampled(pictures((32, 24), (24, 32)))
    if relative:
        close(model(shifted(batch)), model(batch))
    else:
        assert far(model(shifted(batch)), model(batch), 1e-4)


@torch.no_grad()
def test_a_crop_by_coordinates_reads_the_part_of_the_table_that_they_name():
    model = wrapped("naflex", "learned", scaling="none")
    seen = []
    model.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    picture = images(3, 16, 16)
    batch = shifted(sampled([picture]), (1, 2))
    model(batch)
    embedded = model.embeds.proj(batch["patches"])
    close(seen[0][:, 1:], embedded + model.encoding.table[1:3, 2:4].reshape(1, 4, -1))


# ---- padding


@pytest.mark.parametrize("setup", ["none", "axial, yarn, log", "mixed, ntk, log", "learned", "sinusoidal, yarn, log", "alibi, log"])
@pytest.mark.parametrize("kind", kinds)
def test_padding_influences_nothing_whatever_it_holds(kind, setup):
    name, options = setups[setup]
    model = wrapped(kind, name, **options)
    batch = sampled(pictures((32, 48), (16, 16)), 28)
    generator = torch.Generator().manual_seed(1)
    padding = ~batch["patch_valid"]
    noise = {"patches": torch.randn(batch["patches"].shape, generator=generator) * 30}
    noise["patch_coord"] = torch.randint(-1, 50, batch["patch_coord"].shape, generator=generator)
    noisy = {**batch, **{key: torch.where(padding[..., None], value, batch[key]) for key, value in noise.items()}}
    noisy["patches"].requires_grad_()
    expected, got = valid_tokens(model, batch), valid_tokens(model, noisy)
    close(got, expected)
    got.square().sum().backward()
    grad = noisy["patches"].grad
    assert grad[padding].eq(0).all() and grad[~padding].ne(0).any(-1).all()
    if kind != "gemma 4, encoder":  # its pooling looks at the coordinates of padding too
        close(model(noisy), model(batch))


@torch.no_grad()
def test_gemma_takes_minus_one_for_padding_as_timm_does():
    plain = build("gemma 4")
    batch = sampled(pictures((32, 48), (16, 16)), 28)
    marked = {
        "patches": batch["patches"],
        "patch_coord": batch["patch_coord"].masked_fill(~batch["patch_valid"][..., None], -1),
    }
    for model in (wrapped("gemma 4", "learned", temperature="log"), wrapped("gemma 4", "axial", scaling="pi")):
        close(model(marked), model(batch))
    still = wrapped("gemma 4", "axial", keep_pos_embed=True, strength=0.0)
    close(still(marked), plain(marked))


# ---- nothing turned is the original


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("by", ["patches", "pixels"])
@pytest.mark.parametrize("kind", kinds)
def test_with_nothing_turned_it_is_timms_model_with_and_without_dropped_patches(kind, by, training):
    plain = build(kind).train(training)
    if training and kind in naflex_kinds:
        plain.patch_drop = PatchDropoutWithIndices(0.5, num_prefix_tokens=1)
    still = wrap(copy.deepcopy(plain), "axial", keep_pos_embed=True, strength=0.0, trained_extent=(4, 4))
    batch = sampled(pictures(), 52) if by == "patches" else images(2, 3, 48, 32)
    found = []
    for model in (still, plain):
        torch.manual_seed(7)
        out = model(batch)
        out.square().sum().backward()
        found.append((out, gradients(model)))
    close(found[0][0], found[1][0])
    same_gradients(found[0][1], found[1][1])
    if training and kind in naflex_kinds:
        torch.manual_seed(8)
        assert far(still(batch), found[0][0], 1e-5)  # patches are dropped, and others by another seed


@pytest.mark.parametrize("kind", ["naflex, axial", "naflex, mixed", "naflex, dinov3"])
@pytest.mark.parametrize("training", [False, True])
def test_a_native_rotation_is_timms(kind, training):
    plain = build(kind).train(training)
    if training:
        plain.patch_drop = PatchDropoutWithIndices(0.5, num_prefix_tokens=1)
    ours, batch = wrap(copy.deepcopy(plain), "native", trained_extent=(4, 4)), sampled(pictures(), 52)
    found = []
    for model in (ours, plain):
        torch.manual_seed(7)
        out = model(batch)
        out.square().sum().backward()
        found.append((out, gradients(model)))
    close(found[0][0], found[1][0])
    same_gradients(found[0][1], found[1][1])


@pytest.mark.parametrize("only_keys", [False, True])
@torch.no_grad()
def test_padding_looks_at_what_it_looks_at_in_timm(only_keys):
    torch.manual_seed(0)
    given = {"img_size": 32, "num_classes": 5, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3}
    plain, batch = NaFlexVit(**given, use_key_only_attn_mask=only_keys).eval(), sampled(pictures((32, 48), (16, 16)), 28)
    still = wrap(copy.deepcopy(plain), "axial", keep_pos_embed=True, strength=0.0)
    close(tokens(still, batch), tokens(plain, batch))


@torch.no_grad()
def test_a_mask_of_the_callers_is_heeded_as_timm_heeds_it():
    plain, batch = build("naflex"), sampled(pictures((32, 24), (24, 32)))
    mask = torch.randn(2, 3, 13, 13, generator=torch.Generator().manual_seed(1))
    still = wrapped("naflex", "axial", keep_pos_embed=True, strength=0.0)
    close(still({**batch, "attn_mask": mask}), plain({**batch, "attn_mask": mask}))
    biased, bias = wrapped("naflex", "alibi"), nn.functional.pad(wrapped("naflex", "alibi").encoding.at(4, 3), (1, 0, 1, 0))
    one = sampled(pictures((32, 24)))
    close(biased({**one, "attn_mask": mask[:1]}), wrapped("naflex", "none")({**one, "attn_mask": mask[:1] + bias}))


@torch.no_grad()
def test_patches_of_another_size_are_taken_as_timm_takes_them():
    torch.manual_seed(0)
    given = {"img_size": 32, "num_classes": 5, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3}
    plain = NaFlexVit(**given, enable_patch_interpolator=True, rope_type="axial").eval()
    batch = sampled(pictures((32, 24), (24, 32)))
    whole = {**batch, "patches": batch["patches"].unflatten(-1, (8, 8, 3))}
    half = {**batch, "patches": nn.functional.avg_pool3d(whole["patches"], (2, 2, 1))}
    ours = wrap(copy.deepcopy(plain), "native")
    for one in (whole, half):
        close(ours(one), plain(one))
    assert far(ours(half), ours(whole), 1e-5)


@pytest.mark.parametrize("kind", kinds)
@torch.no_grad()
def test_unwrapped_it_is_timms_model_again(kind):
    plain, batch = build(kind), sampled(pictures(), 52)
    model = wrapped(kind, "mixed", scaling="ntk")
    model(batch)
    assert torch.equal(unwrap(model)(batch), plain(batch)) and type(model) is type(plain)


# ---- intermediates


@pytest.mark.parametrize("options", [{}, {"indices": [0], "stop_early": True, "intermediates_only": True}, {"norm": True}])
@pytest.mark.parametrize("kind", [*naflex_kinds, "gemma 4, encoder"])
@torch.no_grad()
def test_intermediates_of_patches_are_timms(kind, options):
    plain, batch = build(kind), sampled(pictures(), 52)
    still = wrapped(kind, "axial", keep_pos_embed=True, strength=0.0)
    more = {"return_prefix_tokens": True} if kind in naflex_kinds else {}
    got, expected = (m.forward_intermediates(batch, output_fmt="NLC", output_dict=True, **options, **more) for m in (still, plain))
    assert set(got) == set(expected) and torch.equal(got["patch_valid"], batch["patch_valid"])
    assert len(got["image_intermediates"]) == len(options.get("indices", range(2)))
    for a, b in zip(got["image_intermediates"], expected["image_intermediates"]):
        close(a[batch["patch_valid"]], b[batch["patch_valid"]])
    for a, b in zip(got.get("image_intermediates_prefix", ()), expected.get("image_intermediates_prefix", ())):
        close(a, b)
    if "image_features" in expected:
        prefix = plain.num_prefix_tokens
        close(got["image_features"][:, prefix:][batch["patch_valid"]], expected["image_features"][:, prefix:][batch["patch_valid"]])
    with pytest.raises(ValueError, match="NCHW"):
        still.forward_intermediates(batch)


@pytest.mark.parametrize("name", ["axial", "mixed", "learned", "alibi", "native"])
@pytest.mark.parametrize("kind", ["naflex, mixed", "gemma 4, encoder"])
@torch.no_grad()
def test_intermediates_and_features_are_of_one_forward_pass(kind, name):
    model, batch = wrapped(kind, name, temperature="log"), sampled(pictures(), 52)
    found = model.forward_intermediates(batch, output_fmt="NLC", output_dict=True)
    close(found["image_features"], tokens(model, batch))
    x = images(2, 3, 64, 32)
    final, maps = model.forward_intermediates(x)
    close(final, tokens(model, x))
    assert [m.shape[-2:] for m in maps] == [(8, 4)] * 2
    if kind == "gemma 4, encoder":
        close(maps[1], final.mT.unflatten(-1, (8, 4)))


@pytest.mark.parametrize("kind", naflex_kinds)
def test_intermediates_of_dropped_patches_come_with_their_own_validity(kind):
    model = wrapped(kind, "mixed", keep_pos_embed="rotary").train()
    model.patch_drop, batch = PatchDropoutWithIndices(0.5, num_prefix_tokens=1), sampled(pictures((32, 48), (16, 16)))
    torch.manual_seed(2)
    found = model.forward_intermediates(batch, output_fmt="NLC", output_dict=True)
    torch.manual_seed(2)
    kept = torch.randn(2, 24).argsort(-1)[:, :12]
    assert torch.equal(found["patch_valid"], batch["patch_valid"].gather(1, kept))
    torch.manual_seed(2)
    close(found["image_features"], model.forward_features(**batch)["patches"])
    assert [m.shape for m in found["image_intermediates"]] == [(2, 12, 48)] * 2


# ---- gradients


@pytest.mark.parametrize("name", ["mixed", "learned", "alibi", "native"])
@pytest.mark.parametrize("kind", ["naflex", "naflex, mixed", "gemma 4"])
def test_gradients_of_a_batch_are_the_sum_of_those_of_its_images_with_and_without_checkpointing(kind, name):
    model, given = wrapped(kind, name, temperature="log").train(), pictures()
    for picture in given:
        model(picture[None]).square().sum().backward()
    alone = gradients(model)
    learned = [n for n in alone if "encoding." in n or n == "rope.freqs"]
    assert len(learned) == {"mixed": 2, "learned": 1, "native": kind == "naflex, mixed"}.get(name, 0)
    assert all(alone[n].ne(0).any() for n in learned)
    for checkpointing in (False, True):
        model.set_grad_checkpointing(checkpointing)
        model(sampled(given, 52)).square().sum().backward()
        same_gradients(gradients(model), alone)


# ---- half precision and what is refused


@pytest.mark.parametrize("name", ["axial", "mixed", "learned", "sinusoidal", "alibi", "native"])
@pytest.mark.parametrize("kind", ["naflex, axial", "gemma 4"])
@torch.no_grad()
def test_bfloat16_batches_are_close_to_float32(kind, name):
    model, batch = wrapped(kind, name), sampled(pictures(), 52)
    expected = model(batch)
    low = copy.deepcopy(model).bfloat16()({**batch, "patches": batch["patches"].bfloat16()})
    assert low.dtype == torch.bfloat16 and (low.float() - expected).norm() / expected.norm() < 0.05


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("how", ["autocast, bfloat16", "autocast, float16", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["axial", "alibi", "native"])
@pytest.mark.parametrize("kind", ["naflex", "gemma 4"])
@torch.no_grad()
def test_padding_is_masked_in_half_precision_too(kind, name, how, fused):
    """timm's mask holds the least finite number, which must not become minus infinity: whole rows would be NaN."""
    model, batch = wrapped(kind, name), sampled(pictures(), 52)
    for block in trunk(model).blocks:
        block.attn.fused_attn = fused
    expected, dtype = model(batch), getattr(torch, how.split()[-1])
    if how.startswith("autocast"):
        with torch.autocast("cpu", dtype=dtype):
            got = model(batch)
    else:
        got = model.to(dtype)({**batch, "patches": batch["patches"].to(dtype)})
    assert got.isfinite().all() and (got.float() - expected).norm() / expected.norm() < 0.05


def test_a_naflexvit_without_a_size_asks_for_the_trained_one():
    options = {"patch_size": 8, "embed_dim": 48, "depth": 1, "num_heads": 3, "pos_embed": "none", "pos_embed_grid_size": None}
    with pytest.raises(ValueError, match="trained_extent"):
        wrap(NaFlexVit(**options), "axial")
    model = wrap(NaFlexVit(**options), "axial", scaling="pi", trained_extent=(4, 4)).eval()
    assert model(sampled(pictures())).isfinite().all()
