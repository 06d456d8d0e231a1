"""What a choice of rules is measured with: all answers count, those that no picture of the sample has too."""

import torch
from torch import nn

from tests.promises.runs import tiny
from train.answers import rest
from train.calibrate import accuracy


def test_an_answer_that_no_picture_has_is_still_wrong_and_the_rest_is_no_answer():
    logits = torch.tensor([[3.0, 1.0, 0.0, 9.0, 0.0], [0.0, 2.0, 5.0, 9.0, 0.0], [0.0, 2.0, 1.0, 0.0, 9.0]])
    labels = torch.tensor([0, 1, 1])
    assert accuracy(nn.Identity(), logits, labels, None) == 0.0
    assert accuracy(nn.Identity(), logits, labels, 3) == 2 / 3  # the second picture's best is class 2, of which there is none
    assert accuracy(nn.Identity(), logits, labels, 4) == 1 / 3


def test_the_rest_is_the_class_behind_the_answers():
    assert rest(tiny(rest=0.5)) == 4 and rest(tiny()) is None
