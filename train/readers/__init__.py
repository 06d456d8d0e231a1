"""Clips and volumes from files. Each library is imported on first use, and if missing, the error says what to install.

read_clip("walk.mp4", seconds=(2.0, 4.0), fps=8)        # Clip: frames uint8 [3, 16, H, W], seconds [16], fps
read_clip("frames/", source_fps=25, count=8)            # a folder of pictures; .npy and .npz alike
read_volume("brain.nii.gz")                             # Volume: voxels float32 [C, D, H, W], spacing [3] mm, affine
read_volume("series/")                                  # a folder of DICOM slices
ClipFolder("videos/train", count=8, fps=8, size=112)    # one folder a class; VolumeFolder alike
VolumeFolder("scans/train", spacing=(2, 2, 2))          # voxels averaged to about 2 mm; spaced=True gives each its true spacing
MedMNIST("organmnist3d.npz", "train")                   # pictures or volumes
"""

from train.readers.clip import Clip, read_clip
from train.readers.folder import ClipFolder, VolumeFolder
from train.readers.medmnist import MedMNIST
from train.readers.space import Volume
from train.readers.volume import read_volume

__all__ = ["Clip", "ClipFolder", "MedMNIST", "Volume", "VolumeFolder", "read_clip", "read_volume"]
