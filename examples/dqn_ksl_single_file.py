"""DQN with KSL from pixels, all of it in this file: replay, networks, both losses, the loop.

Written to be read from top to bottom and to be changed, in the manner of CleanRL's single files. It
needs torch, numpy and tyro; `kstep` makes the environment and nothing else. `kstep.KSL` is the same
loss as `KSL` below, to be used where it need not be read; a test compares the two.

    python examples/dqn_ksl_single_file.py                     # about five minutes on one core
    python examples/dqn_ksl_single_file.py --no-ksl            # plain DQN

DQN: Mnih et al. 2015, with double Q-learning (van Hasselt et al. 2016) and a slow network that
moves with every update. KSL: McInroe et al. 2021, arXiv:2110.04935, with that network's encoder.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn

from kstep.envs import EnvConfig, make

Array: TypeAlias = npt.NDArray[Any]


@dataclass
class Args:
    """Settings."""

    task: str = "toy_arrows"
    """A task with discrete actions."""
    size: int = 36
    """Height and width of the images."""
    seed: int = 1
    decisions: int = 20_000
    learning_starts: int = 1_000
    train_every: int = 2
    """Decisions from one update to the next."""
    batch_size: int = 32
    learning_rate: float = 5e-4
    discount: float = 0.99
    ema_rate: float = 0.01
    """Of the slow Q-network, its encoder included."""
    epsilon: float = 0.05
    """Random actions in the end; all of them at first, fewer until half of the decisions."""
    latent: int = 50
    ksl: bool = True
    k: int = 3
    """Steps that KSL predicts."""
    shift: int = 4
    """Pixels by which images are moved at random, for both losses."""
    evaluation_episodes: int = 20


class QNetwork(nn.Module):
    """Images (B, C, H, W) of bytes to latents, latents to the values of all actions."""

    def __init__(self, size: int, actions: int, latent: int) -> None:
        super().__init__()
        side = ((size - 1) // 2 - 1) // 2
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * side * side, latent),
            nn.LayerNorm(latent),
            nn.Tanh(),
        )
        self.values = nn.Sequential(nn.Linear(latent, 128), nn.ReLU(), nn.Linear(128, actions))

    def encode(self, images: Tensor) -> Tensor:
        latents: Tensor = self.encoder(images / 255)
        return latents

    def forward(self, images: Tensor) -> Tensor:
        values: Tensor = self.values(self.encode(images))
        return values


class KSL(nn.Module):
    """The heads: transition model, projector with a slow copy, predictor."""

    def __init__(self, latent: int, actions: int) -> None:
        super().__init__()
        self.transition = nn.Sequential(
            nn.Linear(latent + actions, 1024),
            nn.ReLU(),
            nn.Linear(1024, 512),
            nn.LayerNorm(512),
            nn.ReLU(),
            nn.Linear(512, latent),
        )
        self.projector = nn.Sequential(
            nn.Linear(latent, 512), nn.LayerNorm(512), nn.ReLU(), nn.Linear(512, latent)
        )
        self.predictor = nn.Linear(latent, latent, bias=False)
        self.slow_projector = copy.deepcopy(self.projector).requires_grad_(False)

    def loss(
        self, q: QNetwork, slow_q: QNetwork, images: Tensor, actions: Tensor, valid: Tensor
    ) -> Tensor:
        """Images (B, k + 1, C, H, W), one-hot actions (B, k, A), valid (B, k)."""
        latent = q.encode(images[:, 0])
        steps = []
        for j in range(actions.shape[1]):
            latent = self.transition(torch.cat((latent, actions[:, j]), dim=1))
            prediction = self.predictor(self.projector(latent))
            with torch.no_grad():
                target = self.slow_projector(slow_q.encode(images[:, j + 1]))
            # The squared distance of two unit vectors, over the sequences that go on that far.
            distance = 2 - 2 * F.cosine_similarity(prediction, target, eps=1e-12)
            if valid[:, j].any():
                steps.append(distance[valid[:, j]].mean())
        return torch.stack(steps).mean()


class Replay:
    """Everything that happened, in order: a transition's images, action, reward and end."""

    def __init__(self, capacity: int, size: int, rng: np.random.Generator) -> None:
        self.image = np.zeros((capacity, 3, size, size), np.uint8)
        self.next_image = np.zeros_like(self.image)
        self.action = np.zeros(capacity, np.int64)
        self.reward = np.zeros(capacity, np.float32)
        self.terminated = np.zeros(capacity, np.float32)
        self.ended = np.zeros(capacity, bool)
        self.length, self.rng = 0, rng

    def add(self, *transition: object) -> None:
        rows: tuple[Array, ...] = (self.image, self.next_image, self.action)
        rows += (self.reward, self.terminated, self.ended)
        for row, value in zip(rows, transition, strict=True):
            row[self.length] = value
        self.length += 1

    def starts(self, n: int, k: int) -> Array:
        """Draw where n sequences of k transitions start."""
        return self.rng.integers(self.length - k + 1, size=n)

    def sequences(self, n: int, k: int, shift: int) -> tuple[Tensor, Tensor, Tensor]:
        """Images (n, k + 1, C, H, W), actions (n, k), whether the episode goes on so far (n, k)."""
        at = self.starts(n, k)[:, None] + np.arange(k)
        images = np.concatenate((self.image[at[:, :1]], self.next_image[at]), axis=1)
        valid = np.ones((n, k), bool)
        valid[:, 1:] = ~np.logical_or.accumulate(self.ended[at[:, :-1]], axis=1)
        moved = random_shift(images.reshape(-1, *images.shape[2:]), shift, self.rng)
        return (
            torch.from_numpy(moved.reshape(images.shape)),
            torch.from_numpy(self.action[at]),
            torch.from_numpy(valid),
        )


