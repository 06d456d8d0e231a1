"""Every kind of timm model that can be wrapped keeps the promises of a plain ViT.

With nothing turned it is the original, with its own positions it is timm's, at any size it trains, its tokens are a set with
coordinates, its state dict and interface are timm's, and what is not known is refused by name. Numbers that should be the same by
algebra are compared in float64, where rounding hides nothing.
"""

import copy
import functools
import inspect
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
from timm.layers.patch_dropout import PatchDropout, PatchDropoutWithIndices
from timm.models.naflexvit import batch_patchify
from timm.optim import create_optimizer_v2
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from rope_nd import unwrap, wrap
from rope_nd.bias import ALiBi
from tests.rope_nd.wrapping.zoo import KINDS, build, images

every_kind = pytest.mark.parametrize("kind", KINDS)
PLAIN = ("vit", "deit", "hybrid", "eva", "rope", "perception", "dinov3", "sapiens")
DROPPING = [kind for kind in KINDS if kind.startswith((*PLAIN, "naflex"))]  # kinds that can drop patches in training
RESIZED = [kind for kind in KINDS if kind.startswith((*PLAIN, "beit", "relpos"))]  # those with a set_input_size
ENCODERS = ("deepseek, encoder", "qwen 3, encoder", "gemma 4, encoder")  # without a classifier
PLACED = [kind for kind in KINDS if kind.startswith(("naflex", "gemma"))]  # those that may be given the places of patches


def pair(kind: str, encoding: str, **options: Any) -> tuple[nn.Module, nn.Module]:
    """A model and its wrapped copy."""
    plain = build(kind)
    return plain, wrap(copy.deepcopy(plain), encoding, **options)


def trunk(model: nn.Module) -> Any:
    """The model that has the blocks: inside a classifier, its encoder."""
    return getattr(model, "encoder", model)


