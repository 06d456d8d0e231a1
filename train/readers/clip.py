"""One clip from a video file, a folder of frames, or an array; sampled by seconds or by frame numbers.

Times are presentation times in seconds from the first frame, so a variable frame rate is no special case: at time s one sees the
last frame whose time is at most s. Sampling cuts the window into equal parts, and takes the frame seen in the middle of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
from torch import Tensor

from rope_nd._check import choose
from train.bad import MAX_PIXELS, BadFile
from train.readers.sources import ARRAYS, Array, Frames, Layout, Source
from train.readers.video import Backend, open_video


class Clip(NamedTuple):
    frames: Tensor  # uint8 [C, T, H, W]
    seconds: Tensor  # float64 [T], when each frame came on
    fps: float  # frames a second: what was sampled at, or else the mean of the file


def open_clip(
    path: Path,
    *,
    source_fps: float | None = None,
    layout: Layout = "thwc",
    backend: Backend = "auto",
    threads: int = 1,
    max_pixels: int = MAX_PIXELS,
) -> Source:
    """What `read_clip` reads from, opened: see there."""
    choose("layout", layout, get_args(Layout))
    if not path.exists():
        raise ValueError(f"{path}: there is no such file or folder")
    if path.is_dir():
        return Frames(path, source_fps, max_pixels)
    if path.suffix.lower() in ARRAYS:
        return Array(path, source_fps, layout, max_pixels)
    return open_video(path, backend, threads, max_pixels)


def sample(
    source: Source,
    what: object,
    *,
    seconds: tuple[float, float | None] | None = None,
    frames: Sequence[int] | None = None,
    count: int | None = None,
    fps: float | None = None,
) -> Clip:
    """A clip out of an opened source; `what` names it in errors."""
    if frames is not None:
        if seconds is not None or count is not None or fps is not None:
            raise ValueError("frames says which frames to take: leave out seconds, count and fps")
        if not len(frames) or not all(0 <= n < source.length for n in frames):
            raise ValueError(f"{what}: frames {list(frames)}: give at least one, from 0 to {source.length - 1}")
        return clip(*source.at(frames), source.fps)
    start, stop = window(source, what, seconds, count, fps)
    if count is None and fps is None:
        return clip(*source.during(start, stop), source.fps)
    middles, rate = moments(start, stop, count, fps)
    return clip(*source.shown(np.minimum(middles, source.duration - 1e-6).tolist()), rate)


def window(
    source: Source, what: object, seconds: tuple[float, float | None] | None, count: int | None, fps: float | None
) -> tuple[float, float]:
    """From when to when, checked; the end may be missed by less than a frame."""
    if (count is not None and count < 1) or (fps is not None and not 0 < fps < float("inf")):
        raise ValueError(f"{count=}, {fps=}: at least one frame, and a rate above 0")
    start, stop = seconds or (0.0, None)
    lasts = count / fps if count is not None and fps is not None else 0.0
    end = stop if stop is not None else start + lasts if lasts else source.duration
    if not 0 <= start < end or end >= source.duration + 1 / source.fps:
        raise BadFile(f"{what}: {start:g} to {end:g} s were asked of a clip of {source.duration:g} s")
    if lasts > end - start + 1e-6:
        raise ValueError(f"{what}: {count} frames at {fps:g} a second last {lasts:g} s, but from {start:g} to {end:g} s were asked")
    return start, min(end, source.duration)


def moments(start: float, stop: float, count: int | None, fps: float | None) -> tuple[np.ndarray, float]:
    """The middles of equal parts of the window, in seconds, and how many there are a second."""
    step = 1 / fps if fps is not None else (stop - start) / (count or 1)
    number = count if count is not None else max(1, int((stop - start) / step + 1e-6))
    return start + (np.arange(number) + 0.5) * step, 1 / step


def clip(frames: Tensor, seconds: Tensor, fps: float) -> Clip:
    """From frames [T, C, H, W]."""
    return Clip(frames.transpose(0, 1).contiguous(), seconds, fps)


def read_clip(
    path: str | Path,
    *,
    seconds: tuple[float, float | None] | None = None,
    frames: Sequence[int] | None = None,
    count: int | None = None,
    fps: float | None = None,
    source_fps: float | None = None,
    layout: Layout = "thwc",
    backend: Backend = "auto",
    max_pixels: int = MAX_PIXELS,
) -> Clip:
    """A clip of a video file, a folder of frames, or an .npy or .npz file.

    seconds     from when to when (None: to the end); default all
    count, fps  how many frames, evenly spread, or how many a second, or both: count / fps seconds from the start.
                Neither: every frame that is seen in that time
    frames      instead of all these: the numbers of the frames to take
    source_fps  the rate of frame folders and arrays, which do not say
    layout      axes of an array with channels; one without is [T, H, W]
    backend     video files: torchcodec where it loads (it needs FFmpeg), otherwise PyAV
    max_pixels  of a frame, or of all frames in an .npz file, by the header; more is an error

    The times are those at which the frames came on, from the first frame of the file; a frame that is seen longer than the sampling
    step comes twice, with one time.
    """
    source = open_clip(Path(path), source_fps=source_fps, layout=layout, backend=backend, max_pixels=max_pixels)
    return sample(source, path, seconds=seconds, frames=frames, count=count, fps=fps)
