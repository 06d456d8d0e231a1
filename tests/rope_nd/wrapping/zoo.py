"""One tiny model of every kind that `wrap` knows: a 4 x 4 grid of 8-pixel patches, two or three layers, no parameter zero."""

from collections.abc import Callable

import torch
from timm.layers import HybridEmbed
from timm.models import (
    beit,
    cait,
    convit,
    deepseek_vit,
    deit,
    eva,
    gemma4_vit,
    naflexvit,
    qwen3_vit,
    tnt,
    vision_transformer_relpos,
    vision_transformer_sam,
)
from timm.models import vision_transformer as vit
from torch import nn

SIZE, DIM, HEADS = 32, 48, 3
plain = {"img_size": SIZE, "patch_size": 8, "embed_dim": DIM, "depth": 2, "num_heads": HEADS}
classed = {**plain, "num_classes": 5}
turning = {**classed, "use_rot_pos_emb": True, "use_abs_pos_emb": False}
rope = {**turning, "attn_type": "rope"}
naflex = {"img_size": SIZE, "num_classes": 5, "patch_size": 8, "embed_dim": DIM, "depth": 2, "num_heads": HEADS, "reg_tokens": 1}
gemma = {**plain, "head_dim": 16, "intermediate_size": 64, "position_embedding_size": 64, "pooling_kernel_size": 2}
nested = {"inner_dim": 8, "num_heads_inner": 2, "num_heads_outer": HEADS, **{k: v for k, v in classed.items() if k != "num_heads"}}
sam = {**classed, "global_attn_indexes": (1,), "window_size": 2, "neck_chans": 16, "use_rel_pos": True}


def hybrid(**options) -> vit.VisionTransformer:
    stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU())

    def embed(**given) -> HybridEmbed:
        return HybridEmbed(stem, **{**given, "patch_size": 4})

    return vit.VisionTransformer(**classed, embed_layer=embed, **options)


