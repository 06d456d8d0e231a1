"""One complex multiplication: the fastest eager path for the interleaved layout in float32 and float64."""

import torch
from torch import Tensor


def supports(x: Tensor, pairs: int, layout: str) -> bool:
    """Interleaved pairs, whole width, float32 or float64, on a device with complex numbers, outside compiled graphs."""
    return (
        layout == "interleaved"
        and x.shape[-1] == 2 * pairs
        and x.dtype in (torch.float32, torch.float64)
        and x.device.type in ("cpu", "cuda")
        and x.stride(-1) == 1
        and not torch.compiler.is_compiling()
    )


def rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """(a + i b) (cos + i sin), the pair read as one complex number."""
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.complex(cos, sin)
    return torch.view_as_real(turned).flatten(-2)
