"""ALiBi: the formula for any number of axes and heads, and what a wrapped model makes of it beside masks."""

import copy
import math
import pickle

import pytest
import torch
from timm.models import vision_transformer as vit
from torch import nn

from rope_nd import wrap
from rope_nd.bias import ALiBi
from tests.rope_nd.wrapping.zoo import build, images

grids = [(7,), (4, 4), (3, 8), (1, 6), (2, 3, 4), (5, 1, 2)]


def close(a: torch.Tensor, b: torch.Tensor, atol: float = 1e-5, rtol: float = 1e-6) -> None:
    torch.testing.assert_close(a, b, atol=atol, rtol=rtol)


def by_formula(query: torch.Tensor, key: torch.Tensor, heads: int) -> torch.Tensor:
    """-2^(-8 (h + 1) / H) |x_i - x_j|, entry by entry, in float64."""
    bias = torch.empty(heads, len(query), len(key), dtype=torch.float64)
    for h in range(heads):
        for i, x in enumerate(query.tolist()):
            for j, y in enumerate(key.tolist()):
                bias[h, i, j] = -(2.0 ** (-8 * (h + 1) / heads)) * math.dist(x, y)
    return bias


def cells(*extent: int) -> torch.Tensor:
    return torch.cartesian_prod(*(torch.arange(n) for n in extent)).reshape(-1, len(extent)).double()


def points(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 5


def plain_vit(**options) -> vit.VisionTransformer:
    """Two register tokens and a class token before a 4 x 4 grid."""
    given = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 5, "reg_tokens": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = vit.VisionTransformer(**{**given, **options}, dynamic_img_size=True)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p) * 0.1)
    return model.eval()


def fused(model: nn.Module, is_fused: bool) -> nn.Module:
    for block in model.blocks:
        block.attn.fused_attn = is_fused
    return model


