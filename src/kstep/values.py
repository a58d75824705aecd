"""Frozen dataclasses as settings: kinds, bounds, JSON, overrides, differences.

A setting is a field of a frozen dataclass. Its type and its bounds stand beside it, and whatever is
read (a command line, a config.json) is checked against them, so that a wrong key or value is
refused with what is allowed. Where a part of a method can be of several kinds, each kind is a class
of its own with exactly the fields that it reads; `Family` is the base of all of them.
"""

from __future__ import annotations

import abc
import dataclasses
import difflib
import functools
import json
import math
import operator
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import annotated_types as at

from kstep import plugins
from kstep.errors import KstepError

T = TypeVar("T")

LARGEST = 2**63 - 1
"""Of whole numbers: what a column of a table of results can hold."""
Positive = Annotated[int, at.Ge(1), at.Le(LARGEST)]
Count = Annotated[int, at.Ge(0), at.Le(LARGEST)]
Threads = Annotated[int, at.Ge(1), at.Le(1024)]
"""Of the processor: the system ends a process that asks for more than it can have."""
Rate = Annotated[float, at.Ge(0.0)]
"""A learning rate, or another number that must not be negative."""
Fraction = Annotated[float, at.Ge(0.0), at.Le(1.0)]
BelowOne = Annotated[float, at.Ge(0.0), at.Lt(1.0)]
Name = Annotated[str, at.MaxLen(100), at.Predicate(str.isprintable)]
"""A text that becomes part of a file's name, a label or a cell: short, without control characters.
"""

DERIVED = {"derived": True}
"""Metadata of a field that is no setting: what `resolve` made of it is stored instead."""


LATER = {"later": True}
"""Metadata of a setting that is younger than the format of config.json. While it has its default it
is not stored, so that experiments from before it keep their digests."""


def is_derived(field: dataclasses.Field[Any]) -> bool:
    return bool(field.metadata.get("derived"))


class Family(abc.ABC):
    """Base of settings that come in several kinds. A subclass with a `kind` registers itself."""

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Any]]]
    named: ClassVar[dict[str, Any]]
    """Values with a name of their own, which stands for a kind with some settings changed."""

    def __init_subclass__(cls) -> None:
        if Family in cls.__bases__:
            cls.kinds, cls.named = {}, {}
        elif "kind" in cls.__dict__:
            present = cls.kinds.setdefault(cls.kind, cls)
            if _place(present) != _place(cls):  # a class that is defined again replaces itself
                raise KstepError(f"the kind '{cls.kind}' is taken by {_place(present)}")
            cls.kinds[cls.kind] = cls


