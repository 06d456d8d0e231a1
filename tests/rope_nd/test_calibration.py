"""A rule for a size, chosen without labels: the one whose answers stay when inputs are shifted."""

import pytest
import timm
import torch
from torch import nn

from rope_nd import wrap
from rope_nd.calibration import CANDIDATES, above_chance, answers, calibrate, moved, steadiness, under
from rope_nd.pyramid import Pyramid


class Steady(nn.Module):
    """Answers by the mean, which a shift hardly changes."""

    def forward(self, x):
        mean = x.mean((1, 2, 3))
        return torch.stack((mean, -mean, torch.full_like(mean, -9.0)), -1)


class Lost(nn.Module):
    """Answers by one sample, which a shift changes."""

    def forward(self, x):
        one = x[:, 0, 5, 5]
        return torch.stack((one, -one, torch.full_like(one, -9.0)), -1)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    made = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=5)
    return wrap(made, "mixed").eval()


def test_the_steadier_candidate_is_taken_and_of_equals_the_first():
    images = torch.randn(40, 3, 16, 16) + torch.randn(40, 1, 1, 1)
    found = calibrate(nn.Identity(), images, {"lost": Lost(), "steady": Steady(), "also": Steady()}, shift=2)
    assert found.name == "steady" and isinstance(found.model, Steady)
    assert found.stays["steady"] == found.stays["also"] > 3 * abs(found.stays["lost"])


class Stuck(nn.Module):
    """Gives almost every input the same answer."""

    def forward(self, x):
        return torch.eye(3)[(x.mean((1, 2, 3)) > 1.5).long()]


def test_who_almost_always_says_the_same_is_not_taken():
    images = torch.randn(40, 3, 16, 16) / 9 + torch.linspace(-1, 1, 40).view(-1, 1, 1, 1)
    images[0] += 4
    found = calibrate(nn.Identity(), images, {"stuck": Stuck(), "lost": Lost(), "steady": Steady()}, shift=2)
    assert found.name == "steady" and found.stays["stuck"] == pytest.approx(1 - (39**2 + 1) / 40**2)


def test_agreement_is_counted_above_chance():
    one, two = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0, 1, 1, 2, 2, 0])
    assert above_chance(one, two) == pytest.approx(4 / 6 - (2 * 2 + 1 * 2 + 3 * 2) / 36) == above_chance(two, one)
    assert above_chance(one, one) == pytest.approx(1 - (4 + 1 + 9) / 36)
    assert above_chance(torch.tensor([0, 0, 1, 1]), torch.tensor([1, 1, 0, 0])) == -0.5
    assert above_chance(torch.zeros(4), torch.zeros(4)) == 0


def test_what_stays_is_the_mean_of_there_and_back():
    x = torch.full((4, 1, 8, 8), 1.0)
    x[2:] = -1.0
    assert steadiness(Lost(), x, (1, 0)) == 0.5
    x[0, 0, 4, 5], x[2, 0, 4, 5] = -1.0, 1.0  # one of the two ways finds another answer, for half of them
    answered = torch.tensor([0, 0, 1, 1])
    assert steadiness(Lost(), x, (1, 0)) == (0.5 + above_chance(answered, torch.tensor([1, 0, 0, 1]))) / 2 == 0.25


def test_a_shift_repeats_the_border():
    x = torch.arange(12.0).view(1, 1, 3, 4)
    assert moved(x, (1, -2))[0, 0].tolist() == [[2, 3, 3, 3], [2, 3, 3, 3], [6, 7, 7, 7]]


def test_the_rest_is_no_answer():
    logits = torch.tensor([[0.0, 1.0, 5.0], [2.0, 1.0, 0.0]])
    assert answers(logits, None).tolist() == [2, 0] and answers(logits, 2).tolist() == answers(logits, -1).tolist() == [1, 0]


@pytest.mark.parametrize("name", CANDIDATES)
def test_a_candidate_is_the_model_wrapped_by_that_rule(name, model):
    x = torch.randn(2, 3, 64, 64)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    if name in ("whole", "windows", "pyramid"):
        expected = Pyramid(model, (32, 32), scales={"windows": "native", "pyramid": "all"}.get(name, name))
    else:
        made = timm.create_model(
            "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=5
        )
        expected = wrap(made, "mixed", scaling=name).eval()
        expected.load_state_dict(before)
    torch.testing.assert_close(under(model, name)(x), expected(x))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_by_names_it_returns_a_model_of_those(model):
    images = torch.randn(4, 3, 48, 48)
    found = calibrate(model, images, ["none", "pi", "whole"])
    assert set(found.stays) == {"none", "pi", "whole"} and found.name == max(found.stays, key=found.stays.get)
    assert found.model(images).shape == (4, 5)


def test_bad_input_is_named(model):
    images = torch.randn(4, 3, 48, 48)
    with pytest.raises(ValueError, match="did you mean 'yarn'"):
        calibrate(model, images, ["yarm"])
    with pytest.raises(ValueError, match="candidates is empty"):
        calibrate(model, images, [])
    with pytest.raises(ValueError, match="one an axis"):
        calibrate(model, images, ["none"], shift=(1, 2, 3))
    with pytest.raises(ValueError, match=r"\[B, C, \*extent\]"):
        calibrate(model, images[0, 0], ["none"])
    with pytest.raises(ValueError, match="was not wrapped"):
        calibrate(timm.create_model("vit_tiny_patch16_224"), images)
    with pytest.raises(ValueError, match="give shift="):
        calibrate(nn.Identity(), images, {"a": Steady()})
