"""Learning on another device, as far as it shows without one.

On the device `meta` tensors have shapes and no values: whatever would wait for a value raises. A
step of learning that passes there waits for nothing and can be queued as a whole on a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import kstep.agent
from kstep.agent import Agent
from kstep.data.ring import ReplayConfig, Storage
from kstep.errors import Fault
from kstep.methods import METHODS
from kstep.rng import Streams
from kstep.run.health import Health
from tests.make import agent_and_replay, filled_replay, moved, snapshot, spec_for, tiny
from tests.unit.test_beside import with_numbers

every_method = pytest.mark.parametrize("method", METHODS)

WAIT = frozenset({"multinomial", "equal", "bincount"})
"""Operations that wait for a GPU inside their kernels, although some are defined on `meta`."""
TRANSFERS = frozenset({"lift_fresh", "_to_copy"})
"""Of a host's array to a tensor, and of that to the device."""
COUNTER = "auxiliary/draws.count"
"""A seed, which stays on the host by design."""


class OnlyOn(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets nothing but transfers and counters be computed on the host, and nothing wait."""

    def __init__(self, device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.transfers = 0

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = call.overloadpacket.__name__
        assert name not in WAIT, f"{name} waits for the device"
        if name == "exponential_":  # `meta` lacks it where a generator is given
            return args[0]
        found = call(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, found)):
            if isinstance(tensor, Tensor) and tensor.device.type != self.device:
                counter = tensor.ndim == 0 and not tensor.is_floating_point()
                assert name in TRANSFERS or counter, f"{name} is on {tensor.device}"
        self.transfers += name == "_to_copy" and args[0].device.type != self.device
        return found


@pytest.fixture(autouse=True)
def fused_adam_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused Adam works on `meta`, but PyTorch does not list that among its devices."""
    listed = _get_fused_kernels_supported_devices()
    monkeypatch.setattr(
        sys.modules["torch.optim.optimizer"],
        "_get_fused_kernels_supported_devices",
        lambda: [*listed, "meta"],
    )


@pytest.mark.parametrize(
    "mistake",
    [
        lambda there: there.sum().item(),
        lambda there: there.cpu(),
        lambda there: there[there > 0],
        lambda there: there @ torch.ones(2, 2),
        lambda there: torch.multinomial(there, 1),
        lambda there: torch.ones(2, 2),
    ],
)
def test_the_watch_on_devices_finds_mistakes(mistake: Callable[[Tensor], object]) -> None:
    there = torch.ones(2, 2, device="meta")
    with pytest.raises((AssertionError, NotImplementedError, RuntimeError)), OnlyOn("meta"):
        mistake(there)


@every_method
def test_a_step_of_learning_waits_for_nothing_and_stays_on_its_device(method: str) -> None:
    agent, replay = agent_and_replay(method, device="meta", storage="device")
    with OnlyOn("meta") as watch:
        update = agent.update(replay, every_part=True)
    assert {value.device.type for value in (*update.metrics.values(), update.latent)} == {"meta"}
    astray = {key for key, tensor in agent.state().items() if tensor.device.type != "meta"}
    assert astray <= {COUNTER}
    # Indices of each view, once; actions, rewards and bootstraps of each batch, once.
    sizes = [2 * agent.batches.views + 3]
    if agent.method.auxiliary is not None:
        sizes.append(4 if agent.batches.own else agent.method.auxiliary.second_view)
        sizes = [4] if agent.method.auxiliary.shares_windows else sizes
    assert watch.transfers == sum(sizes)


@pytest.mark.parametrize("method", ["ksl", "drq", "curl", "pi_sac", "sac_state", "drq_v2"])
def test_neither_does_one_whose_frames_are_on_the_host(method: str) -> None:
    agent, replay = agent_and_replay(method, device="meta", storage="memory")
    with OnlyOn("meta"):
        agent.update(replay, every_part=True)


def test_neither_does_the_second_phase() -> None:
    agent, replay = agent_and_replay("proto_rl", device="meta", storage="device")
    flag = agent.broken
    agent.begin_task()
    assert agent.optimizers.broken is flag  # what broke in the first phase is not forgotten
    with OnlyOn("meta"):
        agent.update(replay, every_part=True)


@pytest.mark.parametrize("method", ["ksl", "rad"])
def test_neither_does_one_with_numbers_beside_the_image(method: str) -> None:
    experiment = tiny(method)
    spec = with_numbers(spec_for(experiment))
    agent = Agent(experiment.method, spec, Streams(3), "meta")
    replay = filled_replay(spec, 3, config=ReplayConfig(500, "device", "meta"))
    with OnlyOn("meta"):
        agent.update(replay, every_part=True)


@pytest.mark.filterwarnings("ignore:.*to a meta parameter")  # as intended
@pytest.mark.parametrize("method", ["ksl", "sac_ae"])
def test_what_is_loaded_is_on_the_device(method: str) -> None:
    saved, replay = agent_and_replay(method)
    saved.update(replay, every_part=True)
    agent, _ = agent_and_replay(method, device="meta")
    agent.load_state(saved.state(), updates=1, phase=0)
    assert agent.state().keys() == saved.state().keys()
    astray = {key for key, tensor in agent.state().items() if tensor.device.type != "meta"}
    assert astray <= {COUNTER}


def learned(method: str, storage: Storage, updates: int = 2) -> tuple[Agent, dict[str, Tensor]]:
    """An agent after some updates, and their metrics."""
    agent, replay = agent_and_replay(method, storage=storage)
    metrics: dict[str, Tensor] = {}
    for number in range(updates):
        found = agent.update(replay, every_part=True).metrics
        metrics |= {f"{number}/{path}": value for path, value in found.items()}
    return agent, metrics


@every_method
def test_frames_on_the_device_teach_bit_for_bit_the_same(method: str) -> None:
    (one, first), (two, second) = learned(method, "memory"), learned(method, "device")
    assert first.keys() == second.keys()
    assert not moved(first, second)
    assert not moved(one.state(), two.state())
    assert one.streams.state() == two.streams.state()


@pytest.fixture
def flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host as a device that must not be waited for."""
    monkeypatch.setattr(kstep.agent, "FLAGGED", ("cpu",))


@pytest.mark.parametrize("method", ["ksl", "sac_pixel", "drq_v2", "proto_rl"])
def test_a_flag_instead_of_reading_losses_changes_nothing(
    method: str, request: pytest.FixtureRequest
) -> None:
    one, first = learned(method, "memory")
    assert one.broken is None
    request.getfixturevalue("flagged")
    two, second = learned(method, "memory")
    assert two.broken is not None
    assert two.broken.item() == 0.0
    assert not moved(first, second)
    assert not moved(one.state(), two.state())


@pytest.mark.usefixtures("flagged")
@pytest.mark.parametrize("method", ["ksl", "sac_ae", "drq_v2"])
def test_a_non_finite_loss_is_never_stepped_with(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also not by the losses after it, which may be finite again; and the watch reports it."""
    agent, replay = agent_and_replay(method)
    health = Health(agent, replay, lambda text: None)
    agent.update(replay, every_part=True)
    health.refuse_broken()
    parameters = {
        f"{name}/{key}": parameter
        for name, module in agent.modules().items()
        if "slow" not in name
        for key, parameter in module.named_parameters()
        if parameter.requires_grad
    }
    before = snapshot(parameters), snapshot(agent.optimizers.state())
    with monkeypatch.context() as broken:
        original = type(agent.core).critic_loss

        def critic_loss(*arguments: Any) -> Any:
            loss, *rest = original(*arguments)
            return loss * float("nan"), *rest

        broken.setattr(type(agent.core), "critic_loss", critic_loss)
        agent.update_critic(agent.batches.draw(replay, sequences=False).transitions)
    update = agent.update(replay, every_part=True)
    assert all(value.isfinite() for value in update.metrics.values())
    assert not moved(before[0], parameters)
    assert not moved(before[1], agent.optimizers.state())
    report = "a loss was non-finite, in this or an earlier update.*All weights are finite"
    with pytest.raises(Fault, match=report):
        health.look({path: float(value) for path, value in update.metrics.items()}, update.latent)
    with pytest.raises(Fault, match=report):
        health.refuse_broken()
