"""Text beside images and video, against transformers' Qwen-VL and diffusers' Qwen-Image, Ideogram and Lumina, fp32."""

from types import SimpleNamespace

import pytest
import torch
from diffusers import QwenImageTransformer2DModel
from diffusers.models import embeddings
from diffusers.models.transformers import transformer_qwenimage
from diffusers.models.transformers.transformer_ideogram4 import Ideogram4MRoPE
from diffusers.models.transformers.transformer_lumina2 import Lumina2RotaryPosEmbed
from diffusers.models.transformers.transformer_qwenimage import QwenEmbedRope, apply_rotary_emb_qwen
from transformers import Qwen2VLTextConfig, Qwen3VLTextConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2
from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen3

from rope_nd import RoPE
from rope_nd.presets.multimodal import lumina2_positions, mrope_positions, qwen_image_positions, videorope_positions

PARTS = [4, (1, 4, 6), 3, (2, 4, 2), 2]  # words, an image, words, a short video, words


def draw(heads: int, tokens: int, head_dim: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(1, heads, tokens, head_dim, generator=torch.Generator().manual_seed(seed))


def close(ours: torch.Tensor, theirs: torch.Tensor, within: float = 1e-5):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=within)


def positions_of(model: type, parts, **given) -> torch.Tensor:
    """transformers' own positions `[N, 3]` of a sequence; vision grids are given before its merging of 2 x 2 patches."""
    kinds, images, videos = [], [], []
    for part in parts:
        if isinstance(part, int):
            kinds += [0] * part
        else:
            kinds += [1 if part[0] == 1 else 2] * (part[0] * part[1] * part[2])
            (images if part[0] == 1 else videos).append((part[0], 2 * part[1], 2 * part[2]))
    stub = SimpleNamespace(
        config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2, tokens_per_second=2)),
        get_vision_position_ids=lambda *a, **k: model.get_vision_position_ids(None, *a, **k),
    )
    grids = {"image_grid_thw": torch.tensor(images) if images else None, "video_grid_thw": torch.tensor(videos) if videos else None}
    kinds = torch.tensor([kinds])
    return model.get_rope_index(stub, torch.zeros_like(kinds), kinds, **grids, **given)[0][:, 0].T


def turned_by(origin, config, points: torch.Tensor, q: torch.Tensor, k: torch.Tensor, rotary: str):
    cos, sin = getattr(origin, rotary)(config)(q, points.T[:, None])
    return origin.apply_rotary_pos_emb(q, k, cos, sin)


