"""What is watched is what the model attends to, and the picture of it is written."""

import math

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from rope_nd import hub, list_encodings, look, watch, wrap
from rope_nd.wrapping import blocks

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
VIT = "vit_tiny_patch16_224"
QUERIES = [0, 3, 16]


def vit(encoding="axial", **options):
    torch.manual_seed(0)
    return wrap(timm.create_model(VIT, **SMALL), encoding, **options).eval()


def unfused(model):
    for block in model.blocks:
        block.attn.fused_attn = False
    return model


@pytest.mark.parametrize("encoding", list_encodings())
def test_fused_and_plain_attention_show_the_same(encoding):
    model, x = vit(encoding), torch.randn(2, 3, 32, 32)
    fused = watch.attention(model, x, QUERIES)
    plain = watch.attention(unfused(model), x, QUERIES)
    assert len(fused) == len(plain) == 2 and fused[0].shape == (2, 2, 3, 17)
    for a, b in zip(fused, plain):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(a.sum(-1), torch.ones(2, 2, 3))


def test_shares_are_those_that_weigh_the_values():
    """With values that name their token, what attention gives out is its shares."""
    q, k = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)
    names = torch.eye(5).expand(1, 2, 5, 5)
    for options in (
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": torch.randn(2, 5, 5)},
        {"attn_mask": torch.ones(5, 5).tril() > 0},
    ):
        with watch.Watch() as seen:
            out = torch.nn.functional.scaled_dot_product_attention(q, k, names, **options)
        torch.testing.assert_close(seen.layers[0], out, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("encoding", ["alibi", "t5", "axial"])
def test_queries_that_come_in_blocks_are_put_together(encoding, monkeypatch):
    model, x = vit(encoding), torch.randn(1, 3, 40, 40)
    whole = watch.attention(model, x, QUERIES)
    monkeypatch.setattr(blocks, "LARGE", 0)
    monkeypatch.setattr(blocks, "BLOCK", 4 * 2 * 26 * 7)  # seven queries of two heads
    for a, b in zip(whole, watch.attention(model, x, QUERIES), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_the_answer_is_the_same_while_watched():
    model, x = vit("mixed"), torch.randn(1, 3, 32, 48)
    with torch.no_grad():
        plain = model(x)
        with watch.Watch([0]):
            assert torch.equal(model(x), plain)


def test_a_softmax_over_another_axis_is_no_attention():
    with watch.Watch() as seen:
        torch.randn(1, 2, 3, 4).softmax(1)
        torch.softmax(torch.randn(1, 2, 3, 3), dim=-1)
    assert [shares.shape for shares in seen.layers] == [(1, 2, 3, 3)]


def test_attention_pooling_is_passed_over():
    torch.manual_seed(0)
    model = wrap(timm.create_model(VIT, **SMALL, class_token=False, global_pool="map"), "axial").eval()
    assert len(watch.attention(model, torch.randn(1, 3, 32, 32), [0])) == 2


def test_what_is_no_token_says_so():
    with pytest.raises(ValueError, match="tokens are 0 to 16"):
        watch.attention(vit(), torch.randn(1, 3, 32, 32), [0, 17])
    with pytest.raises(ValueError, match="made no attention"):
        watch.attention(torch.nn.Linear(3, 3), torch.randn(1, 3))


def test_entropy_is_one_everywhere_alike_and_zero_at_one_token():
    alike, one = torch.full((1, 16), 1 / 16), torch.eye(16)[:1]
    torch.testing.assert_close(watch.entropy(torch.cat([alike, one])), torch.tensor([1.0, 0.0]))
    half = torch.tensor([[0.5, 0.5, 0.0, 0.0]])
    torch.testing.assert_close(watch.entropy(half), torch.tensor([math.log(2) / math.log(4)]))


def test_distance_is_in_tokens_and_without_prefix_tokens():
    shares = torch.zeros(2, 1 + 12)  # a class token, 3 x 4 patches
    shares[0, [0, 1 + 11]] = 0.5  # from the first patch to the last, three columns and two rows away
    shares[1, [1 + 4, 1 + 6]] = torch.tensor([0.25, 0.75])  # from the first of the second row to itself and two columns on
    found = watch.distance(shares, [1, 5], (3, 4), prefix_tokens=1)
    torch.testing.assert_close(found, torch.tensor([math.hypot(2, 3), 1.5]))


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    path = tmp_path_factory.mktemp("photo") / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8)).save(path)
    return path


