"""Settings as data: kinds, bounds, JSON, overrides, differences."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import annotated_types as at
import pytest

from kstep.errors import KstepError
from kstep.values import (
    DERIVED,
    BelowOne,
    Count,
    Family,
    Fraction,
    Positive,
    Rate,
    change,
    check,
    decode,
    difference,
    encode,
    flat,
    near,
    override,
)


@dataclass(frozen=True)
class Shape(Family):
    """What comes in kinds."""


@dataclass(frozen=True)
class Circle(Shape):
    kind: ClassVar[str] = "circle"

    radius: Rate = 1.0


@dataclass(frozen=True)
class Square(Shape):
    kind: ClassVar[str] = "square"

    side: Positive = 2
    inner: Shape = field(default_factory=Circle)


@dataclass(frozen=True)
class Sizes:
    count: Count = 0
    bounds: tuple[float, float] | None = (-1.0, 1.0)
    strides: tuple[Positive, ...] = (2, 1)


@dataclass(frozen=True)
class Drawing:
    name: str = "untitled"
    shape: Shape = field(default_factory=Circle)
    frame: Shape | None = None
    sizes: Sizes = field(default_factory=Sizes)
    share: Fraction = 0.5
    decay: BelowOne = 0.9
    above: Annotated[float, at.Gt(0.0)] = 1.0
    colour: Literal["red", "green", "dark blue"] = "red"
    filled: bool = False
    folder: Path | None = None
    made: int = field(default=7, metadata=DERIVED)


PLAIN = Drawing()


def test_values_survive_json() -> None:
    drawing = Drawing(
        name="mine",
        shape=Square(3, Square(4, Circle(0.5))),
        frame=Circle(2.0),
        sizes=Sizes(5, None, (3, 2, 1)),
        colour="dark blue",
        filled=True,
    )
    data = json.loads(json.dumps(encode(drawing)))
    assert data["shape"]["inner"] == {
        "kind": "square",
        "side": 4,
        "inner": {"kind": "circle", "radius": 0.5},
    }
    assert decode(Drawing, data) == drawing


def test_what_is_derived_is_neither_stored_nor_read() -> None:
    drawing = Drawing(made=9)
    assert "made" not in encode(drawing)
    assert decode(Drawing, encode(drawing)).made == 7
    with pytest.raises(KstepError, match="unknown key 'made'"):
        decode(Drawing, {"made": 9})
    # An override leaves it alone.
    assert override(drawing, ["share=0.1"]).made == 9


def test_a_kind_registers_itself_with_its_family_alone() -> None:
    assert Shape.kinds == {"circle": Circle, "square": Square}

    @dataclass(frozen=True)
    class Other(Family):
        pass

    @dataclass(frozen=True)
    class OtherCircle(Other):
        kind: ClassVar[str] = "circle"

    assert Other.kinds == {"circle": OtherCircle}
    assert Shape.kinds["circle"] is Circle
    with pytest.raises(KstepError, match=r"the kind 'circle' is taken by tests\.[\w.]*\.Circle"):

        class Copy(Shape):
            kind = "circle"

    assert Shape.kinds["circle"] is Circle


@pytest.mark.parametrize(
    ("annotation", "right", "wrong", "words"),
    [
        (Positive, 1, 0, "at least 1"),
        (Count, 0, -1, "at least 0"),
        (Rate, 0.0, -1e-9, "at least 0.0"),
        (Fraction, 1.0, 1.5, "at most 1.0"),
        (Fraction, 0.0, -0.5, "at least 0.0"),
        (BelowOne, 0.999, 1.0, "below 1.0"),
        (Annotated[float, at.Gt(0.0)], 1e-9, 0.0, "above 0.0"),
    ],
)
def test_bounds_name_what_is_allowed(annotation: Any, right: Any, wrong: Any, words: str) -> None:
    assert decode(annotation, right, "a.b") == right
    with pytest.raises(KstepError) as refusal:
        decode(annotation, wrong, "a.b")
    assert str(refusal.value) == f"a.b must be {words}, not {wrong}"


def test_bounds_hold_inside_of_lists_and_of_what_may_be_missing() -> None:
    with pytest.raises(KstepError, match=r"sizes\.strides\[1\] must be at least 1, not 0"):
        decode(Drawing, {"sizes": {"strides": [2, 0]}})
    assert decode(Positive | None, None) is None
    with pytest.raises(KstepError, match="k must be at least 1, not 0"):
        decode(Positive | None, 0, "k")


@pytest.mark.parametrize(
    ("annotation", "data", "message"),
    [
        (int, 1.0, "x must be a whole number, not 1.0"),
        (int, True, "x must be a whole number, not True"),
        (int, "1", "x must be a whole number, not '1'"),
        (float, True, "x must be a number, not True"),
        (float, None, "x must be a number, not None"),
        (bool, 0, "x must be true or false, not 0"),
        (str, 5, "x must be a text, not 5"),
        (int | None, "a", "x must be a whole number, not 'a'"),
        (tuple[int, int], 5, r"x must be a list such as \[2, 1\], not 5"),
        (tuple[int, int], [1], "x must have 2 entries, not 1"),
        (tuple[int, ...], [1, "a"], r"x\[1\] must be a whole number, not 'a'"),
        (Literal["red", "green"], "gren", "must be one of red, green, not 'gren'.*'green'"),
        (Literal["red", "green"], ["red"], "must be one of red, green"),
        (Sizes, 5, "x must be a group of settings, not 5"),
        (Shape, [], r"x must be a group of settings, not \[\]"),
        (Shape, {}, "x.kind must be one of circle, square, not None"),
        (Shape, {"kind": "circel"}, "must be one of circle, square, not 'circel'.*'circle'"),
        (Shape, {"kind": ["circle"]}, "must be one of circle, square"),
        (Shape, {"kind": "circle", "side": 3}, "'x.side': x has no 'side'.*It has: radius"),
        (Path, 5, "x must be a path, not 5"),
    ],
)
def test_other_types_are_refused(annotation: Any, data: Any, message: str) -> None:
    with pytest.raises(KstepError, match=message):
        decode(annotation, data, "x")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 10**400, -(10**400)])
def test_numbers_must_be_finite(number: float) -> None:
    with pytest.raises(KstepError, match="share must be a finite number, not"):
        decode(Drawing, {"share": number})
    assert decode(float, 10**300) == 1e300
    assert type(decode(float, 3)) is float


def test_values_made_in_python_are_checked_alike() -> None:
    check(PLAIN)
    check(Drawing(folder=Path("x")))
    with pytest.raises(KstepError, match=r"share must be at most 1\.0, not 2\.0"):
        check(Drawing(share=2.0))
    with pytest.raises(KstepError, match=r"shape\.inner\.radius must be at least 0\.0"):
        check(Drawing(shape=Square(inner=Circle(-1.0))))
    with pytest.raises(KstepError, match="colour must be one of red, green, dark blue"):
        check(Drawing(colour="blue"))  # type: ignore[arg-type]


def test_overrides_reach_any_depth() -> None:
    changed = override(
        PLAIN,
        [
            "name=a=b",
            " share = 1 ",
            "sizes.bounds=[-5, 2]",
            "sizes.strides=[3]",
            "colour=dark blue",
            "filled=True",
            'frame={"kind": "square"}',
        ],
    )
    assert changed == Drawing(
        name="a=b",
        share=1.0,
        sizes=Sizes(bounds=(-5.0, 2.0), strides=(3,)),
        colour="dark blue",
        filled=True,
        frame=Square(),
    )
    assert override(changed, ["sizes.bounds=None", "frame=null"]).sizes.bounds is None
    assert Drawing() == PLAIN


def test_a_new_kind_comes_first_and_brings_its_own_defaults() -> None:
    for overrides in (
        ["shape.side=5", "shape.kind=square"],
        ["shape.kind=square", "shape.side=5"],
    ):
        assert override(PLAIN, overrides).shape == Square(side=5)
    # Also a kind inside of a new kind, which only exists with it.
    nested = ["shape.inner.kind=square", "shape.kind=square", "shape.inner.side=9"]
    assert override(PLAIN, nested).shape == Square(inner=Square(side=9))
    with pytest.raises(KstepError, match=r"unknown key 'shape\.radius'.*It has: kind, side, inner"):
        override(PLAIN, ["shape.kind=square", "shape.radius=1"])
    with pytest.raises(KstepError, match=r"shape\.kind must be one of circle, square, not 'cube'"):
        override(PLAIN, ["shape.kind=cube"])


def test_the_last_of_several_overrides_of_one_key_counts() -> None:
    assert override(PLAIN, ["share=0.1", "share=0.2"]).share == 0.2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shapes.radius=1", "unknown key 'shapes.radius': an experiment has no 'shapes'.*'shape'"),
        ("shape.radios=1", "shape has no 'radios'. Did you mean 'radius'.* It has: kind, radius"),
        ("zzz=1", "unknown key 'zzz'.* It has: name, shape"),
        ("share.x=1", "unknown key 'share.x': share has no 'x'"),
        ("frame.kind=circle", "unknown key 'frame.kind': frame has no 'kind'"),
        ("share", "'share' is not of the form key=value"),
        ("=1", "unknown key ''"),
        ("made=1", "unknown key 'made'"),
        ("share=[", "share must be a number, not '\\['"),
        ("share=", "share must be a number, not ''"),
        ("share=NaN", "share must be a finite number, not nan"),
        ("share=-Infinity", "share must be a finite number, not -inf"),
        ("share=" + "9" * 400, "share must be a finite number"),
        ("share=" + "9" * 5000, "share must be a"),
        ("share=" + "[" * 100_000, "share must be a number"),
        ("sizes=" + '{"count":' * 500 + "1" + "}" * 500, "sizes.count must be a whole number"),
    ],
)
def test_wrong_overrides_are_refused_with_what_is_near(text: str, message: str) -> None:
    with pytest.raises(KstepError, match=message):
        override(PLAIN, [text])


def test_fixed_keys_cannot_be_set_in_any_way() -> None:
    fixed = {"shape.kind": "draw another one", "name": "it is a name"}
    for text in ("shape.kind=square", 'shape={"kind": "square"}'):
        with pytest.raises(KstepError, match=r"shape\.kind cannot be set: draw another one"):
            override(PLAIN, [text], fixed)
    with pytest.raises(KstepError, match="name cannot be set: it is a name"):
        override(PLAIN, ["name=other"], fixed)
    # What changes nothing is no change.
    assert (
        override(PLAIN, ["shape.kind=circle", "name=untitled", "share=0.25"], fixed).share == 0.25
    )
    # And what cannot be read is said to be that.
    with pytest.raises(KstepError, match="shape must be a group of settings, not 5"):
        override(PLAIN, ["shape=5"], fixed)


def test_changes_by_key() -> None:
    changed = change(PLAIN, {"sizes.count": 4, "shape.radius": 2.0, "name": "x"})
    assert changed == Drawing(name="x", sizes=Sizes(count=4), shape=Circle(2.0))
    with pytest.raises(TypeError):
        change(PLAIN, {"sizes.number": 4})


def test_every_setting_has_one_key() -> None:
    keys = dict(flat(encode(Drawing(shape=Square()))))
    assert keys == {
        "name": "untitled",
        "shape.kind": "square",
        "shape.side": 2,
        "shape.inner.kind": "circle",
        "shape.inner.radius": 1.0,
        "frame": None,
        "sizes.count": 0,
        "sizes.bounds": [-1.0, 1.0],
        "sizes.strides": [2, 1],
        "share": 0.5,
        "decay": 0.9,
        "above": 1.0,
        "colour": "red",
        "filled": False,
        "folder": None,
    }


def test_differences_are_named_by_key_on_either_side() -> None:
    assert difference(PLAIN, Drawing()) == []
    assert difference(PLAIN, Drawing(share=0.1)) == [("share", 0.5, 0.1)]
    assert difference(PLAIN, Drawing(shape=Square())) == [
        ("shape.kind", "circle", "square"),
        ("shape.radius", 1.0, None),
        ("shape.side", None, 2),
        ("shape.inner.kind", None, "circle"),
        ("shape.inner.radius", None, 1.0),
    ]
    assert difference(Drawing(made=1), Drawing(made=2)) == []


def test_the_nearest_name_is_suggested_or_none() -> None:
    assert near("kls", ["ksl", "drq"]) == " Did you mean 'ksl'?"
    assert near("zzz", ["ksl", "drq"]) == ""
    assert near("a", []) == ""


def test_what_a_group_needs_is_named() -> None:
    @dataclass(frozen=True)
    class Needy:
        first: int
        second: int
        third: int = 3

    assert decode(Needy, {"first": 1, "second": 2}) == Needy(1, 2)
    with pytest.raises(KstepError, match="there lacks first, second"):
        decode(Needy, {}, "there")