@pytest.mark.parametrize("head_dim, sections", [(128, None), (128, (16, 24, 24)), (64, None), (32, (6, 4, 6))])
def test_mrope_chunked_turns_as_qwen2_vl_does(head_dim, sections):
    points = mrope_positions(PARTS)
    parameters = {
        "rope_type": "default",
        "rope_theta": 1e6,
        "mrope_section": list(sections or (head_dim // 8, *(3 * head_dim // 16,) * 2)),
    }
    config = Qwen2VLTextConfig(hidden_size=2 * head_dim, num_attention_heads=2, rope_parameters=parameters)
    q, k = draw(2, len(points), head_dim), draw(2, len(points), head_dim, seed=1)
    rotation = RoPE.preset("mrope_chunked", head_dim, sections=sections)(points)
    for x, theirs in zip((q, k), turned_by(qwen2, config, points, q, k, "Qwen2VLRotaryEmbedding")):
        close(rotation(x), theirs)


@pytest.mark.parametrize("head_dim, sections", [(128, None), (128, (20, 22, 22)), (64, None), (64, (16, 6, 10))])
def test_mrope_interleaved_turns_as_qwen3_vl_does(head_dim, sections):
    points = mrope_positions(PARTS)
    parameters = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": list(sections or (0, *(5 * head_dim // 32,) * 2))}
    config = Qwen3VLTextConfig(hidden_size=2 * head_dim, num_attention_heads=2, head_dim=head_dim, rope_parameters=parameters)
    q, k = draw(2, len(points), head_dim), draw(2, len(points), head_dim, seed=1)
    rotation = RoPE.preset("mrope_interleaved", head_dim, sections=sections)(points)
    for x, theirs in zip((q, k), turned_by(qwen3, config, points, q, k, "Qwen3VLTextRotaryEmbedding")):
        close(rotation(x), theirs)


@pytest.mark.parametrize("name", ["mrope_chunked", "mrope_interleaved", "videorope"])
def test_text_alone_is_plain_rope_of_one_axis(name):
    x = draw(2, 9, 64)
    plain = RoPE(64, 1, theta=1e6, layout="half").at(9)
    close(RoPE.preset(name, 64, theta=1e6)(mrope_positions([9]))(x), plain(x))


def test_sequence_positions_are_those_of_qwen2_vl():
    assert torch.equal(mrope_positions(PARTS).long(), positions_of(qwen2.Qwen2VLModel, PARTS))


def test_sequence_positions_are_those_of_qwen3_vl_whose_frames_are_grids_between_time_stamps():
    frames = [3, (2, 2, 3), 1]
    kinds = torch.tensor([[0] * 3 + [2] * 6 + [0] * 2 + [2] * 6 + [0]])
    stub = SimpleNamespace(
        config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2)),
        get_vision_position_ids=lambda *a, **k: qwen3.Qwen3VLModel.get_vision_position_ids(None, *a, **k),
    )
    thw = torch.tensor([[frames[1][0], 4, 6]])
    theirs = qwen3.Qwen3VLModel.get_rope_index(stub, torch.zeros_like(kinds), kinds, video_grid_thw=thw)[0][:, 0].T
    assert torch.equal(mrope_positions([3, (1, 2, 3), 2, (1, 2, 3), 1]).long(), theirs)


def test_text_after_a_long_video_goes_on_behind_it_and_in_transformers_among_its_frames():
    """5 frames of 2 x 2 from 3 on end at 7: the next word is at 8 (Wang 2024, sec. 2.1); transformers 5 puts it at 3 + 2."""
    parts = [3, (5, 2, 2), 2]
    right, wrong = mrope_positions(parts), positions_of(qwen2.Qwen2VLModel, parts)
    assert torch.equal(right[:-2].long(), wrong[:-2]) and right[-3].tolist() == [7, 4, 4]
    assert right[-2:].tolist() == [[8] * 3, [9] * 3] and wrong[-2:].tolist() == [[5] * 3, [6] * 3]


def test_frames_are_an_interval_apart_as_in_qwen2_5_vl_and_text_goes_on_behind_the_last():
    """2 tokens a second, 1.5 seconds a frame: 3 apart, 0, 3, 6 after four words; then 11. transformers 5 goes on at 6."""
    parts = [4, (3, 2, 2), 1]
    right = mrope_positions(parts, interval=3.0)
    wrong = positions_of(Qwen2_5_VLModel, parts, second_per_grid_ts=torch.tensor([1.5]))
    assert torch.equal(right[:-1].long(), wrong[:-1]) and right[4::4, 0].tolist() == [4, 7, 10, 11]
    assert right[-1].tolist() == [11] * 3 and wrong[-1].tolist() == [6] * 3


def test_a_qwen2_vl_text_model_with_our_rotation_gives_what_it_gave(monkeypatch):
    torch.manual_seed(0)
    parameters = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]}
    config = Qwen2VLTextConfig(
        vocab_size=11,
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        rope_parameters=parameters,
        initializer_range=0.3,
    )
    model = qwen2.Qwen2VLTextModel(config).eval()
    points = mrope_positions(PARTS)
    given = {"inputs_embeds": torch.randn(1, len(points), 64), "position_ids": points.T[:, None].long()}
    after = {}
    with torch.no_grad():
        before = model(**given).last_hidden_state
        for name in ("mrope_chunked", "mrope_interleaved"):
            rotation = RoPE.preset(name, 32, theta=1e6)(points)
            monkeypatch.setattr(qwen2, "apply_rotary_pos_emb", lambda q, k, cos, sin, rotation=rotation: (rotation(q), rotation(k)))
            after[name] = model(**given).last_hidden_state
    close(after["mrope_chunked"], before, 1e-4)
    assert not torch.allclose(after["mrope_interleaved"], before, rtol=0, atol=1e-4)


