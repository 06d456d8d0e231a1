"""Text presets and scaling rules against transformers: its own rotary modules and its functions for stretched frequencies, fp32."""

import math
from functools import partial

import pytest
import torch
from transformers import GPTJConfig, GPTNeoXConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gpt_neox import modeling_gpt_neox as neox
from transformers.models.gptj import modeling_gptj as gptj
from transformers.models.llama import modeling_llama as llama
from transformers.models.roformer import modeling_roformer as roformer

from rope_nd import RoPE
from rope_nd.presets.text import yarn_by_index

COUNT = 40


def draw(head_dim: int, seed: int = 0, count: int = COUNT) -> torch.Tensor:
    return torch.randn(1, 2, count, head_dim, generator=torch.Generator().manual_seed(seed))


def close(ours: torch.Tensor, theirs: torch.Tensor, within: float = 1e-5):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=within)


def alike(ours: torch.Tensor, theirs: torch.Tensor):
    """Frequencies, theirs in float32."""
    torch.testing.assert_close(ours.double(), theirs.double(), rtol=2e-6, atol=0)


def config(head_dim: int = 64, length: int = 8192, **parameters) -> LlamaConfig:
    given = {"rope_type": "default", "rope_theta": 10000.0, **parameters}
    return LlamaConfig(
        hidden_size=2 * head_dim, num_attention_heads=2, head_dim=head_dim, max_position_embeddings=length, rope_parameters=given
    )


def in_use(rope: RoPE, extent: int) -> torch.Tensor:
    """The frequencies `[P]` at an extent, read off the tables at position 1 (below pi all of them)."""
    rotation = rope(torch.ones(1, 1, dtype=torch.float64), (extent,))
    return torch.atan2(rotation.sin[0].double(), rotation.cos[0].double())


def stretched(freqs: torch.Tensor, rule, trained: int, extent: int) -> torch.Tensor:
    """Our rule alone, float64, on one spectrum `[P]` at an extent."""
    scale = torch.tensor([max(1.0, extent / trained)], dtype=torch.float64)
    return rule(freqs[None, :, None], scale, torch.tensor([float(trained)], dtype=torch.float64))[0, :, 0]


def spectrum(pairs: int = 32, theta: float = 10000.0) -> torch.Tensor:
    return theta ** (-torch.arange(pairs, dtype=torch.float64) / pairs)


# presets