def _place(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def encode(value: Any, *, complete: bool = False) -> Any:
    """Turn a dataclass into plain JSON values, as they are stored.

    `complete`: with younger settings that have their defaults as well.
    """
    if dataclasses.is_dataclass(value):
        data = {
            f.name: encode(getattr(value, f.name), complete=complete)
            for f in dataclasses.fields(value)
            if not is_derived(f)
            and (complete or "later" not in f.metadata or getattr(value, f.name) != f.default)
        }
        return {"kind": value.kind, **data} if isinstance(value, Family) else data
    if isinstance(value, tuple | list):
        return [encode(item, complete=complete) for item in value]
    if isinstance(value, Mapping):
        return {key: encode(item, complete=complete) for key, item in value.items()}
    return value


def decode(annotation: Any, data: Any, where: str = "") -> Any:
    """Build a value of type `annotation` from JSON values, refusing anything that does not fit.

    `where` is what the value is called in what is refused; empty: "it".
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    called = where or "it"
    if origin is Annotated:
        value = decode(arguments[0], data, where)
        _check_bounds(value, arguments[1:], called)
        return value
    if isinstance(annotation, type) and issubclass(annotation, Family):
        return _decode_kind(annotation, data, where)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return _decode_dataclass(annotation, data, where)
    if origin in (types.UnionType, typing.Union):
        if data is None:
            if type(None) in arguments:
                return None
            raise KstepError(f"{called} must not be empty")
        (inner,) = [argument for argument in arguments if argument is not type(None)]
        return decode(inner, data, where)
    if origin is Literal:
        if data not in arguments:
            word, known = data if isinstance(data, str) else _shown(data), [*map(str, arguments)]
            allowed, hint = ", ".join(known), near(word, known)
            raise KstepError(f"{called} must be one of {allowed}, not {_shown(word)}.{hint}")
        return data
    if origin is tuple:
        if not isinstance(data, list | tuple):
            raise KstepError(f"{called} must be a list such as [2, 1], not {_shown(data)}")
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            arguments = (arguments[0],) * len(data)
        if len(arguments) != len(data):
            raise KstepError(f"{called} must have {len(arguments)} entries, not {len(data)}")
        return tuple(
            decode(inner, item, f"{where}[{i}]")
            for i, (inner, item) in enumerate(zip(arguments, data, strict=True))
        )
    if origin in (dict, Mapping):
        return _decode_mapping(arguments[0], arguments[1], data, where)
    if annotation is Any:
        return data
    if annotation is Path:
        if not isinstance(data, str | Path):
            raise KstepError(f"{called} must be a path, not {_shown(data)}")
        return Path(data)
    if annotation is float and isinstance(data, int) and not isinstance(data, bool):
        try:
            data = float(data)
        except OverflowError:
            raise KstepError(f"{called} must be a finite number, not {_shown(data)}") from None
    if annotation in (int, float, bool, str):
        if type(data) is not annotation:
            raise KstepError(f"{called} must be {_NAMES[annotation]}, not {_shown(data)}")
        if annotation is float and not math.isfinite(data):
            raise KstepError(f"{called} must be a finite number, not {data}")
        return data
    raise TypeError(f"no rule to read {annotation} at {where}")


def check(value: Any) -> None:
    """Refuse a value built in Python that could not have been read: wrong types, out of bounds."""
    decode(type(value), encode(value))


def override(value: T, overrides: Iterable[str], fixed: Mapping[str, str] | None = None) -> T:
    """Apply `key=value` texts, each checked against the type of what it replaces.

    `fixed` are the keys that may not be set, and what to do instead.
    """
    fixed, before = fixed or {}, dict(flat(encode(value)))
    for text in sorted(overrides, key=_kinds_first):
        if "=" not in text:
            raise KstepError(f"'{text}' is not of the form key=value, such as method.auxiliary.k=5")
        key, new = _key(text), _literal(text.partition("=")[2].strip())
        if key in fixed and new != before.get(key):
            raise KstepError(f"{key} cannot be set: {fixed[key]}")
        value = _replaced(value, key, new)
    after = dict(flat(encode(value)))
    for key, instead in fixed.items():  # where a whole group was replaced
        if after.get(key) != before.get(key):
            raise KstepError(f"{key} cannot be set: {instead}")
    return value


def change(value: T, changes: Mapping[str, Any]) -> T:
    """Return the value with some settings, by dotted key, replaced."""
    for key, new in changes.items():
        name, _, rest = key.partition(".")
        inner = change(getattr(value, name), {rest: new}) if rest else new
        value = dataclasses.replace(value, **{name: inner})  # type: ignore[type-var]
    return value


def flat(data: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every setting of encoded values as (dotted key, value)."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from flat(value, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, data


def difference(left: Any, right: Any) -> list[tuple[str, Any, Any]]:
    """Return (key, left value, right value) wherever two configurations differ."""
    flat_left, flat_right = (dict(flat(encode(side, complete=True))) for side in (left, right))
    rows = [(key, flat_left.get(key), flat_right.get(key)) for key in flat_left | flat_right]
    return [row for row in rows if row[1] != row[2]]


def whole_number(text: str) -> int:
    """Read a whole number such as 100000, 100_000 or 1e5; raise ValueError for anything else."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number.is_integer():
        raise ValueError(f"{text} is not a whole number")
    return int(number)


def near(name: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the nearest of the known names, or nothing."""
    found = difflib.get_close_matches(name[:_LONGEST_SHOWN], list(known), n=1, cutoff=0.5)
    return f" Did you mean '{found[0]}'?" if found else ""


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}

_BOUNDS: dict[type, tuple[str, str, Callable[[Any, Any], bool]]] = {
    at.Ge: ("ge", "at least", operator.ge),
    at.Gt: ("gt", "above", operator.gt),
    at.Le: ("le", "at most", operator.le),
    at.Lt: ("lt", "below", operator.lt),
}


def _check_bounds(value: Any, bounds: Iterable[Any], called: str) -> None:
    for bound in bounds:
        if isinstance(bound, at.MaxLen) and len(value) > bound.max_length:
            what = "characters" if isinstance(value, str) else "entries"
            raise KstepError(
                f"{called} must have at most {bound.max_length} {what}, not {len(value)}"
            )
        if isinstance(bound, at.MinLen) and len(value) < bound.min_length:
            raise KstepError(f"{called} must not be empty")
        if isinstance(bound, at.Predicate) and not bound.func(value):
            raise KstepError(f"{called} must be printable text, not {_shown(value)}")
        if type(bound) not in _BOUNDS:
            continue  # a marker of the command line
        name, words, holds = _BOUNDS[type(bound)]
        limit = getattr(bound, name)
        if not holds(value, limit):
            raise KstepError(f"{called} must be {words} {limit}, not {_shown(value)}")


def _shown(data: Any) -> str:
    """Return a value as a message shows it: what somebody else wrote may be of any size."""
    try:
        text = repr(data)
    except (ValueError, RecursionError):  # a number of thousands of digits; nested too deeply
        return f"a {type(data).__name__} that is too large to show"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


_LONGEST_SHOWN = 100


@functools.cache
def _settings(cls: type[Any]) -> dict[str, Any]:
    """Return the types of a dataclass's settings, bounds included, by name."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls) if not is_derived(f)}


def _below(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _unknown(key: str, where: str, known: Iterable[str]) -> KstepError:
    known, name = list(known), key.removeprefix(f"{where}.").partition(".")[0]
    listed = f" It has: {', '.join(known)}" if known else ""
    return KstepError(
        f"unknown key {_shown(key)}: {where} has no {_shown(name)}.{near(name, known)}{listed}"
    )


def _decode_dataclass(cls: type[T], data: Any, where: str) -> T:
    called = where or "it"
    if not isinstance(data, Mapping):
        raise KstepError(f"{called} must be a group of settings, not {_shown(data)}")
    settings = _settings(cls)  # type: ignore[arg-type]
    for name in data:
        if name not in settings:
            raise _unknown(_below(where, str(name)), called, settings)
    needed = [
        f.name
        for f in dataclasses.fields(cls)  # type: ignore[arg-type]
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing := [name for name in needed if name not in data]:
        raise KstepError(f"{called} lacks {', '.join(missing)}")
    return cls(**{name: decode(settings[name], data[name], _below(where, name)) for name in data})


def _decode_mapping(key: Any, inner: Any, data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise KstepError(f"{where or 'it'} must be a group of named values, not {_shown(data)}")
    if key is not str:
        data = {decode(key, name, f"a name in {where}"): value for name, value in data.items()}
    # Logs have millions of values that need no second look.
    return {
        name: value
        if type(value) is inner and (inner is not float or math.isfinite(value))
        else decode(inner, value, _below(where, name))
        for name, value in data.items()
    }


def _decode_kind(family: type[Family], data: Any, where: str) -> Any:
    """Build whichever kind of the family `data` says it is."""
    if not isinstance(data, Mapping):
        raise KstepError(f"{where} must be a group of settings, not {_shown(data)}")
    kind = data.get("kind")
    if isinstance(kind, str) and kind not in {*family.kinds, *family.named}:
        plugins.load()  # it may be somebody else's
    known = [*family.kinds, *family.named]
    if not isinstance(kind, str) or kind not in known:
        hint = near(kind, known) if isinstance(kind, str) else ""
        raise KstepError(
            f"{where}.kind must be one of {', '.join(known)}, not {_shown(kind)}.{hint}"
            f"{plugins.complaints()}"
        )
    if kind in family.named:
        data = {**encode(family.named[kind]), **data, "kind": family.named[kind].kind}
        kind = data["kind"]
    fields = {key: value for key, value in data.items() if key != "kind"}
    return _decode_dataclass(family.kinds[kind], fields, where)


def _kinds_first(text: str) -> int:
    """Sort a new kind before all else, and an outer one before an inner one, whatever the order in
    which they were written: it decides which other keys exist."""
    key = _key(text)
    return key.count(".") - 1_000_000 if key.endswith(".kind") else 0


def _key(text: str) -> str:
    return text.partition("=")[0].strip()


def _replaced(value: Any, key: str, new: Any, where: str = "") -> Any:
    """Return the value with the setting at a dotted key replaced; a new kind has its defaults."""
    name, dot, rest = key.partition(".")
    path = _below(where, name)
    if isinstance(value, Family) and key == "kind":
        return _decode_kind(type(value), {"kind": new}, where)
    settings = _settings(value.__class__) if dataclasses.is_dataclass(value) else {}
    if name not in settings:
        known = ["kind", *settings] if isinstance(value, Family) else settings
        raise _unknown(_below(where, key), where or "an experiment", known)
    inner = (
        _replaced(getattr(value, name), rest, new, path)
        if dot
        else decode(settings[name], new, path)
    )
    return dataclasses.replace(value, **{name: inner})


def _literal(text: str) -> Any:
    """Read a command-line value: JSON where it is JSON, a plain word otherwise."""
    if text in ("None", "null"):
        return None
    if text in ("True", "False"):
        return text == "True"
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # no JSON, or a number of thousands of digits
        return text