# ---- the formula


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 8, 12])
@pytest.mark.parametrize("extent", grids)
def test_the_bias_of_a_grid_is_that_of_the_formula(extent, heads):
    bias = ALiBi(heads, len(extent)).at(*extent)
    assert bias.dtype == torch.float32 and bias.shape == (heads, math.prod(extent), math.prod(extent))
    close(bias.double(), by_formula(cells(*extent), cells(*extent), heads), atol=2e-6)
    assert bias.le(0).all() and bias.diagonal(dim1=1, dim2=2).eq(0).all() and torch.equal(bias, bias.mT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_queries_and_keys_may_be_any_points_and_batches_of_them(axes, dtype):
    encoding, query, key = ALiBi(4, axes), points(3, 5, axes, seed=1).to(dtype), points(3, 7, axes, seed=2).to(dtype)
    batch = encoding(query, key)
    assert batch.shape == (3, 4, 5, 7) and batch.dtype == torch.float32
    for sample in range(3):
        close(batch[sample].double(), by_formula(query[sample], key[sample], 4))
        close(encoding(query[sample], key[sample]), batch[sample], atol=1e-6)


def test_slopes_are_those_of_the_paper():
    close(ALiBi(8, 2).slopes, torch.tensor([2.0**-k for k in range(1, 9)]), atol=0)
    assert torch.equal(ALiBi(8, 1).at(3)[0], torch.tensor([[0.0, -0.5, -1.0], [-0.5, 0.0, -0.5], [-1.0, -0.5, 0.0]]))


def test_distances_far_out_keep_their_precision():
    far = cells(4, 4) + 1e6
    close(ALiBi(3, 2)(far, far), ALiBi(3, 2).at(4, 4), atol=1e-6)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_permuting_tokens_with_their_positions_permutes_the_bias(axes):
    encoding, at = ALiBi(3, axes), points(9, axes)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    assert torch.equal(encoding(at[order], at[order]), encoding(at, at)[:, order][:, :, order])
    assert not torch.equal(encoding(at[order], at), encoding(at, at))


def test_shifting_and_turning_all_positions_changes_nothing():
    encoding, at = ALiBi(3, 2), points(9, 2)
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    close(encoding(at @ turn + 3, at @ turn + 3), encoding(at, at))


@pytest.mark.parametrize("heads", [0, -2])
def test_a_number_of_heads_that_is_none_is_refused(heads):
    with pytest.raises(ValueError, match=f"heads={heads}"):
        ALiBi(heads, 2)


def test_positions_of_another_number_of_axes_are_refused():
    with pytest.raises(ValueError, match=r"\[N, 2\]"):
        ALiBi(2, 2)(points(4, 3), points(4, 3))


def test_nothing_is_learned_or_saved():
    encoding = ALiBi(3, 2)
    assert not list(encoding.parameters()) and not encoding.state_dict() and encoding.no_weight_decay() == set()
    for other in (copy.deepcopy(encoding), pickle.loads(pickle.dumps(encoding))):
        assert torch.equal(other.at(3, 4), encoding.at(3, 4))


# ---- half precision


@pytest.mark.parametrize("heads", [3, 5, 12])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_module_cast_to_half_precision_gives_the_bias_of_float32(dtype, heads):
    """As the tables of a rotation do; rounded slopes are off by up to 0.4 percent, and stay so when cast back."""
    encoding = ALiBi(heads, 2)
    expected = encoding.at(20, 30)
    low = copy.deepcopy(encoding).to(dtype)
    assert low.at(20, 30).dtype == torch.float32
    close(low.at(20, 30), expected, atol=1e-6)
    close(low.float().at(20, 30), expected, atol=1e-6)


@pytest.mark.parametrize("heads", [3, 12])
def test_autocast_does_not_round_the_bias(heads):
    encoding = ALiBi(heads, 2)
    expected = encoding.at(20, 30)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        close(encoding.at(20, 30), expected, atol=1e-6)


@torch.no_grad()
def test_bfloat16_models_and_autocast_are_close_to_float32():
    model, x = wrap(plain_vit(), "alibi"), images(2, 3, 64, 40)
    expected = model(x)
    low = copy.deepcopy(model).bfloat16()(x.bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = model(x)
    for got in (low, inside):
        assert got.dtype == torch.bfloat16 and (got.float() - expected).norm() / expected.norm() < 0.05


# ---- in a model


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("size", [(32, 32), (64, 24), (8, 48)])
@torch.no_grad()
def test_a_wrapped_model_is_timms_with_the_bias_as_a_mask_and_none_on_prefix_tokens(size, is_fused):
    plain, x = fused(plain_vit(), is_fused), images(2, 3, *size)
    ours = wrap(copy.deepcopy(plain), "alibi", keep_pos_embed=True)
    at = cells(size[0] // 8, size[1] // 8)
    bias = nn.functional.pad(by_formula(at, at, 3).float(), (3, 0, 3, 0))
    close(ours(x), plain(x, attn_mask=bias))
    close(ours.forward_features(x), plain.forward_features(x, attn_mask=bias))
    assert (ours(x) - plain(x)).abs().max() > 1e-3


def attended(model: nn.Module, *args, **given) -> list[dict]:
    """What the fused attention was called with in a forward pass."""
    calls, real = [], nn.functional.scaled_dot_product_attention

    def watched(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **rest):
        calls.append({"mask": attn_mask, "causal": is_causal, "scale": scale, "keys": k.shape[-2]})
        return real(q, k, v, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, **rest)

    nn.functional.scaled_dot_product_attention = watched
    try:
        model(*args, **given)
    finally:
        nn.functional.scaled_dot_product_attention = real
    return calls


@torch.no_grad()
def test_fused_attention_stays_and_is_given_the_bias_as_its_mask():
    model, x = wrap(plain_vit(), "alibi"), images(2, 3, 48, 24)
    calls = attended(model, x)
    assert len(calls) == 2 and not any(call["causal"] for call in calls)
    for call in calls:
        mask = call["mask"]
        assert mask.shape[-3:] == (3, 3 + 18, 3 + 18)
        assert mask[..., :3, :].eq(0).all() and mask[..., :3].eq(0).all()
        close(mask[..., 3:, 3:].reshape(3, 18, 18), model.encoding.at(6, 3), atol=1e-6)
    unfused = fused(copy.deepcopy(model), False)
    assert not attended(unfused, x)
    close(unfused(x), model(x))


def mask_of(kind: str, tokens: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    if kind == "zero":
        return torch.zeros(tokens, tokens)
    if kind == "float":
        return torch.randn(tokens, tokens, generator=generator)
    if kind == "float, a head":
        return torch.randn(2, 3, tokens, tokens, generator=generator)
    keep = torch.rand(*((2, 1) if "sample" in kind else ()), tokens, tokens, generator=generator) > 0.3
    return keep | torch.eye(tokens).bool()


def additive(mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros(mask.shape).masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else mask


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["zero", "float", "float, a head", "boolean", "boolean, a sample", None])
def test_the_bias_joins_masks_and_causality(kind, causal, is_fused):
    plain, x = fused(plain_vit(), is_fused), images()
    ours = wrap(copy.deepcopy(plain), "alibi", keep_pos_embed=True)
    given = mask_of(kind, 19) if kind else None
    whole = nn.functional.pad(ALiBi(3, 2).at(4, 4), (3, 0, 3, 0))
    whole = whole if given is None else whole + additive(given)
    whole = whole + torch.full((19, 19), -math.inf).triu(1) if causal else whole
    got, expected = ours(x, attn_mask=given, is_causal=causal), plain(x, attn_mask=whole)
    close(got, expected)
    assert ((got - ours(x)).abs().max() > 1e-3) == (causal or kind not in ("zero", None))
    got.square().sum().backward()
    expected.square().sum().backward()
    for name, p in ours.named_parameters():
        other = dict(plain.named_parameters())[name]
        assert p.grad.isfinite().all()
        close(p.grad, other.grad, atol=2e-5 * max(1.0, other.grad.abs().max().item()))


@torch.no_grad()
def test_dropped_patches_take_their_bias_with_them():
    model, x = wrap(plain_vit(patch_drop_rate=0.5), "alibi").train(), images(2, 3, 32, 48)
    torch.manual_seed(5)
    calls = attended(model, x)
    torch.manual_seed(5)
    kept = torch.randn(2, 24).argsort(-1)[:, :12]
    for call in calls:
        assert call["mask"].shape == (2, 3, 15, 15) and call["keys"] == 15
        for sample, places in enumerate(kept):
            at = cells(4, 6)[places]
            close(call["mask"][sample, :, 3:, 3:], by_formula(at, at, 3).float(), atol=2e-6)
        assert call["mask"][:, :, :3].eq(0).all() and call["mask"][..., :3].eq(0).all()


@pytest.mark.parametrize("kind, heads", [("vit, diff", 6), ("sapiens 2", 4), ("cait", 3), ("gemma 4, encoder", 4)])
def test_there_is_one_slope_for_each_head_that_asks(kind, heads):
    assert wrap(build(kind), "alibi").encoding.heads == heads


@torch.no_grad()
def test_a_temperature_is_on_the_scores_and_not_on_the_bias():
    plain, x = plain_vit(), images(2, 3, 64, 48)
    hot = wrap(copy.deepcopy(plain), "alibi", temperature=1.5)
    calls = attended(hot, x)
    close(calls[0]["mask"][..., 3:, 3:].reshape(3, 48, 48), hot.encoding.at(8, 6), atol=1e-6)
    cold = wrap(copy.deepcopy(plain), "alibi")
    assert (hot(x) - cold(x)).abs().max() > 1e-3
    for block in cold.blocks:
        block.attn.qkv.weight[:48] *= 1.5
        block.attn.qkv.bias[:48] *= 1.5
    close(hot(x), cold(x))


@pytest.mark.parametrize("kind", ["cait", "convit"])
def test_models_that_cannot_be_masked_say_so(kind):
    model = wrap(build(kind), "alibi")
    for given in ({"attn_mask": torch.zeros(16, 16)}, {"is_causal": True}):
        with pytest.raises(ValueError, match=r"attn_mask, is_causal: .* cannot be masked"):
            model.forward_features(images(), **given)


@torch.no_grad()
def test_relative_tables_and_alibi_add_up():
    plain, x = build("beit"), images()
    both, bias = wrap(copy.deepcopy(plain), "alibi", keep_pos_embed="bias"), nn.functional.pad(ALiBi(3, 2).at(4, 4), (1, 0, 1, 0))
    own = [block.attn._get_rel_pos_bias()[0] for block in plain.blocks]
    calls = attended(both, x)
    for call, table in zip(calls, own):
        close(call["mask"].reshape(3, 17, 17), table + bias)
