"""Everything that is read from disk: regular files only, limited in size and depth, finite numbers.

In: a path, and the type of what it should hold. Out: that, checked by `values.decode`, or
`Unreadable` with a sentence that names the file and what is allowed. Nothing is executed, nothing
is waited for: a pipe, a device or a folder in place of a file is refused before it is opened. A
file may be anybody's and hold anything; reading it never ends in a traceback.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kstep.errors import KstepError
from kstep.types import Array
from kstep.values import decode

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

MEGABYTE = 2**20
LARGEST_TEXT = 64 * MEGABYTE
"""Of a JSON, TOML or CSV file."""
LARGEST_LOG = 2_048 * MEGABYTE
LARGEST_TENSORS = 65_536 * MEGABYTE
"""Of a file of tensors or of a table; what does not fit into memory is reported as that."""
DEEPEST = 32
"""Lists and groups within each other."""
LONGEST_NUMBER = 40
"""Digits of a whole number: the state of a random generator has 39."""


class Unreadable(KstepError):
    """A file is not what it should be; the message names it."""


class Missing(Unreadable):
    """There is no such file."""


@contextmanager
def opened(path: Path, largest: int) -> Iterator[BufferedReader]:
    """Open a regular file of at most `largest` bytes; a link to one will do."""
    try:
        _require_regular(path, os.stat(path))
        # Should it be exchanged for a pipe in between, this does not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            _require_regular(path, status)
            if status.st_size > largest:
                raise Unreadable(
                    f"{path} has {status.st_size:,} bytes; at most {largest:,} are allowed"
                )
            yield file
    except FileNotFoundError as error:
        raise Missing(f"{path} does not exist") from error
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        reason = getattr(error, "strerror", None) or error
        raise Unreadable(f"{path} cannot be read: {reason}") from error


def _require_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        what = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe, socket or device"
        raise Unreadable(f"{path} is {what}, not a file")


def contents(path: Path, largest: int = LARGEST_TEXT) -> bytes:
    """Return everything in a file."""
    with opened(path, largest) as file:
        # What is appended meanwhile belongs to the next reader.
        return file.read(os.fstat(file.fileno()).st_size)


def sha256(path: Path) -> str:
    """Return the checksum of a file of any size."""
    with opened(path, LARGEST_TENSORS) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def text(path: Path) -> str:
    """Return a text in UTF-8, without the mark that some editors put before it."""
    try:
        return contents(path).decode().removeprefix(_MARK)
    except UnicodeDecodeError as error:
        raise Unreadable(f"{path} is not a text in UTF-8: {error.reason}") from error


def toml(path: Path, kind: type[T], prepare: Callable[[Any], Any] = lambda data: data) -> T:
    """Return a TOML file's content as a value of this type; `prepare` may rewrite it before."""
    source = text(path)
    with naming(path):
        try:
            data = tomllib.loads(source)
        except (ValueError, RecursionError) as error:  # also a number of thousands of digits
            raise KstepError(f"it is not valid TOML: {_first_line(error)}") from error
        _check_json(data)
        found: T = decode(kind, prepare(data))
        return found


def json_file(path: Path, kind: Any = dict[str, Any]) -> Any:
    """Return a JSON file's content as a value of this type."""
    data = contents(path)
    with naming(path):
        return decode(kind, parse_json(data))


def json_lines(path: Path, kind: type[T], *, strict: bool = True) -> Iterator[T]:
    """Yield the lines of a file of JSON lines as values of this type, if the file exists.

    A line without an end is still being written, or was when its writer died: it is left out.
    Whatever else is not as it should be is refused, or left out if not `strict`.
    """
    try:
        lines = contents(path, LARGEST_LOG).split(b"\n")[:-1]
    except Missing:
        return
    except Unreadable:
        if strict:
            raise
        return
    for number, line in enumerate(lines, start=1):
        try:
            row = decode(kind, parse_json(line))
        except KstepError as error:
            if strict:
                raise Unreadable(f"{path} is damaged: line {number}: {error}") from error
        else:
            yield row


def last_json_line(path: Path, kind: type[T]) -> T | None:
    """Return the last line of a file of JSON lines that is a value of this type, reading only the
    end of the file; None if there is none."""
    try:
        with opened(path, LARGEST_LOG) as file:
            size = file.seek(0, os.SEEK_END)
            for length in (4096, MEGABYTE):
                file.seek(max(0, size - length))
                for line in reversed(file.read(length).splitlines()):
                    with suppress(KstepError):
                        found: T = decode(kind, parse_json(line))
                        return found
                if length >= size:
                    break
    except Unreadable:
        pass
    return None