def test_a_view_shows_the_features_and_the_attention_of_its_size(photo):
    model = vit()
    image = Image.open(photo).convert("RGB")
    one = look.view(model, image, 48, query=(0.0, 1.0), layer=0)
    assert one.image.shape == (32, 48, 3) and one.features.shape == (4, 6, 32) and one.query == (0, 5)
    x = look.normalised(look.fitted(image, 48, (8, 8)), model)[None]
    shares = watch.attention(model, x, [0, 6])[0][0].mean(0)
    torch.testing.assert_close(one.by_class, shares[0, 1:].view(4, 6))
    torch.testing.assert_close(one.by_query, shares[1, 1:].view(4, 6))
    with torch.no_grad():
        torch.testing.assert_close(one.features.flatten(0, 1), model.forward_features(x)[0, 1:])


def test_colours_are_two_standard_deviations_to_either_end():
    torch.manual_seed(0)
    tokens = torch.randn(4000, 5) * torch.tensor([5.0, 3.0, 2.0, 0.1, 0.1]) + 7
    basis = look.directions(tokens)
    found = look.colours(tokens, basis)
    torch.testing.assert_close(found.mean(0), torch.full((3,), 0.5), atol=0.02, rtol=0)
    assert 0.02 < (found[:, 0] == 0).float().mean() + (found[:, 0] == 1).float().mean() < 0.08  # 4.6 % of a normal spread


def test_the_command_writes_a_picture_of_a_saved_model(photo, tmp_path, capsys):
    hub.save(vit("mixed"), tmp_path / "model")
    out = tmp_path / "look.png"
    look.main([str(photo), "--saved", str(tmp_path / "model"), "--scaling", "pi", "--sizes", "32", "64", "--output", str(out)])
    assert Image.open(out).width > 300 and "5 x 8    tokens" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["look.png"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model", "vit_nothing"], "vit_nothing"),
        (["--model", VIT, "--encoding", "axail"], "axail"),
        (["--model", VIT, "--sizes", "0"], "sizes"),
        (["--model", VIT, "--query", "2", "0"], "query"),
        (["--model", VIT, "--layer", "99", "--sizes", "32"], "layer 99"),
        (["--saved", "nowhere/at-all/here"], "nowhere/at-all/here"),
    ],
)
def test_bad_input_ends_with_one_line_and_code_2(arguments, told, photo, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SystemExit) as raised:
        look.main([str(photo), *arguments, "--output", str(tmp_path / "look.png")])
    assert raised.value.code == 2 and told in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_what_is_transparent_is_white_whatever_lies_below():
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[:4] = 255, 0, 0, 255
    pixels[4:] = 0, 0, 255, 0
    shown = look.fitted(Image.fromarray(pixels), 8, (8, 8))
    assert shown[:, 0, 0].tolist() == [1, 0, 0] and shown[:, 7, 0].tolist() == [1, 1, 1]


def test_weights_are_read_and_code_in_them_is_not(photo, tmp_path, capsys):
    args = [str(photo), "--model", VIT, "--sizes", "32", "--output", str(tmp_path / "look.png"), "--weights"]
    good, bad = tmp_path / "good.pth", tmp_path / "bad.pth"
    torch.save(timm.create_model(VIT).state_dict(), good)
    torch.save({"state_dict": {}, "code": look.View}, bad)
    look.main([*args, str(good)])
    assert (tmp_path / "look.png").is_file()
    with pytest.raises(SystemExit) as raised:
        look.main([*args, str(bad)])
    assert raised.value.code == 2 and "bad.pth: no weights of this model" in capsys.readouterr().err


def test_no_picture_is_said_so(tmp_path, capsys):
    with pytest.raises(SystemExit):
        look.main([str(tmp_path / "none.png"), "--model", VIT])
    assert "none.png: no picture" in capsys.readouterr().err