def random_shift(images: Array, pad: int, rng: np.random.Generator) -> Array:
    """Move every image (B, C, H, W) by up to `pad` pixels, its border repeated."""
    size = images.shape[-1]
    wide = np.pad(images, ((0, 0), (0, 0), (pad, pad), (pad, pad)), mode="edge")
    views = np.lib.stride_tricks.sliding_window_view(wide, (size, size), axis=(2, 3))
    top, left = rng.integers(2 * pad + 1, size=(2, len(images)))
    return views[np.arange(len(images)), :, top, left]


def planes(frame: Array) -> Array:
    return frame.transpose(2, 0, 1)


def main(args: Args) -> float:
    """Train, evaluate and return the mean return of the greedy policy."""
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    env = make(EnvConfig(args.task, size=args.size), args.seed)
    actions = int(env.action_space.n)  # type: ignore[attr-defined]
    replay = Replay(args.decisions, args.size, rng)

    q = QNetwork(args.size, actions, args.latent)
    slow_q = copy.deepcopy(q).requires_grad_(False)
    optimizer = torch.optim.Adam(q.parameters(), args.learning_rate)
    ksl = KSL(args.latent, actions)
    # Each loss has an optimizer of its own; both step the encoder.
    heads = [ksl.transition, ksl.projector, ksl.predictor]
    ksl_optimizer = torch.optim.Adam(
        [p for part in (q.encoder, *heads) for p in part.parameters()], args.learning_rate
    )

    returns, total, start = [], 0.0, time.monotonic()
    frame, _ = env.reset()
    for decision in range(args.decisions):
        # Act.
        epsilon = max(args.epsilon, 1 - 2 * decision / args.decisions)
        if decision < args.learning_starts or rng.random() < epsilon:
            action = int(rng.integers(actions))
        else:
            with torch.no_grad():
                action = int(q(torch.from_numpy(planes(frame)[None].copy())).argmax())
        following, reward, terminated, truncated, _ = env.step(np.asarray(action))
        ended = terminated or truncated
        replay.add(planes(frame), planes(following), action, reward, terminated, ended)
        frame, total = following, total + reward
        if ended:
            returns.append(total)
            frame, total = env.reset()[0], 0.0

        # Learn.
        if decision < args.learning_starts or decision % args.train_every:
            continue
        at = replay.starts(args.batch_size, 1)
        image, next_image = (
            torch.from_numpy(random_shift(images[at], args.shift, rng))
            for images in (replay.image, replay.next_image)
        )
        taken, earned, end = (
            torch.from_numpy(row[at]) for row in (replay.action, replay.reward, replay.terminated)
        )
        with torch.no_grad():
            best = q(next_image).argmax(1, keepdim=True)
            after = slow_q(next_image).gather(1, best)[:, 0]
            target = earned + args.discount * (1 - end) * after
        value = q(image).gather(1, taken[:, None])[:, 0]
        q_loss = F.smooth_l1_loss(value, target)
        optimizer.zero_grad()
        q_loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

        ksl_loss = torch.zeros(())
        if args.ksl:
            images, chosen, valid = replay.sequences(args.batch_size, args.k, args.shift)
            one_hot = F.one_hot(chosen, actions).float()
            ksl_loss = ksl.loss(q, slow_q, images, one_hot, valid)
            ksl_optimizer.zero_grad()
            ksl_loss.backward()  # type: ignore[no-untyped-call]
            ksl_optimizer.step()

        # Slow copies.
        with torch.no_grad():
            for slow, fast in ((slow_q, q), (ksl.slow_projector, ksl.projector)):
                for old, new in zip(slow.parameters(), fast.parameters(), strict=True):
                    old.lerp_(new, args.ema_rate)

        if decision % 1000 == 0:
            recent = np.mean(returns[-20:]) if returns else float("nan")
            print(
                f"{decision:6} decisions  return {recent:5.1f}  Q loss {q_loss.item():.3f}  "
                f"KSL {ksl_loss.item():.3f}  {time.monotonic() - start:.0f} s",
                flush=True,
            )

    # Evaluate, in an environment of its own.
    env, scores = make(EnvConfig(args.task, size=args.size), args.seed + 1), []
    for _ in range(args.evaluation_episodes):
        (frame, _), total, ended = env.reset(), 0.0, False
        while not ended:
            with torch.no_grad():
                action = int(q(torch.from_numpy(planes(frame)[None].copy())).argmax())
            frame, reward, terminated, truncated, _ = env.step(np.asarray(action))
            total, ended = total + reward, terminated or truncated
        scores.append(total)
    print(f"return {np.mean(scores):.1f} ± {np.std(scores):.1f}; above 6 `toy_arrows` is learned")
    return float(np.mean(scores))


if __name__ == "__main__":
    main(tyro.cli(Args))
