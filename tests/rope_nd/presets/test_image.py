"""Presets of image encoders against the code they come from: the same queries turned by it and by ours, rectangular grids."""

import math
from types import SimpleNamespace

import pytest
import torch
from timm.layers import pos_embed_sincos as timm_rope
from timm.models import gemma4_vit
from torch import Tensor
from transformers.models.dinov3_vit import modeling_dinov3_vit as hf_dinov3
from transformers.models.gemma4 import modeling_gemma4 as hf_gemma4
from transformers.models.glm4v import modeling_glm4v as hf_glm4v
from transformers.models.kimi_k25 import modeling_kimi_k25 as hf_kimi
from transformers.models.llama4 import modeling_llama4 as hf_llama4
from transformers.models.pixtral import modeling_pixtral as hf_pixtral
from transformers.models.qwen2_vl import modeling_qwen2_vl as hf_qwen2
from transformers.models.qwen3_vl import modeling_qwen3_vl as hf_qwen3
from transformers.models.sam2_video import modeling_sam2_video as hf_sam2
from transformers.models.sam3 import modeling_sam3 as hf_sam3
from transformers.vision_utils import get_vision_position_ids

from rope_nd import RoPE, augment, grid
from rope_nd.presets import PRESETS
from rope_nd.presets.image import DINOV3_AUGMENT, exchange_middle
from rope_nd.registry import Host, make

HEADS, D = 3, 32
extents = pytest.mark.parametrize("extent", [(5, 7), (9, 2), (1, 4)], ids=str)


def queries(tokens: int, heads: int = HEADS, width: int = D, seed: int = 0) -> Tensor:
    return torch.randn(2, heads, tokens, width, generator=torch.Generator().manual_seed(seed))


