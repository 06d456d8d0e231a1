"""Scores of many tokens, made for some queries at a time: the same numbers, without ever holding all pairs."""

import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rope_nd import list_encodings, wrap
from rope_nd.registry import BIASES
from rope_nd.wrapping import blocks
from rope_nd.wrapping.where import Where, attend
from tests.rope_nd.wrapping.zoo import HEADS, build, images

PAIRED = [*BIASES, "pope", "pape"]  # what adds to scores, or has wider queries than values


def small_blocks(monkeypatch: pytest.MonkeyPatch, *, keys: int, rows: int, heads: int = 2 * HEADS, held: int = 0) -> None:
    """All scores count as large, blocks are of `rows` queries, and no more than `held` bytes are held for all layers."""
    monkeypatch.setattr(blocks, "LARGE", 0)
    monkeypatch.setattr(blocks, "BLOCK", 4 * heads * keys * rows)
    monkeypatch.setattr(blocks, "HELD", held)


def close(a: torch.Tensor, b: torch.Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(a, b, atol=atol, rtol=0)


def told(kind: str, name: str, **options) -> nn.Module:
    return wrap(build(kind).double(), name, **options).eval().double()


class Attention(nn.Module):
    """What attention reads of a timm layer."""

    layer = 0

    def __init__(self, fused: bool, width: int) -> None:
        super().__init__()
        self.fused_attn, self.scale, self.attn_drop = fused, width**-0.5, nn.Dropout(0.0)


# ---- the same numbers


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("masked", [None, "all pairs", "keys", "numbers"])
@pytest.mark.parametrize("terms", ["", "bias", "own", "bias, own"])
def test_blocks_of_queries_attend_as_the_softmax_says(monkeypatch, fused, is_causal, masked, terms):
    torch.manual_seed(0)
    batch, heads, tokens, width = 2, 3, 11, 8
    q, k, v = torch.randn(3, batch, heads, tokens, width, dtype=torch.float64).unbind()
    bias, own = torch.randn(2, heads, tokens, tokens, dtype=torch.float64).unbind()
    seen = torch.rand(batch, 1, 1 if masked == "keys" else tokens, tokens) < 0.7
    seen[..., 0] = True
    mask = {None: None, "numbers": torch.where(seen, 0.5, -1.0).double()}.get(masked, seen)
    expected = q @ k.mT / math.sqrt(width)
    expected = expected + ("bias" in terms) * bias + ("own" in terms) * own + (mask if masked == "numbers" else 0)
    hidden = ~seen.expand_as(expected) if masked in ("all pairs", "keys") else torch.zeros_like(expected, dtype=torch.bool)
    hidden = hidden | torch.ones(tokens, tokens, dtype=torch.bool).triu(1) if is_causal else hidden
    expected = expected.masked_fill(hidden, -math.inf).softmax(-1) @ v
    where = Where(biases=(bias,) if "bias" in terms else (), mask=mask, is_causal=is_causal)
    for rows in (1, 4, 11):
        small_blocks(monkeypatch, keys=tokens, heads=batch * heads, rows=rows)
        close(attend(Attention(fused, width), q, k, v, where, own=own if "own" in terms else None), expected)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("rows", [1, 5, 1000])
@pytest.mark.parametrize("name", [*PAIRED, "axial"])
def test_blocks_of_queries_give_what_all_pairs_give(monkeypatch, name, rows, fused):
    model, x = told("vit", name), images(2, 3, 24, 40).double()  # two register tokens and a class token
    for block in model.blocks:
        block.attn.fused_attn = fused
    with torch.no_grad():
        whole = model.forward_features(x)
        small_blocks(monkeypatch, keys=whole.shape[1], rows=rows)
        close(model.forward_features(x), whole)


@pytest.mark.parametrize("kind", ["vit, diff", "vit, parallel", "beit", "relpos, table", "sam", "naflex", "cait", "tnt"])
@pytest.mark.parametrize("name", ["alibi", "swin"])
def test_blocks_of_queries_give_what_all_pairs_give_in_every_attention(monkeypatch, kind, name):
    model, x = told(kind, name, keep_pos_embed="bias"), images(2, 3, 32, 48).double()
    with torch.no_grad():
        whole = model.forward_features(x)
        small_blocks(monkeypatch, keys=20, rows=3)
        close(model.forward_features(x), whole)


@pytest.mark.parametrize("name", BIASES)
def test_a_clip_of_kept_tokens_and_of_spacings_is_the_same_in_blocks(monkeypatch, name):
    model, x = told("vit", name, axes=3, tubelet=2), images(2, 3, 4, 24, 32).double()
    keep = torch.stack([torch.randperm(24, generator=torch.Generator().manual_seed(i))[:13].sort().values for i in range(2)])
    places = {"keep": keep, "spacing": torch.tensor([[1.0, 1.0, 1.0], [2.0, 0.5, 1.0]])}
    with torch.no_grad():
        whole = model.forward_features(x, **places)
        small_blocks(monkeypatch, keys=whole.shape[1], rows=4)
        close(model.forward_features(x, **places), whole)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", PAIRED)
def test_blocks_of_queries_have_the_gradients_of_all_pairs(monkeypatch, name, fused):
    model, x = told("vit", name), images(2, 3, 24, 40).double().requires_grad_()
    for block in model.blocks:
        block.attn.fused_attn = fused

    def gradients() -> dict[str, torch.Tensor]:
        learned = {n: p for n, p in model.named_parameters() if p.requires_grad}
        found = torch.autograd.grad(model(x).square().sum(), [x, *learned.values()], allow_unused=True)
        return {n: g for n, g in zip(["x", *learned], found) if g is not None}

    whole = gradients()
    small_blocks(monkeypatch, keys=18, rows=5)
    again = gradients()
    assert list(again) == list(whole)
    for key, gradient in whole.items():
        close(again[key], gradient, atol=1e-6 * max(1.0, gradient.abs().max().item()))  # tables are read in float32


def test_checkpointed_layers_may_attend_in_blocks(monkeypatch):
    model, x = told("vit", "t5").train(), images(2, 3, 24, 40).double()
    (plain,) = torch.autograd.grad(model(x).square().sum(), [model.encoding.table])
    small_blocks(monkeypatch, keys=18, rows=5)
    model.set_grad_checkpointing()
    (again,) = torch.autograd.grad(model(x).square().sum(), [model.encoding.table])
    close(again, plain, atol=1e-6 * plain.abs().max().item())


@pytest.mark.parametrize("name", ["alibi", "t5", "t5_joint"])
def test_a_bias_that_is_held_is_the_bias_made_for_each_layer(monkeypatch, name):
    model, x = told("vit", name), images(2, 3, 24, 40).double()
    given = []
    for held in (0, 2**20):
        small_blocks(monkeypatch, keys=18, rows=5, held=held)
        with torch.no_grad():
            _, where = model.start(x)
            given.append(where.bias(0))
        assert isinstance(where.biases[0], torch.Tensor) == (held > 0)
    assert torch.equal(*given)


# ---- memory


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that is made."""

    found = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.found = max([self.found, *(t.numel() for t in tree_leaves(out) if isinstance(t, torch.Tensor))])
        return out


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", [n for n in list_encodings() if n in PAIRED or n in ("none", "axial", "mixed", "sinusoidal")])
def test_nothing_is_made_for_all_pairs_of_tokens(monkeypatch, name, training):
    tokens = 8 * 8 * 8
    model = wrap(build("vit").float(), name, axes=3).train(training)
    small_blocks(monkeypatch, keys=tokens, heads=HEADS, rows=64)
    with Largest() as largest, torch.set_grad_enabled(training):
        y = model(images(1, 3, 8, 64, 64))
        if training:
            y.sum().backward()
    assert largest.found < HEADS * tokens**2 / 4


def test_small_biases_are_made_once_for_all_layers():
    """What fits is made as before: blocks are for large inputs alone."""
    model = told("vit", "alibi")
    with torch.no_grad():
        _, where = model.start(images(1, 3, 32, 32).double())
    assert isinstance(where.biases[0], torch.Tensor)
    assert not blocks.is_large(3, 4096, 4096) and blocks.is_large(3, 8193, 8193)
