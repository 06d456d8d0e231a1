"""Video presets against the models they come from: rotary code of diffusers and transformers, fp32, on grids that are no cubes."""

import copy

import numpy as np
import pytest
import torch
from diffusers import CogVideoXTransformer3DModel, WanTransformer3DModel
from diffusers.models import embeddings
from diffusers.models.transformers.transformer_cosmos import CosmosRotaryPosEmbed
from diffusers.models.transformers.transformer_easyanimate import EasyAnimateRotaryPosEmbed
from diffusers.models.transformers.transformer_hunyuan_video import HunyuanVideoRotaryPosEmbed
from diffusers.models.transformers.transformer_ltx import LTXVideoRotaryPosEmbed
from diffusers.models.transformers.transformer_ltx import apply_rotary_emb as ltx_apply
from diffusers.models.transformers.transformer_mochi import MochiRoPE
from diffusers.models.transformers.transformer_skyreels_v2 import SkyReelsV2RotaryPosEmbed
from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed
from diffusers.pipelines.cogvideo.pipeline_cogvideox import get_resize_crop_region_for_grid
from transformers import VJEPA2Config, VJEPA2Model
from transformers.models.vjepa2.modeling_vjepa2 import VJEPA2RopeAttention

from rope_nd import RoPE, convert_layout, grid
from rope_nd.presets.video import laid_over, mochi_positions
from rope_nd.scaling import ntk

EXTENT = (3, 4, 6)
COUNT = 72


def draw(heads: int, tokens: int, head_dim: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(2, heads, tokens, head_dim, generator=torch.Generator().manual_seed(seed))


def video(extent, patch=(1, 1, 1)) -> torch.Tensor:
    """What diffusers reads the grid's size from: a latent video."""
    return torch.empty(1, 1, *(n * p for n, p in zip(extent, patch)))


def close(ours: torch.Tensor, theirs: torch.Tensor, within: float = 1e-5):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=within)


# V-JEPA 2


def vjepa_config(extent=(3, 4, 4), **changes) -> VJEPA2Config:
    sizes = {"frames_per_clip": 2 * extent[0], "tubelet_size": 2, "crop_size": 8 * extent[1], "patch_size": 8}
    width = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2, "mlp_ratio": 2.0, "pred_num_hidden_layers": 1}
    predictor = {"pred_hidden_size": 48, "pred_num_attention_heads": 2, "pred_num_mask_tokens": 2}
    return VJEPA2Config(**{**sizes, **width, **predictor, "attn_implementation": "eager", **changes})


