"""The one reader: regular files, limits, finite numbers, types; every refusal names its file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from kstep import reading
from kstep.errors import KstepError
from kstep.reading import Missing, Unreadable
from kstep.values import Count


@dataclass(frozen=True)
class Line:
    count: Count
    share: float = 0.5


def written(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def pipe(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path)


def beyond_a_file(path: Path) -> None:
    path.parent.rmdir()
    path.parent.write_text("")


@pytest.mark.parametrize("make", [pipe, folder, device, loop, beyond_a_file])
@pytest.mark.parametrize(
    "read", [reading.contents, reading.text, reading.json_file, reading.tensor_metadata]
)
def test_what_is_no_file_is_refused_at_once(
    make: Callable[[Path], None], read: Callable[[Path], Any], tmp_path: Path
) -> None:
    path = tmp_path / "inner" / "file"
    path.parent.mkdir()
    make(path)
    with pytest.raises(Unreadable, match=r"file (is a|cannot be read)") as refused:
        read(path)
    assert not isinstance(refused.value, Missing)


def test_a_missing_file_and_a_dangling_link_are_missing(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("link", "absent", "absent/file"):
        with pytest.raises(Missing, match=f"{name} does not exist"):
            reading.contents(tmp_path / name)
    with pytest.raises(Unreadable, match="cannot be read"):
        reading.contents(Path("a\0b"))


def test_a_link_to_a_file_is_a_file(tmp_path: Path) -> None:
    written(tmp_path / "file", "{}")
    (tmp_path / "link").symlink_to("file")
    assert reading.json_file(tmp_path / "link") == {}


def test_too_large_a_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "file", "{}")
    os.truncate(path, 2**40)  # mostly a hole
    with pytest.raises(Unreadable, match=r"1,099,511,627,776 bytes; at most 67,108,864"):
        reading.json_file(path)
    assert list(reading.json_lines(path, Line, strict=False)) == []
    assert reading.last_json_line(path, Line) is None


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        (b"\xff\xfe{\x00}\x00", "not a text in UTF-8"),
        ('{"x": NaN}', "NaN is not a finite number"),
        ('{"x": [-Infinity]}', "-Infinity is not a finite number"),
        ('{"x": 1e999}', "1e999 is not a finite number"),
        (f'{{"x": {"9" * 41}}}', "41 digits; at most 40"),
        (f'{{"x": {"9" * 9_000}}}', "9,000 digits; at most 40"),
        ("[" * 33 + "1" + "]" * 33, "nested more than 32 deep"),
        ("[" * 100_000, "nested more than 32 deep"),
        ('{"x": "\\ud800"}', "half of a character"),
        ('{"\\udfff": 1}', "half of a character"),
        ("[]", "must be a group of named values"),
    ],
)
def test_json_beyond_its_limits_is_refused(
    content: bytes | str, complaint: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "a.json", content)
    with pytest.raises(Unreadable, match=f"a.json cannot be read: .*{complaint}"):
        reading.json_file(path)


def test_json_within_its_limits_is_read(tmp_path: Path) -> None:
    value = {"deep": json.loads("[" * 30 + "]" * 30), "n": 2**128 - 1, "t": "ä\U0001f600", "f": 0.1}
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False), "\ufeff{}"):
        found = reading.json_file(written(tmp_path / "a.json", text))
        assert found in (value, {})


def test_lines_are_typed_and_refused_by_their_number(tmp_path: Path) -> None:
    path = written(tmp_path / "log", '{"count": 1}\n{"count": 2, "share": 1}\n{"count": 3')
    assert list(reading.json_lines(path, Line)) == [Line(1), Line(2, 1.0)]
    assert reading.last_json_line(path, Line) == Line(2, 1.0)
    for line in (
        '{"count": -1}',
        '{"count": "x"}',
        "[]",
        '{"count": 1, "more": 2}',
        "{}",
        "\udc80",
    ):
        text = f'{{"count": 1}}\n{line}\n{{"count": 3}}\n'
        written(path, text.encode(errors="surrogateescape"))
        with pytest.raises(Unreadable, match="log is damaged: line 2: "):
            list(reading.json_lines(path, Line))
        assert list(reading.json_lines(path, Line, strict=False)) == [Line(1), Line(3)]
        assert reading.last_json_line(path, Line) == Line(3)
    assert list(reading.json_lines(tmp_path / "absent", Line)) == []
    assert reading.last_json_line(tmp_path / "absent", Line) is None


def test_the_last_line_is_found_without_reading_the_others(tmp_path: Path) -> None:
    path = written(tmp_path / "log", '{"count": 1}\n' * 1_000_000 + '{"count": 2}\n' + "x" * 9_000)
    assert reading.last_json_line(path, Line) == Line(2)


def tensors(path: Path, **arrays: Any) -> Path:
    return written(path, safetensors.numpy.save({k: np.asarray(v) for k, v in arrays.items()}))


@pytest.mark.parametrize("read", [reading.arrays, reading.weights])
def test_tensors_are_finite_numbers(
    read: Callable[[bytes, Path], dict[str, Any]], tmp_path: Path
) -> None:
    path = tensors(tmp_path / "t", a=np.ones(3, np.float32), b=np.arange(4))
    assert {name: tuple(found.shape) for name, found in read(path.read_bytes(), path).items()} == {
        "a": (3,),
        "b": (4,),
    }
    for wrong in (np.nan, np.inf):
        path = tensors(tmp_path / "t", fine=[1.0], wrong=np.array([0.0, wrong], np.float32))
        with pytest.raises(Unreadable, match="t: 'wrong' has non-finite numbers"):
            read(path.read_bytes(), path)
    for data in (b"", b"\x80\x04K\x01.", path.read_bytes()[:-1], b"\xff" * 100):
        with pytest.raises(Unreadable, match="t is not a file of tensors"):
            read(data, path)


def with_header(path: Path, header: str, length: int | None = None) -> Path:
    data = header.encode()
    return written(path, (length or len(data)).to_bytes(8, "little") + data)


def test_headers_are_read_without_the_tensors(tmp_path: Path) -> None:
    path = tmp_path / "t"
    assert reading.tensor_metadata(with_header(path, '{"__metadata__": {"a": "b"}}')) == {"a": "b"}
    assert reading.tensor_metadata(with_header(path, "{}")) == {}
    for header, length, complaint in (
        ("{}", 2**63, "no valid length"),
        ("{}", 1, "no valid length"),
        ('{"__metadata__": {"a": 3}}', None, "a must be a text, not 3"),
        ('{"__metadata__": [1]}', None, "must be a group of named values"),
        ("[" * 5_000 + "]" * 5_000, None, "nested more than 32 deep"),
    ):
        with pytest.raises(Unreadable, match=f"t cannot be read: .*{complaint}"):
            reading.tensor_metadata(with_header(path, header, length))


def test_what_was_named_is_refused_and_what_was_found_is_left_out(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one", "two", "three")]
    for path in paths:
        written(path, '{"count": 1}\n')
    written(paths[1], "{}\n")

    def read(path: Path) -> tuple[str, list[Line]]:
        if path.name == "three":
            raise KstepError("it is of another kind")  # a sentence that does not say which
        return path.name, list(reading.json_lines(path, Line))

    with pytest.raises(Unreadable, match="two is damaged"):
        list(reading.each(paths, read, None))
    problems: list[str] = []
    assert [name for name, _ in reading.each(paths, read, problems.append)] == ["one"]
    assert problems == [
        f"{paths[1]} is damaged: line 1: it lacks count",
        f"{paths[2]}: it is of another kind",
    ]