KINDS: dict[str, Callable[[], nn.Module]] = {
    "vit": lambda: vit.VisionTransformer(**classed, reg_tokens=2, qk_norm=True),
    "vit, table off the class token": lambda: vit.VisionTransformer(**classed, no_embed_class=True, init_values=0.3),
    "vit, diff": lambda: vit.VisionTransformer(**{**classed, "embed_dim": 96}, attn_layer="diff"),
    "vit, res-post": lambda: vit.VisionTransformer(**classed, block_fn=vit.ResPostBlock),
    "vit, parallel": lambda: vit.VisionTransformer(**classed, block_fn=vit.ParallelScalingBlock),
    "vit, parallel diff": lambda: vit.VisionTransformer(**{**classed, "embed_dim": 96}, block_fn=vit.DiffParallelScalingBlock),
    "vit, parallel things": lambda: vit.VisionTransformer(**classed, block_fn=vit.ParallelThingsBlock),
    "deit, distilled": lambda: deit.VisionTransformerDistilled(**classed),
    "hybrid": hybrid,
    "eva": lambda: eva.Eva(**classed),
    "eva, post-norm": lambda: eva.Eva(**classed, use_post_norm=True),
    "eva-02": lambda: eva.Eva(
        **{**turning, "use_abs_pos_emb": True}, qkv_fused=False, swiglu_mlp=True, scale_mlp=True, ref_feat_shape=(3, 3)
    ),
    "rope-vit": lambda: eva.Eva(**rope, rope_temperature=100.0),
    "rope-vit, mixed": lambda: eva.Eva(**rope, rope_type="mixed", rope_temperature=10.0),
    "rope-vit, mixed and table": lambda: eva.Eva(
        **{**rope, "use_abs_pos_emb": True}, rope_type="mixed", no_embed_class=True, rope_grid_indexing="xy"
    ),
    "perception encoder": lambda: eva.Eva(
        **{**rope, "use_abs_pos_emb": True},
        ref_feat_shape=(4, 4),
        rope_grid_offset=1.0,
        rope_grid_indexing="xy",
        use_pre_transformer_norm=True,
    ),
    "dinov3": lambda: eva.Eva(
        **turning, rope_type="dinov3", rope_temperature=100.0, rope_rotate_half=True, num_reg_tokens=4, init_values=0.3
    ),
    "eva, m-rope": lambda: eva.Eva(**{**rope, "num_heads": 2}, rope_type="mrope", rope_mrope_section=(4, 4, 4)),
    "sapiens 2": lambda: eva.Eva(
        **{**rope, "num_heads": 4, "embed_dim": 64},
        rope_type="dinov3",
        rope_rotate_half=True,
        qkv_fused=False,
        num_kv_heads=(4, 2),
        qk_norm=True,
    ),
    "naflex": lambda: naflexvit.NaFlexVit(**naflex),
    "naflex, factorized": lambda: naflexvit.NaFlexVit(**naflex, pos_embed="factorized", class_token=False, global_pool="avg"),
    "naflex, axial": lambda: naflexvit.NaFlexVit(**naflex, rope_type="axial", pos_embed="none"),
    "naflex, mixed": lambda: naflexvit.NaFlexVit(**naflex, rope_type="mixed"),
    "naflex, dinov3": lambda: naflexvit.NaFlexVit(**naflex, rope_type="dinov3", rope_rotate_half=True),
    "deepseek": lambda: deepseek_vit.DeepseekVitClassifier(**classed),
    "deepseek, encoder": lambda: deepseek_vit.DeepseekVitEncoder(**plain, out_features=6, downsample_ratio=2),
    "qwen 3": lambda: qwen3_vit.Qwen3VitClassifier(**classed, pos_embed_grid_size=3),
    "qwen 3, encoder": lambda: qwen3_vit.Qwen3VitEncoder(**plain, out_features=6, pos_embed_grid_size=4),
    "beit": lambda: beit.Beit(**classed, use_abs_pos_emb=False, use_rel_pos_bias=True, init_values=0.3),
    "beit, shared and table": lambda: beit.Beit(**classed, use_shared_rel_pos_bias=True),
    "relpos, mlp": lambda: vision_transformer_relpos.VisionTransformerRelPos(**classed),
    "relpos, swin mlp": lambda: vision_transformer_relpos.VisionTransformerRelPos(
        **classed, rel_pos_type="mlp-swin", class_token=True, qk_norm=True
    ),
    "relpos, table": lambda: vision_transformer_relpos.VisionTransformerRelPos(**classed, rel_pos_type="bias", class_token=True),
    "relpos, shared table, res-post": lambda: vision_transformer_relpos.VisionTransformerRelPos(
        **classed, rel_pos_type="bias", shared_rel_pos=True, block_fn=vision_transformer_relpos.ResPostRelPosBlock
    ),
    "cait": lambda: cait.Cait(**classed, init_values=0.3),
    "convit": lambda: convit.ConVit(**{**classed, "embed_dim": 16, "depth": 3}, local_up_to_layer=2),
    "convit, no table": lambda: convit.ConVit(**{**classed, "embed_dim": 16}, local_up_to_layer=1, use_pos_embed=False),
    "tnt": lambda: tnt.TNT(**nested),
    "tnt, legacy": lambda: tnt.TNT(**nested, legacy=True, qkv_bias=True),
    "sam": lambda: vision_transformer_sam.VisionTransformerSAM(**sam, qk_norm=True),
    "sam, rope": lambda: vision_transformer_sam.VisionTransformerSAM(
        **{**sam, "use_rel_pos": False}, use_rope=True, ref_feat_shape=((4, 4), (2, 2))
    ),
    "gemma 4": lambda: gemma4_vit.Gemma4VitClassifier(**gemma, num_classes=5),
    "gemma 4, encoder": lambda: gemma4_vit.Gemma4VitEncoder(**{**gemma, "num_heads": 4, "embed_dim": 64}, num_kv_heads=2),
}


def build(kind: str, seed: int = 0) -> nn.Module:
    """The model of that kind, in eval mode, its parameters moved away from their special beginnings."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = KINDS[kind]()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p) * 0.1)
    return model.eval()


def images(*shape: int, seed: int = 1) -> torch.Tensor:
    """Noise in [0, 1], `[2, 3, 32, 32]` unless told otherwise."""
    return torch.rand(*(shape or (2, 3, SIZE, SIZE)), generator=torch.Generator().manual_seed(seed))
