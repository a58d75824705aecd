"""Videos, written completely or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import imageio_ffmpeg

from kstep.errors import Fault
from kstep.types import Array


class Video:
    """Takes frames (H, W, 3) of bytes, one after the other."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path, self.frames = path, 0
        self._writer: Any = imageio.get_writer(path, macro_block_size=2, **options)

    def add(self, frame: Array) -> None:
        with self._watched():
            self._writer.append_data(frame)
        self.frames += 1

    def close(self) -> None:
        """End the file, and raise if not all of it is there."""
        with self._watched():
            self._writer.close()
            # How the encoder ended is not reported, so its work is looked at.
            if self.path.suffix != ".gif":
                complete = imageio_ffmpeg.count_frames_and_secs(self.path)[0] == self.frames
                if not complete:
                    raise OSError("frames are missing")

    def abandon(self) -> None:
        """End the encoder's process, whatever became of its file."""
        with suppress(OSError, RuntimeError):
            self._writer.close()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Name the cause: an encoder that dies on a full disk only closes its pipe."""
        try:
            yield
        except (OSError, RuntimeError) as error:
            free = shutil.disk_usage(self.path.parent).free
            raise Fault(
                f"{self.path.name} could not be written: the video encoder ended early. "
                f"{free / 1e6:,.0f} MB are free on its disk; if that is too little, free some "
                "space and rerun the command"
            ) from error


@contextmanager
def video(path: Path, **options: Any) -> Iterator[Video]:
    """Yield what takes the frames of a new video; nothing is left behind if that fails."""
    aside = path.with_name(f"{path.stem}.part{path.suffix}")
    film = Video(aside, **options)
    try:
        try:
            yield film
        except BaseException:
            film.abandon()
            raise
        film.close()
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)