def close(ours: Tensor, theirs: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(ours, theirs, atol=atol, rtol=0)


def reference(x: Tensor, angles: Tensor, half: bool = False) -> Tensor:
    """Pairs of `x` `[.., N, D]` turned by `angles` `[.., N, P]`, in float64."""
    pairs = x.double().unflatten(-1, (2, -1) if half else (-1, 2))
    a, b = pairs.unbind(-2 if half else -1)
    turned = (a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos())
    return torch.stack(turned, -2 if half else -1).flatten(-2).float()


def config(theta: float, **more) -> SimpleNamespace:
    """What a rotary module of transformers reads of its configuration."""
    rope = {"rope_type": "axial", "rope_theta": theta}
    return SimpleNamespace(rope_parameters=rope, hidden_size=HEADS * D, embed_dim=HEADS * D, num_attention_heads=HEADS, **more)


# ---- what the origins make of queries [B, H, N, D] of a grid


def timm_cat(q, h, w, **options):
    rope = timm_rope.RotaryEmbeddingCat(D, in_pixels=False, **options)
    return timm_rope.apply_rot_embed_cat(q, rope.get_embed((h, w)))


def timm_dinov3(q, h, w, **options):
    rope = timm_rope.RotaryEmbeddingDinoV3(D, **options)
    return timm_rope.apply_rot_embed_cat(q, rope.get_embed((h, w)), half=True)


def timm_mrope(q, h, w, **options):
    rope = timm_rope.RotaryEmbeddingMRope(D, **options)
    return timm_rope.apply_rot_embed_cat(q, rope.get_embed((h, w)), half=True)


def timm_gemma4(q, h, w):
    columns_and_rows = grid(h, w).flip(-1)[None]
    cos, sin = gemma4_vit.Gemma4RotaryEmbedding2D(D)(q, columns_and_rows)
    return gemma4_vit.apply_multidimensional_rope(q.transpose(1, 2), cos, sin, ndim=2).transpose(1, 2)


def gemma4(q, h, w):
    columns_and_rows = grid(h, w).flip(-1)[None]
    cos, sin = hf_gemma4.Gemma4VisionRotaryEmbedding(config(100.0))(q, columns_and_rows)
    return hf_gemma4.apply_multidimensional_rope(q.transpose(1, 2), cos, sin, columns_and_rows).transpose(1, 2)


def dinov3(q, h, w):
    rope = hf_dinov3.DINOv3ViTRopePositionEmbedding(
        SimpleNamespace(rope_theta=100.0, hidden_size=HEADS * D, num_attention_heads=HEADS, image_size=224, patch_size=4)
    ).eval()
    return hf_dinov3.apply_rotary_pos_emb(q, q, *rope(torch.zeros(1, 3, 4 * h, 4 * w)))[0]


def pixtral(q, h, w):
    cos, sin = hf_pixtral.PixtralVisionRotaryEmbedding(config(10000.0))(q, grid(h, w).long())
    return hf_pixtral.apply_rotary_pos_emb(q, q, cos, sin, unsqueeze_dim=0)[0]


def tower(module, name):
    def turned(q, h, w):
        cos, sin = getattr(module, name)(config(10000.0))(q, grid(h, w).long())
        return module.apply_rotary_pos_emb_vision(q.transpose(1, 2), q.transpose(1, 2), cos, sin)[0].transpose(1, 2)

    return turned


def sam2(q, h, w):
    sizes = {"memory_attention_downsample_rate": 1, "memory_attention_num_attention_heads": HEADS}
    known = config(10000.0, memory_attention_hidden_size=HEADS * D, memory_attention_rope_feat_sizes=(w, h), **sizes)
    points = hf_sam2.Sam2VideoMemoryAttention.precompute_positions(known)
    return hf_sam2.apply_rotary_pos_emb_2d(q, q, *hf_sam2.Sam2VideoVisionRotaryEmbedding(known)(q, points))[0]


def sam3(q, h, w):
    """Its scale of positions is the window over the width of the grid, for both axes."""
    known = config(10000.0, image_size=(4 * w, 4 * h), patch_size=4, window_size=6)
    points = hf_sam3.Sam3ViTLayer.precompute_positions(known, 0)
    return hf_sam3.apply_rotary_pos_emb_2d(q, q, *hf_sam3.Sam3ViTRotaryEmbedding(known)(q, points))[0]


ORIGINS = {
    "rope_vit_axial": [(timm_cat, {}, {"temperature": 100.0, "grid_indexing": "xy"})],
    "eva02": [
        (timm_cat, {}, {"ref_feat_shape": (16, 16)}),
        (timm_cat, {"reference": (3, 4)}, {"ref_feat_shape": (3, 4)}),
    ],
    "perception_encoder": [
        (timm_cat, {}, {"ref_feat_shape": (24, 24), "grid_offset": 1.0, "grid_indexing": "xy"}),
        (timm_cat, {"trained_extent": (3, 4)}, {"ref_feat_shape": (3, 4), "grid_offset": 1.0, "grid_indexing": "xy"}),
        (timm_cat, {"reference": (32, 32), "offset": 0.0}, {"ref_feat_shape": (32, 32), "grid_indexing": "xy"}),
    ],
    "dinov3": [
        (dinov3, {}, {}),
        (timm_dinov3, {}, {}),
        (timm_dinov3, {"normalize": "min"}, {"normalize_coords": "min"}),
        (timm_dinov3, {"normalize": "max"}, {"normalize_coords": "max"}),
        (timm_dinov3, {"periods": (0.5, 20.0)}, {"min_period": 0.5, "max_period": 20.0}),
        (
            timm_dinov3,
            {"periods": (2.0, 9.0), "normalize": "max"},
            {"min_period": 2.0, "max_period": 9.0, "normalize_coords": "max"},
        ),
    ],
    "genlip": [(timm_mrope, {"sections": (4, 6, 6)}, {"mrope_section": (4, 6, 6)}), (timm_mrope, {}, {})],
    "pixtral": [(pixtral, {}, {})],
    "qwen2_vl_vision": [
        (tower(hf_qwen2, "Qwen2VLVisionRotaryEmbedding"), {}, {}),
        (tower(hf_glm4v, "Glm4vVisionRotaryEmbedding"), {}, {}),
    ],
    "qwen3_vl_vision": [(tower(hf_qwen3, "Qwen3VLVisionRotaryEmbedding"), {}, {})],
    "moonvit": [(tower(hf_kimi, "Kimi_K25VisionRotaryEmbedding"), {"layout": "half"}, {})],
    "sam2": [(sam2, {}, {})],
}
CASES = [(name, *case) for name, cases in ORIGINS.items() for case in cases]


@extents
@pytest.mark.parametrize("name, origin, options, theirs", CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_queries_are_turned_as_by_the_origin(name, origin, options, theirs, extent):
    q = queries(math.prod(extent))
    close(RoPE.preset(name, D, **options).at(*extent)(q), origin(q, *extent, **theirs))


@extents
@pytest.mark.parametrize("origin", [timm_gemma4, gemma4])
def test_gemmas_pairs_are_ours_with_the_middle_quarters_exchanged(origin, extent):
    q, k = queries(math.prod(extent)), queries(math.prod(extent), seed=1)
    rotation = RoPE.preset("gemma4_vision", D).at(*extent)
    close(exchange_middle(rotation(exchange_middle(q))), origin(q, *extent))
    theirs = origin(q, *extent) @ origin(k, *extent).mT
    close(rotation(exchange_middle(q)) @ rotation(exchange_middle(k)).mT, theirs, atol=3e-5)
    assert (rotation(q) @ rotation(k).mT - theirs).abs().max() > 0.1


def test_llamas_class_token_is_last_and_at_the_origin():
    """Llama 4's table is for square grids only."""
    rope = RoPE.preset("llama4_vision", D)
    known = SimpleNamespace(rope_parameters={"rope_theta": 10000.0}, hidden_size=HEADS * D, num_attention_heads=HEADS)
    known.image_size, known.patch_size = 20, 4
    q = queries(26)
    table = hf_llama4.Llama4VisionRotaryEmbedding(known)(q)
    theirs = hf_llama4.vision_apply_rotary_emb(q.transpose(1, 2), q.transpose(1, 2), table)[0].transpose(1, 2)
    positions = torch.cat((rope.positions(5, 5), torch.zeros(1, 2)))
    close(rope(positions)(q), theirs)
    assert torch.equal(theirs[:, :, -1], q[:, :, -1]) and rope.positions(5, 5).amin() == 1


def test_moonvit_as_published_interleaves_what_ports_split_in_halves():
    """Pair 2 i turns with the column, pair 2 i + 1 with the row, both by 10000^(-i / F)."""
    q, points = queries(35), grid(5, 7).double()
    size = 10000.0 ** -(torch.arange(D // 4, dtype=torch.float64) / (D // 4))
    angles = torch.stack((points[:, 1:] * size, points[:, :1] * size), -1).flatten(1)  # [N, P]
    close(RoPE.preset("moonvit", D).at(5, 7)(q), reference(q, angles))


@pytest.mark.parametrize("side", [6, 9, 18])
def test_sam3_lays_any_grid_over_one_window(side):
    q = queries(side * side)
    close(RoPE.preset("sam3", D, reference=(6, 6)).at(side, side)(q), sam3(q, side, side))


def test_sam3_scales_both_axes_of_an_oblong_grid_by_its_width_and_ours_each_by_its_own():
    """The origin runs on square images alone; with one axis's scale for both, rows would leave the range of the window."""
    q, ours = queries(50), RoPE.preset("sam3", D, reference=(6, 6))
    close(ours(grid(10, 5) * 6 / 5)(q), sam3(q, 10, 5))
    points = torch.tensor([[i * 6 / 10, j * 6 / 5] for i in range(10) for j in range(5)])
    close(ours.at(10, 5)(q), ours(points)(q))
    assert points.amax() < 6 <= (grid(10, 5) * 6 / 5).amax()


def test_mixed_frequencies_turn_as_timms_once_copied():
    theirs = timm_rope.RotaryEmbeddingMixed(HEADS * D, depth=2, num_heads=HEADS, temperature=10.0)
    q = queries(35)
    for layer, table in enumerate(theirs.get_embed((5, 7))):
        rope = RoPE.preset("rope_vit_mixed", D, heads=HEADS)
        with torch.no_grad():
            rope.freqs.copy_(theirs.freqs[:, layer].movedim(0, -1).flip(-1))  # (x, y) -> (h, w)
            close(rope.at(5, 7)(q), timm_rope.apply_rot_embed_cat(q, table))


def test_mixed_frequencies_begin_as_the_paper_has_them():
    """m_i (cos a, sin a), then the same turned by a right angle, in (x, y); a of its own for each head and layer."""
    host = Host(dim=HEADS * D, heads=HEADS, head_dim=D, layers=2, trained_extent=(4, 4), prefix_tokens=1)
    layers = make("rope_vit_mixed", 2, host, seed=3)
    size = 10.0 ** -(torch.arange(D // 4, dtype=torch.float64) / (D // 4))
    angles = []
    for rope in layers:
        w, h = rope.freqs.detach().double().flip(-1).unbind(-1)  # x and y of [H, P]
        a = torch.atan2(h[:, :1], w[:, :1])
        angles.append(a)
        close(w, torch.cat((size * a.cos(), size * (a + math.pi / 2).cos()), -1), atol=1e-6)
        close(h, torch.cat((size * a.sin(), size * (a + math.pi / 2).sin()), -1), atol=1e-6)
        assert rope.freqs.requires_grad and rope.no_weight_decay() == {"freqs"} and rope.prefix_tokens == 1
    assert torch.cat(angles).flatten().unique().numel() == 2 * HEADS


def test_merged_towers_get_their_order_of_tokens_by_their_positions():
    """Qwen's towers order tokens by blocks of 2 x 2; the positions in that order are all that ours needs."""
    order = get_vision_position_ids(torch.tensor([[1, 4, 6]]), 2)  # [N, 2]
    rope, q = RoPE.preset("qwen2_vl_vision", D), queries(24)
    cos, sin = hf_qwen2.Qwen2VLVisionRotaryEmbedding(config(10000.0))(q, order)
    theirs = hf_qwen2.apply_rotary_pos_emb_vision(q.transpose(1, 2), q.transpose(1, 2), cos, sin)[0].transpose(1, 2)
    close(rope(order)(q), theirs)
    assert (rope.at(4, 6)(q) - theirs).abs().max() > 0.1
    index = order[:, 0] * 6 + order[:, 1]  # where each token is in the grid
    close(rope.at(4, 6).keep(index)(q), theirs)


def test_sam2_repeats_positions_over_frames_and_leaves_pointers_alone():
    rope = RoPE.preset("sam2", D)
    q, k = queries(6), queries(3 * 6 + 2, seed=1)
    sizes = {"memory_attention_downsample_rate": 1, "memory_attention_num_attention_heads": HEADS}
    known = config(10000.0, memory_attention_hidden_size=HEADS * D, memory_attention_rope_feat_sizes=(3, 2), **sizes)
    points = hf_sam2.Sam2VideoMemoryAttention.precompute_positions(known)
    tables = hf_sam2.Sam2VideoVisionRotaryEmbedding(known)(q, points)
    theirs = hf_sam2.apply_rotary_pos_emb_2d(q, k, *(t[None] for t in tables), num_k_exclude_rope=2, repeat_freqs_k=True)
    positions = torch.cat((rope.positions(2, 3).repeat(3, 1), torch.zeros(2, 2)))
    close(rope.at(2, 3)(q), theirs[0])
    close(rope(positions)(k), theirs[1])


def test_dinov3_trains_with_one_factor_for_both_axes():
    """As timm's, which draws its own: the sines of a small angle grow by that factor."""
    config = hf_dinov3.DINOv3ViTConfig()
    assert (config.pos_embed_shift, config.pos_embed_jitter, {"rescale": config.pos_embed_rescale}) == (None, None, DINOV3_AUGMENT)
    points = RoPE.preset("dinov3", D).positions(4, 6)
    factors = augment(points, batch=200, **DINOV3_AUGMENT) / points  # [B, N, 2]
    close(factors, factors[:, :1, :1].expand_as(factors))
    torch.manual_seed(0)
    theirs = timm_rope.RotaryEmbeddingDinoV3(D, temperature=1e6, rescale_coords=2.0).train()
    slow = [theirs.get_embed((4, 6))[:, 5].asin() for _ in range(200)]  # pair 5 of rows: angles below 0.1
    plain = theirs.eval().get_embed((4, 6))[:, 5].asin()
    for drawn in (factors[:, 0, 0], torch.stack([s[0] / plain[0] for s in slow])):
        assert 0.5 <= drawn.min() < 0.55 and 1.8 < drawn.max() <= 2.001
        assert abs(drawn.log().mean()) < 0.1


@pytest.mark.parametrize("name", ["rope_vit_axial", "eva02", "dinov3", "perception_encoder", "pixtral", "sam2", "gemma4_vision"])
def test_options_of_the_encoding_go_through(name):
    rope = RoPE.preset(
        name,
        D,
        theta=50.0,
        layout="interleaved",
        coordinates={"spacing": 0.5},
        trained_extent=(4, 4),
        scaling="pi",
        prefix_tokens=2,
    )
    assert rope.layout == "interleaved" and rope.prefix_tokens == 2
    close(rope.at(8, 8).cos, rope(grid(8, 8, spacing=0.25), (4, 4)).cos)
    assert rope.vectors().abs().max() < 7 and (RoPE.preset(name, D, theta=5.0).vectors() - rope.vectors()).abs().max() > 0.01


@pytest.mark.parametrize("width", [18, 64])
@pytest.mark.parametrize("name", [name for name, found in PRESETS.items() if found.axes in (2, None)])
def test_every_preset_of_images_is_made_for_a_model_with_all_its_options(name, width):
    """Of any even head width, an odd number of pairs too."""
    host = Host(dim=HEADS * width, heads=HEADS, head_dim=width, layers=2, trained_extent=(3, 4), prefix_tokens=1)
    made = make(name, 2, host, scaling="yarn", strength=0.5, temperature="log", seed=1)
    for rope in made if isinstance(made, torch.nn.ModuleList) else [made]:
        q = queries(1 + 4 * 6, width=width)
        turned = rope.at(4, 6)(q)
        close(turned.norm(dim=-1), q.norm(dim=-1))
        assert (turned - q).abs()[:, :, 2:].amax((0, -1)).gt(1e-3).all() and torch.equal(turned[:, :, 0], q[:, :, 0])


def test_unknown_choices_are_named():
    with pytest.raises(ValueError, match="unknown normalize 'mean'"):
        RoPE.preset("dinov3", D, normalize="mean")
    with pytest.raises(ValueError, match="did you mean 'dinov3'"):
        RoPE.preset("dinov2", D)
    with pytest.raises(ValueError, match="has 2 axes, asked for axes=3"):
        make("eva02", 3, Host(dim=96, heads=3, head_dim=32, layers=2, trained_extent=(4, 4, 4), prefix_tokens=1))


# ---- an origin that is wrong


def test_timms_table_for_volumes_is_wider_than_the_head_and_ours_is_not():
    """RotaryEmbeddingCat has dim / 4 bands an axis, however many axes: with three, 48 channels become 72. Ours: 48, 16 an axis."""
    theirs = timm_rope.RotaryEmbeddingCat(48, in_pixels=False).get_embed((2, 3, 4))
    assert theirs.shape == (24, 2 * 72)
    with pytest.raises(RuntimeError):
        timm_rope.apply_rot_embed_cat(queries(24, width=48), theirs)
    rope, q = RoPE(48, 3, theta=10000.0), queries(24, width=48)
    size = 10000.0 ** -(torch.arange(8, dtype=torch.float64) / 8)
    angles = (grid(2, 3, 4).double()[:, :, None] * size).flatten(1)  # [N, 24]
    close(rope.at(2, 3, 4)(q), reference(q, angles))