def parse_json(data: bytes | str) -> Any:
    """Return a JSON text's value: not too deep, all numbers finite, all texts printable."""
    try:
        source = data if isinstance(data, str) else data.decode()
        value = _JSON.decode(source.removeprefix(_MARK))
    except UnicodeDecodeError as error:
        raise KstepError(f"it is not a text in UTF-8: {error.reason}") from error
    except RecursionError as error:
        raise KstepError(_TOO_DEEP) from error
    except ValueError as error:
        raise KstepError(f"it is not valid JSON: {_first_line(error)}") from error
    # Most lines of a log have too few brackets to be deep, and no escaped character.
    if source.count("[") + source.count("{") > DEEPEST or "\\u" in source:
        _check_json(value)
    return value


def arrays(data: bytes, path: Path) -> dict[str, Array]:
    """Return the tensors of a file's content (safetensors) as arrays, all numbers finite."""
    import numpy as np
    import safetensors.numpy

    found: dict[str, Array] = _tensors(safetensors.numpy.load, data, path)
    for name, array in found.items():
        if array.dtype.kind not in "buif":
            raise Unreadable(f"{path}: {name!r} has numbers of type {array.dtype}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise Unreadable(f"{path}: {name!r} has non-finite numbers")
    return found


def weights(data: bytes, path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file's content (safetensors), all numbers finite."""
    import safetensors.torch

    found: dict[str, Tensor] = _tensors(safetensors.torch.load, data, path)
    for name, tensor in found.items():
        if tensor.is_complex():
            raise Unreadable(f"{path}: {name!r} has numbers of type {tensor.dtype}")
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise Unreadable(f"{path}: {name!r} has non-finite numbers")
    return found


def _tensors(load: Callable[[bytes], dict[str, T]], data: bytes, path: Path) -> dict[str, T]:
    import safetensors

    try:
        return load(data)
    except (safetensors.SafetensorError, RuntimeError, *_MALFORMED) as error:
        raise Unreadable(f"{path} is not a file of tensors: {_first_line(error)}") from error


_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, BufferError)
"""What Python's half of safetensors raises, such as for a type of numbers that NumPy lacks."""


def tensor_metadata(path: Path) -> dict[str, str]:
    """Return the texts that the header of a file of tensors holds, without reading its tensors."""
    with opened(path, LARGEST_TENSORS) as file, naming(path):
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= LARGEST_TEXT:
            raise KstepError("it is not a file of tensors: its header has no valid length")
        header = parse_json(file.read(length))
        metadata = header.get("__metadata__") if isinstance(header, dict) else None
        found: dict[str, str] = decode(dict[str, str], metadata or {})
        return found


@contextmanager
def naming(path: object) -> Iterator[None]:
    """Put the name of a file or folder before what is wrong with it."""
    try:
        yield
    except Unreadable:
        raise  # says which file it is about
    except KstepError as error:
        raise Unreadable(f"{path} cannot be read: {error}") from error


def each(
    paths: Iterable[Path], read: Callable[[Path], T], left_out: Callable[[str], None] | None
) -> Iterator[T]:
    """Yield what `read` makes of every path.

    One that cannot be read is refused. Where nobody named it, because it was found by looking,
    `left_out` is told instead, and the others are read.
    """
    for path in paths:
        try:
            found = read(path)
        except KstepError as error:
            if left_out is None:
                raise
            known = str(path) in str(error)
            left_out(str(error) if known else f"{path}: {error}")
        else:
            yield found


_MARK = "\ufeff"
_TOO_DEEP = f"it is nested more than {DEEPEST} deep"


def _finite(word: str) -> float:
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(f"{word[:LONGEST_NUMBER]} is not a finite number")
    return number


def _whole(word: str) -> int:
    if len(word) > LONGEST_NUMBER:
        raise ValueError(f"a number has {len(word):,} digits; at most {LONGEST_NUMBER} are allowed")
    return int(word)


_JSON = json.JSONDecoder(parse_float=_finite, parse_int=_whole, parse_constant=_finite)


def _check_json(value: Any) -> None:
    """Refuse what is nested too deeply, and texts with half a character, which no file can hold."""
    level = [value]
    for _ in range(DEEPEST + 1):
        for item in level:
            words = item if isinstance(item, dict) else (item,)
            for word in words:
                if isinstance(word, str) and not word.isascii() and _is_broken(word):
                    raise KstepError("a text in it has half of a character (a lone surrogate)")
        inner = (list(item.values()) if isinstance(item, dict) else item for item in level)
        level = [new for items in inner if isinstance(items, list) for new in items]
        if not level:
            return
    raise KstepError(_TOO_DEEP)


def _is_broken(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return True
    return False


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]
