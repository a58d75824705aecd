"""`kstep check-env`: what an environment does that training would stumble over, and how to fix it.

The environment is stepped in a process of its own, as in training, so that one that hangs or
crashes is named and survived. Gymnasium's checker looks at it first; then episodes of random
actions are played, some of them twice, and once more in a new process.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import cloudpickle
import numpy as np
from PIL import Image, PngImagePlugin
from rich.console import Console

from kstep import envs, methods, names
from kstep.api import overrides, task_of
from kstep.config import Experiment, resolve
from kstep.envs import own
from kstep.envs.actions import Actions, DiscreteActions
from kstep.envs.examined import Examined, Seen
from kstep.envs.remote import Lost, Simulator
from kstep.envs.sight import Sight, as_colours
from kstep.errors import Fault, KstepError
from kstep.files import Tree
from kstep.terminal import say, terminal
from kstep.types import Array, EnvSpec

Level: TypeAlias = Literal["ok", "note", "fix"]
SOFTWARE = "kstep check-env"
"""Written into its pictures, so that it replaces no others."""
REPEATED = 60
"""Decisions of an episode that are played again."""
MOMENTS = 8
"""Frames in the picture."""
LARGE = 1000.0
"""A reward that makes values large."""

Ask: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    """ok; note: worth knowing; fix: training would fail or be wrong."""
    what: str
    text: str

    def __str__(self) -> str:
        return f"{self.level:5} {self.what:11} {self.text}"


class Broken(Exception):
    """The environment cannot be looked at any further."""


@dataclass
class Episode:
    """What was done, and what it led to."""

    seed: int
    actions: list[Array] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)


def check_env(
    task: str | None = None,
    *,
    env: Any = None,
    method: str = "ksl",
    preset: str = "paper",
    seed: int = 1,
    settings: Mapping[str, object] | None = None,
    output: str | Path = "check-env.png",
    env_timeout: float = 60.0,
    decisions: int = 500,
) -> bool:
    """Check an environment, as `kstep check-env` does: print what to fix; return whether it passed.

    `env` instead of a task: a Gymnasium environment, its class, or a function that makes one.
    """
    names.check_method(method)
    return show(
        terminal(),
        task=task_of(task, env),
        method=method,
        preset=preset,
        set=overrides(settings),
        seed=seed,
        output=Path(output),
        env_timeout=env_timeout,
        decisions=decisions,
    )


def examine(
    experiment: Experiment,
    picture: Path,
    report: Callable[[Finding], None],
    *,
    timeout: float = 60.0,
    opening: float | None = None,
    decisions: int = 500,
    seconds: float = 30.0,
) -> bool:
    """Look at the environment of an experiment; return whether there is nothing to fix.

    `timeout`: seconds that one call may take; `opening`: that being made may take, unless it is
    four times as long. `decisions`, `seconds`: how long to play at most.
    """
    refuse_foreign(picture)
    found: list[Finding] = []

    def note(level: Level, what: str, text: str) -> None:
        found.append(Finding(level, what, text))
        report(found[-1])

    _Check(experiment, picture, note, timeout, opening or 4 * timeout, decisions, seconds).run()
    return all(each.level != "fix" for each in found)


def show(
    console: Console,
    *,
    task: str,
    method: str,
    preset: str,
    set: Sequence[str],
    seed: int,
    output: Path,
    env_timeout: float,
    decisions: int,
) -> bool:
    """Print what is found about an environment; return whether there is nothing to fix."""
    if module := own.module_of(task):
        own.bring([module])
    experiment = resolve(method, task, preset=preset, seed=seed, overrides=set)
    number = 0

    def line(finding: Finding) -> None:
        nonlocal number
        number += finding.level == "fix"
        say(console, f"  {finding}", STYLES[finding.level])

    say(console, envs.parse(task).name, "bold")
    passed = examine(experiment, output, line, timeout=env_timeout, decisions=decisions)
    say(console, "passed" if passed else f"failed: {number} to fix", None if passed else "red")
    return passed


STYLES: dict[Level, str | None] = {"ok": None, "note": "yellow", "fix": "red"}


class _Check:
    def __init__(
        self,
        experiment: Experiment,
        picture: Path,
        note: Callable[[Level, str, str], None],
        timeout: float,
        opening: float,
        decisions: int,
        seconds: float,
    ) -> None:
        self.experiment, self.picture, self.note = experiment, picture, note
        self.timeout, self.opening = timeout, opening
        self.decisions, self.seconds = decisions, seconds
        self.name = envs.parse(experiment.env.task).name
        self.maker = cloudpickle.dumps(envs.maker_of(experiment.env, experiment.seed, Examined))
        self.episodes: list[Episode] = []
        self.spec: EnvSpec
        self.sight: Sight
        self.actions: Actions

    def run(self) -> None:
        """Look at one thing after the other, as far as the environment lets us."""
        try:
            with self.process(first=True) as ask:
                self.by_gymnasium(ask)
            with self.process() as ask:
                self.play(ask)
                repeats = self.repeats(ask, "")
                self.bounds(ask)
            if repeats:
                with self.process() as ask:
                    if self.repeats(ask, " in a new process"):
                        again = "the same seed and actions lead to the same, in a new process too"
                        self.note("ok", "repeats", again)
        except Broken:
            if self.episodes and self.episodes[0].seen:
                self.sees()
            return
        self.sees()
        self.observations()
        self.rewards()
        self.ends()
        self.speed()
        self.acts()

    # The process of the environment.

    @contextmanager
    def process(self, first: bool = False) -> Iterator[Ask]:
        """Yield what asks an environment in a new process; it is noted what hangs or ends it."""
        simulator = Simulator(self.name, self.timeout, lambda text: None, opening=self.opening)

        def ask(name: str, *arguments: Any, at: str = "") -> Any:
            try:
                return simulator.ask(0, name, *arguments)
            except Lost as error:
                called = {"open": "__init__", "by_gymnasium": "Gymnasium's checker"}.get(name, name)
                self.note("fix", "answers", _lost(str(error), called, at))
                raise Broken from error
            except Fault:
                raise
            except KstepError as error:
                self.note("fix", "works", f"{error}{at and f' ({at})'}")
                raise Broken from error

        try:
            began = time.perf_counter()
            made = ask("open", self.maker, None)
            self.spec, self.sight, self.actions = made["spec"], made["sight"], made["actions"]
            if first:
                took = time.perf_counter() - began
                self.note("ok", "is made", f"in {took:.1f} s; {self.described()}")
            yield ask
        finally:
            simulator.close(0)

    def described(self) -> str:
        if isinstance(self.actions, DiscreteActions):
            what = f"{self.actions.n} discrete actions"
        else:
            what = f"{self.actions.dim} continuous action{'s' if self.actions.dim > 1 else ''}"
        limit = self.spec.episode_decisions * self.spec.action_repeat
        repeat = f", each repeated {self.spec.action_repeat} times"
        return (
            f"{what}{repeat if self.spec.action_repeat > 1 else ''}; episodes are cut off after "
            f"{limit:,} env steps"
        )

    # What is done with it.

    def by_gymnasium(self, ask: Ask) -> None:
        try:
            stopped_at, warned = ask("by_gymnasium")
        except Broken:  # noted; episodes of our own show at which call
            return
        if stopped_at:
            self.note("fix", "Gymnasium", f"its checker stopped at: {stopped_at}")
        for text in warned:
            self.note("note", "Gymnasium", f"its checker warns: {text}")
        if not stopped_at and not warned:
            self.note("ok", "Gymnasium", "its checker found nothing")

    def play(self, ask: Ask) -> None:
        """Play episodes of random actions; a second one begins even if the first is long."""
        rng, began = np.random.default_rng(0), time.perf_counter()
        taken = 0
        while taken < self.decisions and (
            len(self.episodes) < 2 or time.perf_counter() - began < self.seconds
        ):
            episode = Episode(self.experiment.seed + len(self.episodes))
            self.episodes.append(episode)
            episode.seen.append(ask("reset", episode.seed, at=f"seed {episode.seed}"))
            room = self.decisions // 2 if len(self.episodes) == 1 else self.decisions - taken
            for number in range(room):
                if episode.seen[-1].done or time.perf_counter() - began > self.seconds:
                    break
                episode.actions.append(random_action(self.actions, rng))
                at = f"decision {number} of the episode with seed {episode.seed}"
                episode.seen.append(ask("step", episode.actions[-1], at=at))
                taken += 1

    def repeats(self, ask: Ask, where: str) -> bool:
        """Play the beginning of the first episode again; whether it went as before."""
        first = self.episodes[0]
        for number in range(min(len(first.seen), REPEATED + 1)):
            if number == 0:
                again, at = ask("reset", first.seed), "right after reset()"
            else:
                again, at = ask("step", first.actions[number - 1]), f"at decision {number - 1}"
            if different := difference(first.seen[number], again):
                self.note(
                    "fix",
                    "repeats",
                    f"the same seed and actions did not lead to the same{where}: {different} "
                    f"differs {at}. No run could be repeated or resumed. In reset(seed=seed), call "
                    "super().reset(seed=seed) and set all that an episode changes; draw random "
                    "numbers from self.np_random only",
                )
                return False
        return True

    def bounds(self, ask: Ask) -> None:
        """Take the most extreme actions: they must be possible, and should make a difference."""
        ends = []
        for name, action in extreme_actions(self.actions):
            last = ask("reset", self.experiment.seed)
            for number in range(10):
                if last.done:
                    break
                last = ask("step", action, at=f"decision {number} with {name}")
            ends.append(last)
        if not any(difference(ends[0], other) for other in ends[1:]):
            self.note(
                "note",
                "actions",
                "ten times the most different ones led to the same: are they used?",
            )
        else:
            self.note("ok", "actions", "the most extreme ones are taken, and make a difference")

    # What is said about it.

    def sees(self) -> None:
        frames = [seen.frame for seen in self.episodes[0].seen]
        said = str(self.sight).removeprefix("sees: ")
        if not self.sight.pictures:
            self.note("ok", "sees", said)
            return
        write_picture(frames, self.sight, self.picture)
        self.note("ok", "sees", f"{said}; look at {self.picture}")
        if (dark := self.sight.too_dark(frames)) is not None:
            self.note("fix", "sees", dark[1])
        images = [frame[: self.sight.height] for frame in frames]
        if all((image == image[:1, :1]).all() for image in images):
            self.note("fix", "sees", "every frame has one colour only: the agent would see nothing")
        elif len(images) > 10 and all((image == images[0]).all() for image in images):
            self.note(
                "fix",
                "sees",
                f"the picture did not change in {len(images) - 1} decisions: draw the current "
                "state, and return a new array each time",
            )

    def observations(self) -> None:
        misfits = [seen.misfit for episode in self.episodes for seen in episode.seen if seen.misfit]
        if misfits:
            self.note("fix", "observes", f"{misfits[0]}. Correct either of them")
        else:
            number = sum(len(episode.seen) for episode in self.episodes)
            self.note("ok", "observes", f"{number} observations are as their space says")
        starts = [episode.seen[0].frame for episode in self.episodes]
        if len(starts) > 1 and all(np.array_equal(starts[0], start) for start in starts):
            self.note(
                "note",
                "observes",
                "every seed starts alike: all evaluation episodes will be the same",
            )

    def rewards(self) -> None:
        rewards = [seen.reward for episode in self.episodes for seen in episode.seen[1:]]
        least, most = min(rewards, default=0.0), max(rewards, default=0.0)
        said = f"from {least:g} to {most:g}, {np.mean(rewards or [0.0]):.3g} on average"
        if least == most:
            why = f"always {most:g}: random actions show nothing of what is wanted"
            self.note("note", "rewards", f"{why}; expect to need more env steps")
        elif max(-least, most) > LARGE:
            self.note("note", "rewards", f"{said}: scale them to about 1 for stable learning")
        else:
            self.note("ok", "rewards", said)

    def ends(self) -> None:
        done = [episode for episode in self.episodes if episode.seen[-1].done]
        lengths = [len(episode.actions) for episode in done]
        limit = self.spec.episode_decisions
        if not done:
            self.note("ok", "ends", f"no episode ended by itself; the limit is {limit:,} decisions")
            return
        if all(length <= 1 for length in lengths):
            text = "every episode ends with the first decision: nothing can be learned"
            self.note("fix", "ends", text)
            return
        terminated = [episode for episode in done if episode.seen[-1].terminated]
        few, many = min(lengths), max(lengths)
        said = (
            f"{len(done)} episodes of {few if few == many else f'{few} to {many}'} decisions: "
            f"{len(terminated)} terminated, {len(done) - len(terminated)} truncated"
        )
        if len(done) > 1 and len(terminated) == len(done) and len(set(lengths)) == 1:
            self.note(
                "note",
                "ends",
                f"{said}. All after exactly {lengths[0]}: if that is a time limit, return "
                "truncated=True instead, since a terminated state is worth nothing",
            )
        else:
            self.note("ok", "ends", said)

    def speed(self) -> None:
        steps = [seen.seconds for episode in self.episodes for seen in episode.seen[1:]]
        resets = [episode.seen[0].seconds for episode in self.episodes]
        step = float(np.median(steps)) if steps else 0.0
        hours = step * 100_000 / self.spec.action_repeat / 3600
        self.note(
            "ok",
            "speed",
            f"{1 / max(step, 1e-6):,.0f} decisions a second ({1000 * step:.2g} ms each; a reset "
            f"{1000 * float(np.median(resets)):.2g} ms): 100,000 env steps take it "
            f"{60 * hours:.1f} min, beside learning",
        )

    def acts(self) -> None:
        method = self.experiment.method
        try:
            methods.refuse_actions(method, self.spec, self.name)
        except KstepError as error:
            self.note("note", "methods", str(error))


def _lost(how: str, called: str, at: str) -> str:
    """Return what happened to the environment's process, in words, and what to do."""
    where = f"{called}{'' if ' ' in called else '()'}{at and f', {at}'}"
    if "did not answer" in how:
        return (
            f"{where}: no answer {how[how.index('within') :]}. Look for a loop or a wait without "
            "an end; if it only takes long, --env-timeout allows more, here and in kstep train"
        )
    ended = how.removeprefix("it was ").removeprefix("it ")
    return (
        f"{where}: its process was {ended}. Call it in Python by itself; python -X faulthandler "
        "shows where a crash comes from"
    )


