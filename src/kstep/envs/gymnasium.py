"""Any Gymnasium environment with Box or Discrete actions and an image, behind our contract.

In: the id of a registered environment. Out: a `GymnasiumEnv`. What the agent sees of it is decided
in sight.py. An environment that does not fit is refused with a sentence about what is needed, at
the start or at the step where it shows.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import cloudpickle
import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator

from kstep.envs import gl, own
from kstep.envs.actions import actions_of
from kstep.envs.base import ControlEnv
from kstep.envs.sight import Unseen, as_colours, look, resized
from kstep.types import Array, KstepError, ObservationKind

T = TypeVar("T")


class GymnasiumEnv(ControlEnv):
    """A registered Gymnasium environment. Its own time limit truncates; cameras are ignored."""

    def __init__(
        self,
        gym_id: str,
        *,
        observation: ObservationKind,
        size: int,
        image: str | None,
        vector: str | None,
        resize: str | None,
        action_repeat: int,
        time_limit: int | None,
        seed: int,
    ) -> None:
        self._name = f"gym:{gym_id}"
        self._env, self._renders, registered_limit = self._open(gym_id, observation)
        self._first_seed: int | None = seed
        self._last: Any = None
        self._space: Any = getattr(self._env, "observation_space", None)
        with self._naming():
            sight = look(
                self._space,
                observation,
                size=size,
                image=image,
                vector=vector,
                resize=resize,
                render=self._example if self._renders else None,
            )
        actions = actions_of(getattr(self._env, "action_space", None), self)
        super().__init__(
            observation=observation,
            sight=sight,
            actions=actions,
            action_repeat=action_repeat,
            ends_after=None,
            time_limit=registered_limit if time_limit is None else time_limit,
        )

    def _open(
        self, gym_id: str, observation: ObservationKind
    ) -> tuple[gymnasium.Env[Any, Any], bool, int | None]:
        """Make the environment, with rendering where it supports that; return whether it does, and
        the time limit that it was registered with. Ours takes its place."""
        module, colon, plain = gym_id.rpartition(":")
        if colon:
            own.bring([module])
        try:
            spec = gymnasium.spec(plain)
        except gymnasium.error.Error as error:
            raise KstepError(
                f"{self} cannot be made: {error} If a module or a file "
                "registers it: --import MODULE or FILE.py"
            ) from error
        gym_id = spec.id
        if "mujoco" in str(spec.entry_point):
            gl.prepare(required=observation == "pixels")
        options: dict[str, Any] = {"disable_env_checker": True, "max_episode_steps": -1}
        with self._blamed("__init__"):
            creator = _creator(spec)
            asked = _takes_render_mode(creator)
            if asked and _can_render(creator):
                env = gymnasium.make(gym_id, **options, render_mode="rgb_array")
            else:
                env = gymnasium.make(gym_id, **options)
                if asked and env.render_mode is None and _can_render(env):  # a function made it
                    env.close()
                    env = gymnasium.make(gym_id, **options, render_mode="rgb_array")
        return env, env.render_mode == "rgb_array", spec.max_episode_steps

    def _begin(self, seed: int | None) -> None:
        if seed is None:
            # Gymnasium seeds its generator at the first reset only.
            seed = self._first_seed
        self._first_seed = None
        with self._blamed("reset"):
            answer = self._env.reset(seed=seed)
        self._last, _ = self._parts("reset", answer, "observation, info")

    def _simulate(self, action: Any) -> tuple[float, bool, bool]:
        with self._blamed("step"):
            answer: Any = self._env.step(action)
        needed = "observation, reward, terminated, truncated, info"
        self._last, reward, terminated, truncated, _ = self._parts("step", answer, needed)
        return (
            self._number(reward, "reward"),
            self._flag(terminated, "terminated"),
            self._flag(truncated, "truncated"),
        )

    def _parts(self, method: str, answer: Any, needed: str) -> tuple[Any, ...]:
        if not isinstance(answer, tuple) or len(answer) != len(needed.split()):
            found = f"{len(answer)} values" if isinstance(answer, tuple) else type(answer).__name__
            raise KstepError(f"{self} returned {found} from {method}(); needed are {needed}")
        return answer

    def _number(self, value: Any, what: str, needed: str = "a number") -> float:
        with contextlib.suppress(ValueError):  # where it is a ragged list
            array = np.asarray(value)
            if array.size == 1 and array.dtype.kind in "biuf":
                return float(array.item())
        raise KstepError(f"{self} gave {value!r} as {what}; needed is {needed}")

    def _flag(self, value: Any, what: str) -> bool:
        number = self._number(value, what, "True or False")
        if number not in (0, 1):
            raise KstepError(f"{self} gave {value!r} as {what}; needed is True or False")
        return bool(number)

    @property
    def inner(self) -> gymnasium.Env[Any, Any]:
        """The environment as its author wrote it."""
        return self._env.unwrapped

    @property
    def last(self) -> Any:
        """Its last observation, as it gave it."""
        return self._last

    @contextlib.contextmanager
    def _blamed(self, doing: str) -> Iterator[None]:
        """Turn whatever the environment's code raises into an error that names it and the line."""
        try:
            yield
        except (KstepError, MemoryError):
            raise
        except ImportError as error:
            raise KstepError(f"{self} needs a package that is missing: {error}") from error
        except (Exception, SystemExit) as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            raise KstepError(
                f"{self} raised {type(error).__name__} in {doing}() at {at.filename}:{at.lineno}: "
                f"{' '.join(str(error).split())}"
            ) from error

    def _state(self) -> Array:
        with self._naming("gave "):
            return self.sight.state(self._last)

    def quantities(self) -> dict[str, float]:
        """Return the numbers of its observation, whatever the agent sees; none if it has none."""
        with contextlib.suppress(Unseen):
            numbers = look(self._space, "state", size=1).state(self._last)
            return {f"state {i}": float(value) for i, value in enumerate(numbers)}
        return {}

    def _see(self) -> Array:
        seen = self._rendered() if self.sight.source == "render" else self._last
        with self._naming("gave "):
            return self.sight.frame(seen)

    def _draw(self, height: int, width: int, camera: int) -> Array:
        # The render is usually larger than what the agent sees.
        if self._renders:
            image = self._rendered()
        elif self.sight.pictures:
            image = self._see()[: self.sight.height]
        else:
            raise KstepError(f'{self} cannot be rendered: it has no render_mode="rgb_array"')
        if image.dtype != np.uint8 or image.ndim != 3:
            raise KstepError(
                f"{self} gave a rendered image {image.shape} {image.dtype}; needed is (H, W, 3) "
                "uint8"
            )
        return resized(as_colours(np.array(image)), height, width)

    def _example(self) -> Array:
        """Draw a first state; the next reset starts as if this had not been."""
        seed = self._first_seed
        self._begin(None)
        self._first_seed = seed
        return self._rendered()

    @contextlib.contextmanager
    def _naming(self, verb: str = "") -> Iterator[None]:
        """Put the environment's name in front of what is refused about it."""
        try:
            yield
        except Unseen as error:
            raise KstepError(f"{self} {verb}{error}") from error

    def _rendered(self) -> Array:
        with self._blamed("render"):
            return np.asarray(self._env.render())

    def close(self) -> None:
        """Close the wrapped environment; if it fails at that, nothing is lost."""
        self._running = False
        try:
            with self._blamed("close"):
                self._env.close()
        except KstepError as error:
            warnings.warn(str(error), stacklevel=2)


