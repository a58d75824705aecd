"""One look: the same in every figure, and readable by everybody, on paper too."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest

from kstep import names, style
from kstep.style import DARK, LIGHT, Theme
from kstep.types import Array

TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]]
    ),
    "deuteranopia": np.array(
        [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]]
    ),
    "tritanopia": np.array(
        [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]]
    ),
}
"""What is seen of linear red, green and blue: Machado, Oliveira & Fernandes 2009, severity 1."""


def linear(colour: str) -> Array:
    encoded = np.array([*bytes.fromhex(colour[1:])]) / 255
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def lab(rgb: Array) -> Array:
    """CIELAB of linear red, green and blue, on white."""
    ratio = TO_XYZ @ np.clip(rgb, 0.0, 1.0) / TO_XYZ.sum(axis=1)
    cut = (6 / 29) ** 3
    f = np.where(ratio > cut, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def ciede2000(first: Array, second: Array) -> float:
    """The perceived difference of two colours (Sharma, Wu & Dalal 2005)."""
    chroma = (np.hypot(*first[1:]) + np.hypot(*second[1:])) / 2
    stretch = 1.5 - 0.5 * np.sqrt(chroma**7 / (chroma**7 + 25**7))
    (l1, a1, b1), (l2, a2, b2) = (c * [1, stretch, 1] for c in (first, second))
    c1, c2 = np.hypot(a1, b1), np.hypot(a2, b2)
    h1, h2 = (np.degrees(np.arctan2(b, a)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = (h2 - h1 + 180) % 360 - 180
    hue = (h1 + turn / 2) % 360
    l_mean, c_mean = (l1 + l2) / 2, (c1 + c2) / 2
    t = 1 - 0.17 * np.cos(np.radians(hue - 30)) + 0.24 * np.cos(np.radians(2 * hue))
    t += 0.32 * np.cos(np.radians(3 * hue + 6)) - 0.2 * np.cos(np.radians(4 * hue - 63))
    d_l = (l2 - l1) / (1 + 0.015 * (l_mean - 50) ** 2 / np.sqrt(20 + (l_mean - 50) ** 2))
    d_c = (c2 - c1) / (1 + 0.045 * c_mean)
    d_h = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2)) / (1 + 0.015 * c_mean * t)
    rotation = -2 * np.sqrt(c_mean**7 / (c_mean**7 + 25**7))
    rotation *= np.sin(np.radians(60 * np.exp(-(((hue - 275) / 25) ** 2))))
    return float(np.sqrt(d_l**2 + d_c**2 + d_h**2 + rotation * d_c * d_h))


def contrast(colour: str, background: str) -> float:
    low, high = sorted(float(TO_XYZ[1] @ linear(c)) for c in (colour, background))
    return (high + 0.05) / (low + 0.05)


def colours(theme: Theme) -> dict[str, str]:
    own = {name: style.look(name, theme).colour for name in style.FAMILIES}
    return own | {f"other {i}": pair[theme is DARK] for i, pair in enumerate(style.OTHERS)}


def test_the_distance_is_that_of_its_authors() -> None:
    """Two pairs of their table of test data."""
    first, second = np.array([50, 2.6772, -79.7751]), np.array([50, 0, -82.7485])
    assert ciede2000(first, second) == pytest.approx(2.0425, abs=1e-4)
    first, second = np.array([60.2574, -34.0099, 36.2677]), np.array([60.4626, -34.1751, 39.4387])
    assert ciede2000(first, second) == pytest.approx(1.2644, abs=1e-4)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_families_stay_apart_for_everybody(theme: Theme) -> None:
    for vision, matrix in VISION.items():
        seen = {name: lab(matrix @ linear(c)) for name, c in colours(theme).items()}
        for one, other in combinations(seen, 2):
            assert ciede2000(seen[one], seen[other]) > 10, (vision, one, other)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_families_stay_apart_in_grey_and_from_the_background(theme: Theme) -> None:
    own = {name: style.look(name, theme) for name in style.FAMILIES}
    light = {name: lab(linear(look.colour))[0] for name, look in own.items()}
    for one, other in combinations(light, 2):
        assert abs(light[one] - light[other]) > 4.9, (one, other)
    for colour in colours(theme).values():
        assert contrast(colour, theme.background) > 2
    assert contrast(own["ksl"].colour, theme.background) > 3
    assert contrast(theme.text, theme.background) > 7
    assert contrast(theme.muted, theme.background) > 4.5
    assert len({look.marker for look in own.values()}) == len(own)
    assert not {look.marker for look in own.values()} & set(style.OTHER_MARKERS)


def test_a_variant_has_its_familys_marker_and_ksl_one_colour_everywhere() -> None:
    for name in names.METHOD_SUMMARIES:
        base = name.partition("-")[0]
        assert style.look(name).marker == style.look(base).marker, name
        assert (style.look(name) == style.look(base)) == (name == base), name
    same = [style.look(label, theme) for label in ("ksl", "ksl-cpu") for theme in (LIGHT, DARK)]
    assert len(set(same)) == 1
    assert style.parse("ksl-results-cpu") == ("ksl", "results")
    assert style.parse("ksl_drq_v2-cpu") == ("ksl", "drq_v2")
    assert style.parse("ksl-debug-ac354b") == ("ksl", "")
    assert style.parse("k1-l2-cpu") == ("ksl", "k1-l2")
    assert style.parse("sac_ae-original, walker_walk") == ("sac_ae", "original")
    assert style.parse("proto_rl 50k/50k") == ("proto_rl", "")


def test_lines_of_one_figure_differ() -> None:
    every = [*names.METHOD_SUMMARIES, "mine", "mine-cpu", "mine-wider", "theirs"]
    few = [name for name in every if not name.startswith("ksl-")]
    looks = style.looks([*few, "ksl-cpu", "ksl-ac354b", "ksl-results", "ksl-results-cpu"])
    assert len(set(looks.values())) == len(looks)
    assert looks["ksl"] == style.look("ksl")
    assert looks["ksl-results"] == style.look("ksl-results")
    grid = style.looks(name for name in every if name.startswith("ksl-k"))
    assert len(set(grid.values())) == len(grid)
    crowd = style.looks(f"ksl seed {seed}" for seed in range(30))  # more than there are looks
    assert len(crowd) == 30
    assert len(set(crowd.values())) == len(style.TONES) * len(style.DASHES)


def test_an_unknown_method_looks_the_same_in_another_process() -> None:
    code = "from kstep import style; print(style.look('somebodys-own'), style.look('ksl-new'))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == f"{style.look('somebodys-own')} {style.look('ksl-new')}"


def test_plotly_is_told_the_same() -> None:
    look = style.look("ksl-released")
    assert (look.symbol, look.dashes) == ("circle-open", "2px,3px")
    assert (style.look("drq").symbol, style.look("drq").dashes) == ("square", "solid")
    used = {marker for *_, marker in style.FAMILIES.values()} | {*style.OTHER_MARKERS}
    assert used == set(style.SYMBOLS)
