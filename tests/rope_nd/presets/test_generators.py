"""Presets of image generators against diffusers."""

import pytest
import torch
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.transformers.transformer_flux import FluxPosEmbed
from diffusers.models.transformers.transformer_flux2 import Flux2PosEmbed
from diffusers.models.transformers.transformer_hunyuanimage import HunyuanImageRotaryPosEmbed
from diffusers.models.transformers.transformer_z_image import RopeEmbedder
from torch import Tensor

from rope_nd import RoPE, grid

H, W = 5, 7


def queries(tokens: int, width: int) -> Tensor:
    return torch.randn(2, 3, tokens, width, generator=torch.Generator().manual_seed(0))


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def by_complex(q: Tensor, table: Tensor) -> Tensor:
    """Z-Image's way: tables of unit complex numbers `[B, N, P]`."""
    return apply_rotary_emb(q.transpose(1, 2), table, use_real=False).transpose(1, 2)


@pytest.mark.parametrize("number", [0, 3], ids=["the image", "a reference image"])
def test_flux(number):
    ids = torch.cat((torch.full((H * W, 1), float(number)), grid(H, W)), -1)
    q = queries(H * W, 128)
    theirs = apply_rotary_emb(q, FluxPosEmbed(10000, [16, 56, 56])(ids))
    close(RoPE.preset("flux", 128, coordinates={"offset": (number, 0, 0)}).at(1, H, W)(q), theirs)


@pytest.mark.parametrize("theta", [2000.0, 10000.0])
def test_flux2(theta):
    zeros = torch.zeros(H * W, 1)
    ids = torch.cat((zeros + 10, grid(H, W), zeros), -1)
    q = queries(H * W, 128)
    theirs = apply_rotary_emb(q, Flux2PosEmbed(theta, [32, 32, 32, 32])(ids))
    known = {} if theta == 2000 else {"theta": theta}
    close(RoPE.preset("flux2", 128, coordinates={"offset": (10, 0, 0, 0)}, **known).at(1, H, W, 1)(q), theirs)
    text = torch.cat((zeros, zeros, zeros, torch.arange(H * W)[:, None]), -1)
    theirs = apply_rotary_emb(q, Flux2PosEmbed(theta, [32, 32, 32, 32])(text))
    close(RoPE.preset("flux2", 128, **known)(text)(q), theirs)


@pytest.mark.parametrize("theta", [256.0, 1000.0])
def test_z_image_starts_one_after_its_caption(theta):
    embed = RopeEmbedder(theta, [32, 48, 48], [40, 20, 20])
    ids = torch.cat((torch.full((H * W, 1), 33), grid(H, W).int()), -1)
    q = queries(H * W, 128)
    known = {} if theta == 256 else {"theta": theta}
    close(RoPE.preset("z_image", 128, caption=32, **known).at(1, H, W)(q), by_complex(q, embed(ids)[None]))


def test_hunyuan_image():
    q = queries(H * W, 128)
    theirs = apply_rotary_emb(q, HunyuanImageRotaryPosEmbed((1, 1), (64, 64), 256.0)(torch.zeros(1, 4, H, W)))
    close(RoPE.preset("hunyuan_image", 128).at(H, W)(q), theirs)


def test_shares_go_with_the_width_or_are_given():
    assert [(RoPE.preset("flux", d).vectors()[0] != 0).sum(0).tolist() for d in (64, 128)] == [[4, 14, 14], [8, 28, 28]]
    split = RoPE.preset("flux", 24, split=(2, 5, 5)).vectors()[0]
    assert (split != 0).sum(0).tolist() == [2, 5, 5]
    with pytest.raises(ValueError, match=r"head_dim=24 cannot be shared among the axes as \(16, 56, 56\) of 128: give 128"):
        RoPE.preset("flux", 24)