def difference(one: Seen, other: Seen) -> str:
    """Return what differs between two moments; empty if nothing does."""
    if not np.array_equal(one.frame, other.frame):
        return "the observation"
    if one.reward != other.reward:
        return f"the reward ({one.reward:g} and {other.reward:g})"
    if (one.terminated, one.truncated) != (other.terminated, other.truncated):
        return "the end of the episode"
    return ""


def random_action(actions: Actions, rng: np.random.Generator) -> Array:
    if isinstance(actions, DiscreteActions):
        return actions.vector(int(rng.integers(actions.n)))
    return rng.uniform(-1.0, 1.0, actions.dim).astype(np.float32)


def extreme_actions(actions: Actions) -> list[tuple[str, Array]]:
    """Return the lowest and the highest action, or the first few discrete ones."""
    if isinstance(actions, DiscreteActions):
        return [(f"action {i}", actions.vector(i)) for i in range(min(actions.n, 8))]
    sides = (("the lowest actions", -1.0), ("the highest actions", 1.0))
    return [(name, np.full(actions.dim, side, np.float32)) for name, side in sides]


def refuse_foreign(picture: Path) -> None:
    """Refuse to replace a file that this command did not write."""
    if picture.suffix != ".png":
        raise KstepError(f"--output must end in .png, not '{picture.name}'")
    if picture.exists():
        try:
            with Image.open(picture) as image:
                ours = image.info.get("Software") == SOFTWARE
        except OSError:
            ours = False
        if not ours:
            raise KstepError(f"{picture} exists already; choose another --output")


