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
from PIL import Image

from kstep.errors import Fault
from kstep.files import write_atomically
from kstep.types import Array

SUFFIXES = (".mp4", ".mkv", ".mov", ".gif", ".webp")
Add = Callable[[Array], None]
"""Takes the frames (H, W, 3) of a video, one after the other."""


@contextmanager
def video(path: Path, *, fps: float, quality: float = 5.0) -> Iterator[Add]:
    """Yield what takes the frames of a new video; nothing is left behind if that fails."""
    if path.suffix in (".gif", ".webp"):
        writing = _animation(path, fps)
    else:
        writing = _film(path, fps=fps, quality=quality, macro_block_size=2)
    with writing as add:
        yield add


@contextmanager
def _animation(path: Path, fps: float) -> Iterator[Add]:
    """GIF and WebP, for pages that show them like pictures; put together in memory."""
    frames: list[Image.Image] = []
    yield lambda frame: frames.append(Image.fromarray(frame))
    # A GIF counts hundredths of a second, and browsers play what is quicker than two slowly.
    duration = max(20, round(100 / fps) * 10) if path.suffix == ".gif" else round(1000 / fps)
    data, (first, *rest) = io.BytesIO(), frames
    kind = path.suffix.removeprefix(".")
    options = {"append_images": rest, "duration": duration, "loop": 0}
    first.save(data, kind, save_all=True, quality=80, **options)
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
