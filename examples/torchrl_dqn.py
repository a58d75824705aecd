"""TorchRL's DQN with KSL on a small pixel task (`pip install '.[torchrl]'`).

    python examples/torchrl_dqn.py

One optimizer steps the encoder, the Q-values and KSL's heads on the sum of both losses.
"""

from __future__ import annotations

import torch
import tyro
from tensordict.nn import TensorDictSequential
from torch import Tensor, nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, OneHot, ReplayBuffer, SliceSampler
from torchrl.envs import GymWrapper
from torchrl.modules import EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

from kstep.envs import EnvConfig, make
from kstep.interop.torchrl import KSLLoss

K, LATENT = 3, 50


class Encoder(nn.Module):
    """Images (..., H, W, C) of bytes, as TorchRL's wrapper has them, to latents (..., D)."""

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
        *batch, height, width, channels = images.shape
        planes = images.reshape(-1, height, width, channels).permute(0, 3, 1, 2) / 255
        latents: Tensor = self.layers(planes)
        return latents.reshape(*batch, LATENT)


def main(decisions: int = 20_000, seed: int = 1) -> float:
    """Train and return the mean return of the last tenth of the training episodes."""
    torch.manual_seed(seed)
    env = GymWrapper(make(EnvConfig("toy_arrows", size=36), seed))
    assert isinstance(env.action_spec, OneHot)
    actions = env.action_spec.space.n
    encoder = Encoder()
    network = nn.Sequential(encoder, nn.Linear(LATENT, 128), nn.ReLU(), nn.Linear(128, actions))
    actor = QValueActor(network, in_keys=["pixels"], spec=env.action_spec)
    greedy = EGreedyModule(env.action_spec, annealing_num_steps=decisions // 2, eps_end=0.05)

    q_loss = DQNLoss(actor, action_space=env.action_spec, double_dqn=True, delay_value=True)
    slow_q = SoftUpdate(q_loss, tau=0.01)
    ksl = KSLLoss(encoder, latent_dim=LATENT, n_actions=actions, k=K)
    ksl.set_keys(observation="pixels")
    learned = {*network.parameters(), *ksl.parameters()}  # the encoder's once
    optimizer = torch.optim.Adam(learned, lr=5e-4)

    sampler = SliceSampler(slice_len=K, traj_key=("collector", "traj_ids"))
    buffer = ReplayBuffer(storage=LazyTensorStorage(decisions), sampler=sampler, batch_size=32 * K)
    policy = TensorDictSequential(actor, greedy)
    returns: list[float] = []
    total = 0.0
    collector = Collector(
        env,
        policy,
        frames_per_batch=4,
        total_frames=decisions,
        auto_register_policy_transforms=False,  # only recurrent policies need them
    )
    for collected in collector:
        buffer.extend(collected)
        greedy.step(4)
        for reward, done in zip(
            collected["next", "reward"], collected["next", "done"], strict=True
        ):
            total += float(reward)
            if done:
                returns.append(total)
                total = 0.0
        if len(buffer) < min(1_000, decisions // 4):
            continue
        batch = buffer.sample().reshape(-1, K)
        loss = q_loss(batch[:, 0])["loss"] + ksl(batch)["loss_ksl"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        slow_q.step()
        ksl.update_slow()
    late = returns[-max(1, len(returns) // 10) :]
    mean = sum(late) / len(late)
    print(f"return {mean:.1f} in the last {len(late)} episodes, 5 % of actions at random")
    return mean


if __name__ == "__main__":
    tyro.cli(main)
