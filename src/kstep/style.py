"""One look for every figure: a colour and a marker per family of methods, and two backgrounds.

In: a label, such as ksl, ksl-results-cpu or somebody's own. Out: its `Look`, the same in every
figure. A family is a method with its variants: they share its colour and marker, and differ in
tone, in dashes and in a marker that is not filled. Plain dashes are kept for the paper's numbers.

The colours were chosen by a search: any two families stay apart under each kind of colour blindness
(CIEDE2000 of at least 10, simulated as in Machado, Oliveira & Fernandes 2009) and in lightness (at
least 4.9 of 100, for prints in grey); KSL's is the same on both backgrounds. A test measures it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, TypeAlias

from kstep.names import PRESET_SUMMARIES

Dash: TypeAlias = tuple[float, ...]


@dataclass(frozen=True)
class Theme:
    """The colours of everything that is not a method's."""

    background: str
    text: str
    muted: str
    """What belongs to nobody: levels, the paper's band, seconds of rendering."""
    grid: str


LIGHT = Theme("#ffffff", "#1c1f24", "#6b7078", "#e3e5e8")
DARK = Theme("#15181d", "#e6e8eb", "#9aa0a8", "#2c313a")
ThemeName: TypeAlias = Literal["light", "dark"]
THEMES: dict[ThemeName, Theme] = {"light": LIGHT, "dark": DARK}
THEME: ContextVar[Theme] = ContextVar("theme", default=LIGHT)
"""What figures are drawn on, unless told otherwise."""

FAMILIES = {
    "ksl": ("#e95526", "#e95526", "o"),
    "drq": ("#206cb8", "#38a7ff", "s"),
    "curl": ("#0c694b", "#16a87c", "^"),
    "rad": ("#ff9b34", "#fcd764", "D"),
    "sac_ae": ("#a596fe", "#8766cf", "v"),
    "pi_sac": ("#16a5ac", "#6adafd", "P"),
    "proto_rl": ("#97076d", "#fda5b6", "X"),
    "sac_pixel": ("#76787c", "#6c6c6e", "<"),
    "sac_state": ("#32363a", "#e8e9eb", ">"),
    "dqn": ("#484303", "#84be70", "p"),
}
"""Colour on light, colour on dark, marker. A name that begins with one of these and an underscore
is of that family: ksl_dqn is KSL on another core."""
OTHERS = (("#b6ad9f", "#b17d9e"), ("#a88267", "#c1f4b7"), ("#1d05d7", "#a66753"))
"""Colours of methods that are registered elsewhere."""
OTHER_MARKERS = ("*", "h", "d", "8")

SYMBOLS = {
    "o": "circle",
    "s": "square",
    "^": "triangle-up",
    "D": "diamond",
    "v": "triangle-down",
    "P": "cross",
    "X": "x",
    "<": "triangle-left",
    ">": "triangle-right",
    "p": "pentagon",
    "*": "star",
    "h": "hexagon",
    "d": "diamond-tall",
    "8": "octagon",
}
"""Plotly's names of matplotlib's markers."""

DIGEST = re.compile(r"[0-9a-f]{6}")
"""At the end of the label of a run whose settings were changed."""

SOLID: Dash = ()
DASHES: tuple[Dash, ...] = (SOLID, (5, 1.5, 1, 1.5), (1, 1.5), (7, 1.5, 1, 1.5, 1, 1.5))
PAPER: Dash = (5, 3)
TONES = (0.0, 0.4, -0.4)
"""How far a colour goes towards the background, or away from it."""

VARIANTS = {
    "": (0, 0),
    "results": (0, 1),
    "released": (0, 2),
    "original": (0, 1),
    # k by tone, shared layers by dashes; ksl itself is k3-l0
    **{
        f"k{k}-l{layers}": (tone, layers)
        for (tone, k), layers in product(enumerate((3, 1, 5)), range(3))
    },
    "conv": (1, 3),
    "one-optimizer": (2, 3),
    "no-augmentation": (1, 2),
    "no-projection": (2, 2),
    "two-views": (0, 3),
}
"""The place of a variant's tone and of its dashes; any other variant gets one by its name."""


@dataclass(frozen=True)
class Look:
    """How a line and its markers are drawn."""

    colour: str
    marker: str
    dash: Dash = SOLID
    filled: bool = True

    def line(self, theme: Theme | None = None) -> dict[str, Any]:
        """Return arguments of matplotlib's `plot`."""
        face = self.colour if self.filled else (theme or THEME.get()).background
        style = (0, self.dash) if self.dash else "solid"
        return {
            "color": self.colour,
            "marker": self.marker,
            "markerfacecolor": face,
            "linestyle": style,
        }

    @property
    def symbol(self) -> str:
        """Plotly's name of the marker."""
        return SYMBOLS[self.marker] + ("" if self.filled else "-open")

    @property
    def dashes(self) -> str:
        """The dashes as Plotly and SVG take them; "solid" without any."""
        return ",".join(f"{2 * length:g}px" for length in self.dash) or "solid"


