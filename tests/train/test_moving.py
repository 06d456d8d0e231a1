"""Moving glyphs: motion tells the way and single frames do not, rates and sizes change what they say and nothing else."""

from collections import Counter

import numpy as np
import pytest
import torch

from train.glyphs import draw
from train.moving import WAYS, Moving

TURNS = {way: (round(np.cos(k * np.pi / 4), 9), round(np.sin(k * np.pi / 4), 9)) for k, way in enumerate(WAYS)}  # up, right


def ink(clips: torch.Tensor) -> torch.Tensor:
    """How much darker than the paper each pixel is, 0 to 1: [B, 3, T, H, W] -> float64 [B, T, H, W]."""
    grey = clips.float().mean(1).double()  # [B, T, H, W]
    away = grey.amax((1, 2, 3), keepdim=True) - grey
    return away / away.amax((1, 2, 3), keepdim=True)


def shift(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """By how many pixels (down, right) pictures [B, H, W] moved, round the edges: the phase of their lowest waves, [B, 2]."""
    a, b = torch.fft.fft2(first), torch.fft.fft2(second)
    h, w = first.shape[-2:]
    turned = torch.stack([torch.angle(b[:, 1, 0] / a[:, 1, 0]) * h, torch.angle(b[:, 0, 1] / a[:, 0, 1]) * w], 1)
    return -turned / (2 * torch.pi)


@pytest.fixture(scope="module")
def many():
    """Two thousand small clips: what is darker than the paper [B, T, H, W], and labels [B]."""
    clips, labels = Moving("train", size=16, length=2000).batch(range(2000))
    return ink(clips), labels


@pytest.mark.parametrize("options", [{}, {"size": (48, 80)}, {"test": "canvas", "size": 64}, {"frames": 3, "fps": 5.0}])
def test_the_label_is_the_way_the_glyph_moves(options):
    data = Moving("test", **options)
    clips, labels = data.batch(range(120))
    seen = ink(clips)
    for k in range(data.frames - 1):
        down, right = shift(seen[:, k], seen[:, k + 1]).T
        for label, d, r in zip(labels.tolist(), down.tolist(), right.tolist()):
            up, aside = TURNS[data.answers[label]]
            length = np.hypot(d, r)
            assert (-d * up + r * aside) / length > 0.98, (data.answers[label], d, r)
            assert 0.55 < length * data.fps / data.field < 1.05  # fields a second


def test_no_single_frame_tells_the_way_though_two_do(many):
    seen, labels = many
    wanted = torch.nn.functional.one_hot(labels, 8).double()

    def right(features: torch.Tensor) -> float:
        """Share of the second half that a linear probe of the first half gets right."""
        with_one = torch.cat([features, torch.ones(len(features), 1)], 1)
        fitted = torch.linalg.lstsq(with_one[:1000], wanted[:1000]).solution
        return ((with_one[1000:] @ fitted).argmax(1) == labels[1000:]).double().mean().item()

    for frame in (0, 3, 7):
        assert right(seen[:, frame].flatten(1)) < 0.125 + 4 * np.sqrt(0.125 * 0.875 / 1000)
    assert right(shift(seen[:, 0], seen[:, 1])) > 0.6


def test_at_every_time_each_place_is_as_likely_whatever_the_way(many):
    seen, labels = many
    for frame in (0, 7):
        mean = torch.stack([seen[labels == k, frame].mean(0) for k in range(8)])  # [8, H, W]
        assert mean.mean(0).std() < 0.12 * mean.mean() and mean.std((1, 2)).max() < 0.3 * mean.mean()


def test_labels_are_as_likely_each():
    for question, classes in (("direction", 8), ("order", 2), ("glyph", 10)):
        data = Moving("val", question=question, size=16, frames=4, length=800)
        counts = torch.bincount(data.batch(range(800))[1], minlength=classes).double()
        assert len(counts) == len(data.answers) == classes
        assert ((counts - 800 / classes) ** 2 / (800 / classes)).sum() < 30


@pytest.mark.parametrize("question", ["direction", "order", "glyph"])
@pytest.mark.parametrize("fps", [8.0, 7.0, 29.97])
def test_twice_the_frame_rate_shows_the_same_motion_in_twice_the_frames(question, fps):
    slow, fast = Moving("test", question=question, fps=fps), Moving("test", question=question, fps=2 * fps, frames=16)
    (a, labels), (b, again) = slow.batch(range(20)), fast.batch(range(20))
    assert torch.equal(b[:, :, ::2], a) and torch.equal(labels, again)
    assert (fast.seconds[::2] == slow.seconds).all() and not torch.equal(b[:, :, 1::2], a)


@pytest.mark.parametrize("question", ["direction", "glyph"])
def test_a_longer_clip_goes_on_from_the_shorter_one(question):
    short, long = (Moving("test", question=question, frames=frames).batch(range(20)) for frames in (8, 32))
    assert torch.equal(long[0][:, :, :8], short[0]) and torch.equal(long[1], short[1])
    moved = shift(ink(long[0])[:, 20], ink(long[0])[:, 21])
    assert moved.norm(dim=1).min() > 0.3 * 32 / 8


def test_one_glyph_comes_first_and_no_two_neighbours_show_both():
    for frames in (4, 8, 16, 32):
        data = Moving("test", question="order", frames=frames, classes="AX7")
        for i in range(40):
            (s,) = data.glyphs.samples([i])
            clip, label = data[i]
            seen = ink(clip[None])[0].sum((1, 2)) > 0  # [T]
            runs = "".join("1" if x else "0" for x in seen).strip("0").split("0")
            first, empty, second = runs[0], seen.shape[0] - int(seen.sum()), runs[-1]
            assert seen[0] and seen[-1] and len([run for run in runs if run]) == 2 and empty >= frames // 4
            before, after = data.answers[label].split(" then ")
            for frame, char in ((0, before), (len(first) - 1, before), (frames - len(second), after), (frames - 1, after)):
                assert seen_char(clip[:, frame], s) == char


def seen_char(picture: torch.Tensor, s: draw.Sample) -> str:
    """Which of A, X, 7 of this font a picture shows, by correlation with each at every place."""
    grey = picture.double().mean(0)
    away = (grey - torch.tensor(s.paper).mean() * 255).abs()
    best = {}
    for char in "AX7":
        side = draw.between(float(s.dice[0]), 0.35, 0.5) * 32
        ideal = torch.from_numpy(draw.glyph(s.font, char, side, 4, 4, (32, 32)).copy()).double()
        scores = torch.fft.ifft2(torch.fft.fft2(away) * torch.fft.fft2(ideal).conj()).real
        best[char] = scores.max() / ideal.norm()
    return max(best, key=lambda char: best[char])


def test_without_their_order_the_frames_of_both_answers_are_the_same():
    data = Moving("train", question="order", length=800, size=16)
    clips, labels = data.batch(range(800))
    shown = ink(clips).sum((2, 3)) > 0
    bins = Counter((int(n), int(label)) for n, label in zip(shown.sum(1), labels))
    for n in {key[0] for key in bins}:
        total = bins[n, 0] + bins[n, 1]
        assert abs(bins[n, 0] - total / 2) < 4 * np.sqrt(total) / 2 + 1


def test_more_pixels_show_the_same_clip():
    small, large = (Moving("test", size=size).batch(range(40)) for size in (32, 128))
    assert torch.equal(small[1], large[1])
    shrunk = torch.nn.functional.avg_pool3d(large[0].double(), (1, 4, 4))
    assert (shrunk - small[0]).abs().mean() < 1.5
    scores = [np.corrcoef(ink(a[None]).ravel(), ink(b[None]).ravel())[0, 1] for a, b in zip(small[0], shrunk)]
    assert min(scores) > 0.97


def test_a_larger_canvas_keeps_size_and_speed():
    found = []
    for data in (Moving("test"), Moving("test", test="canvas", size=96)):
        seen = ink(data.batch(range(60))[0])
        found.append((seen.sum((2, 3)).mean().item(), shift(seen[:, 0], seen[:, 1]).norm(dim=1).mean().item()))
    assert found[0] == pytest.approx(found[1], rel=0.02)


@pytest.mark.parametrize("question", ["direction", "order", "glyph"])
def test_a_clip_depends_on_seed_split_and_index_alone(question):
    data = Moving("train", question=question, length=64)
    clips, labels = data.batch(range(16))
    order = [5, 3, 15, 0]
    again, marks = Moving("train", question=question, length=1000).batch(order)
    assert torch.equal(again, clips[order]) and torch.equal(marks, labels[order])
    single, label = data[5]
    assert torch.equal(single, clips[5]) and label == labels[5] and single.shape == (3, 8, 32, 32) and single.dtype == torch.uint8
    for other in (Moving("train", question=question, seed=1), Moving("val", question=question)):
        assert not torch.equal(other.batch(range(16))[0], clips)


def test_test_fonts_are_never_seen_in_training():
    train, test = (Moving(split, length=3000).clusters for split in ("train", "test"))
    assert not set(train.tolist()) & set(test.tolist())


def test_a_loader_takes_it():
    batches = list(torch.utils.data.DataLoader(Moving("val", length=12), batch_size=4))
    assert len(batches) == 3 and batches[0][0].shape == (4, 3, 8, 32, 32) and batches[0][1].dtype == torch.int64


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"question": "colour"}, "direction, order, glyph"),
        ({"frames": 0}, "frames 0"),
        ({"frames": 3, "question": "order"}, "at least 4"),
        ({"fps": 0}, "fps 0"),
        ({"size": 12}, "at least 16"),
        ({"classes": "A", "question": "order"}, "two glyphs"),
        ({"split": "dev"}, "train, val, test"),
        ({"size": 16, "test": "canvas"}, "smaller than field 32"),
    ],
)
def test_a_wrong_choice_is_named(options, says):
    with pytest.raises(ValueError, match=says):
        Moving(**{"split": "train", **options})