def vjepa_turned(x: torch.Tensor, extent=(3, 4, 4)) -> torch.Tensor:
    """transformers' own rotation of `x` `[B, H, N, D]`."""
    width = x.shape[1] * x.shape[-1]
    attention = VJEPA2RopeAttention(vjepa_config(extent, hidden_size=width), width, x.shape[1])
    return attention.apply_rotary_embeddings(x, attention.get_position_ids(x.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("head_dim", [32, 64, 80, 88])
def test_the_published_vjepa2_turns_as_the_released_code_does(head_dim):
    x = draw(2, 48, head_dim)
    close(RoPE.preset("vjepa2_published", head_dim).at(3, 4, 4)(x), vjepa_turned(x))


def test_tiled_tables_break_norms_and_twice_written_ones_keep_them():
    x = draw(2, 48, 64)
    right, wrong = RoPE.preset("vjepa2", 64).at(3, 4, 4)(x), RoPE.preset("vjepa2_published", 64).at(3, 4, 4)(x)
    for published in (wrong, vjepa_turned(x)):
        assert (published.norm(dim=-1) - x.norm(dim=-1)).abs().max() > 0.5
    close(right.norm(dim=-1), x.norm(dim=-1))


def test_the_pair_of_one_channel_turns_by_its_own_angle_in_vjepa2_and_by_two_in_the_published_one():
    """Channels 2, 3 at frame 2: pair 1 of 10 (frequency 10000^(-1/10)); the released code gives them angles 2 and 3."""
    x = torch.zeros(1, 1, 3, 64)
    x[..., 2] = 1
    at = 2 * 10000 ** (-np.arange(10) / 10)
    right, wrong = (RoPE.preset(name, 64).at(3, 1, 1)(x)[0, 0, 2, 2:4] for name in ("vjepa2", "vjepa2_published"))
    close(right, torch.tensor([np.cos(at[1]), np.sin(at[1])], dtype=torch.float32))
    close(wrong, torch.tensor([np.cos(at[2]), np.sin(at[3])], dtype=torch.float32))


def test_repeat_interleave_in_the_released_code_gives_the_corrected_preset(monkeypatch):
    twice = torch.Tensor.repeat_interleave
    monkeypatch.setattr(torch.Tensor, "repeat", lambda table, *times: twice(table, times[-1], -1))
    x = draw(2, 48, 64)
    theirs = vjepa_turned(x)
    monkeypatch.undo()
    close(RoPE.preset("vjepa2", 64).at(3, 4, 4)(x), theirs)


def test_the_released_code_reads_a_grid_that_is_not_square_wrongly_and_ours_does_not():
    """2 frames of 4 x 2 tokens, code made for 4 x 4: its frame and row of token 13, in truth (1, 2, 1), are 0 and 3."""
    attention = VJEPA2RopeAttention(vjepa_config((2, 4, 4)), 64, 2)
    wrong = torch.stack(attention.get_position_ids(torch.zeros(1, 16, 64)), dim=-1)
    assert wrong[13].tolist() == [0, 3, 1] and RoPE.preset("vjepa2", 32).positions(2, 4, 2)[13].tolist() == [1, 2, 1]


@pytest.mark.parametrize("preset, same", [("vjepa2_published", True), ("vjepa2", False)])
def test_a_vjepa2_tower_with_our_rotation_gives_what_it_gave(preset, same):
    torch.manual_seed(0)
    model = VJEPA2Model(vjepa_config(initializer_range=0.2)).eval()
    clip = torch.randn(1, 6, 3, 32, 32)
    rotation = RoPE.preset(preset, 32).at(3, 4, 4)
    with torch.no_grad():
        before = model(clip, skip_predictor=True).last_hidden_state
        for layer in model.encoder.layer:
            layer.attention.apply_rotary_embeddings = lambda x, pos_ids: rotation(x)
        after = model(clip, skip_predictor=True).last_hidden_state
    assert torch.allclose(after, before, rtol=0, atol=1e-4) == same


def test_tiled_tables_leave_prefix_tokens_and_unturned_channels_and_can_be_thinned():
    x = draw(2, 2 + 24, 32)
    rope = RoPE.preset("vjepa2_published", 32, prefix_tokens=2)
    turned = rope.at(2, 3, 4)(x)
    assert torch.equal(turned[:, :, :2], x[:, :, :2]) and torch.equal(turned[..., 30:], x[..., 30:])
    kept = torch.tensor([3, 20])
    few = torch.cat((x[:, :, :2], x[:, :, 2 + kept]), dim=2)
    assert torch.equal(rope.at(2, 3, 4).keep(kept)(few), torch.cat((turned[:, :, :2], turned[:, :, 2 + kept]), dim=2))
    assert torch.equal(RoPE.preset("vjepa2_published", 32, strength=0.0).at(2, 3, 4)(x[:, :, 2:]), x[:, :, 2:])


@pytest.mark.parametrize("options", [{"layout": "half"}, {"rotary_dim": 16}])
def test_tiled_tables_refuse_what_they_do_not_mean(options):
    with pytest.raises(ValueError, match="whole heads in the interleaved layout"):
        RoPE.preset("vjepa2_published", 32, **options)


# diffusers


def test_cogvideox_turns_as_diffusers_does():
    tables = embeddings.get_3d_rotary_pos_embed(64, None, EXTENT[1:], EXTENT[0], grid_type="slice", max_size=(8, 8))
    x = draw(2, COUNT, 64)
    close(RoPE.preset("cogvideox", 64).at(*EXTENT)(x), embeddings.apply_rotary_emb(x, tables))


@pytest.mark.parametrize("height, width", [(20, 30), (15, 23), (8, 12)])
def test_cogvideox_laid_over_its_base_grid_turns_as_diffusers_does_where_the_region_begins_at_zero(height, width):
    region = get_resize_crop_region_for_grid((height, width), 45, 30)
    assert max(region[0]) == 0
    tables = embeddings.get_3d_rotary_pos_embed(32, region, (height, width), 2)
    x = draw(1, 2 * height * width, 32)
    rope = RoPE.preset("cogvideox", 32, coordinates=laid_over(height, width))
    close(rope.at(2, height, width)(x), embeddings.apply_rotary_emb(x, tables))


def test_a_region_that_begins_elsewhere_is_stretched_by_diffusers_and_not_by_ours():
    """Its own comment promises numpy's linspace without the end; that holds from zero only. 16 columns from 8 to 38 here."""
    height, width = 16, 16
    (top, left), (bottom, right) = get_resize_crop_region_for_grid((height, width), 45, 30)
    assert (top, left, bottom, right) == (0, 8, 30, 38)
    ours = grid(1, height, width, **laid_over(height, width))
    close(ours[:width, 2].double(), torch.from_numpy(np.linspace(left, right, width, endpoint=False)))
    wrong = torch.linspace(left, right * (width - 1) / width, width)
    assert wrong[-1] == 35.625 and ours[width - 1, 2] == 36.125
    cos, _ = embeddings.get_3d_rotary_pos_embed(16, ((top, left), (bottom, right)), (height, width), 1)
    close(cos[width - 1, 10], wrong[-1].cos())  # channel 10: the fastest pair of w, frequency 1


@pytest.mark.parametrize("height, width", [(20, 30), (10, 15)])
def test_easyanimate_is_cogvideox_laid_over_a_smaller_base(height, width):
    tables = EasyAnimateRotaryPosEmbed(2, 64)(torch.empty(1, 1, 3, 2 * height, 2 * width))
    x = draw(1, 3 * height * width, 64)
    rope = RoPE.preset("cogvideox", 64, coordinates=laid_over(height, width, base=(30, 45)))
    close(rope.at(3, height, width)(x), embeddings.apply_rotary_emb(x, tables))


@pytest.mark.parametrize("head_dim, axes_dim", [(128, (16, 56, 56)), (64, (8, 28, 28))])
def test_hunyuan_video_turns_as_diffusers_does(head_dim, axes_dim):
    tables = HunyuanVideoRotaryPosEmbed(2, 1, list(axes_dim))(video(EXTENT, (1, 2, 2)))
    x = draw(2, COUNT, head_dim)
    close(RoPE.preset("hunyuan_video", head_dim).at(*EXTENT)(x), embeddings.apply_rotary_emb(x, tables))


@pytest.mark.parametrize("origin", [WanRotaryPosEmbed, SkyReelsV2RotaryPosEmbed])
@pytest.mark.parametrize("head_dim", [128, 64, 20])
def test_wan_and_skyreels_turn_as_diffusers_does(origin, head_dim):
    cos, sin = (t[0, :, 0] for t in origin(head_dim, (1, 2, 2), 16)(video(EXTENT, (1, 2, 2))))  # [N, D]
    x = draw(2, COUNT, head_dim)
    close(RoPE.preset("wan", head_dim).at(*EXTENT)(x), embeddings.apply_rotary_emb(x, (cos, sin)))


@pytest.mark.parametrize("fps", [None, 16.0])
@pytest.mark.parametrize("head_dim", [128, 64])
def test_cosmos_turns_as_diffusers_does(head_dim, fps):
    origin = CosmosRotaryPosEmbed(head_dim, rope_scale=(2.0, 3.0, 1.5))
    tables = origin(video(EXTENT, (1, 2, 2)), fps=fps)
    x = draw(2, COUNT, head_dim)
    ours = RoPE.preset("cosmos", head_dim, stretch=(2.0, 3.0, 1.5), fps=fps).at(*EXTENT)(x)
    close(ours, embeddings.apply_rotary_emb(x, tables, use_real_unbind_dim=-2))


def test_cosmos_factors_are_our_ntk_rule_on_wan():
    scale = torch.tensor([2.0, 3.0, 1.5], dtype=torch.float64)
    ruled = ntk(RoPE.preset("wan", 64).freqs, scale, torch.ones(3, dtype=torch.float64))
    close(RoPE.preset("cosmos", 64, stretch=(2.0, 3.0, 1.5)).freqs, ruled, 1e-12)


@pytest.mark.parametrize("head_dim", [96, 48])
def test_allegro_turns_as_diffusers_does_once_the_halves_of_each_third_are_interleaved(head_dim):
    time, height, width = EXTENT
    made = embeddings.get_3d_rotary_pos_embed_allegro(head_dim, ((0, 0), (height, width)), (height, width), time, (2.0, 1.5, 3.0))
    indices = grid(*EXTENT).long()
    q, k = draw(2, COUNT, head_dim), draw(2, COUNT, head_dim, seed=1)
    # diffusers' function takes x as [B, H, N, D] and positions [B, N]
    q_theirs, k_theirs = (embeddings.apply_rotary_emb_allegro(x, made[:3], indices.T[:, None]) for x in (q, k))
    rope = RoPE.preset("allegro", head_dim, interpolation=(2.0, 1.5, 3.0))
    order = convert_layout(torch.arange(head_dim), head_dim // 3, "half", "interleaved")
    rotation = rope.at(*EXTENT)
    close(rotation(q[..., order]), q_theirs[..., order])
    close(rotation(q[..., order]) @ rotation(k[..., order]).mT, q_theirs @ k_theirs.mT, 5e-5)


@pytest.mark.parametrize("heads, head_dim", [(4, 32), (3, 20)])
def test_ltx_turns_each_head_as_diffusers_does(heads, head_dim):
    origin = LTXVideoRotaryPosEmbed(heads * head_dim, theta=10.0)
    tables = origin(torch.empty(2, 1, 1), *EXTENT, rope_interpolation_scale=(8 / 25, 32, 32))
    x = draw(heads, COUNT, head_dim)
    theirs = ltx_apply(x.transpose(1, 2).flatten(2), tables).unflatten(2, (heads, head_dim)).transpose(1, 2)
    rope = RoPE.preset("ltx", head_dim, heads=heads, theta=10.0)
    assert rope.freqs.shape == (heads, head_dim // 2, 3)
    close(rope.at(*EXTENT)(x), theirs)


def test_ltx_at_its_own_base_agrees_as_far_as_float32_phases_allow():
    """theta 10000: phases to 15708 rad, which float32 rounds by 5e-4; each of theirs is off by as much from float64, ours not."""
    heads, head_dim = 32, 64
    cos, _ = LTXVideoRotaryPosEmbed(heads * head_dim)(torch.empty(1, 1, 1), *EXTENT, rope_interpolation_scale=(8 / 25, 32, 32))
    ours = RoPE.preset("ltx", head_dim).at(*EXTENT).cos.transpose(0, 1).flatten(1)  # [N, H P]
    n = heads * head_dim // 6
    index = np.stack(np.meshgrid(*map(np.arange, EXTENT), indexing="ij"), -1).reshape(-1, 3)
    share = index * np.array([8 / 25 / 20, 32 / 2048, 32 / 2048])
    phase = np.pi / 2 * 10000 ** (np.arange(n) / (n - 1))[:, None] * (2 * share - 1)[:, None, :]  # [N, n, 3]
    exact = torch.from_numpy(np.cos(phase).reshape(len(index), -1))
    close(ours[:, -3 * n :].double(), exact, 1e-6)
    assert 1e-4 < (cos[0, :, ::2][:, -3 * n :] - exact).abs().max() < 5e-3


def test_mochi_turns_each_head_as_diffusers_does():
    heads, head_dim = 2, 32
    table = torch.randn(3, heads, head_dim // 2, generator=torch.Generator().manual_seed(3)) / 20
    cos, sin = MochiRoPE(12, 12)(table, *EXTENT, dtype=torch.float32)  # [N, H, P]
    x = draw(heads, COUNT, head_dim)
    even, odd = x[..., ::2], x[..., 1::2]
    c, s = cos.transpose(0, 1), sin.transpose(0, 1)
    theirs = torch.stack((even * c - odd * s, even * s + odd * c), dim=-1).flatten(-2)
    rope = RoPE.preset("mochi", head_dim, heads=heads, pos_frequencies=table)
    close(rope(mochi_positions(*EXTENT, area=144))(x), theirs)
    assert isinstance(rope.freqs, torch.nn.Parameter)


def test_every_frame_of_mochi_has_the_same_area_around_zero():
    at = mochi_positions(2, 6, 24)
    assert at.amin(0)[1:].tolist() == [-40.0, -184.0] and at.amax(0).tolist() == [1.0, 40.0, 184.0]  # steps of 16


# whole models of diffusers


def test_a_cogvideox_transformer_with_our_rotation_gives_what_it_gave(monkeypatch):
    torch.manual_seed(0)
    size = {"sample_width": 12, "sample_height": 8, "sample_frames": 9, "patch_size": 2, "max_text_seq_length": 5}
    model = CogVideoXTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        time_embed_dim=8,
        text_embed_dim=8,
        num_layers=2,
        use_rotary_positional_embeddings=True,
        **size,
    ).eval()
    given = {
        "hidden_states": torch.randn(1, 3, 4, 8, 12),
        "encoder_hidden_states": torch.randn(1, 5, 8),
        "timestep": torch.tensor([7]),
    }
    tables = embeddings.get_3d_rotary_pos_embed(16, ((0, 0), (4, 6)), (4, 6), 3)
    with torch.no_grad():
        before = model(**given, image_rotary_emb=tables).sample
        monkeypatch.setattr(embeddings, "apply_rotary_emb", lambda x, rotation: rotation(x))
        after = model(**given, image_rotary_emb=RoPE.preset("cogvideox", 16).at(*EXTENT)).sample
        other = model(**given, image_rotary_emb=RoPE.preset("wan", 16).at(*EXTENT)).sample
    close(after, before, 1e-4)
    assert not torch.allclose(other, before, rtol=0, atol=1e-4)


class OurTables(torch.nn.Module):
    """In the place of Wan's rope: our tables in its shape, `[1, N, 1, D]`."""

    def __init__(self, rope: RoPE) -> None:
        super().__init__()
        self.rope = rope

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        frames, height, width = hidden_states.shape[-3:]
        rotation = self.rope.at(frames, height // 2, width // 2)
        return tuple(table.repeat_interleave(2, -1)[None, :, None] for table in (rotation.cos, rotation.sin))


def test_a_wan_transformer_with_our_tables_gives_what_it_gave():
    torch.manual_seed(0)
    model = WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=20,
        in_channels=4,
        out_channels=4,
        text_dim=8,
        freq_dim=8,
        ffn_dim=16,
        num_layers=2,
        rope_max_seq_len=16,
    ).eval()
    given = {
        "hidden_states": torch.randn(1, 4, 3, 8, 12),
        "encoder_hidden_states": torch.randn(1, 5, 8),
        "timestep": torch.tensor([7]),
    }
    with torch.no_grad():
        before = model(**given).sample
        changed = {}
        for name in ("wan", "vjepa2"):
            ours = copy.copy(model)
            ours._modules = {**model._modules, "rope": OurTables(RoPE.preset(name, 20))}
            changed[name] = ours(**given).sample
    close(changed["wan"], before, 1e-4)
    assert not torch.allclose(changed["vjepa2"], before, rtol=0, atol=1e-4)


# all of them


@pytest.mark.parametrize("name", ["vjepa2", "cogvideox", "hunyuan_video", "wan", "cosmos", "allegro"])
def test_a_step_along_one_axis_moves_the_pairs_of_that_axis_alone(name):
    rope = RoPE.preset(name, 64)
    rotation, steps = rope.at(2, 2, 2), (4, 2, 1)  # tokens from the origin to its neighbour along each axis
    owner = rope.freqs[0].abs().argmax(-1)
    turned = rope.freqs[0].abs().amax(-1) > 0
    for axis, token in enumerate(steps):
        moved = rotation.sin[token] != rotation.sin[0]
        assert torch.equal(moved, (owner == axis) & turned)


@pytest.mark.parametrize("name", ["vjepa2", "vjepa2_published", "cogvideox", "hunyuan_video", "wan", "cosmos", "allegro", "ltx"])
def test_options_of_the_core_pass_through(name):
    options = {"trained_extent": (2, 2, 2), "scaling": "ntk", "prefix_tokens": 1, "heads": 2, "temperature": "log"}
    rope = RoPE.preset(name, 32, coordinates={"spacing": 2.0}, **options)
    assert rope.positions(2, 2, 2).max() == 2 and rope.at(4, 4, 4)(draw(2, 65, 32)).shape == (2, 2, 65, 32)