def look(label: str, theme: Theme | None = None) -> Look:
    """Return the look of a method's line, by a label that begins with the method's name."""
    family, variant = parse(label)
    places = VARIANTS.get(variant)
    if places is None:
        number = 1 + _number(variant) % (len(TONES) * len(DASHES) - 1)
        places = number % len(TONES), number // len(TONES)
    return _look(family, *places, theme or THEME.get())


def looks(labels: Iterable[str], theme: Theme | None = None) -> dict[str, Look]:
    """Return the looks of all lines of one figure, no two of them the same while there are enough:
    of lines with equal looks, such as two presets of a method, the shortest label keeps it."""
    theme = theme or THEME.get()
    found = {label: look(label, theme) for label in labels}
    owners: dict[Look, str] = {}
    for label in sorted(found, key=lambda label: (len(label), label)):
        owners.setdefault(found[label], label)
    for label, own in found.items():
        if owners[own] != label:
            places = product(range(len(DASHES)), range(len(TONES)))
            free = (_look(parse(label)[0], tone, dash, theme) for dash, tone in places)
            found[label] = next((each for each in free if each not in owners), own)
            owners.setdefault(found[label], label)
    return found


def parse(label: str) -> tuple[str, str]:
    """Return the family and the variant of a label; presets and digests of settings are no
    variants."""
    word = label.replace(",", " ").split(" ")[0]
    if re.match(r"k\d+-l\d+", word):  # as the table of both names them
        word = f"ksl-{word}"
    base, *rest = word.split("-")
    variant = [part for part in rest if part not in PRESET_SUMMARIES and not DIGEST.fullmatch(part)]
    if base in FAMILIES:
        return base, "-".join(variant)
    related = [family for family in FAMILIES if base.startswith(f"{family}_")]
    if related:
        family = max(related, key=len)
        return family, "-".join([base.removeprefix(f"{family}_"), *variant])
    return base, "-".join(variant)


def palette(theme: Theme | None = None) -> list[str]:
    """Return colours for things that are no methods, such as seeds or parts of a step; KSL's comes
    last."""
    dark = (theme or THEME.get()) is DARK
    colours = [colours[dark] for colours in FAMILIES.values()]
    return [*colours[1:], colours[0]]


def level() -> dict[str, Any]:
    """Return arguments of matplotlib's `plot` for what is no method's: a level, the paper."""
    return {"color": THEME.get().muted, "linestyle": (0, PAPER), "linewidth": 1.2}


def rc(theme: Theme | None = None) -> dict[Any, Any]:
    """Return matplotlib's settings for a background."""
    from matplotlib.rcsetup import cycler

    theme = theme or THEME.get()
    text = {
        f"{part}color": theme.text for part in ("text.", "axes.label", "axes.title", "legend.label")
    }
    ticks = {f"{axis}tick.{part}": theme.muted for axis in "xy" for part in ("color", "labelcolor")}
    return {
        **text,
        **ticks,
        "text.parse_math": False,  # a label is a text, whatever signs it has
        "figure.facecolor": theme.background,
        "savefig.facecolor": theme.background,
        "axes.facecolor": theme.background,
        "axes.edgecolor": theme.muted,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "axes.titlesize": "medium",
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": theme.grid,
        "grid.linewidth": 0.6,
        "axes.prop_cycle": cycler(color=palette(theme)),
        "lines.linewidth": 1.6,
        "lines.markersize": 4,
        "lines.scale_dashes": True,
        "legend.frameon": False,
        "legend.fontsize": "small",
        "legend.handlelength": 3.0,
        "image.cmap": "viridis",  # even in lightness: it can be read in grey
    }


def _look(family: str, tone: int, dash: int, theme: Theme) -> Look:
    if family in FAMILIES:
        light, dark, marker = FAMILIES[family]
    else:
        number = _number(family)
        light, dark = OTHERS[number % len(OTHERS)]
        marker = OTHER_MARKERS[number // len(OTHERS) % len(OTHER_MARKERS)]
    colour = _mixed(dark if theme is DARK else light, TONES[tone], theme)
    return Look(colour, marker, DASHES[dash], filled=(tone, dash) == (0, 0))


def _mixed(colour: str, tone: float, theme: Theme) -> str:
    """Return a colour that is a part of the way to the background, or to the text."""
    towards = theme.background if tone > 0 else theme.text
    pairs = zip(bytes.fromhex(colour[1:]), bytes.fromhex(towards[1:]), strict=True)
    return "#" + bytes(round(a + abs(tone) * (b - a)) for a, b in pairs).hex()


def _number(name: str) -> int:
    """Return a number that a name has on every machine and in every process."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