# VideoRoPE: its paper


def test_videorope_gives_time_the_slowest_pairs_and_the_others_to_rows_and_columns_in_turn():
    freqs = RoPE.preset("videorope", 128).freqs[0]
    assert freqs.abs().argmax(-1).tolist() == [1, 2] * 24 + [0] * 16
    close(freqs.sum(-1), 1e6 ** (-torch.arange(64, dtype=torch.float64) / 64), 1e-12)


def test_videorope_frames_are_centred_on_the_line_of_the_text_a_stride_apart():
    points = videorope_positions([3, (2, 2, 4), 1], stride=2.0)
    assert points[2].tolist() == [2, 2, 2] and points[-1].tolist() == [7, 7, 7]  # 3 + 2 frames of stride 2
    assert points[3].tolist() == [3, 2, 1] and points[3 + 8 + 5].tolist() == [5, 5, 4]  # frame 1, row 1, column 1
    frames = points[3:-1].view(2, 8, 3)
    close(frames[1] - frames[0], torch.full((8, 3), 2.0))


@pytest.mark.parametrize("laid", [mrope_positions, videorope_positions])
def test_parts_that_are_no_text_and_no_grid_are_refused(laid):
    with pytest.raises(ValueError, match=r"\(2, 3\) in a sequence"):
        laid([1, (2, 3)])
    with pytest.raises(ValueError, match="empty sequence"):
        laid([])


def test_sections_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="whose sum is 32"):
        RoPE.preset("mrope_chunked", 64, sections=(16, 24, 24))
    with pytest.raises(ValueError, match="every third of 32 pairs"):
        RoPE.preset("mrope_interleaved", 64, sections=(8, 12, 12))
    with pytest.raises(ValueError, match="temporal=33"):
        RoPE.preset("videorope", 64, temporal=33)


# Ideogram 4: positions that begin at 65536


def test_mrope_interleaved_turns_as_ideogram4_does():
    points = mrope_positions(PARTS)
    tables = Ideogram4MRoPE(128, 5000000, (24, 20, 20))(points[None].long())
    x = draw(2, len(points), 128)
    theirs = embeddings.apply_rotary_emb(x, (tables[0][0], tables[1][0]), use_real_unbind_dim=-2)
    close(RoPE.preset("mrope_interleaved", 128)(points)(x), theirs)


def test_phases_from_65536_on_are_the_same_under_autocast_where_a_lowered_product_has_all_of_them_alike():
    points = mrope_positions([(1, 3, 5)]) + 65536
    rope = RoPE.preset("mrope_interleaved", 64)
    plain = rope(points)
    with torch.autocast("cpu", torch.bfloat16):
        lowered = torch.ones(1, 1) @ points[None, :, 2].contiguous()  # what a phase by matmul becomes: w = 1
        under = rope(points)
        tables = Ideogram4MRoPE(64, 5000000, (12, 10, 10))(points[None].long())
    assert lowered.unique().numel() == 1
    assert torch.equal(under.cos, plain.cos) and torch.equal(under.sin, plain.sin)
    exact = points[:, 2].double() * 5e6 ** (-2 / 32)  # pair 2 looks along w
    close(plain.cos[:, 2].double(), exact.cos(), 1e-6)
    close(tables[0][0, :, 2].double(), exact.cos(), 5e-3)  # the origin has the product out of autocast by now; float32 phases


# Qwen-Image, Lumina


@pytest.mark.parametrize("extents", [[(1, 4, 6)], [(1, 5, 7)], [(2, 4, 3), (1, 7, 5)]])
@pytest.mark.parametrize("head_dim, axes_dim", [(128, (16, 56, 56)), (64, (8, 28, 28))])
def test_qwen_image_turns_both_streams_as_diffusers_does(extents, head_dim, axes_dim):
    tables = QwenEmbedRope(10000, list(axes_dim), scale_rope=True)([extents], max_txt_seq_len=5)
    rope = RoPE.preset("qwen_image", head_dim)
    for points, table in zip(qwen_image_positions(extents, text=5), tables):
        x = draw(2, len(points), head_dim)
        theirs = apply_rotary_emb_qwen(x.transpose(1, 2), table, use_real=False).transpose(1, 2)
        close(rope(points)(x), theirs)


