"""Stored frequencies of other projects: there and back to the last bit, and the same rotation in between."""

import pytest
import torch
from timm.layers.pos_embed_sincos import RotaryEmbeddingDinoV3, RotaryEmbeddingMixed
from timm.models.eva import Eva
from transformers.models.dinov3_vit.configuration_dinov3_vit import DINOv3ViTConfig
from transformers.models.dinov3_vit.modeling_dinov3_vit import DINOv3ViTRopePositionEmbedding
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from rope_nd import RoPE, wrap
from rope_nd.convert import (
    from_inv_freq,
    from_periods,
    from_timm,
    mixed_from_timm,
    mixed_to_timm,
    to_inv_freq,
    to_periods,
    to_timm,
)


def mixed_model() -> Eva:
    torch.manual_seed(0)
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 5}
    model = Eva(**size, use_rot_pos_emb=True, rope_type="mixed", rope_grid_indexing="xy", use_abs_pos_emb=False).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.mark.parametrize("indexing", ["ij", "xy"])
@pytest.mark.parametrize("flat", [False, True])
def test_learned_frequencies_of_timm_and_rope_vit_go_there_and_back(indexing, flat):
    stored = torch.randn(2, 4, 3 * 8) if flat else torch.randn(2, 4, 3, 8)
    ours = mixed_from_timm(stored, heads=3 if flat else None, indexing=indexing)
    assert ours.shape == (4, 3, 8, 2) and torch.equal(ours[1, 2, 5, int(indexing == "ij")], stored.view(2, 4, 3, 8)[1, 1, 2, 5])
    assert torch.equal(mixed_to_timm(ours, flat=flat, indexing=indexing), stored)


@pytest.mark.parametrize("indexing", ["ij", "xy"])
def test_converted_frequencies_turn_as_timms_module_does(indexing):
    module = RotaryEmbeddingMixed(dim=48, depth=2, num_heads=3, feat_shape=(3, 5), grid_indexing=indexing)
    table = module.get_embed((3, 5))  # [depth, H, N, 2 · D], sines then cosines, each angle twice
    sin, cos = (t[..., ::2] for t in table.chunk(2, -1))
    for layer, freqs in enumerate(mixed_from_timm(module.freqs.detach(), indexing=indexing)):
        rotation = RoPE(16, 2, freqs=freqs, heads=3).at(3, 5)
        torch.testing.assert_close(rotation.cos, cos[layer].detach(), atol=1e-5, rtol=0)
        torch.testing.assert_close(rotation.sin, sin[layer].detach(), atol=1e-5, rtol=0)


def test_a_timm_checkpoint_fills_a_wrapped_model_and_comes_back_unchanged():
    model = mixed_model()
    x, state = torch.randn(2, 3, 40, 56), model.state_dict()
    expected = mixed_model_at(model, (40, 56))(x)
    ours = wrap(mixed_model(), "mixed", theta=7.0)
    assert (ours(x) - expected).abs().max() > 0.01
    ours.load_state_dict(from_timm(state))
    torch.testing.assert_close(ours(x), expected, atol=1e-5, rtol=1e-5)
    back = to_timm({name: value + 0 for name, value in ours.state_dict().items()})
    assert back.keys() == state.keys() and all(torch.equal(back[name], state[name]) for name in state)


def mixed_model_at(model: Eva, size: tuple[int, int]) -> Eva:
    again = mixed_model()
    again.load_state_dict(model.state_dict())
    again.set_input_size(size)
    return again


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_periods_go_there_and_back_for_every_value_a_checkpoint_can_hold(dtype):
    for stored in (100 ** torch.linspace(0, 1, 16), torch.rand(4096) * 1000 + 0.01, torch.logspace(-6, 6, 4096)):
        assert torch.equal(to_periods(from_periods(stored.to(dtype)), dtype=dtype), stored.to(dtype))


def test_periods_turn_as_dinov3():
    module = RotaryEmbeddingDinoV3(dim=64, feat_shape=(3, 5), rotate_half=True)
    rope = RoPE(64, 2, freqs=from_periods(module.periods), layout="half", coordinates={"normalize": "centred"})
    sin, cos = module.get_embed((3, 5)).chunk(2, -1)  # [N, D], the second half like the first
    torch.testing.assert_close(rope.at(3, 5).cos, cos[:, :32], atol=1e-5, rtol=0)
    torch.testing.assert_close(rope.at(3, 5).sin, sin[:, :32], atol=1e-5, rtol=0)


def test_inverse_frequencies_of_transformers_go_there_and_back_and_turn_alike():
    llama = LlamaRotaryEmbedding(LlamaConfig(hidden_size=64, num_attention_heads=2))
    freqs = from_inv_freq(llama.inv_freq)
    assert freqs.shape == (1, 16, 1) and torch.equal(to_inv_freq(freqs), llama.inv_freq)
    cos, _ = llama(torch.zeros(1), torch.arange(50)[None])  # [1, N, D]
    torch.testing.assert_close(RoPE(32, 1, freqs=freqs, layout="half").at(50).cos, cos[0, :, :16], atol=1e-5, rtol=0)

    dino = DINOv3ViTRopePositionEmbedding(
        DINOv3ViTConfig(hidden_size=64, num_attention_heads=2, image_size=64, patch_size=16)
    ).eval()
    freqs = from_inv_freq(dino.inv_freq, axes=2, turns=True)
    assert torch.equal(to_inv_freq(freqs, turns=True), dino.inv_freq)
    cos, _ = dino(torch.zeros(1, 3, 48, 80))  # [N, D]
    ours = RoPE(32, 2, freqs=freqs, layout="half", coordinates={"normalize": "centred"}).at(3, 5)
    torch.testing.assert_close(ours.cos, cos[:, :16], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: mixed_from_timm(torch.zeros(3, 4, 2, 8)), r"shape \[3, 4, 2, 8\]"),
        (lambda: mixed_from_timm(torch.zeros(2, 4, 24)), "heads=None"),
        (lambda: mixed_from_timm(torch.zeros(2, 4, 24), heads=7), "heads=7"),
        (lambda: mixed_from_timm(torch.zeros(2, 4, 3, 8), indexing="yx"), "unknown indexing 'yx'"),
        (lambda: mixed_to_timm(torch.zeros(4, 3, 8, 3)), "heads, pairs, 2"),
        (lambda: from_timm({"pos_embed": torch.zeros(1)}), "no rope.freqs"),
        (lambda: to_timm({"encoding.1.freqs": torch.zeros(3, 8, 2)}), r"layers \[1\]"),
        (lambda: from_periods(torch.ones(2, 2)), r"shape \[2, 2\]"),
        (lambda: to_periods(RoPE(32, 2, "mixed").freqs.detach()), "not one list for every axis"),
    ],
)
def test_bad_input_is_named_with_its_mend(call, says):
    with pytest.raises(ValueError, match=says):
        call()
