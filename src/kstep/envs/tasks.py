"""Names of tasks, and how often each repeats an action.

A name is `<domain>_<task>` of the DeepMind Control Suite (`cartpole_swingup`), `gym:<id>` for any
Gymnasium environment (`gym:<module>:<id>` if a module registers it), `atari:<game>`,
`minatar:<game>`, one of our own small ones (`toy_reach`), or one that was registered from Python
(own.py). In: a name. Out: a `Task`, or an error with the nearest known names. The suite's and the
games' names are listed here so that listing or checking them does not import a simulator; a test
compares them with what is installed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from kstep.types import KstepError

PLANET: Mapping[str, int] = MappingProxyType(
    {
        "finger_spin": 2,
        "cartpole_swingup": 8,
        "reacher_easy": 4,
        "cheetah_run": 4,
        "walker_walk": 2,
        "ball_in_cup_catch": 4,
    }
)
"""The six tasks of the benchmark (Hafner et al., arXiv:1811.04551) and their action repeats."""

SUITE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "acrobot": ("swingup", "swingup_sparse"),
        "ball_in_cup": ("catch",),
        "cartpole": (
            "balance",
            "balance_sparse",
            "swingup",
            "swingup_sparse",
            "two_poles",
            "three_poles",
        ),
        "cheetah": ("run",),
        "dog": ("stand", "walk", "trot", "run", "fetch"),
        "finger": ("spin", "turn_easy", "turn_hard"),
        "fish": ("upright", "swim"),
        "hopper": ("stand", "hop"),
        "humanoid": ("stand", "walk", "run", "run_pure_state"),
        "humanoid_CMU": ("stand", "walk", "run"),
        "manipulator": ("bring_ball", "bring_peg", "insert_ball", "insert_peg"),
        "pendulum": ("swingup",),
        "point_mass": ("easy", "hard"),
        "quadruped": ("walk", "run", "escape", "fetch"),
        "reacher": ("easy", "hard"),
        "stacker": ("stack_2", "stack_4"),
        "swimmer": ("swimmer6", "swimmer15"),
        "walker": ("stand", "walk", "run"),
    }
)
"""Domain to tasks of the DeepMind Control Suite, in its order."""
# Domains and tasks both contain underscores, so a name cannot simply be split.
_SUITE_NAMES = {f"{domain}_{task}": (domain, task) for domain in SUITE for task in SUITE[domain]}
OF_SUITE = frozenset(_SUITE_NAMES)

EXCLUDED: Mapping[str, str] = MappingProxyType(
    {
        "lqr_lqr_2_1": "its actions have no bounds to map [-1, 1] onto, and no time limit ends it",
        "lqr_lqr_6_2": "its actions have no bounds to map [-1, 1] onto, and no time limit ends it",
    }
)
"""Tasks of the suite that cannot work here, and why."""

TOY = ("toy_reach", "toy_glide", "toy_arrows")
"""Our own: `reach` moves a dot directly, `glide` only pushes it, `arrows` moves it by four discrete
actions. `toy` is short for `toy_reach`."""

SUITE_REPEAT = 2
"""Action repeat of suite tasks outside `PLANET`; the smallest the benchmark uses."""

ATARI_100K = (
    "atari:Alien",
    "atari:Amidar",
    "atari:Assault",
    "atari:Asterix",
    "atari:BankHeist",
    "atari:BattleZone",
    "atari:Boxing",
    "atari:Breakout",
    "atari:ChopperCommand",
    "atari:CrazyClimber",
    "atari:DemonAttack",
    "atari:Freeway",
    "atari:Frostbite",
    "atari:Gopher",
    "atari:Hero",
    "atari:Jamesbond",
    "atari:Kangaroo",
    "atari:Krull",
    "atari:KungFuMaster",
    "atari:MsPacman",
    "atari:Pong",
    "atari:PrivateEye",
    "atari:Qbert",
    "atari:RoadRunner",
    "atari:Seaquest",
    "atari:UpNDown",
)
"""The 26 games that are compared after 100,000 decisions (Kaiser et al. 2019, arXiv:1903.00374).
Any other game for one player of the Arcade Learning Environment has such a name as well."""

ATARI_REPEAT = 4
"""Frames per decision."""

MINATAR = (
    "minatar:asterix",
    "minatar:breakout",
    "minatar:freeway",
    "minatar:seaquest",
    "minatar:space_invaders",
)
"""The five games of MinAtar (Young & Tian 2019, arXiv:1903.03176)."""

BUDGET = 100_000
"""Env steps of a run, unless another number is asked for; four times as many frames of Atari."""

GYM = "gym:"

OWN: set[str] = set()
"""What was registered from Python in this process; `arm` is short for `gym:arm`."""


@dataclass(frozen=True)
class Task:
    """What to make, with the benchmark's action repeat and camera."""

    name: str
    kind: Literal["suite", "gym", "toy", "atari", "minatar"]
    domain: str
    """The suite's domain; empty otherwise."""
    task: str
    """The suite's task, the Gymnasium id, the game, or the name of the toy."""
    action_repeat: int
    camera: int = 0
    env_steps: int = BUDGET
    """Usual budget of a run."""


