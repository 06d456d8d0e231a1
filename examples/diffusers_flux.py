"""A diffusers transformer with our tables: the same outputs at its own size, and stretched ones at larger sizes.

    python examples/diffusers_flux.py --tokens 8 16 24 --scaling yarn

`FluxTransformer2DModel` asks its `pos_embed` for cosines and sines of `ids [N, 3]` (image number, row, column; text is at 0, 0, 0).
`Tables` answers with the preset `flux`; with a scaling it knows how large a grid was in training, and how large this one is. The
model is a small one with random weights: what is shown is that nothing changes where nothing should, and what a rule changes.
"""

import torch
import tyro
from diffusers import FluxTransformer2DModel
from torch import Tensor, nn

from rope_nd import RoPE, grid

HEAD, SHARES = 32, (4, 14, 14)  # channels of a head, and how axes share them
TEXT = 5  # tokens


class Tables(nn.Module):
    """The preset `flux` in the place of diffusers' FluxPosEmbed."""

    def __init__(self, trained: int, scaling: str | None = None) -> None:
        super().__init__()
        self.rope = RoPE.preset("flux", HEAD, scaling=scaling, trained_extent=(1, trained, trained))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        extent = tuple((ids.amax(0) + 1).int().tolist())
        rotation = self.rope(ids, extent=extent)
        cos, sin = (table.repeat_interleave(2, dim=-1) for table in (rotation.cos, rotation.sin))  # [N, D]
        return cos, sin


def small() -> FluxTransformer2DModel:
    """One block of each kind, two heads."""
    widths = {"in_channels": 4, "joint_attention_dim": 16, "pooled_projection_dim": 8, "axes_dims_rope": SHARES}
    return FluxTransformer2DModel(num_layers=1, num_single_layers=1, attention_head_dim=HEAD, num_attention_heads=2, **widths)


def inputs(side: int) -> dict[str, Tensor]:
    """Latents of a square image, and a text."""
    random = torch.Generator().manual_seed(0)
    return {
        "hidden_states": torch.randn(1, side * side, 4, generator=random),
        "encoder_hidden_states": torch.randn(1, TEXT, 16, generator=random),
        "pooled_projections": torch.randn(1, 8, generator=random),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.cat((torch.zeros(side * side, 1), grid(side, side)), dim=-1),
        "txt_ids": torch.zeros(TEXT, 3),
    }


@torch.no_grad()
def main(tokens: tuple[int, ...] = (8, 16, 24), scaling: str = "yarn") -> None:
    """Compare outputs with diffusers' own tables, ours, and ours stretched.

    Args:
        tokens: Sides of the image in tokens; the first is the size of training.
        scaling: The rule above it: pi, ntk, yarn, ..
    """
    torch.manual_seed(0)
    model = small().eval()
    theirs = model.pos_embed
    for side in tokens:
        found = {}
        for name, tables in (("diffusers", theirs), ("ours", Tables(tokens[0])), (scaling, Tables(tokens[0], scaling))):
            model.pos_embed = tables
            found[name] = model(**inputs(side)).sample
        same, stretched = ((found[name] - found["diffusers"]).abs().max() for name in ("ours", scaling))
        print(f"{side} x {side} tokens: ours differs by {same:.1e}, {scaling} by {stretched:.1e}")


if __name__ == "__main__":
    tyro.cli(main)
