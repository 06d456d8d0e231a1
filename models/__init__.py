"""Ready models of images, clips and volumes, registered with timm: `import models`, then `timm.create_model` knows their names.

    timm.create_model("rope_vit_small_patch16_224")                         # [B, 3, H, W]
    timm.create_model("rope_video_vit_small_patch16_224", encoding="mixed")  # [B, 3, T, H, W]
    timm.create_model("rope_volume_vit_small_patch16_96", num_classes=11)    # [B, 1, D, H, W]

None has pretrained weights. `models.video.from_image` and `models.volume.from_image` start from a model of images.
"""

from models import image, video, volume

NAMES = (*image.default_cfgs, *video.default_cfgs, *volume.default_cfgs)

__all__ = ["NAMES", "image", "video", "volume"]
