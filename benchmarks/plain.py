"""KSL written plainly: what the project's learning step is measured against.

The same networks, losses, views and schedules as `kstep` (a test holds the two side by side on the
same batches and weights), written the way research code of this family usually is:

- both stacks of every transition stored, (S*C, H, W) bytes in NumPy arrays;
- shifting by padding and cropping one image after the other;
- contiguous NCHW tensors, made float and divided by 255 wherever the encoder is used;
- an encoder pass for each use: per view, per predicted step, for the actor and for the critic;
- momentum passes of KSL with a graph that is thrown away, as in the code its authors released;
- `loss.backward()`, Adam without fused or foreach kernels, moving averages parameter by parameter.

It knows the two readings that are compared, `ksl` (the paper's text) and `ksl-released`; not
ablations, other tasks or devices. It has no speed on purpose, and no slowness either: nothing is
computed that such code would not compute.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kstep.auxiliary.ksl import DenseTransitionConfig, KSLConfig
from kstep.data.augment import Shift
from kstep.methods import Method
from kstep.nets.encoder import PixelEncoderConfig
from kstep.rl.sac import SACConfig
from kstep.types import EnvSpec

Array = npt.NDArray[Any]


class Encoder(nn.Module):
    """Convolutions, a linear layer, LayerNorm and possibly tanh."""

    def __init__(self, channels: int, size: int, method: Method) -> None:
        super().__init__()
        config = method.encoder
        assert isinstance(config, PixelEncoderConfig)
        self.convs = nn.ModuleList()
        for stride in config.strides:
            self.convs.append(nn.Conv2d(channels, config.channels, 3, stride=stride))
            channels, size = config.channels, (size - 3) // stride + 1
        self.map = (channels, size, size)
        self.fc = nn.Linear(channels * size * size, config.latent_dim)
        self.ln = nn.LayerNorm(config.latent_dim)
        self.tanh = config.tanh

    def forward(self, obs: Tensor, detach: bool = False) -> Tensor:
        """(B, S*C, H, W) bytes to latents; `detach` keeps gradients out of the convolutions."""
        x = obs.float() / 255.0
        for conv in self.convs:
            x = torch.relu(conv(x))
        x = x.view(x.size(0), -1)
        if detach:
            x = x.detach()
        x = self.ln(self.fc(x))
        return torch.tanh(x) if self.tanh else x


class Critic(nn.Module):
    """The encoder and two Q-functions."""

    def __init__(self, encoder: Encoder, latent_dim: int, action_dim: int, hidden: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.q1 = mlp(latent_dim + action_dim, hidden, 1)
        self.q2 = mlp(latent_dim + action_dim, hidden, 1)

    def forward(self, obs: Tensor, action: Tensor, detach: bool = False) -> tuple[Tensor, Tensor]:
        return self.values(self.encoder(obs, detach), action)

    def values(self, latent: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([latent, action], dim=-1)
        return self.q1(x), self.q2(x)


class Actor(nn.Module):
    """A squashed Gaussian policy on an encoder that shares the critic's convolutions, or all."""

    def __init__(
        self,
        encoder: Encoder,
        action_dim: int,
        hidden: int,
        bounds: tuple[float, float],
        share_all: bool,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        if not share_all:
            self.encoder = copy.deepcopy(encoder)
            self.encoder.convs = encoder.convs  # tied
        self.share_all = share_all
        self.body = mlp(encoder.fc.out_features, hidden, 2 * action_dim)
        self.bounds = bounds

    def forward(self, obs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """An action and its log-probability; no gradient reaches the convolutions."""
        latent = self.encoder(obs, detach=True)
        if self.share_all:
            latent = latent.detach()
        mean, log_std = self.body(latent).chunk(2, dim=-1)
        low, high = self.bounds
        log_std = low + 0.5 * (high - low) * (torch.tanh(log_std) + 1)
        noise = torch.randn(mean.shape, generator=generator)
        raw = mean + log_std.exp() * noise
        log_prob = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)
        log_prob = log_prob - 2 * (math.log(2) - raw - F.softplus(-2 * raw))
        return torch.tanh(raw), log_prob.sum(-1, keepdim=True)


class Transition(nn.Module):
    """A latent and an action to the next latent."""

    def __init__(self, latent_dim: int, action_dim: int, config: KSLConfig) -> None:
        super().__init__()
        dense = config.transition
        assert isinstance(dense, DenseTransitionConfig)
        first, second = dense.hidden
        self.inputs = nn.ModuleList(
            nn.Linear(latent_dim + action_dim, first) for _ in range(dense.inputs)
        )
        self.relu = dense.relu
        self.body = nn.Sequential(
            nn.Linear(first, second), nn.LayerNorm(second), nn.ReLU(), nn.Linear(second, latent_dim)
        )

    def forward(self, latent: Tensor, action: Tensor) -> Tensor:
        x = torch.cat([latent, action], dim=-1)
        x = torch.stack([layer(x) for layer in self.inputs]).mean(0)
        return self.body(torch.relu(x) if self.relu else x)  # type: ignore[no-any-return]


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )


def random_shift(
    images: Array, pad: int, mode: str, rng: np.random.Generator, offsets: Array | None = None
) -> Array:
    """Pad and crop (B, C, H, W) image by image; `offsets` (B, 2) instead of random ones."""
    size = images.shape[-1]
    shifted = np.empty_like(images)
    for i, image in enumerate(images):
        around = ((0, 0), (pad, pad), (pad, pad))
        padded = np.pad(image, around, mode="edge" if mode == "replicate" else "constant")
        top, left = rng.integers(0, 2 * pad + 1, 2) if offsets is None else offsets[i]
        shifted[i] = padded[:, top : top + size, left : left + size]
    return shifted


class ReplayBuffer:
    """Transitions with both their stacks."""

    def __init__(self, capacity: int, obs_shape: tuple[int, ...], action_dim: int) -> None:
        self.obs = np.empty((capacity, *obs_shape), np.uint8)
        self.next_obs = np.empty((capacity, *obs_shape), np.uint8)
        self.actions = np.empty((capacity, action_dim), np.float32)
        self.rewards = np.empty((capacity, 1), np.float32)
        self.not_dones = np.empty((capacity, 1), np.float32)
        self.last = np.empty(capacity, bool)
        self.size = 0

    def add(
        self, obs: Array, action: Array, reward: float, next_obs: Array, done: bool, last: bool
    ) -> None:
        i = self.size
        self.obs[i], self.next_obs[i] = obs, next_obs
        self.actions[i], self.rewards[i], self.not_dones[i] = action, reward, not done
        self.last[i] = last
        self.size += 1

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Array, ...]:
        i = rng.integers(0, self.size, n)
        return self.obs[i], self.actions[i], self.rewards[i], self.next_obs[i], self.not_dones[i]

    def sample_trajectories(
        self, n: int, k: int, rng: np.random.Generator
    ) -> tuple[list[Array], Array]:
        """k + 1 successive stacks, each (n, S*C, H, W), and k actions (n, k, A)."""
        starts: list[int] = []
        while len(starts) < n:
            i = int(rng.integers(0, self.size - k))
            if not self.last[i : i + k - 1].any():
                starts.append(i)
        first = np.array(starts)
        stacks = [self.obs[first]] + [self.next_obs[first + j] for j in range(k)]
        return stacks, np.stack([self.actions[first + j] for j in range(k)], axis=1)


@dataclass
class Batch:
    """What one learning step sees: stacks (B, S*C, H, W) bytes."""

    views: list[tuple[Tensor, Tensor]]
    """Observation and next observation, once per view."""
    action: Tensor
    reward: Tensor
    """(B, 1)"""
    not_done: Tensor
    trajectory: list[Tensor]
    """k + 1 stacks."""
    trajectory_actions: Tensor
    """(B, k, A)"""


