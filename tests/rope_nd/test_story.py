"""The seeds of the field: RoFormer's formula, and why attention needs positions at all."""

import math

import pytest
import torch

from rope_nd import RoPE
from rope_nd.freqs import FAMILIES


def attend(words: list[str], rope: RoPE | None) -> torch.Tensor:
    """One head of self-attention over random word vectors that depend on the word alone: [N, D]."""
    vocabulary = {word: torch.randn(32, generator=torch.Generator().manual_seed(sum(map(ord, word)))) for word in set(words)}
    gen = torch.Generator().manual_seed(0)
    wq, wk, wv = torch.randn(3, 32, 32, generator=gen) / math.sqrt(32)
    x = torch.stack([vocabulary[word] for word in words])[None, None]  # [1, 1, N, D]
    q, k, v = x @ wq, x @ wk, x @ wv
    if rope is not None:
        q, k = rope.at(len(words)).qk(q, k)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)[0, 0]


def test_pair_i_at_position_p_turns_by_p_over_10000_to_the_2i_over_d():
    d = 64
    q = torch.randn(1, 1, 50, d)
    turned = RoPE(d, 1, theta=10000).at(50)(q)
    for p in (0, 1, 7, 49):
        for i in range(d // 2):
            angle = p / 10000 ** (2 * i / d)
            a, b = q[0, 0, p, 2 * i].item(), q[0, 0, p, 2 * i + 1].item()
            assert abs(turned[0, 0, p, 2 * i].item() - (a * math.cos(angle) - b * math.sin(angle))) < 1e-6
            assert abs(turned[0, 0, p, 2 * i + 1].item() - (a * math.sin(angle) + b * math.cos(angle))) < 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_word_twice_gets_the_same_output_without_an_encoding_and_different_ones_with_it(family):
    words = "the dog chased another dog".split()
    plain, turned = attend(words, None), attend(words, RoPE(32, 1, family, learned=False))
    assert torch.allclose(plain[1], plain[4], atol=1e-6)
    assert (turned[1] - turned[4]).abs().max() > 1e-2


@pytest.mark.parametrize("family", FAMILIES)
def test_the_dog_bites_the_man_is_not_the_man_bites_the_dog(family):
    one, other = "de hond bijt de man".split(), "de man bijt de hond".split()
    assert torch.allclose(attend(one, None).mean(0), attend(other, None).mean(0), atol=1e-6)
    rope = RoPE(32, 1, family, learned=False)
    assert (attend(one, rope).mean(0) - attend(other, rope).mean(0)).abs().max() > 1e-2
