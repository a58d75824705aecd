"""KSL in a plain PyTorch loop: a foreign encoder, images channels first, one-hot actions.

The loop has a loss of its own, here the prediction of rewards from random behaviour, and KSL is
added to it. At the end it asks whether KSL's predictions depend on the actions: with the actions of
other sequences they should be worse.

    python examples/plain_loop.py                   # about a minute on one core
"""

from __future__ import annotations

import numpy as np
import torch
import tyro
from torch import Tensor, nn

import kstep
from kstep.envs import EnvConfig, make

K, ACTIONS, LATENT = 3, 4, 50


class Encoder(nn.Module):
    """Any module from images to latents will do; this one is somebody else's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * 8 * 8, LATENT),
            nn.LayerNorm(LATENT),
            nn.Tanh(),
        )

    def forward(self, images: Tensor) -> Tensor:
        latents: Tensor = self.layers(images / 255)
        return latents


def collect(decisions: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return sequences of random behaviour: images, one-hot actions, rewards, ends of episodes."""
    env, rng = make(EnvConfig("toy_arrows", size=36), seed), np.random.default_rng(seed)
    frames, actions, rewards, ends = [env.reset()[0]], [], [], []
    for _ in range(decisions):
        action = rng.integers(ACTIONS)
        frame, reward, terminated, truncated, _ = env.step(np.asarray(action))
        ended = terminated or truncated
        # The first frame of an episode takes the place of the last one: hence the mask below.
        frames.append(env.reset()[0] if ended else frame)
        actions.append(int(action))
        rewards.append(reward)
        ends.append(ended)
    starts = np.arange(decisions - K + 1)[:, None]
    images = torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2)
    one_hot = nn.functional.one_hot(torch.tensor(actions), ACTIONS)
    steps = starts + np.arange(K)
    return (
        images[starts + np.arange(K + 1)],
        one_hot[steps],
        torch.tensor(rewards)[steps],
        torch.tensor(ends)[steps],
    )


def main(decisions: int = 1000, updates: int = 2500, seed: int = 1) -> tuple[float, float]:
    """Train, and return KSL's loss on new data with the actions that were taken and with others."""
    torch.manual_seed(seed)
    images, actions, rewards, ended = collect(decisions, seed)
    encoder, head = Encoder(), nn.Linear(LATENT, ACTIONS)
    ksl = kstep.KSL(encoder, latent_dim=LATENT, n_actions=ACTIONS, k=K)
    learned = [*encoder.parameters(), *head.parameters(), *ksl.parameters()]
    optimizer = torch.optim.Adam(learned, lr=1e-3)
    for update in range(updates):
        batch = torch.randint(len(images), (32,))
        guess = (head(encoder(images[batch, 0])) * actions[batch, 0]).sum(1)
        own = nn.functional.mse_loss(guess, rewards[batch, 0])
        added = ksl.loss(encoder, images[batch], actions[batch], mask=~ended[batch])
        optimizer.zero_grad()
        (own + added).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        ksl.update_slow(encoder)
        if update % 100 == 0:
            print(f"update {update:5}  reward {own.item():.3f}  KSL {added.item():.3f}", flush=True)

    images, actions, _, ended = collect(500, seed + 1)
    with torch.no_grad():
        taken = ksl.loss(encoder, images, actions, ~ended).item()
        others = ksl.loss(encoder, images, actions.roll(50, 0), ~ended).item()
    print(f"KSL on new data: {taken:.3f} with the actions taken, {others:.3f} with others")
    return taken, others


if __name__ == "__main__":
    tyro.cli(main)