class Learner:
    """An agent and its replay."""

    def __init__(self, method: Method, spec: EnvSpec, seed: int = 0) -> None:
        assert isinstance(method.auxiliary, KSLConfig)
        assert isinstance(method.core, SACConfig)
        assert isinstance(method.encoder, PixelEncoderConfig)
        sac, learning, config = method.core, method.learning, method.auxiliary
        assert sac.log_std_bounds is not None
        assert config.projection_hidden is not None
        self.method, self.spec, self.ksl, self.sac = method, spec, config, sac
        self.rng = np.random.default_rng(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.updates = 0

        size, _, colours = spec.frame_shape
        self.obs_shape = (method.stack * colours, size, size)
        latent_dim, action_dim = method.encoder.latent_dim, spec.action_dim
        encoder = Encoder(self.obs_shape[0], size, method)
        self.critic = Critic(encoder, latent_dim, action_dim, sac.hidden)
        self.critic_target = copy.deepcopy(self.critic)
        share_all = sac.actor_encoder == "share_all"
        self.actor = Actor(encoder, action_dim, sac.hidden, sac.log_std_bounds, share_all)
        self.log_alpha = torch.tensor(math.log(sac.initial_temperature), requires_grad=True)
        self.target_entropy = sac.target_entropy * action_dim
        self.transition = Transition(latent_dim, action_dim, config)
        self.projector = nn.Sequential(
            nn.Linear(latent_dim, config.projection_hidden),
            nn.LayerNorm(config.projection_hidden),
            nn.ReLU(),
            nn.Linear(config.projection_hidden, latent_dim),
        )
        self.projector_target = copy.deepcopy(self.projector)
        self.predictor = nn.Linear(latent_dim, latent_dim, bias=False)

        rate = learning.learning_rate
        ksl_rate = config.learning_rate or rate
        heads = nn.ModuleList([self.transition, self.projector, self.predictor])
        actor = list(self.actor.body.parameters())
        if not share_all:
            actor += [*self.actor.encoder.fc.parameters(), *self.actor.encoder.ln.parameters()]
        self.critic_optimizer = adam([*self.critic.parameters()], rate)
        self.actor_optimizer = adam(actor, rate)
        self.alpha_optimizer = adam([self.log_alpha], rate)
        self.ksl_optimizers = [adam([*encoder.parameters(), *heads.parameters()], ksl_rate)]
        if config.double_step:
            self.ksl_optimizers.append(adam([*encoder.parameters()], rate))

    def fill(self, decisions: int) -> None:
        """Store episodes of random frames."""
        length = self.spec.episode_decisions
        self.replay = ReplayBuffer(decisions, self.obs_shape, self.spec.action_dim)
        channels, height, width = self.obs_shape
        colours = self.spec.frame_shape[2]

        def frame() -> Array:
            return self.rng.integers(0, 256, (colours, height, width), dtype=np.uint8)

        for t in range(decisions):
            if t % length == 0:
                obs = np.concatenate([frame()] * (channels // colours))
            next_obs = np.concatenate([obs[colours:], frame()])
            action = self.rng.uniform(-1, 1, self.spec.action_dim)
            last = t % length == length - 1
            self.replay.add(obs, action, float(self.rng.random()), next_obs, False, last)
            obs = next_obs

    def update(self) -> dict[str, float]:
        """Sample, shift, learn."""
        return self.learn(self.sample())

    def sample(self) -> Batch:
        method, rng = self.method, self.rng
        n = method.learning.batch_size
        obs, action, reward, next_obs, not_done = self.replay.sample(n, rng)
        assert isinstance(method.augment, Shift)
        pad, mode = method.augment.pad, method.augment.padding
        views = [
            (
                torch.as_tensor(random_shift(obs, pad, mode, rng)),
                torch.as_tensor(random_shift(next_obs, pad, mode, rng)),
            )
            for _ in range(method.core.critic_views)
        ]
        stacks, actions = self.replay.sample_trajectories(n, self.ksl.k, rng)
        assert isinstance(self.ksl.augment, Shift)
        pad, mode = self.ksl.augment.pad, self.ksl.augment.padding
        return Batch(
            views,
            torch.as_tensor(action),
            torch.as_tensor(reward),
            torch.as_tensor(not_done),
            [torch.as_tensor(random_shift(stack, pad, mode, rng)) for stack in stacks],
            torch.as_tensor(actions),
        )

    def learn(self, batch: Batch) -> dict[str, float]:
        """One learning step; returns the losses."""
        core, rate, losses = self.method.core, self.method.encoder.ema_rate, {}
        if self.ksl.turn == "first":
            losses["auxiliary/loss"] = self.update_ksl(batch)
        losses["critic/loss"] = self.update_critic(batch)
        if self.ksl.turn == "after critic":
            losses["auxiliary/loss"] = self.update_ksl(batch)
        if self.updates % core.actor_every == 0:
            losses["actor/loss"], losses["temperature/loss"] = self.update_actor(batch)
        if self.updates % self.method.learning.ema_every == 0:
            soft_update(self.critic.q1, self.critic_target.q1, core.ema_rate)
            soft_update(self.critic.q2, self.critic_target.q2, core.ema_rate)
            soft_update(self.critic.encoder, self.critic_target.encoder, rate)
            soft_update(self.projector, self.projector_target, rate)
        self.updates += 1
        return losses

    def update_critic(self, batch: Batch) -> float:
        targets = []
        with torch.no_grad():
            for _, next_obs in batch.views:
                next_action, log_prob = self.actor(next_obs, self.generator)
                q1, q2 = self.critic_target(next_obs, next_action)
                value = torch.min(q1, q2) - self.log_alpha.exp() * log_prob
                discount = self.sac.discount
                targets.append(batch.reward + batch.not_done * discount * value)
            target = sum(targets) / len(targets)
        loss = torch.zeros(())
        for obs, _ in batch.views:
            q1, q2 = self.critic(obs, batch.action)
            loss = loss + F.mse_loss(q1, target) + F.mse_loss(q2, target)
        self.critic_optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.critic_optimizer.step()
        return loss.item()

    def update_ksl(self, batch: Batch) -> float:
        latent = self.critic.encoder(batch.trajectory[0])
        loss = torch.zeros(())
        for j, stack in enumerate(batch.trajectory[1:]):
            latent = self.transition(latent, batch.trajectory_actions[:, j])
            prediction = F.normalize(self.predictor(self.projector(latent)), dim=-1)
            future = self.projector_target(self.critic_target.encoder(stack)).detach()
            future = F.normalize(future, dim=-1)
            loss = loss + (2 - 2 * (prediction * future).sum(-1)).mean()
        if self.ksl.reduce == "mean":
            loss = loss / self.ksl.k
        for optimizer in self.ksl_optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in self.ksl_optimizers:
            optimizer.step()
        return loss.item()

    def update_actor(self, batch: Batch) -> tuple[float, float]:
        obs = batch.views[0][0]
        action, log_prob = self.actor(obs, self.generator)
        q1, q2 = self.critic(obs, action, detach=True)
        alpha = self.log_alpha.exp()
        loss = (alpha.detach() * log_prob - torch.min(q1, q2)).mean()
        self.actor_optimizer.zero_grad()
        loss.backward()
        self.actor_optimizer.step()
        alpha_loss = (alpha * (-log_prob - self.target_entropy).detach()).mean()
        self.alpha_optimizer.zero_grad()
        alpha_loss.backward()
        self.alpha_optimizer.step()
        return loss.item(), alpha_loss.item()


def adam(parameters: Sequence[Tensor], rate: float) -> torch.optim.Adam:
    return torch.optim.Adam(parameters, lr=rate, betas=(0.9, 0.999), foreach=False, fused=False)


def soft_update(online: nn.Module, target: nn.Module, rate: float) -> None:
    for new, old in zip(online.parameters(), target.parameters(), strict=True):
        old.data.copy_(rate * new.data + (1 - rate) * old.data)