@pytest.mark.parametrize(
    "name, parameters",
    [
        ("llama2", {}),
        ("llama3", {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0}),
        ("llama3_2", {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0}),
    ],
)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_llama_turns_as_transformers_does(name, parameters, head_dim):
    if parameters:
        parameters = {**parameters, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    origin = llama.LlamaRotaryEmbedding(config(head_dim, 131072, **parameters))
    q, k = draw(head_dim), draw(head_dim, seed=1)
    theirs = llama.apply_rotary_pos_emb(q, k, *origin(q, torch.arange(COUNT)[None]))
    rope = RoPE.preset(name, head_dim)
    for x, turned in zip((q, k), theirs):
        close(rope.at(COUNT)(x), turned)
    alike(in_use(rope, COUNT), origin.inv_freq)


def test_llama3_stretches_whatever_the_extent_and_llama3_0_does_not():
    stretched_, plain = RoPE.preset("llama3", 128), RoPE.preset("llama3", 128, scaling=None)
    assert torch.equal(in_use(stretched_, 16), in_use(stretched_, 100000))
    alike(in_use(plain, 16), spectrum(64, 5e5))
    share = in_use(stretched_, 16) / spectrum(64, 5e5)  # 1 for fast pairs, 1/8 for slow ones
    close(share[[0, -1]], torch.tensor([1.0, 0.125], dtype=torch.float64), 1e-6)


@pytest.mark.parametrize("head_dim", [64, 96])
def test_gpt_neox_turns_as_transformers_does(head_dim):
    parameters = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    origin = neox.GPTNeoXRotaryEmbedding(GPTNeoXConfig(hidden_size=2 * head_dim, num_attention_heads=2, rope_parameters=parameters))
    q, k = draw(head_dim), draw(head_dim, seed=1)
    theirs = neox.apply_rotary_pos_emb(q, k, *origin(q, torch.arange(COUNT)[None]))
    for x, turned in zip((q, k), theirs):
        ours = RoPE.preset("gpt_neox", head_dim).at(COUNT)(x)
        close(ours, turned)
        assert torch.equal(ours[..., head_dim // 4 :], x[..., head_dim // 4 :])


def test_gptj_turns_as_transformers_does():
    origin = gptj.GPTJRotaryEmbedding(GPTJConfig(n_embd=512, n_head=2, rotary_dim=64, n_positions=64))
    x = draw(256)
    sin, cos = origin(x, torch.arange(COUNT)[None])
    theirs = gptj.apply_rotary_pos_emb(x.transpose(1, 2)[..., :64], sin, cos).transpose(1, 2)
    ours = RoPE.preset("gptj", 256).at(COUNT)(x)
    close(ours[..., :64], theirs)
    assert torch.equal(ours[..., 64:], x[..., 64:])


def test_roformer_turns_as_transformers_does():
    table = roformer.RoFormerSinusoidalPositionalEmbedding(64, 32)
    table.weight.data = table.create_weight()
    q, k = draw(32), draw(32, seed=1)
    theirs = roformer.RoFormerSelfAttention.apply_rotary_position_embeddings(table((1, COUNT))[None, None], q, k)
    for x, turned in zip((q, k), theirs):
        close(RoPE.preset("roformer", 32).at(COUNT)(x), turned)


@pytest.mark.parametrize("name", ["roformer", "gptj", "gpt_neox", "llama2", "llama3", "llama3_2"])
def test_options_of_the_core_pass_through(name):
    rope = RoPE.preset(name, 32, layout="interleaved", trained_extent=(16,), scaling="ntk", prefix_tokens=1, theta=100.0)
    assert rope.layout == "interleaved" and rope.trained_extent == (16,) and rope.scaling == "ntk"
    assert not torch.equal(in_use(rope, 16), in_use(rope, 32)) and rope.at(5)(draw(32, count=6)).shape == (1, 2, 6, 32)


# scaling rules


def test_llama3_rule_is_that_of_transformers():
    parameters = {"low_freq_factor": 2.0, "high_freq_factor": 5.0, "original_max_position_embeddings": 1000}
    theirs, factor = ROPE_INIT_FUNCTIONS["llama3"](config(rope_type="llama3", factor=6.0, **parameters))
    rope = RoPE(64, 1, theta=1e4, scaling={"llama3": {"factor": 6.0, "low": 2.0, "high": 5.0}}, trained_extent=(1000,))
    alike(in_use(rope, 1), theirs)
    assert factor == 1


def test_pi_with_a_factor_is_linear_scaling():
    theirs, factor = ROPE_INIT_FUNCTIONS["linear"](config(rope_type="linear", factor=3.0))
    alike(in_use(RoPE(64, 1, theta=1e4, scaling={"pi": {"factor": 3.0}}), 1), theirs)
    assert factor == 1


@pytest.mark.parametrize("alpha", [1.0, 4.0])
@pytest.mark.parametrize("extent", [500, 1000, 2500])
def test_dynamic_ntk_is_that_of_transformers_and_alpha_1_is_ntk(alpha, extent):
    theirs, _ = ROPE_INIT_FUNCTIONS["dynamic"](config(length=1000, rope_type="dynamic", factor=alpha), seq_len=extent)
    rules = [{"dynamic_ntk": {"alpha": alpha}}, *(["ntk"] if alpha == 1 else [])]
    for rule in rules:
        alike(in_use(RoPE(64, 1, theta=1e4, scaling=rule, trained_extent=(1000,)), extent), theirs)


@pytest.mark.parametrize("extent, which", [(600, "short_factor"), (1200, "long_factor")])
def test_longrope_is_that_of_transformers(extent, which):
    factors = {"long_factor": [1.0 + p / 4 for p in range(32)], "short_factor": [1.0 + p / 64 for p in range(32)]}
    parameters = {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 1000, **factors}
    theirs, factor = ROPE_INIT_FUNCTIONS["longrope"](config(length=4000, **parameters), seq_len=extent)
    rule = {"longrope": {"long": factors["long_factor"], "short": factors["short_factor"]}}
    rope = RoPE(64, 1, theta=1e4, scaling=rule, trained_extent=(1000,), temperature=factor**2)
    alike(in_use(rope, extent), theirs)
    alike(in_use(rope, extent) * torch.tensor(factors[which], dtype=torch.float64), spectrum().float())
    # theirs multiplies cos and sin, ours the scores: the factor squared
    close(rope(torch.zeros(1, 1), (extent,)).temperature, torch.tensor(factor**2, dtype=torch.float64), 1e-12)


def test_keep_is_proportional_rope():
    theirs, _ = ROPE_INIT_FUNCTIONS["proportional"](config(rope_type="proportional", partial_rotary_factor=0.75))
    alike(RoPE(64, 1, theta=1e4, keep=0.75).freqs[0, :, 0], theirs)


def yarn_parameters(**more) -> dict:
    return {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1000, **more}


@pytest.mark.parametrize("more", [{}, {"beta_fast": 16.0, "beta_slow": 2.0}, {"beta_fast": 200.0, "beta_slow": 0.05}])
@pytest.mark.parametrize("head_dim", [64, 16])
def test_yarn_by_index_is_that_of_transformers(more, head_dim):
    theirs, _ = ROPE_INIT_FUNCTIONS["yarn"](config(head_dim, **yarn_parameters(**more)))
    options = {"fast": more.get("beta_fast", 32.0), "slow": more.get("beta_slow", 1.0)}
    freqs = spectrum(head_dim // 2)
    alike(stretched(freqs, partial(yarn_by_index, **options), 1000, 4000), theirs)
    alike(stretched(freqs, partial(yarn_by_index, factor=4.0, **options), 1000, 10), theirs)
    rope = RoPE(head_dim, 1, theta=1e4, scaling=partial(yarn_by_index, **options), trained_extent=(1000,))
    alike(in_use(rope, 4000), theirs)


def test_yarn_by_turns_agrees_with_that_of_transformers_outside_the_ramps_and_differs_inside():
    """1000 tokens, 64 channels: pairs 0 .. 5 turn more than 32 times, pairs from 18 on less than once.

    Theirs ramps over indices 5 .. 18 (whole numbers outside of i(32) = 5.6 and i(1) = 17.6), ours linearly in turns between 32
    and 1: at pair 11 (6.7 turns) theirs keeps 0.54 of the way between w / 4 and w, ours 0.18.
    """
    theirs, factor = ROPE_INIT_FUNCTIONS["yarn"](config(**yarn_parameters()))
    rope = RoPE(64, 1, theta=1e4, scaling={"yarn": {"slow": 1.0, "fast": 32.0}}, trained_extent=(1000,), temperature="yarn")
    ours, w = in_use(rope, 4000), spectrum()
    turns = 1000 * w / (2 * math.pi)
    outside = (turns > 32) | (turns < 1)
    assert outside.nonzero().flatten().tolist() == [*range(6), *range(18, 32)]
    alike(ours[outside], theirs[outside])
    share = [((f.double() / w - 1 / 4) / (1 - 1 / 4)) for f in (ours, theirs)]
    close(share[0], ((turns - 1) / 31).clamp(0, 1), 1e-5)
    close(share[1], 1 - ((torch.arange(32, dtype=torch.float64) - 5) / 13).clamp(0, 1), 1e-5)
    assert round(float(share[0][11]), 2) == 0.18 and round(float(share[1][11]), 2) == 0.54
    # theirs multiplies cos and sin, ours the scores: the factor squared
    close(rope(torch.zeros(1, 1), (4000,)).temperature, torch.tensor(factor**2, dtype=torch.float64), 1e-12)


def test_yarn_by_index_refuses_what_has_no_index():
    with pytest.raises(ValueError, match="for one axis and at least 2 pairs"):
        RoPE(64, 2, scaling=yarn_by_index, trained_extent=(8, 8)).at(16, 16)
