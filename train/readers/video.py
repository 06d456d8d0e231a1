"""Video files: torchcodec where it is installed and finds FFmpeg, PyAV (which brings its own) otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from rope_nd._check import choose
from train.bad import BadFile, check_size, naming
from train.readers.need import need
from train.readers.sources import Source, Timed

Backend = Literal["auto", "torchcodec", "pyav"]
STREAMS = ".ts", ".m2ts", ".mts", ".mpg", ".mpeg", ".vob"  # without an index: in these torchcodec lands behind what was asked for


def open_video(path: Path, backend: Backend, threads: int, most: int) -> Source:
    choose("backend", backend, get_args(Backend))
    if backend == "auto" and path.suffix.lower() in STREAMS:
        return Av(path, threads, most)
    if backend != "pyav" and (decoder := torchcodec(path, threads, must=backend == "torchcodec")) is not None:
        return Codec(path, decoder, most)
    return Av(path, threads, most)


def torchcodec(path: Path, threads: int, must: bool) -> Any:
    """A torchcodec decoder of the file; None, or an ImportError if it must be, where torchcodec or its FFmpeg is missing."""
    try:
        decoders = need("torchcodec.decoders", "video")
        return decoders.VideoDecoder(str(path), num_ffmpeg_threads=threads)  # exact seeking: it reads all presentation times
    except ImportError:
        if must:
            raise
    except (RuntimeError, ValueError) as error:
        if "Could not load libtorchcodec" not in str(error):
            raise BadFile(f"{path}: cannot be read as a video: {error}") from None
        if must:
            raise ImportError("torchcodec finds no FFmpeg that it knows: install FFmpeg, or use backend='pyav'") from error
    return None


class Codec(Source):
    """A file that torchcodec reads."""

    def __init__(self, path: Path, decoder: Any, most: int) -> None:
        facts, self.path, self.decoder = decoder.metadata, path, decoder
        with naming(f"{path}: cannot be read as a video"):
            check_size((facts.height, facts.width), most)
        if not facts.num_frames:
            raise BadFile(f"{path}: holds no video frames")
        self.begin, self.length, self.fps = facts.begin_stream_seconds, facts.num_frames, facts.average_fps
        self.duration = facts.end_stream_seconds - self.begin

    def _read(self, ask: Callable[..., Any], *given: Any) -> tuple[Tensor, Tensor]:
        try:
            found = ask(*given)
        except RuntimeError as error:
            raise BadFile(f"{self.path}: cannot be decoded: {error}") from None
        return found.data, found.pts_seconds - self.begin

    def at(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self._read(self.decoder.get_frames_at, list(numbers))

    def shown(self, seconds: Sequence[float]) -> tuple[Tensor, Tensor]:
        return self._seen(seconds, *self._read(self.decoder.get_frames_played_at, [self.begin + s for s in seconds]))

    def during(self, start: float, stop: float) -> tuple[Tensor, Tensor]:
        return self._seen([start], *self._read(self.decoder.get_frames_played_in_range, self.begin + start, self.begin + stop))

    def _seen(self, seconds: Sequence[float], frames: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        """Frames and times as they are, if no frame came on after the time it was asked for."""
        if (times[: len(seconds)] > torch.tensor(seconds, dtype=torch.float64) + 1e-3).any():
            raise ValueError(f"{self.path}: torchcodec does not find the frames asked for in it: use backend='pyav'")
        return frames, times


class Av(Timed):
    """A file that PyAV reads: the presentation times of all packets first, then the frames asked for, from the key frame before."""

    def __init__(self, path: Path, threads: int, most: int) -> None:
        self.av, self.path, self.threads, self.most = need("av", "video"), path, threads, most
        self.stamps, step, last = self._guarded(self._scan)
        if not self.stamps:
            raise BadFile(f"{path}: holds no video frames")
        self.times = np.array([float((stamp - self.stamps[0]) * step) for stamp in self.stamps])
        self.duration = self.times[-1] + float(last * step) or 1.0  # a lone frame that does not say lasts a second
        self.length, self.fps = len(self.stamps), len(self.stamps) / self.duration

    def _guarded(self, read: Callable[..., Any], *given: Any) -> Any:
        with naming(f"{self.path}: cannot be read as a video"), self.av.open(str(self.path)) as container:
            if not container.streams.video:
                raise BadFile(f"{self.path}: holds no video stream")
            stream = container.streams.video[0]
            stream.codec_context.thread_count = self.threads
            check_size((stream.codec_context.height, stream.codec_context.width), self.most)
            return read(container, stream, *given)

    def _scan(self, container: Any, stream: Any) -> tuple[list[int], Any, int]:
        """Presentation times, their unit in seconds, and how long the last frame is seen; decoded only if packets do not tell."""
        packets = [packet for packet in container.demux(stream) if packet.size and not packet.is_discard]
        if any(packet.pts is None for packet in packets):
            container.seek(0, stream=stream)
            packets = [frame for frame in container.decode(stream) if frame.pts is not None]
        packets.sort(key=lambda packet: packet.pts)
        known = [packet.pts for packet in packets]
        steps = np.diff(known)
        last = packets[-1].duration or (int(np.median(steps)) if len(steps) else 0) if packets else 0
        return known, stream.time_base, last

    def take(self, numbers: Sequence[int]) -> Tensor:
        wanted = {self.stamps[n] for n in numbers}
        found = self._guarded(self._decode, wanted, min(wanted))
        if len(found) < len(wanted):  # not every file can be searched: from the beginning
            found = self._guarded(self._decode, wanted, None)
        if missing := sorted(wanted - found.keys()):
            raise BadFile(f"{self.path}: {len(missing)} of {len(wanted)} frames cannot be decoded: the file is damaged")
        return torch.from_numpy(np.stack([found[self.stamps[n]] for n in numbers])).permute(0, 3, 1, 2)

    def _decode(self, container: Any, stream: Any, wanted: set[int], begin: int | None) -> dict[int, np.ndarray]:
        """The frames [H, W, 3] of these presentation times, the right way up, decoded from the key frame at or before `begin`."""
        if begin is not None:
            container.seek(begin, stream=stream)
        found: dict[int, np.ndarray] = {}
        for frame in container.decode(stream):
            if frame.pts in wanted:
                found[frame.pts] = np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90))
            if len(found) == len(wanted):
                break
        return found
