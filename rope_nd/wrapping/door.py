"""`wrap`: give a timm transformer the position encoding asked for, at any height and width, without touching timm's code.

A model keeps its modules and keys; its class and those of its attentions are exchanged for subclasses, each for one exact timm
class.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from torch import nn

from .._check import check_options, check_trained, choose
from ..presets import PRESETS
from ..registry import ROTARY, Host, list_encodings, make
from ..scaling import Scaling, Temperature, check_temperature
from .fading import check_resampling
from .families import CLASSIFIERS, attentions, head_width, held, is_ours, swaps, trunk, wrapped_trunk
from .fit import check_module, turns
from .inflation import Inflation, check_attention, deflate, inflate, read, shares
from .model import KINDS, Settings, Wrapped, lead
from .native import augmentation, layout_of, native
from .timed import check_time, lifted_augmentation, with_time

Keep = bool | str | Collection[str]


def wrap(
    model: nn.Module,
    encoding: str | nn.Module,
    *,
    axes: int = 2,
    keep_pos_embed: Keep = False,
    strength: float | tuple[float, ...] = 1.0,
    scaling: Scaling | None = None,
    temperature: Temperature | None = None,
    augment: Mapping[str, Any] | None = None,
    trained_extent: tuple[int, ...] | None = None,
    antialias: bool = True,
    **options: Any,
) -> nn.Module:
    """Give a timm model `encoding` instead of its own positions; it then takes any height and width.

        model = wrap(timm.create_model("vit_small_patch16_224"), "axial", theta=100)
        model = wrap(timm.create_model("vit_small_patch16_dinov3"), "native", scaling="yarn")

    - `encoding`: a name of `list_encodings()` or `list_presets()`; a module (`RoPE`, an `Absolute`, a `Bias`); or `"native"`, the
      model's own positions as they are, at any size, whose rotary part can then be scaled.
    - `keep_pos_embed`: what stays of the model's own positions: all (True), none, or some of `"absolute"` (its table, resized to
      the input), `"rotary"`, `"bias"` (relative tables, resized). What does not stay is frozen under its key, unread.
    - `strength`: share of each angle that is turned; 0 with `keep_pos_embed=True` is the original model. `fade` changes it later.
    - `antialias`: whether the model's own table is smoothed where it shrinks, as timm does it; DINOv2 was trained without.
    - `scaling`, `temperature`: for inputs above `trained_extent` (tokens an axis, the model's own grid by default).
    - `augment`: `shift`, `jitter`, `rescale` of coordinates in training, one draw a sample.
    - further options go to the encoding; a rotary one pairs channels as the model did (`layout`), if it turned before.

    With `axes=3` a model of images becomes one of clips or volumes, `[B, C, T, H, W]` of any T, H, W, with axes (t, h, w):

        video = wrap(vit, "axial", axes=3, tubelet=2, spacing=(1 / 24, 1, 1))
        video(clip, spacing=(1 / 12, 1, 1))                       # the same seconds, half the frame rate

    - `tubelet`: frames (slices) a token, 1 by default. `inflate`: what each of them has of the stem's weights, `"mean"`, `"centre"`
      or numbers, of sum one. Checkpoints of images load as before, under the same keys. A token's place is its first frame's.
    - `frames`: how many a clip of training has, by default eight tokens: with the image's grid that is `trained_extent`.
    - `spacing`: the distance between samples along each axis in training, seconds and pixels, or millimetres (1 each if not given);
      the forward takes that of its input, and more: see `rope_nd.wrapping.inflated.Inflated`.
    - `attention`: `"joint"`, or `"factorised"`: within frames, then along time, with the same weights, for long clips; class and
      register tokens are in every frame and averaged over all.
    - `tokens`: at the most so many in training. `drop`: which go, `"random"` (default), `"uniform"`, `"tube"` (the same places in
      all frames; the only one with factorised attention).
    - With `"native"` height and width turn as they did. `time="added"` (default) gives each pair, head and layer a component of
      time, which starts at zero and is learned. `"slowest"`: time takes over the slowest `time_share` (1/4) of the pairs, geometric
      frequencies of base `time_theta` (100). A table that is kept is the same for all frames.

    Any other number of axes is for tokens with coordinates, `model.forward_tokens(tokens, coords)`, which the others take too.

    Changes the model it is given and returns it (deepcopy first to keep the old one); `unwrap` undoes it. A model made with
    `features_only=True` and a classifier around an encoder are wrapped inside. Raises ValueError for a class it does not know,
    naming it.
    """
    inner = trunk(model)
    if isinstance(inner, Wrapped):
        raise ValueError("this model is wrapped already: unwrap it first")
    call = {
        "encoding": encoding, "axes": axes, "keep_pos_embed": keep_pos_embed, "strength": strength, "scaling": scaling,
        "temperature": temperature, "augment": augment, "trained_extent": trained_extent, "antialias": antialias, **options,
    }  # fmt: skip
    given, options = read(axes, options)
    if given is not None and given.frames is not None and trained_extent is not None:
        raise ValueError(
            f"frames={given.frames} and trained_extent={trained_extent!r}: give one of them, the second holds the first"
        )
    exchange = swaps(inner, axes)
    check_temperature(temperature)
    check_options("augment", augment or {}, also=("shift", "jitter", "rescale"))
    check_trained(trained_extent, axes)
    check_resampling(exchange[0][1], antialias)
    kept = _kept(keep_pos_embed) if encoding != "native" else frozenset({"absolute", "bias"})
    origin = type(inner)
    inner.__class__ = exchange[0][1]  # for what its class knows; a refusal below puts it back
    try:
        extent = trained_extent or (inner.grid() if given is None else given.trained(inner.grid()))
        host = _host(inner, extent)
        if given is not None:
            check_attention(given, inner, [layer for block in inner.rotating() for layer in attentions(block)])
        module = _encoding(inner, encoding, host, given, strength, scaling, temperature, options)
        if getattr(lead(module), "hides", False) and not inner.hideable:
            name = type(inner).__bases__[-1].__name__
            raise ValueError(f"this bias hides keys, and {name} mixes its heads before the softmax: choose a finite bias")
        rope = getattr(inner, inner.own_rope, None)
        before = None if rope is None or "rotary" not in kept else _native(rope, host, None)
    except Exception:
        inner.__class__ = origin
        raise
    home = next(inner.parameters()).device
    for made in (module, before):
        if made is not None:
            made.to(home)
    drawn = dict(augment or {})
    if not drawn and encoding == "native" and rope is not None:
        drawn = augmentation(rope) if axes == 2 else lifted_augmentation(augmentation(rope))
    inner.wrapped = Settings(axes, tuple(extent), kept, temperature, drawn, given, antialias, call=call)
    for number, block in enumerate(inner.rotating()):
        for layer in attentions(block):
            layer.layer = number
    for part, ours in exchange:
        part.__class__ = ours
    if given is not None and axes == 3:
        inflate(inner.patch_embed, shares(given.inflate, given.tubelet))
    around = held(model)
    if type(around) in CLASSIFIERS:
        around.__class__ = CLASSIFIERS[type(around)]
    _leave_out(inner, set(KINDS) - kept - ({"rotary"} if encoding == "native" else set()))
    inner.encoding, inner.own_rotary = module, before
    return model


def unwrap(model: nn.Module) -> nn.Module:
    """The timm model as it was before `wrap`, weights as they are now."""
    inner = wrapped_trunk(model)
    if inner is None:
        raise ValueError(f"{type(model).__name__} was not wrapped")
    settings, parameters = inner.wrapped, dict(inner.named_parameters())
    for name, learns in settings.frozen.items():
        if name in parameters:
            parameters[name].requires_grad_(learns)
    del inner.wrapped, inner.encoding, inner.own_rotary
    if settings.axes == 3:
        deflate(inner.patch_embed)
    for part in model.modules():
        if is_ours(part):
            vars(part).pop("layer", None)
            part.__class__ = type(part).__bases__[-1]
    for name, attribute, own, value in settings.changed:
        part = inner.get_submodule(name)
        setattr(part, attribute, value) if own else delattr(part, attribute)
    return model


def _kept(keep: Keep) -> frozenset[str]:
    """The kinds of the model's own positions that stay."""
    if isinstance(keep, bool):
        return frozenset(KINDS if keep else ())
    names = (keep,) if isinstance(keep, str) else tuple(keep)
    return frozenset(choose("kind of positions to keep", name, KINDS) for name in names)


def _host(inner: Wrapped, extent: tuple[int, ...]) -> Host:
    """What an encoding must know of this model."""
    layers = [layer for block in inner.rotating() for layer in attentions(block)]
    first = layers[0]
    pairs = 2 if hasattr(first, "lambda_init") else 1  # differential attention: each head is two
    queries = pairs * first.num_heads
    keys = math.gcd(*(pairs * getattr(layer, "num_kv_heads", layer.num_heads) for layer in layers))
    return Host(inner.embed_dim, keys, head_width(first), len(inner.rotating()), extent, inner.prefix_tokens(), queries)


def _native(rope: nn.Module, host: Host, given: Inflation | None, **options: Any) -> nn.Module:
    """The model's own rotation; with axes (t, h, w) where the host has three, time as `given` says, or of no effect."""
    axes = len(host.trained_extent)
    known = {"prefix_tokens": host.prefix_tokens, "trained_extent": host.trained_extent, **options}
    if axes == 2:
        return native(rope, host.head_dim, host.layers, **known)
    if axes != 3:
        raise ValueError(f"axes={axes}: a model's own rotation of height and width can be given time, and no more axes")
    return with_time(native(rope, host.head_dim, host.layers), host, given, **known)


def _encoding(
    inner: Any,
    encoding: str | nn.Module,
    host: Host,
    given: Inflation | None,
    strength: Any,
    scaling: Any,
    temperature: Any,
    options: dict[str, Any],
) -> nn.Module | None:
    """The encoding asked for, checked against the model it is for."""
    rope, axes = getattr(inner, inner.own_rope, None), len(host.trained_extent)
    check_time(given, turns=encoding == "native" and rope is not None)
    turning = {"strength": strength, "temperature": temperature}
    if isinstance(encoding, nn.Module):
        beside = {**options, "scaling": scaling, "strength": None if strength == 1.0 else strength}
        beside |= {"temperature": temperature if turns(encoding) else None}
        told = ", ".join(f"{name}={value!r}" for name, value in beside.items() if value is not None)
        if told:
            raise ValueError(f"encoding is a module: {told} must be given to it")
        check_module(encoding, host)
        return encoding
    choose("encoding", encoding, ["native", *list_encodings(), *PRESETS])
    if encoding == "native":
        if options:
            raise ValueError(f"encoding 'native' has no option {sorted(options)[0]!r}: it takes scaling, temperature, strength")
        if rope is not None:
            return _native(rope, host, given, scaling=scaling, **turning)
        if scaling not in (None, "none") or strength != 1.0:
            raise ValueError(
                f"{type(inner).__bases__[-1].__name__} has no rotary encoding of its own to scale: leave scaling, strength"
            )
        return None
    if encoding in ROTARY:
        return make(encoding, axes, host, scaling=scaling, **{"layout": layout_of(rope), **turning, **options})
    if encoding in PRESETS:  # whose layout is part of it
        return make(encoding, axes, host, scaling=scaling, **turning, **options)
    if strength != 1.0:
        raise ValueError(f"strength={strength!r} is the share of a rotation: encoding {encoding!r} has none")
    return make(encoding, axes, host, scaling=scaling, **options)


def _leave_out(inner: Any, kinds: set[str]) -> None:
    """Freeze the model's own positions of these kinds and keep them from being read; remember what that changes."""
    settings, parameters = inner.wrapped, dict(inner.named_parameters())
    for name in (name for kind in kinds for name in inner.own_parameters(kind)):
        settings.frozen[name] = parameters[name].requires_grad
        parameters[name].requires_grad_(False)
    for name, attribute, value in (*inner.always, *(inner.when_dropped[kind] for kind in kinds if kind in inner.when_dropped)):
        part = inner.get_submodule(name)
        settings.changed.append((name, attribute, attribute in vars(part), getattr(part, attribute, None)))
        setattr(part, attribute, value)
