"""What is not finite never reaches the weights: such an update is left out on all processes, and many in a row end the run."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from train.processes import from_all


class Guard:
    """Watches the losses and gradients of a model. `seen` are the samples of a step."""

    def __init__(self, model: nn.Module, world: int) -> None:
        self.model, self.world = model, world
        norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
        self.moving = [buffer for norm in norms for buffer in norm.buffers()]  # which the forward pass changes
        self.before: list[Tensor] = []

    def remember(self) -> None:
        """Before a step."""
        self.before = [buffer.clone() for buffer in self.moving]

    def undo(self) -> None:
        """The model is as it was before the step, and has no gradients."""
        for buffer, value in zip(self.moving, self.before):
            buffer.copy_(value)
        self.model.zero_grad(set_to_none=True)

    def norm(self) -> Tensor:
        """Length of all gradients, a scalar; where each process has some rows of them, of those of all."""
        found = nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        return found.full_tensor() if isinstance(found, DTensor) else found

    def to_blame(self, seen: list[int], loss: float) -> list[int]:
        """The samples of all processes whose loss is not finite; of all of them, where gradients alone are not."""
        told = from_all((not math.isfinite(loss), seen), self.world)
        nowhere = not any(wrong for wrong, _ in told)
        return sorted(index for wrong, indices in told for index in indices if wrong or nowhere)


def too_many(in_a_row: int, step: int, samples: list[int]) -> ValueError:
    """The error that ends a run."""
    return ValueError(
        f"loss or gradients were not finite in {in_a_row} updates in a row (--max-skipped), at step {step} with samples "
        f"{', '.join(map(str, samples[:8]))}: lower --lr, or look at these samples"
    )