def names() -> tuple[str, ...]:
    """Return every name `parse` always knows apart from `gym:` ones and further games of Atari, the
    benchmark first."""
    suite = (name for name in _SUITE_NAMES if name not in PLANET)
    return (*PLANET, *suite, *TOY, *MINATAR, *ATARI_100K)


def parse(name: str) -> Task:
    """Return the task of that name."""
    if name.startswith(GYM):
        gym_id = name.removeprefix(GYM)
        if not gym_id:
            raise KstepError("`gym:` needs the id of an environment, such as gym:Pendulum-v1")
        module, *rest = gym_id.split(":")
        if rest and (len(rest) > 1 or not rest[0] or not _is_module(module)):
            raise KstepError(f"{name!r}: needed is gym:<id>, or gym:<module>:<id>")
        return Task(name, "gym", "", gym_id, action_repeat=1)
    if name in OWN:
        return Task(f"{GYM}{name}", "gym", "", name, action_repeat=1)
    if name == "toy":
        name = TOY[0]
    if name in TOY:
        return Task(name, "toy", "", name, action_repeat=1)
    if name in MINATAR:
        return Task(name, "minatar", "", name.partition(":")[2], action_repeat=1)
    if re.fullmatch("atari:[A-Z][A-Za-z0-9]*", name):
        game = name.partition(":")[2]
        return Task(name, "atari", "", game, ATARI_REPEAT, env_steps=ATARI_REPEAT * BUDGET)
    if name in _SUITE_NAMES:
        domain, task = _SUITE_NAMES[name]
        # Camera 2 follows the quadruped; the code released for DrQ and its kin uses it too.
        camera = 2 if domain == "quadruped" else 0
        return Task(name, "suite", domain, task, PLANET.get(name, SUITE_REPEAT), camera)
    if name in EXCLUDED:
        raise KstepError(f"task {name!r} cannot be used: {EXCLUDED[name]}")
    raise KstepError(f"unknown task {name!r}; {_suggestion(name)}")


def _is_module(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _suggestion(name: str) -> str:
    spelled = {known.lower(): known for known in (*names(), *OWN, "toy")}
    wanted = name.strip().lower().replace("-", "_").replace("/", "_").replace(" ", "_")
    near = difflib.get_close_matches(wanted, spelled, n=3, cutoff=0.6)
    if near:
        return "did you mean " + " or ".join(spelled[match] for match in near) + "?"
    return (
        f"the benchmark's are {', '.join(PLANET)}; any Gymnasium environment is gym:<id>, and what "
        "a file of yours registers needs --import FILE"
    )