def close(a: Any, b: Any, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def run(model: nn.Module, x: Tensor, seed: int = 0) -> tuple[Tensor, dict[str, Tensor | None]]:
    """The output and the gradients; what drops at random does it from the seed."""
    torch.manual_seed(seed)
    out = model(x)
    return out, gradients(model, out)


def gradients(model: nn.Module, *outputs: Tensor) -> dict[str, Tensor | None]:
    """The gradient of every parameter that learns."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    loss = sum(out.square().sum() for out in outputs)
    return dict(zip(named, torch.autograd.grad(loss, list(named.values()), allow_unused=True)))


def close_gradients(got: dict[str, Tensor | None], expected: dict[str, Tensor | None], tolerance: float = 1e-6) -> None:
    assert {n for n, g in got.items() if g is not None} == {n for n, g in expected.items() if g is not None}
    for name, g in expected.items():
        if g is not None:
            assert (got[name] - g).abs().max() <= tolerance * max(1.0, g.abs().max().item()), name


def alive(found: dict[str, Tensor | None]) -> set[str]:
    """Names of the parameters whose gradient is not all zero; all must be finite."""
    assert all(g is None or g.isfinite().all() for g in found.values())
    return {name for name, g in found.items() if g is not None and g.any()}


# ---- nothing turned is the original; native is the original


@functools.cache
def still(kind: str) -> tuple[nn.Module, nn.Module]:
    plain = build(kind).double()
    return plain, wrap(copy.deepcopy(plain), "axial", keep_pos_embed=True, strength=0.0)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("training", [False, True])
@every_kind
def test_with_nothing_turned_the_wrapped_model_is_the_original_in_outputs_and_gradients(kind, training, fused):
    results = []
    for model in still(kind):
        for part in model.train(training).modules():
            if hasattr(part, "fused_attn"):
                part.fused_attn = fused
        results.append(run(model, images().double()))
    close(results[1][0], results[0][0])
    close_gradients(results[1][1], results[0][1])


@every_kind
def test_with_nothing_turned_it_is_the_original_in_float32_to_a_millionth(kind):
    plain, turned = pair(kind, "axial", keep_pos_embed=True, strength=0.0)
    for fused in (True, False):
        for part in (*plain.modules(), *turned.modules()):
            if hasattr(part, "fused_attn"):
                part.fused_attn = fused
        with torch.no_grad():
            close(turned(images()), plain(images()))


class Flat(ALiBi):
    """No bias at all, by the same path."""

    def forward(self, *positions: Any) -> Tensor:
        return 0 * super().forward(*positions)


@every_kind
def test_with_a_bias_of_zero_the_wrapped_model_is_the_original(kind):
    plain, x = build(kind).double(), images().double()
    with torch.no_grad():
        expected = plain(x)
        model = wrap(plain, "alibi", keep_pos_embed=True)
        assert (model(x) - expected).abs().max() > 1e-6
        trunk(model).encoding.__class__ = Flat
        close(model(x), expected)


@every_kind
def test_native_is_the_original_in_outputs_features_and_intermediates(kind):
    plain, native = pair(kind, "native")
    x, known = images(), set(inspect.signature(plain.forward_intermediates).parameters)
    if kind.startswith("relpos") and not plain.num_prefix_tokens:
        known -= {"return_prefix_tokens"}  # timm raises a NameError
    if kind.startswith("sam"):
        known -= {"output_fmt"}  # timm gives maps only
    with torch.no_grad():
        close(native(x), plain(x), 1e-5)
        close(native.forward_features(x), plain.forward_features(x), 1e-5)
        for options in (
            {},
            {"indices": 1, "norm": True},
            {"indices": [0], "stop_early": True, "intermediates_only": True},
            {"output_fmt": "NLC"},
            {"output_fmt": "NLC", "return_prefix_tokens": True, "norm": True, "indices": [-1, 0]},
            {"return_prefix_tokens": True, "intermediates_only": True},
            {"output_dict": True},
            {"output_dict": True, "intermediates_only": True, "return_prefix_tokens": True},
        ):
            if set(options) <= known:
                got, expected = (model.forward_intermediates(x, **options) for model in (native, plain))
                assert type(got) is type(expected) and (not isinstance(got, dict) or set(got) == set(expected))
                leaves = tree_flatten(got)
                others = tree_flatten({key: expected[key] for key in got} if isinstance(got, dict) else expected)
                assert leaves[1] == others[1]
                close(leaves[0], others[0], 1e-5)


# ---- state dicts


@every_kind
def test_state_dicts_load_strictly_in_both_directions(kind):
    weights, other, fresh, x = build(kind, seed=3), build(kind), build(kind), images()
    keys, random = list(weights.state_dict()), copy.deepcopy(fresh.state_dict())
    with torch.no_grad():
        plain = weights(x)
        for encoding in ("axial", "none", "alibi", "native"):
            expected, wrapped = wrap(weights, encoding)(x), wrap(other, encoding)
            assert list(wrapped.state_dict()) == keys and not torch.equal(wrapped(x), expected), encoding
            wrapped.load_state_dict(unwrap(weights).state_dict(), strict=True)
            assert torch.equal(wrapped(x), expected), encoding
            wrapped(images(1, 3, 64, 32))
            assert list(wrapped.state_dict()) == keys, encoding  # nothing is cached in it
            fresh.load_state_dict(wrapped.state_dict(), strict=True)
            assert torch.equal(fresh(x), plain), encoding
            for model in (unwrap(other), fresh):
                model.load_state_dict(random)
                assert not torch.equal(model(x), plain)


# ---- any size


@functools.cache
def learning(kind: str) -> set[str]:
    """The parameters that get a gradient in timm's own model at its own size."""
    return alive(run(build(kind), images())[1])


@pytest.mark.parametrize("encoding", ["axial", "mixed", "learned", "sinusoidal", "alibi", "none", "native"])
@every_kind
def test_any_size_trains_and_evaluates_and_every_learned_position_gets_a_gradient(kind, encoding):
    model = wrap(build(kind), encoding)
    positions = {name for name, _ in model.named_parameters() if ".encoding." in f".{name}"}
    assert bool(positions) == (encoding in ("mixed", "learned"))
    expected = positions | {name for name, p in model.named_parameters() if p.requires_grad and name in learning(kind)}
    for size, training in (((64, 64), True), ((32, 48), True), ((64, 32), False)):
        out, found = run(model.train(training), images(2, 3, *size))
        assert out.isfinite().all()
        missing = expected - alive(found)
        assert not missing, missing
    with torch.no_grad():
        assert model.eval()(images()).isfinite().all()


# ---- tokens are a set with coordinates

EXTENT, ROWS = (4, 6), torch.arange(2)[:, None]  # the grid of the images in this part, and the number of each sample


def wide_images() -> Tensor:
    return images(2, 3, 32, 48).double()


def orders(tokens: int = 24) -> Tensor:
    """An order of patches for each of two samples."""
    return torch.rand(2, tokens, generator=torch.Generator().manual_seed(2)).argsort(-1)


def behind(order: Tensor, total: int) -> Tensor:
    """Indices of the tokens before the patches, in `total` tokens, and of the patches in that order."""
    first = total - 24
    return torch.cat((torch.arange(first).expand(2, -1), order + first), 1)


def moved(tokens: Any, order: Tensor) -> Any:
    """Patch tokens in another order, or some of them; with TNT's go those of their pixels, and SAM's are a map."""
    if isinstance(tokens, tuple):
        return tokens[0].unflatten(0, (2, 24))[ROWS, order].flatten(0, 1), moved(tokens[1], order)
    if tokens.ndim == 4:
        return tokens.flatten(1, 2)[ROWS, order].unflatten(1, EXTENT)
    return tokens[ROWS, behind(order, tokens.shape[1])]


def last(model: Any, x: Tensor, order: Tensor, places: Tensor) -> Any:
    """What the last block gives for the patch tokens in `order` with the coordinates of `places`.

    SAM's windows look at the layout: its tokens are moved before the first global block.
    """
    tokens, where = model.start(x, drop=False)

    def seen(bias: Tensor) -> Tensor:
        at = behind(places, bias.shape[-1])
        return bias[:, at[:, :, None], at[:, None]].movedim(1, 0)

    chains = tuple(tuple(r.keep(places) for r in chain) for chain in where.rotations)
    there = replace(where.with_biases(seen), rotations=chains)
    first = next(layer for layer, block in enumerate(model.blocks) if block in model.rotating())
    for layer, block in enumerate(model.blocks):
        tokens = model._step(layer, block, moved(tokens, order) if layer == first else tokens, there)
    return tokens


@pytest.mark.parametrize("encoding", ["axial", "mixed", "alibi"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in PLACED])
def test_shuffling_tokens_with_their_coordinates_changes_nothing(kind, encoding):
    model, x = wrap(build(kind).double(), encoding), wide_images()
    same, order = torch.arange(24).expand(2, -1), orders()
    by_layout = kind.startswith("sam") or kind in ENCODERS  # what follows the blocks looks at the grid: compare what they give

    def pooled(order: Tensor, places: Tensor) -> Tensor:
        tokens = last(trunk(model), x, order, places)
        return tokens.flatten(1, -2).mean(1) if by_layout else model.forward_head(trunk(model)._end(tokens, EXTENT))

    with torch.no_grad():
        expected = model.forward_intermediates(x, intermediates_only=True)[-1].mean((2, 3)) if by_layout else model(x)
        close(pooled(same, same), expected)
        close(pooled(order, order), expected)
        assert (pooled(order, same) - expected).abs().max() > 1e-5


@pytest.mark.parametrize("encoding", ["axial", "mixed", "alibi", "learned", "sinusoidal"])
@pytest.mark.parametrize("kind", PLACED)
def test_shuffling_patches_and_padding_with_their_coordinates_changes_nothing(kind, encoding):
    model, x = wrap(build(kind).double(), encoding), wide_images()
    patches = torch.cat((batch_patchify(x, (8, 8))[0], torch.full((2, 4, 192), 0.7).double()), 1)  # four tokens of padding
    coords = torch.cat((torch.cartesian_prod(torch.arange(4), torch.arange(6)), torch.zeros(4, 2, dtype=torch.long)))
    valid, same, order = torch.arange(28) < 24, torch.arange(28).expand(2, -1), orders(28)
    among = torch.cat((orders(), same[:, 24:]), 1)
    with torch.no_grad():
        expected = model(x)

        def shuffled(order: Tensor, places: Tensor) -> Tensor:
            out = model(patches[ROWS, order], patch_coord=coords[places], patch_valid=valid[order])
            return out[:, : expected.shape[1]]  # an encoder pools the padding into cells of its own

        close(shuffled(same, same), expected, 1e-5)
        close(shuffled(order, order), expected, 1e-5)
        assert (shuffled(among, same) - expected).abs().max() > 1e-4


# ---- checkpointing, threads, resolutions in flight


@every_kind
def test_checkpointing_and_two_resolutions_before_one_backward_change_no_number(kind):
    model = wrap(build(kind).double(), "mixed", keep_pos_embed=True, temperature="log").train()
    xs, calls = (images(2, 3, 32, 48).double(), images(1, 3, 64, 32).double()), []
    torch.manual_seed(0)
    apart = [(out := model(x), gradients(model, out)) for x in xs]
    total = {name: g if g is None else g + apart[1][1][name] for name, g in apart[0][1].items()}
    for block in trunk(model).blocks:
        block.register_forward_pre_hook(lambda *_: calls.append(1))
    for checkpointing in (False, True):
        if checkpointing and kind.startswith("convit"):
            with pytest.raises(AssertionError, match="not supported"):  # timm's
                model.set_grad_checkpointing(True)
            continue
        model.set_grad_checkpointing(checkpointing)
        calls.clear()
        torch.manual_seed(0)
        outs = [model(x) for x in xs]
        found = gradients(model, *outs)
        assert len(calls) == 2 * len(trunk(model).blocks) * (1 + checkpointing)  # with it, every block runs twice
        close(outs, [out for out, _ in apart])
        close_gradients(found, total)


@every_kind
def test_two_threads_with_different_resolutions_give_the_numbers_of_one(kind):
    model = wrap(build(kind), "mixed", keep_pos_embed=True, temperature="log")
    batches = [images(1, 3, 32, 48), images(1, 3, 64, 32)]
    expected = [run(model, x) for x in batches]
    with ThreadPoolExecutor(2) as pool:
        for i, (out, found) in enumerate(pool.map(functools.partial(run, model), batches * 2)):
            close(out, expected[i % 2][0])
            close_gradients(found, expected[i % 2][1])


# ---- unwrap, copies


@pytest.mark.parametrize("encoding", ["mixed", "native"])
@every_kind
def test_unwrap_gives_back_the_classes_the_outputs_and_what_learns(kind, encoding):
    def state(model: nn.Module) -> list[Any]:
        parts = [(name, type(part), sorted(vars(part))) for name, part in model.named_modules()]
        return [parts, {name: p.requires_grad for name, p in model.named_parameters()}, list(model.state_dict())]

    model, x = build(kind), images()
    next(model.parameters()).requires_grad_(False)
    before, expected = state(model), model(x)
    wrap(model, encoding)
    assert state(model)[0] != before[0]
    model(images(1, 3, 64, 32))
    assert unwrap(model) is model and state(model) == before
    assert torch.equal(model(x), expected)
    close(wrap(model, "native")(x), expected, 1e-5)  # and it can be wrapped again


@pytest.mark.parametrize("encoding", ["mixed", "native"])
@every_kind
def test_copies_give_the_same_and_are_independent(kind, encoding):
    model, x = wrap(build(kind), encoding), images(1, 3, 32, 48)
    with torch.no_grad():
        for copied in (copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))):
            expected, other = model(x), copied(model)
            assert torch.equal(other(x), expected) and type(other) is type(model)
            for p in model.parameters():
                p.mul_(1.3)
            assert torch.equal(other(x), expected)
            other.load_state_dict(model.state_dict())  # it reads its own parameters
            assert torch.equal(other(x), model(x)) and not torch.equal(other(x), expected)
            assert type(unwrap(other)) is not type(model)


