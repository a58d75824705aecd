"""Files that are written completely or not at all, and only where they belong.

Whatever is written into a run folder goes through its `Tree`. Below a tree's root no link is
followed: a folder from somebody else may hold, in place of any file, a link to one of ours, a pipe
or a device.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from kstep.errors import KstepError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
"""What may have the name of a file or folder without being one."""


class Tree:
    """A folder in and below which files are written, and nowhere else.

    Its root is wherever that path leads. What a method has made or renamed survives a power cut
    once the method has returned.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def make(self, folder: Path) -> None:
        """Make a folder where it is missing, and those that it is in, the root's own included."""
        missing = [path for path in (self.root, *self.root.parents) if not path.is_dir()]
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            _sync(path.parent)
        for path in self._down_to(folder):
            with self._beside(path) as parent, suppress(FileExistsError):
                os.mkdir(path.name, dir_fd=parent)
                os.fsync(parent)
        with self._opened(folder):
            pass

    def write(self, path: Path, data: bytes) -> None:
        """Write aside, flush to disk, rename. Where that fails, nothing of it is left."""
        aside = part_of(path).name
        with self._beside(path) as parent:
            with suppress(FileNotFoundError):
                os.unlink(aside, dir_fd=parent)
            try:
                with _new_file(aside, parent) as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(aside, path.name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(aside, dir_fd=parent)
                raise
            os.fsync(parent)

    def write_json(self, path: Path, value: Any) -> None:
        self.write(path, (json.dumps(value, indent=1) + "\n").encode())

    def replace(self, path: Path) -> BinaryIO:
        """Open a new, empty file in place of whatever file has its name."""
        with self._beside(path) as parent:
            with suppress(FileNotFoundError):
                os.unlink(path.name, dir_fd=parent)
            file = _new_file(path.name, parent)
            os.fsync(parent)
            return file

    def open(self, path: Path) -> BinaryIO:
        """Open a file for reading and appending, making it where it is missing.

        A file with a second name elsewhere is refused: it would change there too.
        """
        # Without O_NONBLOCK, opening a pipe would wait for somebody at its other end.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self._beside(path) as parent:
            descriptor = os.open(path.name, flags, 0o666, dir_fd=parent)
            try:
                _refuse_kind(path, os.fstat(descriptor), hard_links=True)
                os.fsync(parent)
            except BaseException:
                os.close(descriptor)
                raise
            return os.fdopen(descriptor, "ab+")

    def append_line(self, path: Path, line: str) -> None:
        """Add a line to a file of lines, after the end of one whose writer was killed."""
        data = line.encode() + b"\n"
        with self.open(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            if file.read() not in (b"", b"\n"):
                data = b"\n" + data
            file.write(data)

    def rename(self, path: Path, name: str) -> Path:
        """Give a file or folder another name in the folder that it is in."""
        with self._beside(path) as parent:
            os.rename(path.name, name, src_dir_fd=parent, dst_dir_fd=parent)
            os.fsync(parent)
        return path.with_name(name)

    def remove(self, path: Path) -> None:
        """Remove a file, a link or a folder with all that is in it, if there is one."""
        with suppress(FileNotFoundError), self._beside(path) as parent:
            if stat.S_ISDIR(os.stat(path.name, dir_fd=parent, follow_symlinks=False).st_mode):
                shutil.rmtree(path.name, dir_fd=parent)
            else:
                os.unlink(path.name, dir_fd=parent)

    @contextmanager
    def _beside(self, path: Path) -> Iterator[int]:
        """Yield a descriptor of the folder that `path` is in; errors name the whole path."""
        with self._opened(path.parent) as descriptor, _named(path):
            yield descriptor

    @contextmanager
    def _opened(self, folder: Path) -> Iterator[int]:
        # On a stack, so that not even an interrupt can let one be closed twice: the second time it
        # might be somebody else's.
        with ExitStack() as stack:
            descriptor = os.open(self.root, _FOLDER)
            stack.callback(os.close, descriptor)
            for path in self._down_to(folder):
                with _named(path):
                    descriptor = os.open(path.name, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
                stack.callback(os.close, descriptor)
            yield descriptor

    def _down_to(self, folder: Path) -> list[Path]:
        """Return the folders from below the root to this one."""
        below = folder.relative_to(self.root)
        return [self.root / path for path in (*reversed(below.parents), below) if path.parts]


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file completely or not at all."""
    Tree(path.parent).write(path, data)


def write_json(path: Path, value: Any) -> None:
    Tree(path.parent).write_json(path, value)


def part_of(path: Path) -> Path:
    """Return the name that something has while it is incomplete."""
    return path.with_name(f"{path.name}.part")


def refuse_special(path: Path) -> None:
    """Raise if something other than a file or folder has this name; nothing is opened."""
    with suppress(FileNotFoundError):
        _refuse_kind(path, path.lstat())


def _new_file(name: str, parent: int) -> BinaryIO:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return os.fdopen(os.open(name, flags, 0o666, dir_fd=parent), "w+b")


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, _FOLDER)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_kind(path: Path, found: os.stat_result, *, hard_links: bool = False) -> None:
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "")
    if hard_links and stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        kind = "a hard link"
    if kind:
        raise KstepError(
            f"{path} is {kind}: kstep writes only files of its own. Remove it or put a copy of "
            "what it leads to in its place, or choose another folder"
        )


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Let errors name the whole path, and say what it is if that is the reason."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            refuse_special(path)
        raise OSError(error.errno, error.strerror, str(path)) from error


def fingerprint(value: Any) -> str:
    """Return the SHA-256 of a value that JSON can hold, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
