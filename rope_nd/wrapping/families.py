"""Which timm classes `wrap` knows: exact classes, and what it makes of them."""

from __future__ import annotations

from typing import Any

from timm.layers.hybrid_embed import HybridEmbed
from timm.models import beit, deepseek_vit, eva, gemma4_vit, naflexvit, tnt, vision_transformer, vision_transformer_relpos
from torch import nn

from . import attention, cait, plain, relative, sam, sampled
from . import convit as ours_convit
from . import tnt as ours_tnt
from .model import Wrapped
from .refused import WHY


def _pairs(*classes: type) -> dict[type, type]:
    """timm class -> ours, which names it last among its bases."""
    return {cls.__bases__[-1]: cls for cls in classes}


MODELS = _pairs(
    plain.WrappedVisionTransformer,
    plain.WrappedVisionTransformerDistilled,
    plain.WrappedEva,
    plain.WrappedDeepseekVitEncoder,
    plain.WrappedQwen3VitEncoder,
    relative.WrappedBeit,
    relative.WrappedVisionTransformerRelPos,
    cait.WrappedCait,
    ours_convit.WrappedConVit,
    ours_tnt.WrappedTNT,
    sam.WrappedVisionTransformerSAM,
    sampled.WrappedNaFlexVit,
    sampled.WrappedGemma4VitEncoder,
)
CLASSIFIERS = _pairs(plain.WrappedDeepseekVitClassifier, plain.WrappedQwen3VitClassifier, sampled.WrappedGemma4VitClassifier)
ATTENTIONS = _pairs(
    attention.WrappedAttention,
    attention.WrappedAttentionRope,
    attention.WrappedEvaAttention,
    attention.WrappedDiffAttention,
    attention.WrappedParallelScalingBlock,
    attention.WrappedDiffParallelScalingBlock,
    relative.WrappedBeitAttention,
    relative.WrappedRelPosAttention,
    cait.WrappedTalkingHeadAttn,
    ours_convit.WrappedGPSA,
    ours_convit.WrappedMHSA,
    ours_tnt.WrappedTNTAttention,
    sam.WrappedSAMAttention,
    sampled.WrappedGemma4Attention,
)
BLOCKS = _pairs(
    cait.WrappedLayerScaleBlock, ours_convit.WrappedConVitBlock, ours_tnt.WrappedTNTBlock, sam.WrappedSAMBlock
)  # those that do not pass on a second argument
UNCHANGED = (
    vision_transformer.Block,
    vision_transformer.ResPostBlock,
    vision_transformer.ParallelThingsBlock,
    eva.EvaBlock,
    eva.EvaBlockPostNorm,
    beit.Block,
    vision_transformer_relpos.RelPosBlock,
    vision_transformer_relpos.ResPostRelPosBlock,
    deepseek_vit.DeepseekVitBlock,
    gemma4_vit.Gemma4Block,
)
EMBEDS = _pairs(plain.WrappedPatchEmbed, ours_tnt.WrappedPixelEmbed, sampled.WrappedGemma4PatchEmbed)
OURS = {**MODELS, **CLASSIFIERS, **ATTENTIONS, **BLOCKS, **EMBEDS, vision_transformer.Block: sampled.NaFlexBlock}


def attentions(block: Any) -> list[Any]:
    """The attention layers of a block that see all tokens."""
    if type(block) in ATTENTIONS:
        return [block]
    if isinstance(block, vision_transformer.ParallelThingsBlock):
        return [branch.attn for branch in block.attns]
    return [block.attn_out if isinstance(block, tnt.Block) else block.attn]


def swaps(model: Any) -> list[tuple[nn.Module, type]]:
    """What must become what, the model first. Raises ValueError for what is not known, by name."""
    if type(model) not in MODELS:
        name = type(model).__name__
        raise ValueError(f"wrap does not know {name}" + (f": it {WHY[name]}" if name in WHY else ""))
    ours: Any = MODELS[type(model)]
    found: list[tuple[nn.Module, type]] = [(model, ours)]
    embed = getattr(model, "pixel_embed", getattr(model, "patch_embed", getattr(model, "embeds", None)))
    if type(embed) in EMBEDS:
        found.append((embed, EMBEDS[type(embed)]))
    elif type(embed) not in (HybridEmbed, naflexvit.NaFlexEmbeds):
        raise ValueError(f"wrap does not know {type(embed).__name__} before the blocks")
    for block in ours.rotating(model):
        found += _block_swaps(block, naflex=ours is sampled.WrappedNaFlexVit)
    return found


def _block_swaps(block: Any, naflex: bool) -> list[tuple[nn.Module, type]]:
    kind = type(block)
    if (kind not in UNCHANGED and kind not in BLOCKS and kind not in ATTENTIONS) or (naflex and kind in ATTENTIONS):
        raise ValueError(f"wrap does not know {kind.__name__}")
    found: list[tuple[nn.Module, type]] = [(block, BLOCKS[kind])] if kind in BLOCKS else []
    if naflex and kind is vision_transformer.Block:
        found.append((block, sampled.NaFlexBlock))
    for layer in attentions(block):
        if type(layer) not in ATTENTIONS:
            raise ValueError(f"wrap does not know {kind.__name__} with {type(layer).__name__}")
        found.append((layer, ATTENTIONS[type(layer)]))
    return found


def trunk(model: nn.Module) -> Any:
    """The model with the blocks: itself, or the encoder of a classifier, or what a feature extractor holds."""
    inner = model.model if hasattr(model, "out_indices") and isinstance(getattr(model, "model", None), nn.Module) else model
    return inner.encoder if type(inner) in (*CLASSIFIERS, *CLASSIFIERS.values()) else inner


def wrapped_trunk(model: nn.Module) -> Wrapped | None:
    """The wrapped model inside, if there is one."""
    inner = trunk(model)
    return inner if isinstance(inner, Wrapped) else None
