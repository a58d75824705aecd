"""What a run has learned to do, without its environment: observations in, actions out.

A run stores what its environment turned out to be: its actions with their bounds, and what the
agent sees of it. So loading a policy imports no simulator and, like all reading of run folders,
executes nothing.
"""

from __future__ import annotations

import warnings
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kstep.agent import Agent
from kstep.data.batches import to_device
from kstep.envs.sight import Unseen, resized
from kstep.rng import Streams
from kstep.run import policies, system
from kstep.run.folder import Environment, Run
from kstep.types import Array, Counts, KstepError


class Policy:
    """The greedy policy of a run; made by `kstep.load`."""

    def __init__(self, run: Run, agent: Agent, environment: Environment, counts: Counts) -> None:
        self.run, self.agent, self.environment, self.counts = run, agent, environment, counts
        self._frames: deque[Array] = deque(maxlen=agent.method.stack)

    def __str__(self) -> str:
        experiment = self.run.experiment
        return f"the policy of {experiment.method.name} in {experiment.env.task}"

    @property
    def stack_shape(self) -> tuple[int, ...]:
        """Of the stacks that `act_batch` and `encode` take: (S, H, W, C), or (S, D) for states."""
        return (self.agent.method.stack, *self.environment.spec.frame_shape)

    def reset(self) -> None:
        """Begin an episode: forget what was seen before."""
        self._frames.clear()

    def act(self, observation: Any) -> Any:
        """Return an action, as the environment takes it, for an observation as it gives it.

        Where the agent saw what the environment draws, the observation is such an image; a larger
        one of the same proportions is made smaller.
        """
        return self.act_batch(self.see(observation)[None])[0]

    def see(self, observation: Any) -> Array:
        """Take in the next observation of an episode; return the stack (S, H, W, C) of frames, the
        oldest first, that `act` decides on."""
        frame = self._frame(observation)
        self._frames.extend([frame] * (1 if self._frames else self._frames.maxlen or 1))
        return np.stack(self._frames)

    def act_batch(self, stacks: Array) -> Array:
        """Return actions (B, ...), as the environment takes them, for stacks (B, S, H, W, C) of
        frames, the oldest first."""
        vectors = self.agent.act(self._checked(stacks), explore=False)
        if not np.isfinite(vectors).all():
            raise KstepError(f"{self} chose an action that is not finite")
        return np.stack([self.environment.actions.true(vector) for vector in vectors])

    @torch.no_grad()
    def encode(self, stacks: Array) -> Array:
        """Return latents (B, D) of stacks (B, S, H, W, C) of frames, the oldest first."""
        agent = self.agent
        (view,) = to_device(agent.device, agent.batches.augment.act_view(self._checked(stacks)))
        return agent.encoder(view).cpu().numpy()  # type: ignore[no-any-return]

    def _frame(self, observation: Any) -> Array:
        sight = self.environment.sight
        if sight.source == "render" and isinstance(observation, np.ndarray):
            observation = _smaller(observation, sight.pictures[0].shape)
        try:
            return sight.frame(observation)
        except Unseen as error:
            raise KstepError(f"{self} was given {error}") from error

    def _checked(self, stacks: Array) -> Array:
        """Refuse what is not a batch of stacks, or none: it could lead to some action anyway."""
        needed, dtype = self.stack_shape, self.environment.spec.frame_dtype
        found = np.asarray(stacks)
        if found.shape[1:] != needed or not found.size or found.dtype != dtype:
            shape = ", ".join(map(str, needed))
            raise KstepError(
                f"{self} was given stacks {found.shape} {found.dtype}; needed are (B, {shape}) "
                f"{dtype}"
            )
        if dtype.kind == "f" and not np.isfinite(found).all():
            raise KstepError(f"{self} was given stacks that are not finite")
        return found


def load(run: Run | str | Path, *, device: str = "cpu", at: int | None = None) -> Policy:
    """Load the policy of a run's newest checkpoint, or of `zoo:NAME`; needs no simulator.

    `at`: the policy at these env steps instead, where the run has kept one.
    """
    opened = Run.open(run.folder if isinstance(run, Run) else Path(run))
    environment = opened.environment or _looked_at(opened)
    streams = Streams(opened.experiment.seed, system.device(device))
    agent = Agent(opened.experiment.method, environment.spec, streams, device)
    counts = policies.weights(
        opened, agent, lambda problem: warnings.warn(f"left out: {problem}", stacklevel=3), at
    )
    return Policy(opened, agent, environment, counts)


def _looked_at(run: Run) -> Environment:
    """Return what an older run did not store, by making its environment once."""
    from kstep import envs

    try:
        env = envs.make(run.experiment.env, run.experiment.seed)
    except ImportError as error:
        raise KstepError(
            f"{run.folder} was begun by a version of kstep that did not store what its environment "
            f"is, so that it must be made once, and cannot be here: {error}. Load the run where "
            "its simulator is installed"
        ) from error
    try:
        return Environment(envs.spec_of(env), env.actions, env.sight)
    finally:
        env.close()


def _smaller(image: Array, shape: tuple[int, ...]) -> Array:
    """Return an image (H, W, C) at the size at which it would have been drawn, where it is larger
    and has the same proportions; otherwise as it is."""
    if image.ndim != 3 or image.dtype != np.uint8 or image.shape[2] != shape[2]:
        return image
    (height, width), (own_height, own_width) = shape[:2], image.shape[:2]
    if own_height < height or own_height * width != own_width * height:
        return image
    return resized(image, height, width)
