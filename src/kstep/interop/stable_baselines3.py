"""KSL beside the off-policy algorithms of Stable-Baselines3 (extra `sb3`), as a callback.

    model = SAC("CnnPolicy", env)
    ksl = KSLCallback(k=3)
    model.learn(100_000, callback=ksl)
    model.save("reach.zip")
    ksl.save("reach_ksl.safetensors")

KSL trains the features extractor of the network that predicts returns: the Q-network's for DQN, the
critic's for SAC and TD3. Sequences come from the model's replay buffer. Once a rollout is
collected, just before Stable-Baselines3 takes its gradient steps, KSL takes as many of its own.
Nothing of Stable-Baselines3 is replaced, and KSL draws from a generator of its own, so with a
learning rate of 0 a run is what it is without the callback, bit for bit, if the extractor has
neither batch normalization nor dropout. docs/ksl_anywhere.md says what differs from our own agent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor, nn

from kstep import reading
from kstep.data.augment import Shift
from kstep.errors import KstepError
from kstep.files import write_atomically
from kstep.interop.ksl import KSL
from kstep.optimizers import Group, Optimizers, below
from kstep.rng import derive
from kstep.types import Array

LARGEST_FILE = 2**34


@dataclass(frozen=True)
class Part:
    """A network of the policy, its features extractor and the KSL of that extractor."""

    encoder: BaseFeaturesExtractor
    ksl: KSL


class KSLCallback(BaseCallback):
    """Trains the policy's features extractors with KSL, from the model's own replay buffer."""

    def __init__(
        self,
        *,
        k: int = 3,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        shift: int = 4,
        actor: bool = False,
        seed: int | None = None,
        verbose: int = 0,
        **heads: Any,
    ) -> None:
        """`batch_size`, `learning_rate` and `seed`: the model's, if not given (of a schedule of
        learning rates its first value). `shift`: by how many pixels each image of a sequence is
        moved at most; 0 for observations as they are. `actor`: whether an extractor that the
        actor's loss trains, its own or one shared with the critic, gets a KSL as well. `heads`:
        other arguments of `kstep.KSL`, such as `ema_rate`.
        """
        super().__init__(verbose)
        if batch_size is not None and batch_size < 1:
            raise KstepError(f"batch_size must be at least 1, not {batch_size!r}")
        if shift < 0:
            raise KstepError(f"shift must be at least 0, not {shift!r}")
        if callable(learning_rate):
            raise KstepError("learning_rate must be a number: KSL's stays as it is")
        self.k, self.batch_size, self.learning_rate = k, batch_size, learning_rate
        self.augment = Shift(pad=shift)
        self.actor, self.seed, self.heads = actor, seed, heads
        self.updates = 0
        self.off_policy: OffPolicyAlgorithm
        self.parts: dict[str, Part] = {}
        self.optimizers = Optimizers({})
        self._saved: dict[str, Tensor] = {}

    def save(self, path: str | Path) -> None:
        """Write heads, slow encoders and optimizer moments to a file (safetensors)."""
        if not self.parts:
            raise KstepError("KSL has nothing to save before model.learn(callback=...) was called")
        tensors = {name: tensor.contiguous() for name, tensor in self.state().items()}
        write_atomically(Path(path), safetensors.torch.save(tensors))

    def load(self, path: str | Path) -> None:
        """Continue, from the next `model.learn` on, with what `save` wrote."""
        data = reading.contents(Path(path), LARGEST_FILE)
        self._saved = reading.weights(data, Path(path))

    def state(self) -> dict[str, Tensor]:
        """Return everything that is saved, by path."""
        tensors = {
            f"{name}/{key}": value
            for name, part in self.parts.items()
            for key, value in part.ksl.state_dict().items()
        }
        moments = {f"optimizers/{key}": value for key, value in self.optimizers.state().items()}
        return {**tensors, **moments, "updates": torch.tensor(self.updates)}

    def _init_callback(self) -> None:
        """Make the heads for a model; called at the beginning of every `model.learn`."""
        if self.parts and not self._saved and self.model is not self.off_policy:
            raise KstepError(
                "this KSLCallback belongs to another model: make a new one for each; to continue "
                "with what this one has learned, let the new one `load` what `save` wrote"
            )
        state = self._saved or (self.state() if self.parts else {})
        self.off_policy = _supported(self.model)
        model = self.off_policy
        if self.augment.pad:
            _refuse_channels_last(model.observation_space)
        seed = self.seed if self.seed is not None else model.seed or 0
        self.seed = int(seed)
        space = model.action_space
        discrete = isinstance(space, spaces.Discrete)
        actions = {"n_actions": space.n} if discrete else {"action_dim": math.prod(space.shape)}  # type: ignore[attr-defined, arg-type]
        with torch.random.fork_rng():
            torch.manual_seed(derive(self.seed, "KSL"))
            self.parts = {
                name: Part(
                    encoder,
                    KSL(
                        encoder, latent_dim=encoder.features_dim, k=self.k, **actions, **self.heads
                    ),
                )
                for name, encoder in trained_extractors(model, actor=self.actor).items()
            }
        rate = self.learning_rate
        rate = float(model.lr_schedule(1.0)) if rate is None else rate
        self.optimizers = Optimizers(
            {
                name: Group({**learning(part.encoder), **part.ksl.task.learned()}, rate)
                for name, part in self.parts.items()
            }
        )
        if state:
            self._load_state(state)
        self._saved = {}

    def _load_state(self, tensors: dict[str, Tensor]) -> None:
        wanted = {key: value.shape for key, value in self.state().items()}
        found = {key: value.shape for key, value in tensors.items() if key in wanted}
        if found != wanted:
            raise KstepError(
                "the saved KSL belongs to another model or to other settings: "
                + ", ".join(sorted(key for key in wanted if found.get(key) != wanted[key])[:3])
            )
        for name, part in self.parts.items():
            part.ksl.load_state_dict(below(tensors, name))
        self.optimizers.load_state(below(tensors, "optimizers"))
        self.updates = int(tensors["updates"])

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self._rollout_start = self.model.num_timesteps

    def _on_rollout_end(self) -> None:
        model = self.off_policy
        # The same question as OffPolicyAlgorithm.learn asks, which calls `train` next.
        if model.num_timesteps <= model.learning_starts:
            return
        steps = model.gradient_steps
        if steps < 0:
            steps = model.num_timesteps - self._rollout_start
        if steps == 0:
            return
        model.policy.set_training_mode(True)
        found = [self.update() for _ in range(steps)]
        for name in found[0]:
            self.logger.record(f"ksl/{name}", float(np.mean([values[name] for values in found])))

    def update(self) -> dict[str, float]:
        """Take one step of every KSL; return its loss, and how alike the latents were before it.

        A cosine near 1, of latents of unrelated observations, says that the extractor collapsed.
        """
        observations, actions, mask = self._batch()
        found = {}
        for name, part in self.parts.items():
            latents: list[Tensor] = []

            def encode(batch: Tensor, part: Part = part, latents: list[Tensor] = latents) -> Tensor:
                latents.append(part.encoder(batch))
                return latents[-1]

            loss = part.ksl.loss(encode, observations, actions, mask)
            first = latents[0].detach()
            found[f"{name}_loss"] = loss.item()
            found[f"{name}_cosine"] = F.cosine_similarity(first, first.roll(1, 0)).mean().item()
            # An extractor of somebody's own may have parameters that its forward pass leaves out.
            self.optimizers.minimize(name, loss, partly=True)
            part.ksl.update_slow(part.encoder)
        self.updates += 1
        return found

    def _batch(self) -> tuple[Tensor, Tensor, Tensor]:
        model, buffer = self.off_policy, self.off_policy.replay_buffer
        assert buffer is not None  # `_supported` has looked at it
        # Seeded by the number of updates, so that a loaded state continues with other sequences.
        rng = np.random.default_rng(derive(self.seed or 0, "sequences", self.updates))
        observations, actions, mask = sequences(
            buffer, self.batch_size or model.batch_size, self.k, rng
        )
        if self.augment.pad and len(buffer.obs_shape) == 3:
            # Planes of one image (C, H, W) are moved together, as stacked frames are.
            observations = np.asarray(self.augment.train_view(observations[..., None], rng))[..., 0]
        normalizer = model.get_vec_normalize_env()
        if normalizer is not None:
            observations = np.asarray(normalizer.normalize_obs(observations))
        tensors = [torch.as_tensor(array, device=model.device) for array in (actions, mask)]
        seen = preprocess_obs(
            torch.as_tensor(observations, device=model.device),
            model.observation_space,
            normalize_images=model.policy.normalize_images,
        )
        assert isinstance(seen, Tensor)  # dictionaries were refused
        return seen, tensors[0], tensors[1]


def sequences(
    buffer: ReplayBuffer, n: int, k: int, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    """Draw n stretches of k decisions.

    Returns observations (n, k + 1, ...), actions (n, k, A) and the mask (n, k).

    A stretch starts with any stored transition of any environment. The mask is False from where its
    episode, or what is stored of it, ends: at an episode's last observation (terminal or not) and
    where the ring's newest transition meets its oldest. A call of `learn` that starts a new episode
    ends the one before without marking it; there an observation is not the one that was announced.
    """
    size, stored, compact = buffer.buffer_size, buffer.size(), buffer.optimize_memory_usage
    oldest = buffer.pos if buffer.full else 0
    # One array then holds all observations, and the newest has replaced the oldest one.
    age = rng.integers(1 if compact and buffer.full else 0, stored, n)[:, None] + np.arange(k)
    at = (oldest + age) % size, rng.integers(buffer.n_envs, size=n)[:, None]
    ended = buffer.dones[at] > 0
    if compact:
        after = buffer.observations[(at[0] + 1) % size, at[1]]
        reached = ~ended  # the last observation of an episode is not stored
    else:
        after = buffer.next_observations[at]
        reached = np.ones((n, k), bool)
        following = buffer.observations[at[0][:, 1:], at[1]]
        same = (following == after[:, :-1]).reshape(n, k - 1, math.prod(buffer.obs_shape)).all(-1)
        reached[:, 1:] = ~ended[:, :-1] & same
    reached &= age < stored
    first = buffer.observations[at[0][:, 0], at[1][:, 0]]
    return (
        np.concatenate((first[:, None], after), axis=1),
        buffer.actions[at],
        np.logical_and.accumulate(reached, axis=1),
    )


def trained_extractors(
    model: OffPolicyAlgorithm, *, actor: bool = False
) -> dict[str, BaseFeaturesExtractor]:
    """Return the features extractors that KSL trains, by the name of their network.

    One that the actor's loss trains is left out unless `actor`: that loss keeps latents apart too
    weakly, and KSL made those of toy_reach all alike (docs/ksl_anywhere.md). Stable-Baselines3
    trains an extractor that actor and critic share by the actor's loss alone.
    """
    networks: dict[str, BaseFeaturesExtractor] = {}
    for name, network in model.policy.named_children():
        extractor = getattr(network, "features_extractor", None)
        if extractor is not None and not name.endswith("_target"):
            networks[name] = extractor
    of_actor = networks.pop("actor", None)
    found = {name: each for name, each in networks.items() if each is not of_actor}
    if of_actor is not None and actor:
        found["actor"] = of_actor
    elif of_actor is not None and not found:
        raise KstepError(
            "actor and critic share one features extractor, which Stable-Baselines3 trains by the "
            "actor's loss alone; KSL made such latents all alike: use "
            "share_features_extractor=False, or KSLCallback(actor=True) and look at "
            "ksl/actor_cosine"
        )
    if not found or not all(map(learning, found.values())):
        raise KstepError(
            f"the policy {type(model.policy).__name__} has no features extractor that learns: "
            "use CnnPolicy"
        )
    return found


def learning(encoder: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of an extractor that are not frozen."""
    return {f"encoder.{n}": each for n, each in encoder.named_parameters() if each.requires_grad}


def _refuse_channels_last(space: spaces.Space[Any]) -> None:
    # Stable-Baselines3 transposes images of bytes alone.
    shape = space.shape or ()
    if len(shape) == 3 and shape[2] < shape[0]:
        raise KstepError(
            f"observations {shape} have their channels last, and a shift needs (C, H, W): "
            "transpose them, or use KSLCallback(shift=0)"
        )


def _supported(model: object) -> OffPolicyAlgorithm:
    name = type(model).__name__
    if not isinstance(model, OffPolicyAlgorithm):
        raise KstepError(f"KSL draws sequences from a replay buffer, and {name} has none")
    buffer = model.replay_buffer
    if not isinstance(buffer, ReplayBuffer) or isinstance(buffer, DictReplayBuffer):
        raise KstepError(
            f"KSL draws sequences from a ReplayBuffer, not from {type(buffer).__name__}"
        )
    if not isinstance(model.action_space, spaces.Box | spaces.Discrete):
        kind = type(model.action_space).__name__
        raise KstepError(f"KSL needs actions that are Box or Discrete, not {kind}")
    return model