def test_qwen_image_at_an_extent_has_rows_and_columns_around_zero():
    rope = RoPE.preset("qwen_image", 64)
    assert torch.equal(rope.positions(1, 5, 4).float(), qwen_image_positions([(1, 5, 4)], text=1)[0])
    assert rope.positions(1, 5, 4)[0].tolist() == [0, -3, -2]


class OurRotations(torch.nn.Module):
    """In the place of Qwen-Image's pos_embed: our rotations of the two streams."""

    def __init__(self, rope: RoPE) -> None:
        super().__init__()
        self.rope = rope

    def forward(self, shapes, max_txt_seq_len, device):
        return tuple(self.rope(points) for points in qwen_image_positions(shapes[0], text=max_txt_seq_len))


def test_a_qwen_image_transformer_with_our_rotation_gives_what_it_gave(monkeypatch):
    torch.manual_seed(0)
    model = QwenImageTransformer2DModel(
        in_channels=8,
        out_channels=2,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=8,
        axes_dims_rope=(2, 6, 8),
    ).eval()
    model.pos_embed = QwenEmbedRope(10000, [2, 6, 8], scale_rope=True)
    given = {
        "hidden_states": torch.randn(1, 24, 8),
        "encoder_hidden_states": torch.randn(1, 5, 8),
        "timestep": torch.tensor([0.7]),
        "img_shapes": [[(1, 4, 6)]],
    }
    with torch.no_grad():
        before = model(**given).sample
        turn = lambda x, rotation, use_real: rotation(x.transpose(1, 2)).transpose(1, 2)  # noqa: E731
        monkeypatch.setattr(transformer_qwenimage, "apply_rotary_emb_qwen", turn)
        after = {}
        for split in ((1, 3, 4), (4, 3, 1)):
            model.pos_embed = OurRotations(RoPE.preset("qwen_image", 16, split=split))
            after[split] = model(**given).sample
    close(after[1, 3, 4], before, 1e-4)
    assert not torch.allclose(after[4, 3, 1], before, rtol=0, atol=1e-4)


def test_lumina2_turns_as_diffusers_does():
    origin = Lumina2RotaryPosEmbed(10000, [32, 32, 32], axes_lens=[16, 16, 16])
    _, _, _, table, *_ = origin(torch.empty(1, 1, 8, 12), torch.ones(1, 5, dtype=torch.long))
    points = lumina2_positions(5, 4, 6)
    x = draw(2, len(points), 96)
    theirs = embeddings.apply_rotary_emb(x.transpose(1, 2), table, use_real=False).transpose(1, 2)
    close(RoPE.preset("lumina2", 96)(points)(x), theirs)


@pytest.mark.parametrize(
    "name, head_dim", [("mrope_chunked", 64), ("mrope_interleaved", 64), ("videorope", 64), ("qwen_image", 64), ("lumina2", 48)]
)
def test_a_step_along_one_axis_moves_the_pairs_of_that_axis_alone(name, head_dim):
    rope = RoPE.preset(name, head_dim)
    rotation = rope(torch.cat((torch.zeros(1, 3), torch.eye(3))))
    owner = rope.freqs[0].abs().argmax(-1)
    turned = rope.freqs[0].abs().amax(-1) > 0
    for axis in range(3):
        assert torch.equal(rotation.sin[1 + axis] != rotation.sin[0], (owner == axis) & turned)


@pytest.mark.parametrize("name", ["mrope_chunked", "mrope_interleaved", "videorope", "qwen_image"])
def test_options_of_the_core_pass_through(name):
    options = {"trained_extent": (2, 2, 2), "scaling": "ntk", "prefix_tokens": 1, "heads": 2, "layout": "interleaved"}
    rope = RoPE.preset(name, 32, coordinates={"spacing": 2.0}, **options)
    assert rope.positions(2, 2, 2).max() == 2 and rope.layout == "interleaved"
    assert rope.at(4, 4, 4)(draw(2, 65, 32)).shape == (1, 2, 65, 32)
