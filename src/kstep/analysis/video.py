"""Videos, written completely or not at all."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import imageio_ffmpeg

from kstep.errors import Fault
from kstep.files import write_atomically
from kstep.types import Array

Add = Callable[[Array], None]
"""Takes the frames (H, W, 3) of a video, one after the other."""


@contextmanager
def video(path: Path, *, fps: float, quality: float = 5.0) -> Iterator[Add]:
    """Yield what takes the frames of a new video; nothing is left behind if that fails."""
    if path.suffix == ".gif":
        writing = _animation(path, duration=1000.0 / fps)
    else:
        writing = _film(path, fps=fps, quality=quality, macro_block_size=2)
    with writing as add:
        yield add


@contextmanager
def _animation(path: Path, **options: Any) -> Iterator[Add]:
    """GIF, which is put together in memory."""
    data = io.BytesIO()
    writer: Any = imageio.get_writer(data, format="gif", **options)
    with writer:
        yield writer.append_data
    write_atomically(path, data.getvalue())


@contextmanager
def _film(path: Path, **options: Any) -> Iterator[Add]:
    """Everything else, by a process of ffmpeg."""
    aside, frames = path.with_name(f"{path.stem}.part{path.suffix}"), 0
    writer: Any = imageio.get_writer(aside, ffmpeg_log_level="quiet", **options)

    @contextmanager
    def watched() -> Iterator[None]:
        """Name the cause: on a full disk ffmpeg ends, and writing to it is a broken pipe."""
        try:
            yield
        except (OSError, RuntimeError) as error:
            free = shutil.disk_usage(aside.parent).free / 1e6
            raise Fault(
                f"{path} could not be written: the video encoder ended early. {free:,.0f} MB are "
                "free on its disk; if that is too little, free some space and rerun the command"
            ) from error

    def add(frame: Array) -> None:
        nonlocal frames
        with watched():
            writer.append_data(frame)
        frames += 1

    try:
        yield add
        with watched():
            writer.close()
            # How ffmpeg ended is not reported, so its work is looked at.
            if imageio_ffmpeg.count_frames_and_secs(aside)[0] != frames:
                raise OSError("frames are missing")
        aside.rename(path)
    finally:
        with suppress(OSError, RuntimeError):
            writer.close()  # ends the process, whatever became of its file
        aside.unlink(missing_ok=True)
