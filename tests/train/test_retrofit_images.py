"""What a retrofit sees and learns: batches that are functions of seed and step, the loss, resampled tokens."""

import dataclasses
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from train.retrofit.config import Config
from train.retrofit.distil import Features, distance, fidelity, loss, resampled, target_size
from train.retrofit.images import augmented, box, files, opened, picked, split, views, whole


def test_the_loss_is_the_cosine_and_the_scaled_huber_distance_of_its_docstring():
    random = torch.Generator().manual_seed(0)
    s, t = (torch.randn(3, 5, 8, generator=random, dtype=torch.float64) for _ in range(2))
    cosine = 1 - ((s * t).sum(-1) / (s.norm(dim=-1) * t.norm(dim=-1))).mean()
    d = ((s - t) / t.pow(2).mean(-1, keepdim=True).sqrt()).abs()
    huber = torch.where(d < 1, d * d / 2, d - 0.5).mean()
    found = distance(s.float(), t.float(), Config("m", Path(), cosine=0.7, smooth=2.0))
    torch.testing.assert_close(found.double(), 0.7 * cosine + 2.0 * huber, atol=1e-5, rtol=1e-5)


def test_the_loss_knows_length_and_the_cosine_does_not():
    t = torch.randn(2, 4, 8)
    assert distance(3 * t, t, Config("m", Path(), cosine=1, smooth=0)) < 1e-6
    assert distance(3 * t, t, Config("m", Path(), cosine=0, smooth=1)) > 0.5


def test_patches_and_pooled_share_the_loss():
    t = Features(torch.randn(2, 4, 8), torch.randn(2, 8), (2, 2))
    wrong = dataclasses.replace(t, pooled=-t.pooled)
    assert loss(wrong, t, Config("m", Path(), class_weight=0)) < 1e-6
    assert loss(wrong, t, Config("m", Path(), class_weight=1, smooth=0)).item() == pytest.approx(2)


def test_tokens_are_resampled_as_a_picture():
    tokens = torch.randn(1, 12, 5)
    found = resampled(Features(tokens, torch.zeros(1, 5), (3, 4)), (6, 8))
    picture = tokens.view(1, 3, 4, 5).permute(0, 3, 1, 2)
    expected = F.interpolate(picture, (6, 8), mode="bicubic").permute(0, 2, 3, 1).reshape(1, 48, 5)
    torch.testing.assert_close(found.patches, expected, atol=1e-5, rtol=1e-5)
    flat = Features(torch.ones(1, 12, 5), torch.zeros(1, 5), (3, 4))
    torch.testing.assert_close(resampled(flat, (2, 2)).patches, torch.ones(1, 4, 5))


def test_tokens_inside_are_compared_too_and_resampled_but_for_those_without_a_place():
    t = Features(torch.randn(2, 4, 8), torch.randn(2, 8), (2, 2), (torch.randn(2, 5, 8), torch.randn(2, 5, 8)))
    wrong = dataclasses.replace(t, inside=(-t.inside[0], t.inside[1]))
    assert loss(t, t, Config("m", Path())) < 1e-6
    assert loss(wrong, t, Config("m", Path(), smooth=0)).item() == pytest.approx(2 / 2)
    large = resampled(t, (4, 6))
    for before, after in zip(t.inside, large.inside):
        assert after.shape == (2, 25, 8) and torch.equal(after[:, 0], before[:, 0])
        alone = resampled(Features(before[:, 1:], t.pooled, (2, 2)), (4, 6))
        torch.testing.assert_close(after[:, 1:], alone.patches)


def test_fidelity_is_one_for_the_same_features_and_counts_each_image():
    t = Features(torch.randn(2, 4, 8), torch.randn(2, 8), (2, 2))
    other = Features(torch.stack((t.patches[0], -t.patches[1])), torch.stack((-t.pooled[0], t.pooled[1])), (2, 2))
    patches, pooled = fidelity(other, t)
    torch.testing.assert_close(patches, torch.tensor([1.0, -1.0]))
    torch.testing.assert_close(pooled, torch.tensor([-1.0, 1.0]))


def test_the_teacher_sees_an_image_where_it_is_at_home():
    assert [target_size(size, (112, 504)) for size in (56, 112, 300, 504, 1036)] == [112, 112, 300, 504, 504]


def test_a_batch_is_a_function_of_seed_and_step(pictures):
    paths = files(pictures)
    shown = {"batch": 5, "sizes": (16, 32), "crop": 0.3}
    first, again, other = (views(paths, 3, seed=seed, **shown) for seed in (0, 0, 1))
    assert [tuple(view.shape) for view in first] == [(5, 3, 16, 16), (5, 3, 32, 32)]
    assert all(torch.equal(a, b) for a, b in zip(first, again)) and not torch.equal(first[0], other[0])
    smaller = F.interpolate(first[1].float(), 16, mode="bicubic", antialias=True)
    assert (smaller - first[0]).abs().mean() < 6  # of 255: the same crop, mirrored alike


def test_each_shuffle_holds_every_image_once():
    drawn = [index for step in range(6) for index in picked(step, 9, 3, seed=4)]
    assert sorted(drawn[:9]) == sorted(drawn[9:]) == list(range(9)) and drawn[:9] != drawn[9:]
    assert len(picked(0, 2, 5, seed=0)) == 5


def test_crops_lie_inside_and_have_the_area_asked_for():
    for k in range(200):
        left, upper, right, lower = box(60, 40, 0.4, torch.Generator().manual_seed(k))
        assert 0 <= left < right <= 60.001 and 0 <= upper < lower <= 40.001
        assert (right - left) * (lower - upper) >= 0.3 * 60 * 40  # a crop that would stick out is cut


def test_transparent_images_lie_on_a_colour_and_whole_ones_are_padded_with_white(tmp_path):
    Image.new("RGBA", (20, 10), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    Image.new("RGB", (20, 10), (9, 9, 9)).save(tmp_path / "dark.png")
    assert opened(tmp_path / "clear.png", (1, 2, 3)).getpixel((0, 0)) == (1, 2, 3)
    square = whole(tmp_path / "dark.png", 40)
    assert square.shape == (3, 40, 40) and (square[:, :10] == 255).all() and (square[:, 10:30] == 9).all()


def test_images_are_held_out_by_folder_or_by_name(tmp_path, pictures):
    train, val = split(pictures, held=0.3)
    assert train and val and not set(train) & set(val) and len(train) + len(val) == 24
    for side in ("train", "val"):
        (tmp_path / side).mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / side / "a.png")
    assert split(tmp_path) == ([tmp_path / "train/a.png"], [tmp_path / "val/a.png"])


def test_bad_folders_and_files_are_named(tmp_path):
    with pytest.raises(ValueError, match="no such folder"):
        files(tmp_path / "none")
    with pytest.raises(ValueError, match="no images"):
        files(tmp_path)
    (tmp_path / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\nxx")
    with pytest.raises(ValueError, match=r"cannot read .*torn\.png"):
        augmented(tmp_path / "torn.png", (8,), 0.5, torch.Generator())
