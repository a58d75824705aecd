"""KSL as a loss of the real TorchRL: the same number on TensorDicts as on plain tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("torchrl")

from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer, SliceSampler
from torchrl.envs import GymWrapper
from torchrl.objectives import LossModule

import kstep
from kstep.envs import EnvConfig, make
from kstep.errors import KstepError
from kstep.interop.torchrl import KSLLoss
from tests.make import moved, snapshot

B, K, D, SIZE = 5, 3, 8, 12
OPTIONS: dict[str, Any] = {"latent_dim": D, "k": K}
OPTIONS |= {"transition_hidden": (16, 16), "projection_hidden": 16}


class Encoder(nn.Module):
    """Images (B, H, W, C) of bytes, as TorchRL's wrapper has them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE * SIZE * 3, D)

    def forward(self, images: Tensor) -> Tensor:
        latents: Tensor = self.linear(images.flatten(1) / 255)
        return latents


def made(**options: Any) -> KSLLoss:
    torch.manual_seed(0)
    return KSLLoss(Encoder(), **{**OPTIONS, "action_dim": 2, **options})


def trajectories(key: str = "observation") -> TensorDict:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (B, K + 1, SIZE, SIZE, 3), generator=generator).byte()
    done = torch.zeros(B, K, 1, dtype=torch.bool)
    done[1, 0] = done[2, 1] = done[3, 2] = True
    action = torch.rand(B, K, 2, generator=generator)
    following = TensorDict({key: images[:, 1:], "done": done}, [B, K])
    return TensorDict({key: images[:, :-1], "action": action, "next": following}, [B, K])


def test_it_is_the_same_loss_as_on_plain_tensors() -> None:
    loss, data = made(), trajectories()
    images = torch.cat((data["observation"][:, :1], data["next", "observation"]), dim=1)
    mask = torch.tensor([3, 1, 2, 3, 3])[:, None] > torch.arange(K)
    expected = loss.ksl.loss(loss.encoder, images, data["action"], mask)
    found = loss(data)
    assert isinstance(loss, LossModule)
    assert list(found.keys()) == loss.out_keys == ["loss_ksl"]
    assert torch.equal(found["loss_ksl"], expected)
    assert not torch.equal(expected, loss.ksl.loss(loss.encoder, images, data["action"]))


def test_names_and_padding_are_torchrls() -> None:
    loss, data = made(), trajectories()
    expected = loss(data)["loss_ksl"]
    loss.set_keys(observation="pixels")
    assert loss.in_keys == ["pixels", "action", ("next", "pixels"), ("next", "done")]
    assert torch.equal(loss(trajectories("pixels"))["loss_ksl"], expected)

    loss, padded = made(), trajectories()
    mask = torch.ones(B, K, 1, dtype=torch.bool)
    mask[4, 1:] = False
    padded["collector", "mask"] = mask
    masked = loss(padded)["loss_ksl"]
    assert not torch.equal(masked, expected)
    padded["next", "observation"][4, 1:] = 0  # whatever padding holds
    assert torch.equal(loss(padded)["loss_ksl"], masked)
    padded["mine"] = mask
    loss.loss_mask_key = "mine"
    assert torch.equal(loss(padded)["loss_ksl"], masked)
    loss.loss_mask_key = None
    assert torch.equal(loss(data)["loss_ksl"], expected)


def test_its_parameters_are_all_that_it_trains() -> None:
    loss, data = made(), trajectories()
    optimizer = torch.optim.AdamW(loss.parameters(), lr=0.01)
    before = snapshot(loss.state_dict())
    loss(data)["loss_ksl"].backward()
    optimizer.step()
    slow = {name for name in before if "slow" in name}
    assert moved(before, loss.state_dict()) == set(before) - slow
    loss.update_slow()
    assert moved(before, loss.state_dict()) == set(before)
    other = made(n_actions=2, action_dim=None)
    other.load_state_dict(loss.state_dict())
    assert torch.equal(other(data)["loss_ksl"], loss(data)["loss_ksl"])


def test_slices_of_its_replay_are_sequences_of_our_toy() -> None:
    """From the simulator to the loss with TorchRL's own parts; the ring wraps."""
    env = GymWrapper(make(EnvConfig("toy_reach", size=SIZE), 0))
    sampler = SliceSampler(slice_len=K, traj_key=("collector", "traj_ids"))
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), sampler=sampler, batch_size=20 * K)
    for collected in Collector(env, frames_per_batch=50, total_frames=150):
        buffer.extend(collected)
    data = buffer.sample().reshape(-1, K)
    assert torch.equal(data["pixels"][:, 1:], data["next", "pixels"][:, :-1])
    loss = made()
    loss.set_keys(observation="pixels")
    assert 0 < loss(data)["loss_ksl"].item() < 4


def test_flat_slices_are_refused_with_what_to_do() -> None:
    data = trajectories().reshape(-1)
    with pytest.raises(KstepError, match=r"\.reshape\(-1, 3\)"):
        made()(data)
    assert torch.isfinite(made()(data.reshape(-1, K))["loss_ksl"])


def test_it_is_the_public_loss_inside() -> None:
    assert isinstance(made().ksl, kstep.KSL)


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("observation", "needs 'observation', and the TensorDict has 'action', "),
        ("action", "needs 'action', and"),
        (("next", "done"), r"needs \('next', 'done'\), and"),
    ],
)
def test_a_missing_entry_is_named_with_those_that_there_are(missing: Any, named: str) -> None:
    data = trajectories()
    del data[missing]
    with pytest.raises(KstepError, match=named):
        made()(data)
