"""DINOv2 at high resolution: patch features at one, two and four times a size, as colours side by side.

    python examples/dinov2_features.py --weights dinov2_vits14.pth --image PHOTO.jpg --size 224
    python examples/dinov2_features.py --retrofitted runs/retrofit/NAME --image PHOTO.jpg

With `keep_pos_embed=True` and `strength=0.0` the wrapped model is the original, whose table is resized to every input, as DINOv2
does it (without smoothing). `--retrofitted` takes a model that `python -m train.retrofit` gave rotary positions instead.
Without weights the features are those of a random model, which shows how the parts go together and nothing else.
"""

from pathlib import Path

import timm
import torch
import tyro
from PIL import Image, ImageDraw
from timm.models import load_checkpoint
from torch import nn

from rope_nd import hub, wrap
from rope_nd.look import picture, view
from rope_nd.pictures import save


def original(weights: Path | None) -> nn.Module:
    """DINOv2's ViT-S/14, unchanged in what it computes, at any size."""
    model = timm.create_model("vit_small_patch14_dinov2", num_classes=0, dynamic_img_size=True)
    if weights is not None:
        load_checkpoint(model, str(weights), weights_only=True)
    expected = model.eval()(zeros := torch.zeros(1, 3, 518, 518)) if weights is not None else None
    wrapped = wrap(model, "dinov3", keep_pos_embed=True, strength=0.0, antialias=False).eval()
    if expected is not None:
        print(f"at 518 px it differs from timm's by {(wrapped(zeros) - expected).abs().max():.1e}")
    return wrapped


def shapes() -> Image.Image:
    """A picture, where none is given."""
    image = Image.new("RGB", (448, 448), "seagreen")
    draw = ImageDraw.Draw(image)
    draw.ellipse((60, 80, 220, 240), fill="gold")
    draw.rectangle((250, 220, 400, 400), fill="firebrick")
    return image


@torch.no_grad()
def main(
    weights: Path | None = None,
    image: Path | None = None,
    retrofitted: Path | None = None,
    size: int = 224,
    output: Path = Path("dinov2_features.png"),
) -> None:
    """Write a picture of features and attention at three sizes.

    Args:
        weights: DINOv2's ViT-S/14, as timm or Meta has it (default: random).
        image: A photo (default: two shapes).
        retrofitted: Folder of a retrofit, instead of the original.
        size: The least of the sizes: the longer side in pixels, rounded to patches of 14.
        output: Where to write.
    """
    torch.manual_seed(0)
    model = original(weights) if retrofitted is None else hub.load(retrofitted)
    photo = shapes() if image is None else Image.open(image)
    views = [view(model, photo, factor * size) for factor in (1, 2, 4)]
    output.write_bytes(save(picture(views)))
    for one in views:
        h, w = one.features.shape[:2]
        print(f"{h} x {w} tokens: attention {one.distance:.1f} tokens wide")
    print(output)


if __name__ == "__main__":
    tyro.cli(main)
