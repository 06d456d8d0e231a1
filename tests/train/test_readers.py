"""Clips and volumes read back as they were written, at the times and places their files tell; bad files are named."""

import builtins
import importlib
from fractions import Fraction

import numpy as np
import pytest
import torch
from PIL import Image

from train.draws import Seeded
from train.readers import ClipFolder, MedMNIST, VolumeFolder, read_clip, read_volume

av, nib, pydicom = (pytest.importorskip(name) for name in ("av", "nibabel", "pydicom"))
STAMPS = [0, 100, 200, 500, 900, 1000, 1500, 1600]  # milliseconds: a variable rate


def codecs() -> list[str]:
    """PyAV, and torchcodec where it finds FFmpeg."""
    try:
        importlib.import_module("torchcodec.decoders").VideoDecoder(b"")
    except ImportError:
        return ["pyav", "auto"]
    except (RuntimeError, ValueError) as error:
        return ["pyav", "auto"] + ([] if "Could not load libtorchcodec" in str(error) else ["torchcodec"])
    raise AssertionError("no video at all was decoded")


def write_video(path, stamps, size=(48, 64), start=0, codec="libx264"):
    """Frame i is grey 20 i, with a bright top left corner; key frames every fourth."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10, options={"crf": "5"})
        stream.height, stream.width, stream.pix_fmt, stream.gop_size = *size, "yuv420p", 4
        stream.codec_context.time_base = Fraction(1, 1000)
        for i, stamp in enumerate(stamps):
            picture = np.full((*size, 3), 20 * i, np.uint8)
            picture[:16, :16] = 255
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = start + stamp, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def which(clip):
    """The number of each frame, from its grey."""
    return (clip.frames[:, :, 24:, 24:].double().mean((0, 2, 3)) / 20).round().int().tolist()


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    return write_video(tmp_path_factory.mktemp("video") / "variable.mp4", STAMPS)


@pytest.mark.parametrize("backend", codecs())
def test_a_video_comes_back_with_its_frames_and_times(video, backend):
    clip = read_clip(video, backend=backend)
    assert clip.frames.shape == (3, 8, 48, 64) and clip.frames.dtype == torch.uint8 and clip.frames.is_contiguous()
    assert which(clip) == list(range(8)) and clip.frames[:, :, :12, :12].float().mean() > 245
    assert clip.seconds.dtype == torch.float64 and clip.seconds.tolist() == pytest.approx([s / 1000 for s in STAMPS], abs=1e-3)


@pytest.mark.parametrize("backend", codecs())
@pytest.mark.parametrize(
    ("asked", "frames", "fps"),
    [
        ({"seconds": (0.0, 1.6), "count": 4}, [2, 3, 5, 5], 2.5),  # the middles: 0.2, 0.6, 1.0, 1.4
        ({"seconds": (0.0, 1.6), "fps": 5.0}, [1, 2, 3, 3, 4, 5, 5, 6], 5.0),  # 0.1, 0.3, ..., 1.5
        ({"seconds": (0.25, None), "fps": 4.0, "count": 3}, [2, 3, 3], 4.0),  # 0.375, 0.625, 0.875
        ({"seconds": (0.3, 1.0)}, [2, 3, 4], None),  # every frame that is seen then
        ({"frames": [6, 0, 3]}, [6, 0, 3], None),
        ({"frames": range(1, 8, 3)}, [1, 4, 7], None),
    ],
)
def test_what_is_seen_at_a_time_is_the_last_frame_that_came_on(video, backend, asked, frames, fps):
    clip = read_clip(video, backend=backend, **asked)
    assert which(clip) == frames
    assert clip.seconds.tolist() == pytest.approx([STAMPS[i] / 1000 for i in frames], abs=1e-3)
    assert fps is None or clip.fps == pytest.approx(fps)


@pytest.mark.parametrize("backend", codecs())
def test_at_its_own_rate_every_frame_comes_once(tmp_path, backend):
    path = write_video(tmp_path / "even.mkv", range(0, 1200, 100))
    for asked in ({"fps": 10.0}, {"count": 12}):
        clip = read_clip(path, seconds=(0.0, 1.2), backend=backend, **asked)
        assert which(clip) == list(range(12)) and clip.fps == pytest.approx(10)
    assert read_clip(path, backend=backend).fps == pytest.approx(10, rel=0.02)
    assert which(read_clip(path, fps=5.0, backend=backend)) == [1, 3, 5, 7, 9, 11]


@pytest.mark.parametrize("backend", codecs())
def test_times_count_from_the_first_frame_wherever_the_file_begins(tmp_path, backend):
    for name in ("late.mkv", "late.ts"):
        path = write_video(tmp_path / name, range(0, 800, 100), start=90_000)
        if (name, backend) == ("late.ts", "torchcodec"):
            with pytest.raises(ValueError, match="use backend='pyav'"):
                read_clip(path, seconds=(0.2, 0.5), backend=backend)
            continue
        clip = read_clip(path, seconds=(0.2, 0.5), backend=backend)
        assert which(clip) == [2, 3, 4] and clip.seconds.tolist() == pytest.approx([0.2, 0.3, 0.4], abs=1e-3)


@pytest.mark.parametrize("backend", codecs())
def test_a_video_filmed_on_its_side_is_turned_upright(tmp_path, backend):
    """The header of an .mp4 track holds a matrix; a quarter turn clockwise is written into it."""
    data = write_video(tmp_path / "flat.mp4", range(0, 400, 100)).read_bytes()
    one, plain = (1 << 16).to_bytes(4, "big"), bytes(4)
    upright = one + plain * 3 + one + plain * 3 + (1 << 30).to_bytes(4, "big")
    turned = plain + one + plain + (-(1 << 16)).to_bytes(4, "big", signed=True) + plain * 4 + (1 << 30).to_bytes(4, "big")
    at = data.index(upright, data.index(b"tkhd"))
    (tmp_path / "side.mp4").write_bytes(data[:at] + turned + data[at + 36 :])
    clip = read_clip(tmp_path / "side.mp4", backend=backend)
    assert clip.frames.shape == (3, 4, 64, 48)
    corners = clip.frames[:, 0, :12, :12].float().mean(), clip.frames[:, 0, :12, -12:].float().mean()
    assert corners[0] < 50 and corners[1] > 240


@pytest.mark.parametrize("backend", codecs())
def test_a_damaged_video_is_named(tmp_path, video, backend):
    (tmp_path / "bad.mp4").write_bytes(b"nonsense" * 100)
    (tmp_path / "cut.mp4").write_bytes(video.read_bytes()[: video.stat().st_size // 2])
    for name in ("bad.mp4", "cut.mp4"):
        with pytest.raises(ValueError, match=name):
            read_clip(tmp_path / name, backend=backend)
    with pytest.raises(ValueError, match=r"gone\.mp4"):
        read_clip(tmp_path / "gone.mp4")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"seconds": (1.0, 9.0)}, r"variable\.mp4: 1 to 9 s"),
        ({"seconds": (1.0, 0.5)}, "1 to 0.5 s"),
        ({"seconds": (-1.0, 0.5)}, "-1 to 0.5 s"),
        ({"count": 100, "fps": 10.0}, "0 to 10 s"),
        ({"seconds": (0.0, 1.0), "count": 20, "fps": 10.0}, "last 2 s"),
        ({"count": 0}, "at least one frame"),
        ({"fps": -1.0}, "rate above 0"),
        ({"frames": [8]}, "from 0 to 7"),
        ({"frames": []}, "at least one"),
        ({"frames": [0], "count": 3}, "leave out"),
        ({"backend": "opencv"}, "torchcodec"),
    ],
)
def test_what_a_clip_does_not_have_is_said(video, asked, says):
    with pytest.raises(ValueError, match=says):
        read_clip(video, **{"backend": "pyav", **asked})


def test_a_missing_library_is_named_with_its_extra(video, tmp_path, monkeypatch):
    nib.save(nib.Nifti1Image(np.zeros((2, 2, 2), np.float32), np.eye(4)), tmp_path / "a.nii")
    (tmp_path / "series").mkdir()
    (tmp_path / "series" / "1.dcm").write_bytes(b"")
    known = builtins.__import__

    def refuse(name, *rest):
        if name.split(".")[0] in ("av", "torchcodec", "nibabel", "pydicom"):
            raise ImportError(f"No module named {name!r}")
        return known(name, *rest)

    monkeypatch.setattr(importlib, "import_module", lambda name: refuse(name))
    for read, path, extra in (
        (read_clip, video, "video"),
        (read_volume, tmp_path / "a.nii", "volume"),
        (read_volume, tmp_path / "series", "volume"),
    ):
        with pytest.raises(ImportError, match=rf"pip install 'rope_nd\[{extra}\]'"):
            read(path)


def test_a_folder_of_frames_is_in_natural_order(tmp_path):
    for i in range(12):
        Image.fromarray(np.full((48, 64, 3), 20 * i, np.uint8)).save(tmp_path / f"frame{i}.png")
    (tmp_path / "notes.txt").write_text("not a picture")
    clip = read_clip(tmp_path, source_fps=4.0)
    assert which(clip) == list(range(12)) and clip.seconds.tolist() == [i / 4 for i in range(12)] and clip.fps == 4
    assert which(read_clip(tmp_path, source_fps=4.0, seconds=(1.0, 3.0), count=4)) == [5, 7, 9, 11]
    assert which(read_clip(tmp_path, source_fps=4.0, fps=1.0)) == [2, 6, 10]
    with pytest.raises(ValueError, match="source_fps"):
        read_clip(tmp_path)
    Image.new("RGB", (8, 8)).save(tmp_path / "frame3.png")
    with pytest.raises(ValueError, match=r"frame3\.png: \(8, 8\) pixels"):
        read_clip(tmp_path, source_fps=4.0)
    (tmp_path / "frame3.png").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"frame3\.png"):
        read_clip(tmp_path, source_fps=4.0)


@pytest.mark.parametrize(("layout", "axes"), [("thwc", (0, 1, 2, 3)), ("tchw", (0, 3, 1, 2)), ("cthw", (3, 0, 1, 2))])
def test_arrays_in_any_layout_are_the_same_clip(tmp_path, layout, axes):
    held = np.random.default_rng(0).integers(256, size=(6, 5, 7, 3), dtype=np.uint8)  # [T, H, W, C]
    want = torch.from_numpy(held).permute(3, 0, 1, 2)
    np.save(tmp_path / "a.npy", held.transpose(axes))
    np.savez(tmp_path / "a.npz", frames=held.transpose(axes), fps=3.0)
    assert torch.equal(read_clip(tmp_path / "a.npy", source_fps=2.0, layout=layout).frames, want)
    clip = read_clip(tmp_path / "a.npz", layout=layout, frames=[4, 1])
    assert torch.equal(clip.frames, want[:, [4, 1]]) and clip.seconds.tolist() == pytest.approx([4 / 3, 1 / 3]) and clip.fps == 3


def test_a_grey_array_has_one_channel_and_wrong_ones_are_named(tmp_path):
    np.save(tmp_path / "grey.npy", np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
    assert read_clip(tmp_path / "grey.npy", source_fps=1.0).frames.flatten().tolist() == list(range(24))
    np.save(tmp_path / "real.npy", np.zeros((2, 3, 4)))
    np.save(tmp_path / "wide.npy", np.zeros((2, 3, 4, 5), np.uint8))
    np.save(tmp_path / "pickled.npy", np.array([{}], object))
    np.savez(tmp_path / "two.npz", a=np.zeros(1), b=np.zeros(1))
    (tmp_path / "broken.npz").write_bytes(b"PK" + bytes(50))
    for name, says in (
        ("real", "float64"),
        ("wide", "5 channels"),
        ("pickled", "pickle"),
        ("two", "a, b"),
        ("broken", "cannot be read"),
    ):
        with pytest.raises(ValueError, match=says) as raised:
            read_clip(next(tmp_path.glob(f"{name}.*")), source_fps=1.0)
        assert name in str(raised.value)


def places(volume):
    """Millimetres right, anterior, superior of every voxel, by its affine: float64 [D, H, W, 3]."""
    index = np.stack(np.meshgrid(*map(np.arange, volume.voxels.shape[1:]), indexing="ij"), -1)
    return index @ volume.affine[:3, :3].numpy().T + volume.affine[:3, 3].numpy()


def oblique(flips, order, spacing, tilt=0.2):
    """An affine whose axes are those of the patient, in another order and direction, and tilted a little."""
    c, s = np.cos(tilt), np.sin(tilt)
    turn = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]) @ np.array([[1, 0, 0], [0, c, -s], [0, s, c]])
    affine = np.eye(4)
    affine[:3, :3] = (turn * flips)[:, order] * spacing
    affine[:3, 3] = 5.0, -7.0, 11.0
    return affine


@pytest.mark.parametrize("flips", [(1, 1, 1), (-1, 1, 1), (-1, -1, 1), (1, -1, -1)])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 0, 2)])
def test_a_nifti_file_is_brought_to_one_orientation_and_no_voxel_moves(tmp_path, flips, order):
    affine = oblique(np.array(flips), list(order), np.array([0.8, 1.5, 3.0]))
    held = np.random.default_rng(0).integers(-500, 500, size=(4, 5, 6)).astype(np.int16)
    image = nib.Nifti1Image(held, affine)
    image.header.set_slope_inter(2.0, 10.0)
    image.header.set_xyzt_units("mm")
    nib.save(image, tmp_path / "a.nii.gz")
    volume, image = read_volume(tmp_path / "a.nii.gz"), nib.load(tmp_path / "a.nii.gz")
    known = nib.as_closest_canonical(image)
    assert volume.voxels.dtype == torch.float32 and torch.equal(
        volume.voxels[0], torch.tensor(known.get_fdata().copy()).permute(2, 1, 0).float()
    )
    assert np.allclose(volume.affine.numpy(), known.affine[:, [2, 1, 0, 3]], atol=1e-5)
    assert volume.spacing.tolist() == pytest.approx(list(known.header.get_zooms())[::-1], rel=1e-5)
    found = {tuple(np.round(p, 3)): v for p, v in zip(places(volume).reshape(-1, 3), volume.voxels[0].flatten().tolist())}
    index = np.stack(np.meshgrid(*map(np.arange, held.shape), indexing="ij"), -1).reshape(-1, 3)
    for i in index[::7]:
        there = np.round(image.affine[:3, :3] @ i + image.affine[:3, 3], 3)
        near = min(found, key=lambda p: np.abs(np.array(p) - there).max())
        assert np.abs(np.array(near) - there).max() < 2e-3 and found[near] == image.dataobj[tuple(i)]
    steps = volume.affine[:3, :3] / volume.spacing
    assert steps[2, 0] > 0.9 and steps[1, 1] > 0.9 and steps[0, 2] > 0.9  # z to the head, y to the front, x to the right


def test_a_fourth_axis_is_channels_and_units_become_millimetres(tmp_path):
    held = np.random.default_rng(0).random((3, 4, 5, 2)).astype(np.float32)
    image = nib.Nifti1Image(held, np.diag([250.0, 500, 1000, 1]))
    image.header.set_xyzt_units("micron")
    nib.save(image, tmp_path / "a.nii")
    volume = read_volume(tmp_path / "a.nii")
    assert torch.equal(volume.voxels, torch.from_numpy(held).permute(3, 2, 1, 0)) and volume.spacing.tolist() == [1.0, 0.5, 0.25]


def test_broken_nifti_files_are_named(tmp_path):
    nib.save(nib.Nifti1Image(np.zeros((9, 9, 9), np.float32), np.eye(4)), tmp_path / "a.nii.gz")
    whole = (tmp_path / "a.nii.gz").read_bytes()
    (tmp_path / "cut.nii.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "bad.nii").write_bytes(b"nonsense" * 100)
    (tmp_path / "a.txt").write_text("")
    nib.save(nib.Nifti1Image(np.zeros((4, 4), np.float32), np.eye(4)), tmp_path / "flat.nii")
    nib.save(
        nib.Nifti1Image(np.zeros((2, 2, 2), np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])), np.eye(4)), tmp_path / "rgb.nii"
    )
    for name in ("cut.nii.gz", "bad.nii", "a.txt", "flat.nii", "rgb.nii", "gone.nii"):
        with pytest.raises(ValueError, match=name):
            read_volume(tmp_path / name)


def write_slice(path, values, place, uid="1.2.3", row=(1, 0, 0), column=(0, 1, 0), spacing=(0.5, 0.25), **more):
    """One DICOM slice: stored values uint16, slope 2, intercept -1000."""
    meta = pydicom.dataset.FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = pydicom.uid.CTImageStorage, pydicom.uid.generate_uid()
    meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    found = pydicom.dataset.FileDataset(str(path), {}, file_meta=meta, preamble=bytes(128))
    found.SOPClassUID, found.SOPInstanceUID, found.Modality = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID, "CT"
    found.SeriesInstanceUID, found.Rows, found.Columns = uid, *values.shape
    found.ImagePositionPatient, found.ImageOrientationPatient = [float(x) for x in place], [float(x) for x in (*row, *column)]
    found.PixelSpacing, found.RescaleSlope, found.RescaleIntercept = list(spacing), 2, -1000
    found.BitsAllocated = found.BitsStored = 16
    found.HighBit, found.PixelRepresentation, found.SamplesPerPixel, found.PhotometricInterpretation = 15, 0, 1, "MONOCHROME2"
    found.PixelData = values.astype(np.uint16).tobytes()
    for name, value in more.items():
        setattr(found, name, value)
    found.save_as(path, enforce_file_format=True)


HELD = np.random.default_rng(0).integers(2000, size=(5, 4, 6))  # [k, row, column], k towards the head


def write_series(folder, heights=(0, 3, 6, 9, 12), **more):
    folder.mkdir(exist_ok=True)
    for i in (3, 0, 4, 1, 2)[: len(heights)]:
        write_slice(folder / f"{(i * 7) % 5}.dcm", HELD[i], (-10, 20, heights[i]), **more)
    return folder


def test_dicom_slices_are_put_in_order_by_where_they_lie(tmp_path):
    volume = read_volume(write_series(tmp_path / "series"))
    values = torch.from_numpy(HELD * 2.0 - 1000).float()
    assert torch.equal(volume.voxels[0], values.flip(1, 2))  # rows run to the back and columns to the left: y and x are flipped
    assert volume.spacing.tolist() == pytest.approx([3.0, 0.5, 0.25])
    corner = volume.affine @ torch.tensor([4.0, 3, 5, 1], dtype=torch.float64)  # the last voxel is the first row and column
    assert corner.tolist() == pytest.approx([10.0, -20.0, 12.0, 1.0])  # right = -left, anterior = -posterior


def test_a_sagittal_series_comes_in_the_same_orientation(tmp_path):
    (tmp_path / "s").mkdir()
    for i in range(5):  # columns run to the back, rows to the feet, slices to the left
        write_slice(tmp_path / "s" / f"{i}", HELD[i], (2.0 * i, -8.0, 30.0), row=(0, 1, 0), column=(0, 0, -1))
    volume = read_volume(tmp_path / "s")
    values = torch.from_numpy(HELD * 2.0 - 1000).float()  # [left, down, back]
    assert torch.equal(volume.voxels[0], values.permute(1, 2, 0).flip(0, 1, 2)) and volume.spacing.tolist() == [0.5, 0.25, 2.0]
    first = volume.affine @ torch.tensor([3.0, 5, 4, 1], dtype=torch.float64)
    assert first.tolist() == pytest.approx([0.0, 8.0, 30.0, 1.0])


def test_series_that_are_no_grid_are_refused_by_name(tmp_path):
    def refused(folder, says):
        with pytest.raises(ValueError, match=says):
            read_volume(folder)

    refused(write_series(tmp_path / "gap", heights=(0, 3, 6, 12, 15)), r"uneven spacing.*lie 6 mm apart, slices usually 3")
    refused(write_series(tmp_path / "twice", heights=(0, 3, 3, 6, 9)), r"uneven spacing.*lie 0 mm apart")
    write_slice(write_series(tmp_path / "size") / "9.dcm", HELD[0][:3], (-10, 20, 15))
    refused(tmp_path / "size", r"9\.dcm.*Rows 3|Rows 4.*9\.dcm")
    write_slice(write_series(tmp_path / "turned") / "9.dcm", HELD[0], (-10, 20, 15), row=(0, 1, 0), column=(1, 0, 0))
    refused(tmp_path / "turned", "ImageOrientationPatient")
    write_slice(write_series(tmp_path / "frames") / "9.dcm", HELD[0], (-10, 20, 15), NumberOfFrames=4)
    refused(tmp_path / "frames", r"9\.dcm: holds many frames")
    (write_series(tmp_path / "junk") / "9.dcm").write_bytes(b"nonsense" * 50)
    refused(tmp_path / "junk", r"9\.dcm: cannot be read as DICOM")
    write_slice(write_series(tmp_path / "short") / "9.dcm", HELD[0], (-10, 20, 15), PixelData=b"ab")
    refused(tmp_path / "short", r"9\.dcm: its pixels")
    (tmp_path / "sheared").mkdir()
    for i in range(5):
        write_slice(tmp_path / "sheared" / f"{i}.dcm", HELD[i], (-10, 20 + i, 3 * i))
    refused(tmp_path / "sheared", "tilted gantry")
    (tmp_path / "none").mkdir()
    refused(tmp_path / "none", "no DICOM files")


def test_of_two_series_one_is_chosen(tmp_path):
    write_series(tmp_path / "two")
    for i in range(2):
        write_slice(tmp_path / "two" / f"other{i}.dcm", HELD[i], (0, 0, i), uid="1.2.4")
    with pytest.raises(ValueError, match=r"1\.2\.3, 1\.2\.4"):
        read_volume(tmp_path / "two")
    assert read_volume(tmp_path / "two", series="1.2.4").voxels.shape == (1, 2, 4, 6)


def test_a_single_slice_is_as_thick_as_it_says(tmp_path):
    (tmp_path / "s").mkdir()
    write_slice(tmp_path / "s" / "1.dcm", HELD[0], (0, 0, 0))
    with pytest.raises(ValueError, match="SliceThickness"):
        read_volume(tmp_path / "s")
    write_slice(tmp_path / "s" / "1.dcm", HELD[0], (0, 0, 0), SliceThickness=4.0)
    assert read_volume(tmp_path / "s").spacing.tolist() == [4.0, 0.5, 0.25]


def write_medmnist(path, *shape, labels=None):
    rng = np.random.default_rng(0)
    held = {}
    for split, count in (("train", 6), ("val", 3), ("test", 4)):
        held[f"{split}_images"] = rng.integers(256, size=(count, *shape), dtype=np.uint8)
        held[f"{split}_labels"] = rng.integers(5, size=(count, labels or 1)).astype(np.uint8)
    np.savez(path, **held)
    return held


@pytest.mark.parametrize(("shape", "seen"), [((28, 28), (1, 28, 28)), ((28, 28, 3), (3, 28, 28)), ((28, 28, 28), (1, 28, 28, 28))])
def test_medmnist_pictures_and_volumes(tmp_path, shape, seen):
    held = write_medmnist(tmp_path / "m.npz", *shape)
    for split in ("train", "val", "test"):
        data = MedMNIST(tmp_path / "m.npz", split)
        image, label = data[2]
        assert image.shape == seen and image.dtype == torch.uint8 and len(data) == len(held[f"{split}_images"])
        want = held[f"{split}_images"][2]
        assert np.array_equal(image, want.transpose(2, 0, 1) if seen[0] == 3 else want[None])
        assert label == int(held[f"{split}_labels"][2, 0])


def test_wrong_medmnist_files_are_named(tmp_path):
    write_medmnist(tmp_path / "many.npz", 28, 28, labels=14)
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    (tmp_path / "bad.npz").write_bytes(b"nonsense")
    np.savez(tmp_path / "pickled.npz", train_images=np.array([{}], object), train_labels=np.zeros(1, int))
    np.savez(tmp_path / "real.npz", train_images=np.zeros((2, 4, 4)), train_labels=np.zeros(2, int))
    np.savez(tmp_path / "uneven.npz", train_images=np.zeros((2, 4, 4), np.uint8), train_labels=np.zeros(3, int))
    for name in ("many", "other", "bad", "pickled", "real", "uneven", "gone"):
        with pytest.raises(ValueError, match=name):
            MedMNIST(tmp_path / f"{name}.npz", "train")
    with pytest.raises(ValueError, match="train, val, test"):
        MedMNIST(tmp_path / "many.npz", "dev")


def test_a_folder_of_clips_has_a_class_a_folder(tmp_path):
    for name in ("walk", "run"):
        (tmp_path / name / "frames").mkdir(parents=True)
    write_video(tmp_path / "run" / "b.mp4", range(0, 1000, 100))
    write_video(tmp_path / "walk" / "a10.mp4", range(0, 1000, 100))
    np.save(tmp_path / "walk" / "a2.npy", np.full((10, 20, 30, 3), 7, np.uint8))
    for folder in ("walk", "run"):
        for i in range(10):
            Image.new("RGB", (32, 24), (i, i, i)).save(tmp_path / folder / "frames" / f"{i}.png")
    data = ClipFolder(tmp_path, count=4, fps=10.0, size=16, source_fps=10.0)
    assert data.classes == ["run", "walk"] and data.labels == [0, 0, 1, 1, 1]
    assert [path.name for path in data.files] == ["b.mp4", "frames", "a2.npy", "a10.mp4", "frames"]
    clips, labels = next(iter(torch.utils.data.DataLoader(data, batch_size=5)))
    assert clips.shape == (5, 3, 4, 16, 16) and clips.dtype == torch.uint8 and labels.tolist() == data.labels
    assert data.read(1).seconds.tolist() == pytest.approx([0.3, 0.4, 0.5, 0.6]) and clips[1, 0, :, 8, 8].tolist() == [3, 4, 5, 6]
    first = ClipFolder(tmp_path, count=4, fps=10.0, start="first", source_fps=10.0)
    assert first.read(1).seconds.tolist() == pytest.approx([0.0, 0.1, 0.2, 0.3]) and first[1][0].shape == (3, 4, 24, 32)
    starts = [
        ClipFolder(tmp_path, count=4, fps=10.0, start="random", seed=s, source_fps=10.0).read(1).seconds[0].item() for s in range(9)
    ]
    assert len(set(starts)) > 2 and max(starts) <= 0.6 + 1e-9
    seeded = Seeded(ClipFolder(tmp_path, count=4, fps=10.0, start="random", source_fps=10.0), seed=3)
    windows = [[int(seeded[epoch, 1][0][0, 0, 0, 0]) for epoch in range(9)] for _ in range(2)]
    assert windows[0] == windows[1] and len(set(windows[0])) > 2  # another an epoch, and again the same
    assert windows[0] != [int(Seeded(seeded.source, seed=4)[epoch, 1][0][0, 0, 0, 0]) for epoch in range(9)]
    whole = ClipFolder(tmp_path, count=5, source_fps=10.0)
    assert whole.read(1).seconds.tolist() == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9])


def test_resized_frames_keep_their_middle(tmp_path):
    picture = np.zeros((4, 20, 60, 3), np.uint8)
    picture[:, :, 20:40] = 200
    (tmp_path / "a").mkdir()
    np.save(tmp_path / "a" / "x.npy", picture)
    clip, _ = ClipFolder(tmp_path, count=2, size=(10, 10), source_fps=1.0)[0]
    assert clip.shape == (3, 2, 10, 10) and (clip[:, :, :, 1:-1] == 200).all()


def test_a_folder_of_volumes_has_a_class_a_folder(tmp_path):
    (tmp_path / "b").mkdir()
    write_series(tmp_path / "a0")
    (tmp_path / "a").mkdir()
    (tmp_path / "a0").rename(tmp_path / "a" / "series")
    nib.save(
        nib.Nifti1Image(np.arange(27, dtype=np.float32).reshape(3, 3, 3), np.diag([1.0, 2, 3, 1])), tmp_path / "b" / "v.nii.gz"
    )
    data = VolumeFolder(tmp_path, size=(4, 4, 4))
    assert data.classes == ["a", "b"] and data.labels == [0, 1] and data.read(1).spacing.tolist() == [3.0, 2.0, 1.0]
    volumes, labels = next(iter(torch.utils.data.DataLoader(data, batch_size=2)))
    assert volumes.shape == (2, 1, 4, 4, 4) and volumes.dtype == torch.float32 and labels.tolist() == [0, 1]
    whole = VolumeFolder(tmp_path)[1][0]
    assert whole.mean().abs() < 1e-6 and whole.std() == pytest.approx(1) and torch.equal(volumes[1, :, :3, :3, :3], whole)
    assert (volumes[1, :, 3] == whole.min()).all()
    assert VolumeFolder(tmp_path, window=(5.0, 15.0))[1][0].flatten()[[0, 9, 26]].tolist() == pytest.approx([-1.0, -1.0, 1.0])
    assert torch.equal(volumes[0], VolumeFolder(tmp_path)[0][0][:, :4, :, 1:5])


def test_folders_without_data_are_named(tmp_path):
    with pytest.raises(ValueError, match="no such folder"):
        ClipFolder(tmp_path / "gone", count=4)
    with pytest.raises(ValueError, match="no class folders"):
        VolumeFolder(tmp_path)
    (tmp_path / "empty").mkdir()
    for make, what in ((lambda: ClipFolder(tmp_path, count=4), "clips"), (lambda: VolumeFolder(tmp_path), "volumes")):
        with pytest.raises(ValueError, match=f"empty: this class has no {what}"):
            make()
    with pytest.raises(ValueError, match="first, middle or random"):
        ClipFolder(tmp_path, count=4, start="last")
    with pytest.raises(ValueError, match="low first"):
        VolumeFolder(tmp_path, window=(5.0, 1.0))