class TakingRegistration(Generic[T]):
    """What makes an environment in another process, even if it is registered here alone."""

    def __init__(self, gym_id: str, maker: Callable[[], T]) -> None:
        self.gym_id, self.maker = gym_id, maker

    def __call__(self) -> T:
        return self.maker()

    def __reduce__(self) -> tuple[Any, ...]:
        # In a parcel of its own: what it refers to may be known there only after the imports.
        registered = cloudpickle.dumps(gymnasium.registry.get(self.gym_id))
        return _unpacked, (tuple(own.imported), registered, self.maker)


def _unpacked(modules: Sequence[str], registered: bytes, maker: Callable[[], T]) -> Callable[[], T]:
    own.bring(modules)
    return functools.partial(_registered, cloudpickle.loads(registered), maker)


def _registered(spec: EnvSpec | None, maker: Callable[[], T]) -> T:
    if spec is not None:
        with contextlib.suppress(Exception):  # what is wrong will be said when it is made
            _creator(spec)  # importing a package usually registers its environments
        gymnasium.registry.setdefault(spec.id, spec)
    return maker()


def _creator(spec: EnvSpec) -> Any:
    at = spec.entry_point
    return load_env_creator(at) if isinstance(at, str) else at


def _takes_render_mode(creator: Any) -> bool:
    """Whether a class or a function can be asked to render; many have an environment's metadata,
    or return one that has it, but no such argument."""
    try:
        parameters = inspect.signature(creator).parameters
    except (TypeError, ValueError):  # not written in Python
        return True
    kinds = [parameter.kind for parameter in parameters.values()]
    return "render_mode" in parameters or inspect.Parameter.VAR_KEYWORD in kinds


def _can_render(creator: Any) -> bool:
    """Whether an environment, or its class, says that it can; a function says nothing."""
    metadata = getattr(creator, "metadata", None)
    modes = metadata.get("render_modes") if isinstance(metadata, dict) else None
    return "rgb_array" in (modes or ())