def write_picture(frames: list[Array], sight: Sight, path: Path) -> None:
    """Write what the agent sees at some moments, beside each other, every pixel as a square of
    whole pixels; several images, or stacked frames that came as channels, below each other."""
    chosen = sorted({round(i) for i in np.linspace(0, len(frames) - 1, MOMENTS)})
    rows = []
    first = 0
    for picture in sight.pictures:
        height, width = picture.size
        channels = int(np.prod(picture.shape)) // (height * width)
        parts = [frames[i][: sight.height, :, first : first + channels] for i in chosen]
        rows.append(np.concatenate([_framed(as_colours(part)) for part in parts], axis=1))
        first += channels
    sheet = np.concatenate(rows, axis=0)
    scale = max(1, round(168 / sight.height))
    large = sheet.repeat(scale, axis=0).repeat(scale, axis=1)
    about = PngImagePlugin.PngInfo()
    about.add_text("Software", SOFTWARE)
    file = io.BytesIO()
    Image.fromarray(large).save(file, "png", pnginfo=about)
    tree = Tree(path.parent)
    tree.make(path.parent)
    tree.write(path, file.getvalue())


def _framed(image: Array) -> Array:
    """Return an image with a grey pixel around it, so that its edges show."""
    return np.pad(image, ((1, 1), (1, 1), (0, 0)), constant_values=128)
