"""Whole vision towers with random weights give the same output when their rotary part is ours."""

import copy
from collections.abc import Callable

import pytest
import torch
from timm.models import eva, gemma4_vit
from torch import Tensor, nn
from transformers.models.dinov3_vit import modeling_dinov3_vit as hf_dinov3
from transformers.models.llama4 import modeling_llama4 as hf_llama4
from transformers.models.pixtral import modeling_pixtral as hf_pixtral
from transformers.models.qwen2_vl import modeling_qwen2_vl as hf_qwen2
from transformers.models.qwen3_vl import modeling_qwen3_vl as hf_qwen3
from transformers.models.sam2_video import modeling_sam2_video as hf_sam2
from transformers.models.sam3 import modeling_sam3 as hf_sam3

from rope_nd import RoPE, Rotation, grid, unwrap, wrap
from rope_nd.presets.image import DINOV3_AUGMENT


def moved(make: Callable[[], nn.Module]) -> nn.Module:
    """A model in eval mode, its parameters moved away from their special beginnings, the same at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p) * 0.1)
    return model.eval()


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


# ---- timm, through wrap

plain = {"img_size": (32, 48), "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 5}
bare = {**plain, "use_rot_pos_emb": True, "use_abs_pos_emb": False}
xy = {"attn_type": "rope", "rope_grid_indexing": "xy"}
gemma = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3, "head_dim": 16, "pooling_kernel_size": 2}

TIMM: dict[str, tuple[Callable[[], nn.Module], dict]] = {
    "eva02": (
        lambda: eva.Eva(**{**bare, "use_abs_pos_emb": True}, qkv_fused=False, swiglu_mlp=True, ref_feat_shape=(16, 16)),
        {"keep_pos_embed": "absolute"},
    ),
    "rope_vit_axial": (lambda: eva.Eva(**bare, **xy, rope_temperature=100.0, init_values=0.3), {}),
    "rope_vit_mixed": (lambda: eva.Eva(**bare, **xy, rope_type="mixed", rope_temperature=10.0), {}),
    "rope_vit_mixed, table": (
        lambda: eva.Eva(**{**bare, "use_abs_pos_emb": True}, **xy, rope_type="mixed", rope_temperature=10.0, no_embed_class=True),
        {"keep_pos_embed": "absolute"},
    ),
    "dinov3": (
        lambda: eva.Eva(**bare, rope_type="dinov3", rope_temperature=100.0, rope_rotate_half=True, num_reg_tokens=4),
        {},
    ),
    "perception_encoder": (
        lambda: eva.Eva(
            **{**bare, "use_abs_pos_emb": True}, **xy, ref_feat_shape=(4, 6), rope_grid_offset=1.0, use_pre_transformer_norm=True
        ),
        {"keep_pos_embed": "absolute"},
    ),
    "genlip": (lambda: eva.Eva(**bare, attn_type="rope", rope_type="mrope", rope_mrope_section=(2, 3, 3)), {"sections": (2, 3, 3)}),
    "gemma4_vision": (
        lambda: gemma4_vit.Gemma4VitClassifier(**gemma, intermediate_size=64, position_embedding_size=64, num_classes=5),
        {"keep_pos_embed": "absolute"},
    ),
}


@pytest.mark.parametrize("name", TIMM)
@torch.no_grad()
def test_a_timm_model_wrapped_in_the_preset_of_its_kind_is_the_same_model(name):
    make, options = TIMM[name]
    origin, preset = moved(make), name.split(",")[0]
    x = noise(2, 3, 32, 32 if preset == "gemma4_vision" else 48)
    ours = wrap(copy.deepcopy(origin), preset, **options)
    if preset == "rope_vit_mixed":
        for layer, rope in enumerate(ours.encoding):
            rope.freqs.copy_(origin.rope.freqs[:, layer].movedim(0, -1).flip(-1))  # (x, y) -> (h, w)
    close(ours(x), origin(x))
    unturned = wrap(copy.deepcopy(origin), preset, strength=0.0, **options)
    assert (unturned(x) - origin(x)).abs().max() > 1e-3
    assert torch.equal(unwrap(ours)(x), origin(x))


@torch.no_grad()
def test_dinov3s_augmentation_is_drawn_in_training_alone():
    origin, x = moved(TIMM["dinov3"][0]), noise(2, 3, 32, 48)
    ours = wrap(copy.deepcopy(origin), "dinov3", augment=DINOV3_AUGMENT)
    close(ours(x), origin(x))
    torch.manual_seed(0)
    one, other = ours.train()(x), ours(x)
    assert (one - other).abs().max() > 1e-3 and (one - origin(x)).abs().max() > 1e-3


# ---- transformers, its function that turns queries and keys replaced by ours


def replace(monkeypatch, module, function: str, turn: Callable[[Tensor], Tensor]) -> list[int]:
    """Let `module.function(q, k, ...)` turn queries and keys by `turn`, whatever tables it is given; returns its calls."""
    calls: list[int] = []

    def ours(q: Tensor, k: Tensor, *tables: object, **more: object) -> tuple[Tensor, Tensor]:
        calls.append(len(tables) + len(more))
        return turn(q), turn(k)

    monkeypatch.setattr(module, function, ours)
    return calls


def heads_first(rotation: Rotation) -> Callable[[Tensor], Tensor]:
    """For queries `[.., N, H, D]`."""
    return lambda x: rotation(x.transpose(-3, -2)).transpose(-3, -2)


def same(monkeypatch, module, function: str, turn: Callable[[Tensor], Tensor], run: Callable[[], Tensor]) -> None:
    """`run` gives the same with our rotation in both layers, and something else with none."""
    theirs = run()
    calls = replace(monkeypatch, module, function, turn)
    close(run(), theirs)
    assert len(calls) == 2
    replace(monkeypatch, module, function, lambda x: x)
    assert (run() - theirs).abs().max() > 1e-3


@torch.no_grad()
def test_pixtral_with_images_of_two_sizes(monkeypatch):
    known = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 32}
    model = moved(lambda: hf_pixtral.PixtralVisionModel(hf_pixtral.PixtralVisionConfig(**known, image_size=64, patch_size=8)))
    x, sizes = noise(2, 3, 48, 48), torch.tensor([[32, 48], [48, 24]])
    rotation = RoPE.preset("pixtral", 32)(torch.cat((grid(4, 6), grid(6, 3))))
    same(monkeypatch, hf_pixtral, "apply_rotary_pos_emb", rotation, lambda: model(x, image_sizes=sizes).last_hidden_state)


def merged(h: int, w: int) -> Tensor:
    """Positions of a grid in blocks of 2 x 2, `[N, 2]`."""
    return grid(h, w).view(h // 2, 2, w // 2, 2, 2).transpose(1, 2).reshape(-1, 2)


@pytest.mark.parametrize("kind", ["qwen2_vl_vision", "qwen3_vl_vision"])
@torch.no_grad()
def test_qwens_towers_with_an_image_and_a_video(monkeypatch, kind):
    known = {"depth": 2, "num_heads": 2, "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2}
    if kind == "qwen2_vl_vision":
        module, config = hf_qwen2, hf_qwen2.Qwen2VLVisionConfig(**known, embed_dim=64, hidden_size=48)
        model = moved(lambda: hf_qwen2.Qwen2VisionTransformerPretrainedModel(config))
    else:
        module = hf_qwen3
        more = {"hidden_size": 64, "intermediate_size": 96, "out_hidden_size": 48, "num_position_embeddings": 16}
        config = hf_qwen3.Qwen3VLVisionConfig(**known, **more, deepstack_visual_indexes=[0])
        model = moved(lambda: hf_qwen3.Qwen3VLVisionModel(config))
    x, grids = noise(4 * 6 + 2 * 4 * 2, 3 * 2 * 4 * 4), torch.tensor([[1, 4, 6], [2, 4, 2]])
    positions = torch.cat((merged(4, 6), merged(4, 2), merged(4, 2)))
    turn = heads_first(RoPE.preset(kind, 32)(positions))
    same(monkeypatch, module, "apply_rotary_pos_emb_vision", turn, lambda: model(x, grids).pooler_output)


@torch.no_grad()
def test_dinov3_of_transformers(monkeypatch):
    known = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8}
    model = moved(lambda: hf_dinov3.DINOv3ViTModel(hf_dinov3.DINOv3ViTConfig(**known, image_size=32, num_register_tokens=4)))
    x, rotation = noise(2, 3, 32, 48), RoPE.preset("dinov3", 32, prefix_tokens=5).at(4, 6)
    same(monkeypatch, hf_dinov3, "apply_rotary_pos_emb", rotation, lambda: model(x).last_hidden_state)


@torch.no_grad()
def test_llama4s_vision_tower(monkeypatch):
    known = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8}
    more = {"image_size": 32, "vision_output_dim": 64, "projector_input_dim": 64, "projector_output_dim": 64}
    model = moved(lambda: hf_llama4.Llama4VisionModel(hf_llama4.Llama4VisionConfig(**known, **more)))
    rope = RoPE.preset("llama4_vision", 32)
    turn = heads_first(rope(torch.cat((rope.positions(4, 4), torch.zeros(1, 2)))))  # the class token last, at the origin
    x = noise(2, 3, 32, 32)
    same(monkeypatch, hf_llama4, "vision_apply_rotary_emb", turn, lambda: model(x).last_hidden_state)


@torch.no_grad()
def test_sam2s_memory_attention(monkeypatch):
    """One layer, which turns twice: the frame's own tokens; and the frame against two remembered ones and three pointers."""
    known = {
        "memory_attention_hidden_size": 64,
        "memory_attention_num_layers": 1,
        "memory_attention_feed_forward_hidden_size": 96,
        "memory_attention_rope_feat_sizes": [6, 4],
        "memory_attention_num_attention_heads": 2,
        "memory_attention_downsample_rate": 1,
    }
    model = moved(lambda: hf_sam2.Sam2VideoMemoryAttention(hf_sam2.Sam2VideoConfig(**known)))
    frame, memory, place = noise(24, 2, 64), noise(2 * 24 + 3, 2, 64), noise(2 * 24 + 3, 2, 64)
    rope = RoPE.preset("sam2", 32)
    turns = {24: rope.at(4, 6), 51: rope(torch.cat((rope.positions(4, 6).repeat(2, 1), torch.zeros(3, 2))))}

    def run() -> Tensor:
        return model(frame, memory, memory_posision_embeddings=place, num_object_pointer_tokens=3)

    same(monkeypatch, hf_sam2, "apply_rotary_pos_emb_2d", lambda x: turns[x.shape[-2]](x), run)


@torch.no_grad()
def test_sam3s_tower_with_a_windowed_and_a_global_layer(monkeypatch):
    known = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8}
    more = {"image_size": 64, "pretrain_image_size": 64, "window_size": 4, "global_attn_indexes": [1]}
    model = moved(lambda: hf_sam3.Sam3ViTModel(hf_sam3.Sam3ViTConfig(**known, **more)))
    x, rope = noise(2, 3, 64, 64), RoPE.preset("sam3", 32, reference=(4, 4))
    turns = {16: rope.at(4, 4), 64: rope.at(8, 8)}

    def turn(q: Tensor) -> Tensor:
        return turns[q.shape[-2]](q)

    same(monkeypatch, hf_sam3, "apply_rotary_pos_emb_2d", turn, lambda: model(x).last_hidden_state)
