"""Videos of policies: any run or moment of training, any size and camera, several side by side.

In: runs and moments. Out: a video with a row per run and a column per moment; every picture is
labelled and may show the actions, the reward so far, where the encoder looks, and how well KSL's
transition model predicted what came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont

from kstep import style
from kstep.agent import Agent
from kstep.analysis import saliency
from kstep.analysis.video import SUFFIXES, video
from kstep.auxiliary.ksl import KSL
from kstep.data.batches import to_device
from kstep.envs import ControlEnv
from kstep.nets.encoder import PixelEncoderConfig
from kstep.report.options import Overlay
from kstep.run.episode import Episode
from kstep.run.evaluate import Evaluation, evaluation_seeds
from kstep.run.folder import Run
from kstep.run.load import opened
from kstep.run.policies import only_policy
from kstep.run.saved_encoders import label_of
from kstep.types import Array, Counts, KstepError

LARGEST = 8192
"""Pixels of a whole video along one side."""
SHOWN = 120
"""Decisions in a curve."""


def film(
    runs: Sequence[Path],
    output: Path,
    *,
    at: Sequence[int] = (),
    overlay: Sequence[Overlay] = (),
    label: bool = True,
    height: int = 480,
    width: int = 640,
    camera: int | None = None,
    fps: float | None = None,
    episodes: int = 1,
    seed: int = 0,
    device: str = "cpu",
) -> dict[str, Evaluation]:
    """Film greedy episodes of each run's newest weights, or `at` these env_steps, and return what
    they were rewarded, by the label of the picture; nothing is left behind if that fails.

    `camera` None: the one the agent sees through. `fps` None: real time, from the simulator's own
    clock where it has one. The same seed repeats the same starts. A policy whose episodes are over
    waits for the others.
    """
    if not runs:
        raise KstepError("name at least one run to film")
    for name, side, count in (("--height", height, len(runs)), ("--width", width, len(at) or 1)):
        if not 16 <= side <= 4096 or side % 2 or side * count > LARGEST:
            raise KstepError(
                f"{name} must be an even number from 16 to 4096, and {LARGEST} for all pictures "
                f"together, not {side}" + (f" for each of {count}" if count > 1 else "")
            )
    if output.suffix not in SUFFIXES:
        raise KstepError(f"--output must end in {', '.join(SUFFIXES)}, not '{output.name}'")
    if output.exists():
        raise KstepError(f"{output} exists already; choose another --output")
    seeds = evaluation_seeds(seed, -1, episodes)
    moments: Sequence[int | None] = at or (None,)
    with ExitStack() as stack:
        grid: list[list[_Picture]] = []
        for run in runs:
            grid.append([])
            for moment in moments:
                if "predictions" in overlay and only_policy(Run.open(run), moment):
                    raise KstepError(
                        f"{run} has only a policy at this moment: --overlay predictions needs a "
                        "checkpoint, with KSL's transition model"
                    )
                agent, [env], counts = stack.enter_context(opened(run, device, at=moment))
                actor = _Actor(agent, env, seeds, overlay)
                title = _title(run, counts)
                drawn = _Drawing(height, width, camera, title if label else None, overlay)
                grid[-1].append(_Picture(title, actor, drawn))
        output.parent.mkdir(parents=True, exist_ok=True)
        rate = fps or max(each.actor.env.decisions_per_second() for row in grid for each in row)
        with video(output, fps=rate, quality=8) as add:
            for frame in _frames(grid):
                add(frame)
        pictures = [each for row in grid for each in row]
        return {each.title: each.actor.evaluation() for each in pictures}


def _title(run: Path, counts: Counts) -> str:
    experiment = Run.open(run).experiment
    return (
        f"{label_of(experiment)} {experiment.env.task} seed {experiment.seed}, "
        f"{counts.env_steps:,} env steps"
    )


class _Actor:
    """A policy in its environment, one decision after the other, and what it went through."""

    def __init__(
        self, agent: Agent, env: ControlEnv, seeds: Sequence[int], overlay: Sequence[Overlay]
    ) -> None:
        self.agent, self.env = agent, env
        self.rewards: list[float] = []
        self.actions: list[Array] = []
        self.looks = _Looks(agent) if "looks" in overlay else None
        self.predictions = _Predictions(agent) if "predictions" in overlay else None
        self.episode = Episode(env, agent.method.stack)
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._moments = self._play(seeds)

    def advance(self) -> bool:
        """Come to the next moment to be filmed; whether there is one."""
        return next(self._moments, None) is not None

    def _play(self, seeds: Sequence[int]) -> Iterator[Literal[True]]:
        for seed in seeds:
            self.episode.start(seed)
            self.rewards, self.actions = [], []
            if self.predictions:
                self.predictions.begin(self.episode.observation)
            done = False
            while not done:
                yield True
                action = self.agent.act(self.episode.observation[None], explore=False)[0]
                step = self.episode.step(action)
                done = step.done
                self.actions.append(action)
                self.rewards.append(step.reward)
                if self.predictions:
                    self.predictions.step(action, self.episode.observation)
            self._returns.append(self.episode.total_reward)
            self._lengths.append(len(self.actions))
            yield True  # where the episode ended

    def evaluation(self) -> Evaluation:
        return Evaluation(tuple(self._returns), tuple(self._lengths))


class _Looks:
    """Where the encoder looks: its attention over what the policy sees."""

    def __init__(self, agent: Agent) -> None:
        config = agent.method.encoder
        if not isinstance(config, PixelEncoderConfig):
            raise KstepError(f"'{agent.method.name}' has no convolutions that look anywhere")
        self.agent, self.config = agent, config

    def picture(self, observation: Array) -> Array:
        """Return the newest frame (H, W, 3) that the policy sees, with its attention over it."""
        view = self.agent.method.augment.act_view(observation[None])
        encoder = self.agent.encoder
        maps = saliency.attention_of(encoder, self.config.strides, view)
        picture: Array = saliency.overlay(view[:, -1], maps, scale=1)[0]
        return picture


class _Predictions:
    """What KSL's transition model predicted 1 to k decisions ago of now, as cosines with what came:
    1 where its loss is 0."""

    def __init__(self, agent: Agent) -> None:
        task = agent.auxiliary
        if not isinstance(task, KSL):
            raise KstepError(f"'{agent.method.name}' does not have KSL's transition model")
        self.agent, self.task = agent, task
        self.encode = agent.encoder.features if task.sees == "features" else agent.encoder
        self.layers = agent.core.borrowed_layers(task.borrowed_layers)
        self.cosines: list[Array] = []
        self._ahead: deque[torch.Tensor] = deque(maxlen=task.config.k)

    @torch.no_grad()
    def begin(self, observation: Array) -> None:
        self.cosines = []
        self._ahead.clear()
        self._ahead.appendleft(self.encode(self._view(observation)))

    @torch.no_grad()
    def step(self, action: Array, observation: Array) -> None:
        """Carry every prediction on by the action taken, and compare it with what came."""
        view = self._view(observation)
        (taken,) = to_device(self.agent.device, action[None])
        target = self.task.targets(self.agent.auxiliary_slow_encoder, view[:, None])[:, 0]
        for i, latent in enumerate(self._ahead):
            self._ahead[i] = self.task.transition(latent, taken, self.layers)
        guesses = [self.task.predictor(self.task.projector(latent)) for latent in self._ahead]
        row = np.full(self.task.config.k, np.nan)
        row[: len(guesses)] = [float(F.cosine_similarity(guess, target)) for guess in guesses]
        self.cosines.append(row)
        self._ahead.appendleft(self.encode(view))

    def _view(self, observation: Array) -> torch.Tensor:
        (view,) = to_device(
            self.agent.device, self.agent.method.augment.act_view(observation[None])
        )
        return view


@dataclass
class _Drawing:
    """How a picture is drawn."""

    height: int
    width: int
    camera: int | None
    title: str | None
    overlay: Sequence[Overlay]
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont = field(init=False)

    def __post_init__(self) -> None:
        self.line = max(8, min(self.height, self.width) // 24)
        self.font = ImageFont.load_default(self.line)

    def frame(self, actor: _Actor) -> Array:
        """Return the present moment (height, width, 3)."""
        picture = actor.env.film_frame(self.height, self.width, self.camera)
        if self.title is None and not self.overlay:
            return picture
        image = Image.fromarray(picture).convert("RGBA")
        above = Image.new("RGBA", image.size)
        pen, low = ImageDraw.Draw(above), self.height - self.line // 2
        if "reward" in self.overlay:
            total = np.cumsum(actor.rewards)
            text = f"reward {actor.episode.total_reward:.1f}"
            bounds = min([0.0, *total]), max([0.0, *total])
            low = self._curves(pen, low, text, [total], bounds, style.DARK.text)
        if actor.predictions is not None:
            each = np.array(actor.predictions.cosines).T
            newest = " ".join(f"{cosines[-1]:.2f}" for cosines in each)
            text = f"predicted 1 to {actor.predictions.task.config.k} ahead: cosine {newest}"
            colour = style.look("ksl", style.DARK).colour
            low = self._curves(pen, low, text, np.maximum(each, 0.0), (0.0, 1.0), colour)
        if "actions" in self.overlay:
            self._bars(pen, low, actor)
        if actor.looks is not None:
            self._inset(above, pen, actor.looks.picture(actor.episode.observation))
        if self.title is not None:
            self._label(pen, self.title)
        return np.asarray(Image.alpha_composite(image, above).convert("RGB"))

    def _label(self, pen: ImageDraw.ImageDraw, title: str) -> None:
        tall = self.line * 3 // 2
        pen.rectangle((0, 0, self.width, tall), fill=SHADE)
        colour = style.look(title, style.DARK).colour
        pen.rectangle((0, 0, self.line // 2, tall), fill=colour)
        pen.text((self.line, tall / 2), title, style.DARK.text, self.font, anchor="lm")

    def _curves(
        self,
        pen: ImageDraw.ImageDraw,
        low: int,
        text: str,
        curves: Sequence[Array] | Array,
        bounds: tuple[float, float],
        colour: str,
    ) -> int:
        """Draw a text and curves over the last decisions, the first in its colour, in a strip that
        ends at `low`; return where the next one can end."""
        tall, left, right = self.line * 3, self.line // 2, self.width - self.line // 2
        pen.rectangle((left, low - tall, right, low), fill=SHADE)
        pen.text((left + self.line / 2, low - tall / 2), text, colour, self.font, anchor="lm")
        x = np.linspace(left + pen.textlength(text, self.font) + self.line, right - 2, SHOWN)
        scale = (tall - 4) / max(bounds[1] - bounds[0], 1e-9)
        for number, curve in reversed(list(enumerate(curves))):
            y = low - 2 - (curve[-SHOWN:] - bounds[0]) * scale
            points = [(a, b) for a, b in zip(x, y, strict=False) if np.isfinite(b)]
            if len(points) > 1 and x[0] < x[-1]:
                fill = FAINT if number else colour
                pen.line(points, fill=fill, width=max(1, self.line // 8))
        return low - tall - self.line // 2

    def _bars(self, pen: ImageDraw.ImageDraw, low: int, actor: _Actor) -> None:
        """Draw a bar from the middle for every number of the newest action."""
        count, wide = actor.episode.width, max(3, self.line // 2)
        tall, left = self.line * 4, self.line // 2
        pen.rectangle((left, low - tall, left + (wide + 2) * count + 4, low), fill=SHADE)
        middle = low - tall / 2
        for i, value in enumerate(actor.actions[-1] if actor.actions else np.zeros(count)):
            x, y = left + 3 + i * (wide + 2), middle - float(value) * (tall / 2 - 3)
            pen.rectangle((x, min(middle, y), x + wide, max(middle, y)), fill=BAR)
        pen.line((left, middle, left + (wide + 2) * count + 4, middle), fill=FAINT)
        self._name(pen, left, low - tall, "action")

    def _inset(self, above: Image.Image, pen: ImageDraw.ImageDraw, seen: Array) -> None:
        """Put what the policy sees into the upper right corner."""
        side = min(self.height, self.width) // 3
        small = Image.fromarray(seen).resize((side, side), Image.Resampling.NEAREST)
        left, top = self.width - side - self.line // 2, self.line * 2
        above.paste(small, (left, top))
        self._name(pen, left, top + side + self.line * 5 // 4, "encoder looks")

    def _name(self, pen: ImageDraw.ImageDraw, left: int, low: int, text: str) -> None:
        """Write what something is into a strip of its own that ends at `low`."""
        right, tall = left + pen.textlength(text, self.font) + self.line // 2, self.line * 5 // 4
        pen.rectangle((left, low - tall, right, low), fill=SHADE)
        pen.text(
            (left + self.line // 4, low - tall / 2), text, style.DARK.text, self.font, anchor="lm"
        )


SHADE = (12, 14, 18, 190)
FAINT = (255, 255, 255, 110)
BAR = (106, 218, 253, 255)


@dataclass
class _Picture:
    """One place of the grid; after its last moment it stands still."""

    title: str
    actor: _Actor
    drawing: _Drawing
    last: Array = field(default_factory=lambda: np.zeros(0))

    def advance(self) -> bool:
        if not self.actor.advance():
            return False
        self.last = self.drawing.frame(self.actor)
        return True


def _frames(grid: Sequence[Sequence[_Picture]]) -> Iterator[Array]:
    """Yield the frames of the video until every picture has ended."""
    pictures = [each for row in grid for each in row]
    while max([each.advance() for each in pictures]):  # each of them, also after the first
        yield np.concatenate([np.concatenate([each.last for each in row], axis=1) for row in grid])
