"""Sliding windows over a pyramid: each window is an input of the trained size, and the surest answers."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rope_nd.pyramid import Pyramid, count, resized, windows


class Alike(nn.Module):
    """Three classes: like the first template, like the second, and like neither."""

    def __init__(self, axes: int = 2) -> None:
        super().__init__()
        self.templates = torch.randn(2, 1, *(4,) * axes, generator=torch.Generator().manual_seed(0))

    def forward(self, x):
        assert x.shape[2:] == self.templates.shape[2:]
        far = (x[:, None] - self.templates).square().flatten(2).mean(-1)  # [B, 2]
        return torch.cat((-10 * far, torch.full((len(x), 1), -5.0)), dim=-1)


@pytest.mark.parametrize(
    ("extent", "size", "stride"), [((11,), (4,), (3,)), ((9, 8), (4, 5), (2, 3)), ((5, 6, 7), (2, 3, 7), (1, 3, 2))]
)
def test_windows_are_the_slices_that_they_claim_to_be(extent, size, stride):
    x = torch.randn(2, 3, *extent)
    corners = [sorted({*range(0, n - w + 1, s), n - w}) for n, w, s in zip(extent, size, stride)]
    expected = [x[(..., *(slice(c, c + w) for c, w in zip(corner, size)))] for corner in itertools.product(*corners)]
    assert torch.equal(windows(x, size, stride), torch.stack(expected, 1))


@pytest.mark.parametrize("new", [(20, 16), (7, 32), (40, 9)])
def test_shrinking_is_torchs_antialiased_bicubic(new):
    x = torch.randn(2, 3, 40, 32, dtype=torch.float64)
    torch.testing.assert_close(resized(x, new), F.interpolate(x, new, mode="bicubic", antialias=True), atol=1e-6, rtol=1e-6)


def test_axes_are_shrunk_alike_in_any_number():
    x = torch.randn(1, 1, 12, 16, 20, dtype=torch.float64)
    flat = F.interpolate(x.flatten(0, 2)[None], (8, 10), mode="bicubic", antialias=True).view(1, 1, 12, 8, 10)
    torch.testing.assert_close(resized(x, (12, 8, 10)), flat, atol=1e-6, rtol=1e-6)


def test_at_the_trained_size_the_model_alone_is_asked():
    model, x = Alike(), torch.randn(5, 1, 4, 4)
    for options in ({}, {"step": math.inf}, {"scales": "whole"}):
        torch.testing.assert_close(Pyramid(model, (4, 4), **options)(x), model(x).log_softmax(-1))
    rest = Pyramid(model, (4, 4), rest=2)(x)
    torch.testing.assert_close(rest, model(x)[:, :2].log_softmax(-1))


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_an_object_anywhere_in_a_field_of_any_size_is_found_and_its_place_told(axes):
    model = Alike(axes)
    pyramid = Pyramid(model, (4,) * axes, rest=2, stride=1, scales="native")
    for label, extent, corner in ((1, 13, 6), (0, 4, 0), (1, 30, 26)):
        x = torch.zeros(1, 1, *(extent,) * axes)
        x[(..., *(slice(corner, corner + 4),) * axes)] = model.templates[label]
        assert pyramid(x).argmax(-1).item() == label
        assert pyramid.place(x)[0].tolist() == [[corner, corner + 4]] * axes


def test_an_object_of_any_size_is_read_at_the_scale_that_shows_it_whole():
    model = Alike()
    for label in (0, 1):
        x = F.interpolate(model.templates[label][None], scale_factor=8, mode="bicubic")
        pyramid = Pyramid(model, (4, 4), rest=2)
        assert pyramid(x).argmax(-1).item() == label and pyramid.place(x)[0].tolist() == [[0, 32], [0, 32]]


def test_scales_end_at_one_window_and_kept_axes_stay():
    assert Pyramid(Alike(), (4, 4)).extents((16, 16)) == [(16, 16), (11, 11), (8, 8), (6, 6), (4, 4)]
    assert Pyramid(Alike(), (4, 4), step=math.inf).extents((16, 16)) == [(16, 16), (4, 4)]
    assert Pyramid(Alike(), (4, 4), step=2.0).extents((8, 16)) == [(8, 16), (4, 8)]  # the shorter side
    assert Pyramid(Alike(3), (4, 4, 4), step=2.0, keep=(0,)).extents((9, 16, 16)) == [(9, 16, 16), (9, 8, 8), (9, 4, 4)]
    assert Pyramid(Alike(), (4, 4)).extents((2, 8)) == [(4, 8)]  # a side below the window is stretched to it
    assert count(Pyramid(Alike(), (4, 4), stride=2, step=math.inf), (16, 16)) == 49 + 1


@pytest.mark.parametrize("floor", [0.0, 0.01])
def test_the_largest_odds_against_the_rest_answer_and_without_it_the_surest_window(floor):
    x, model = torch.rand(3, 1, 9, 9), Alike()
    each = model(windows(x, (4, 4), (1, 1)).flatten(0, 1)).softmax(-1).double().unflatten(0, (3, -1))  # [3, 36, 3]
    odds = (each[..., :2] / (each[..., 2:] + floor)).amax(1)
    got = Pyramid(model, (4, 4), stride=1, scales="native", rest=2, floor=floor)(x).exp().double()
    torch.testing.assert_close(got, odds / odds.sum(-1, keepdim=True), atol=1e-5, rtol=1e-5)
    surest = each.amax(1)
    got = Pyramid(model, (4, 4), stride=1, scales="native")(x).exp().double()
    torch.testing.assert_close(got, surest / surest.sum(-1, keepdim=True), atol=1e-5, rtol=1e-5)


def test_batches_and_gradients():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    x = torch.randn(2, 1, 7, 9, requires_grad=True)
    one, two = Pyramid(model, (4, 4), batch=1000)(x), Pyramid(model, (4, 4), batch=3)(x)
    torch.testing.assert_close(one, two)
    one.sum().backward()
    assert x.grad.abs().sum() > 0 and model[1].weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": (4, 0)}, "size"),
        ({"stride": (1, 2, 3)}, "give one number, or 2"),
        ({"stride": 0}, "stride"),
        ({"step": 1.0}, "must be above 1"),
        ({"scales": "wholes"}, "did you mean 'whole'"),
        ({"keep": (2,)}, "no 2"),
        ({"floor": 1.0}, "floor 1.0"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Pyramid(Alike(), **{"size": (4, 4), **options})


def test_bad_inputs_are_named():
    with pytest.raises(ValueError, match=r"extent \(8,\)"):
        Pyramid(Alike(), (4, 4))(torch.zeros(1, 1, 8))
    with pytest.raises(ValueError, match="rest 3: the model has classes 0 to 2"):
        Pyramid(Alike(), (4, 4), rest=3)(torch.zeros(1, 1, 4, 4))