# ---- the rest of timm's interface


@pytest.mark.parametrize("encoding", ["mixed", "learned", "native"])
@every_kind
def test_learned_positions_are_not_decayed_and_slowed_like_the_stem(kind, encoding):
    plain, model = pair(kind, encoding)
    named = dict(model.named_parameters())
    positions = {name for name in named if ".encoding." in f".{name}"}
    rotary = {name for name in named if name.endswith("rope.freqs")}
    assert bool(positions) == (encoding != "native")
    assert positions | rotary | plain.no_weight_decay() <= model.no_weight_decay() <= {*named, *plain.no_weight_decay()}
    optimizer = create_optimizer_v2(model, "adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.75)
    group = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    assert set(group) == {id(p) for p in named.values() if p.requires_grad}
    scales = [g["lr_scale"] for g in optimizer.param_groups]
    assert min(scales) < max(scales) and all(group[id(named[name])]["lr_scale"] == min(scales) for name in positions)
    learned = [named[name] for name in positions | rotary if named[name].requires_grad]
    assert all(group[id(p)]["weight_decay"] == 0 for p in learned)


@every_kind
def test_classifiers_are_reset_and_checkpoints_loaded_as_in_timm(kind, tmp_path):
    source, model, x = build(kind, seed=3), wrap(build(kind), "native"), images()
    torch.save(source.state_dict(), tmp_path / "weights.pt")
    timm.models.load_checkpoint(model, str(tmp_path / "weights.pt"), strict=True)
    with torch.no_grad():
        close(model(x), source(x), 1e-5)
        assert hasattr(source, "reset_classifier") == (kind not in ENCODERS)
        for one in (source, model) if hasattr(source, "reset_classifier") else ():
            torch.manual_seed(0)
            one.reset_classifier(7)
            assert one(x).shape == (2, 7)
        close(model(x), source(x), 1e-5)


@pytest.mark.parametrize("kind", RESIZED)
def test_input_sizes_are_set_as_in_timm(kind):
    plain, native = pair(kind, "native")
    axial = wrap(build(kind), "axial")
    frozen, x = {name for name, p in axial.named_parameters() if not p.requires_grad}, images(2, 3, 64, 48)
    with torch.no_grad():
        for model in (plain, native, axial):
            model.set_input_size(img_size=(64, 48))
        close(native(x), plain(x), 1e-5)
        assert torch.equal(unwrap(native)(x), plain(x))
        assert {name for name, p in axial.named_parameters() if not p.requires_grad} == frozen
        unset = wrap(build(kind), "axial")
        close(axial(images(1, 3, 32, 64)), unset(images(1, 3, 32, 64)))  # coordinates know no such size


@pytest.mark.parametrize("encoding", ["mixed", "alibi", "native"])
@every_kind
def test_bfloat16_and_autocast_are_close_to_float32(kind, encoding):
    model, x = wrap(build(kind), encoding), images(2, 3, 32, 48)
    with torch.no_grad():
        expected = model(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = model(x)
        low = model.bfloat16()(x.bfloat16())
    assert low.dtype == inside.dtype == torch.bfloat16
    for got in (low, inside):
        assert (got.float() - expected).norm() / expected.norm() < 0.1


small = {"depth": 2, "embed_dim": 48, "num_heads": 3, "pretrained": False, "out_indices": (0, 1)}


@pytest.mark.parametrize(
    "name, options, patch",
    [
        ("vit_tiny_patch16_224", {"img_size": 64}, 16),
        ("beit_base_patch16_224", {"img_size": 64}, 16),
        ("eva02_tiny_patch14_224", {"img_size": 56}, 14),
        ("cait_xxs24_224", {"img_size": 64}, 16),
        ("vit_relpos_small_patch16_224", {"img_size": 64}, 16),
        ("vit_small_patch16_rope_mixed_224", {"img_size": 64}, 16),
        ("naflexvit_base_patch16_gap", {}, 16),
    ],
)
def test_feature_extractors_are_wrapped_inside(name, options, patch):
    plain = timm.create_model(name, features_only=True, **{**small, **options}).eval()
    x, large = images(1, 3, 4 * patch, 4 * patch), images(1, 3, 6 * patch, 3 * patch)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in plain.parameters():
            p.add_(torch.randn(p.shape, generator=draw) * 0.1)
        expected = plain(x)
        native, axial = (wrap(copy.deepcopy(plain), encoding) for encoding in ("native", "axial"))
        close(native(x), expected, 1e-5)
        assert all((a - b).abs().max() > 1e-4 for a, b in zip(axial(x), expected))
        for model in (native, axial):
            assert type(model) is type(plain) and type(model.model) is not type(plain.model)
            assert [tuple(y.shape) for y in model(large)] == [(1, 48, 6, 3)] * 2 and all(y.isfinite().all() for y in model(large))
            assert unwrap(model) is model and type(model.model) is type(plain.model)
            assert all(torch.equal(a, b) for a, b in zip(model(x), expected))


# ---- dropped patches


def dropping(kind: str, share: float) -> Any:
    """A model of that kind in training, with the patch dropout that timm would build into it."""
    model = build(kind).double()
    dropout = PatchDropout if isinstance(model, timm.models.VisionTransformer) else PatchDropoutWithIndices
    model.patch_drop = dropout(share, num_prefix_tokens=model.num_prefix_tokens)
    return model.train()


ALL = 1e-17  # a share to drop that drops none: all are kept, in another order


@pytest.mark.parametrize("share", [0.5, ALL])
@pytest.mark.parametrize("kind", DROPPING)
def test_dropped_patches_are_timms_with_nothing_turned(kind, share):
    plain, x = dropping(kind, share), images().double()
    nothing_turned = wrap(copy.deepcopy(plain), "axial", keep_pos_embed=True, strength=0.0)
    (expected, known), (got, found) = (run(model, x, seed=5) for model in (plain, nothing_turned))
    close(got, expected)
    close_gradients(found, known)
    assert ((got - nothing_turned.eval()(x)).abs().max() > 1e-4) == (share != ALL)


@pytest.mark.parametrize("encoding", ["axial", "mixed", "alibi"])
@pytest.mark.parametrize("kind", DROPPING)
def test_kept_patches_keep_their_coordinates(kind, encoding):
    model, x = wrap(dropping(kind, 0.5), encoding), wide_images()

    def by_hand(places: Tensor) -> Tensor:
        if kind.startswith("naflex"):  # which takes patches with their places
            coords = torch.cartesian_prod(torch.arange(4), torch.arange(6))[places]
            patches = batch_patchify(x, (8, 8))[0][ROWS, kept]
            return model.eval().forward_features(patches, patch_coord=coords)["patches"]
        return model._end(last(model, x, kept, places), EXTENT)

    with torch.no_grad():
        torch.manual_seed(5)
        got = model.forward_features(x)
        torch.manual_seed(5)
        kept = torch.randn(2, 24).argsort(-1)[:, :12]
        close(got, by_hand(kept))
        assert (got - by_hand(kept.roll(1, 1))).abs().max() > 1e-3


@pytest.mark.parametrize("encoding", ["mixed", "learned", "sinusoidal"])
@pytest.mark.parametrize("kind", DROPPING)
def test_patches_that_are_all_kept_in_another_order_give_what_evaluation_gives(kind, encoding):
    model, x = wrap(dropping(kind, ALL), encoding), wide_images()
    with torch.no_grad():
        close(model(x), model.eval()(x))


@pytest.mark.parametrize("kind", [kind for kind in PLACED if kind in DROPPING])
def test_padding_stays_unseen_where_patches_are_dropped(kind):
    model, coords = wrap(dropping(kind, 0.5), "axial"), torch.cartesian_prod(torch.arange(4), torch.arange(7)).expand(2, -1, -1)
    valid, outs = (coords[..., 1] < 6), []
    with torch.no_grad():
        for padding, added in ((0.0, 0.0), (9.0, 0.0), (9.0, 1.0)):
            patches = torch.rand(2, 28, 192, generator=torch.Generator().manual_seed(1)).double()
            patches[~valid], patches[valid] = padding, patches[valid] + added
            torch.manual_seed(5)
            outs.append(model(patches, patch_coord=coords, patch_valid=valid))
    close(outs[1], outs[0])
    assert (outs[2] - outs[0]).abs().max() > 1e-4


# ---- what is refused


@every_kind
def test_a_subclass_of_ones_own_is_refused_by_name_and_left_as_it_was(kind):
    model = build(kind)
    model.__class__ = type("MyOwn", (type(model),), {})
    before = [(name, type(part), sorted(vars(part))) for name, part in model.named_modules()]
    with pytest.raises(ValueError, match="does not know MyOwn"):
        wrap(model, "axial")
    assert [(name, type(part), sorted(vars(part))) for name, part in model.named_modules()] == before


@pytest.mark.parametrize(
    "name, options, says",
    [
        ("xcit_nano_12_p16_224", {"depth": 1, "embed_dim": 16, "num_heads": 2}, ("Xcit", "attends over channels")),
        ("swin_tiny_patch4_window7_224", {"depths": (1, 1), "embed_dim": 12, "num_heads": (1, 1)}, ("SwinTransformer", "windows")),
        ("pit_ti_224", {"depth": [1, 1, 1]}, ("PoolingVisionTransformer", "pools or strides its tokens")),
    ],
)
def test_models_without_one_grid_of_tokens_are_refused_with_the_reason(name, options, says):
    model = timm.create_model(name, pretrained=False, num_classes=2, **options)
    with pytest.raises(ValueError) as caught:
        wrap(model, "axial")
    assert all(word in str(caught.value) for word in says)
