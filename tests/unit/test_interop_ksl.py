"""kstep.KSL: the agent's own loss, bit for bit, with a mask and discrete actions beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import kstep
from kstep.auxiliary import ksl as auxiliary
from kstep.errors import KstepError
from tests.make import agent_and_replay, expect, moved, snapshot

B, K, D, A = 6, 3, 8, 2
SMALL: dict[str, Any] = {"transition_hidden": (16, 16), "projection_hidden": 16}


def foreign() -> nn.Module:
    """An encoder as others write them: NCHW, batch normalization, dropout."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(4 * 5 * 5, D),
    )


def plain() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, D))


def made(encoder: nn.Module, seed: int = 0, **changes: Any) -> kstep.KSL:
    torch.manual_seed(seed)
    options = {"latent_dim": D, "action_dim": A, "k": K, **SMALL, **changes}
    return kstep.KSL(encoder, **options)


def data(n: int = B) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(n, K + 1, 3, 12, 12, generator=generator)
    return images, torch.rand(n, K, A, generator=generator) * 2 - 1


def test_without_a_mask_it_is_the_loss_of_our_agent_to_the_last_bit() -> None:
    """Value, gradients and slow copies, with the agent's own encoder and batch."""
    agent, replay = agent_and_replay("ksl")
    task, slow_encoder = expect(auxiliary.KSL, agent.auxiliary), agent.slow_encoder
    for _ in range(2):
        agent.update(replay)  # so that fast and slow weights differ
    drawn = agent.batches.draw(replay, sequences=True).sequences
    assert drawn is not None
    hidden = task.transition.get_parameter("inputs.0.weight").shape[0]
    ours = kstep.KSL(
        agent.encoder,
        latent_dim=agent.encoder.latent_dim,
        action_dim=A,
        k=task.config.k,
        ema_rate=task.ema_rate,
        transition_hidden=(hidden, hidden),
        projection_hidden=task.config.projection_hidden,
    )
    ours.task.load_state_dict(task.state_dict())
    ours.slow_encoder.load_state_dict(slow_encoder.state_dict())

    loss, _ = task.loss(agent.encoder, slow_encoder, drawn)
    same = ours.loss(agent.encoder, drawn.observation, drawn.action)
    assert torch.equal(same, loss)
    encoder = list(agent.encoder.parameters())
    heads = [agent_part for name in task.learned() for agent_part in parameters(task, name)]
    own_heads = [part for name in task.learned() for part in parameters(ours.task, name)]
    expected = torch.autograd.grad(loss, [*encoder, *heads])
    got = torch.autograd.grad(same, [*encoder, *own_heads])
    assert all(map(torch.equal, expected, got))

    for slow in agent.slow_copies:
        slow.step()
    ours.update_slow(agent.encoder)
    assert not moved(slow_encoder.state_dict(), ours.slow_encoder.state_dict())
    assert not moved(task.state_dict(), ours.task.state_dict())


def parameters(task: nn.Module, name: str) -> list[nn.Parameter]:
    return list(task.get_submodule(name).parameters())


def test_each_step_is_averaged_over_the_sequences_that_reach_it() -> None:
    encoder = plain()
    ksl = made(encoder)
    images, actions = data()
    reaches = torch.tensor([3, 3, 2, 1, 0, 0])
    mask = torch.arange(K) < reaches[:, None]
    steps = []
    for j in range(K):
        # By hand: the j-th distance of those sequences alone.
        kept = reaches > j
        steps.append(
            ksl.task.distances(encoder, ksl.slow_encoder, images[kept], actions[kept])[j].mean()
        )
    loss = ksl.loss(encoder, images, actions, mask)
    torch.testing.assert_close(loss, torch.stack(steps).mean())

    nobody_beyond_the_second = mask & (torch.arange(K) < 2)
    loss = ksl.loss(encoder, images, actions, nobody_beyond_the_second)
    torch.testing.assert_close(loss, torch.stack(steps[:2]).mean())

    torch.testing.assert_close(
        ksl.loss(encoder, images, actions, torch.ones(B, K)), ksl.loss(encoder, images, actions)
    )
    nothing = ksl.loss(encoder, images, actions, torch.zeros(B, K))
    assert nothing.item() == 0
    (gradient,) = torch.autograd.grad(nothing, encoder.get_parameter("1.weight"))
    assert not gradient.any()


def test_what_follows_an_end_has_no_influence_on_value_or_gradient() -> None:
    encoder = plain()
    ksl = made(encoder)
    images, actions = data()
    done = torch.zeros(B, K, dtype=torch.bool)
    done[2, 1] = done[3, 0] = done[4, 2] = True
    mask = ksl.mask_after(done)
    assert mask.sum(1).tolist() == [3, 3, 2, 1, 3, 3]

    def result(images: Tensor, actions: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        loss = ksl.loss(encoder, images, actions, mask)
        return loss, *torch.autograd.grad(loss, [*encoder.parameters()])

    expected = result(images, actions, mask)
    spoiled, wrong = images.clone(), actions.clone()
    spoiled[:, 1:][~mask] = torch.nan
    wrong[~mask] = torch.nan
    assert all(map(torch.equal, expected, result(spoiled, wrong, mask)))
    # What is marked valid again behind an end is behind it all the same.
    again = mask.clone()
    again[3, 2] = True
    assert all(map(torch.equal, expected, result(spoiled, wrong, again)))
    assert torch.isnan(result(spoiled, actions, torch.ones(B, K))[0])


def test_discrete_actions_are_integers_or_one_hot() -> None:
    encoder = plain()
    ksl = made(encoder, action_dim=None, n_actions=np.int64(4))  # as a space has it
    images, _ = data()
    index = torch.randint(4, (B, K), generator=torch.Generator().manual_seed(2))
    one_hot = nn.functional.one_hot(index, 4)
    expected = ksl.loss(encoder, images, one_hot.float())
    for actions in (index, index[..., None], index.to(torch.uint8), one_hot):
        assert torch.equal(ksl.loss(encoder, images, actions), expected)
    assert not torch.equal(ksl.loss(encoder, images, (index + 1) % 4), expected)
    mask = torch.ones(B, K)
    mask[:, 2] = 0
    index[:, 2] = -1  # padding
    assert torch.isfinite(ksl.loss(encoder, images, index, mask))


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_an_optimizer_moves_heads_and_encoder_and_only_update_slow_the_rest(
    optimizer: Callable[..., torch.optim.Optimizer],
) -> None:
    encoder = foreign()
    ksl = made(encoder)
    steps = optimizer([*encoder.parameters(), *ksl.parameters()], lr=0.1, weight_decay=0.1)
    before, encoder_before = snapshot(ksl.state_dict()), snapshot(encoder.state_dict())
    ksl.loss(encoder, *data()).backward()  # type: ignore[no-untyped-call]
    steps.step()
    slow = {name for name in before if "slow" in name}
    assert moved(before, ksl.state_dict()) == set(before) - slow
    assert {*dict(encoder.named_parameters())} <= moved(encoder_before, encoder.state_dict())
    ksl.update_slow(encoder)
    assert moved(before, ksl.state_dict()) == set(before)
    weight = ksl.slow_encoder.get_parameter("0.weight")
    torch.testing.assert_close(
        weight, 0.95 * encoder_before["0.weight"] + 0.05 * encoder.get_parameter("0.weight")
    )
    mean = ksl.slow_encoder.get_buffer("1.running_mean")
    assert torch.equal(mean, encoder.get_buffer("1.running_mean"))


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_the_rate_of_the_slow_copies(rate: float) -> None:
    encoder = plain()
    ksl = made(encoder, ema_rate=rate)
    before = snapshot(ksl.slow_encoder.state_dict())
    nn.init.zeros_(encoder.get_parameter("1.weight"))
    ksl.update_slow(encoder)
    if rate == 0:
        assert not moved(before, ksl.slow_encoder.state_dict())
    else:
        assert not moved(encoder.state_dict(), ksl.slow_encoder.state_dict())


def test_the_slow_encoder_evaluates_whatever_the_mode_is() -> None:
    encoder = foreign()
    ksl = made(encoder).train()
    assert ksl.task.training
    assert not any(module.training for module in ksl.slow_encoder.modules())
    before = snapshot(ksl.slow_encoder.state_dict())
    ksl.loss(encoder, *data())
    assert not moved(before, ksl.slow_encoder.state_dict())
    assert moved(before, encoder.state_dict()) >= {"1.running_mean"}  # the encoder is in its own


def test_a_saved_state_continues_where_it_stopped() -> None:
    encoder = plain()
    ksl = made(encoder)
    nn.init.normal_(encoder.get_parameter("1.weight"))
    ksl.update_slow(encoder)
    other = made(encoder, seed=5)
    assert not torch.equal(other.loss(encoder, *data()), ksl.loss(encoder, *data()))
    other.load_state_dict(ksl.state_dict())
    assert torch.equal(other.loss(encoder, *data()), ksl.loss(encoder, *data()))
    assert not any("encoder" in name and "slow" not in name for name in ksl.state_dict())


def test_it_learns_to_predict_a_moving_dot() -> None:
    """Under its own actions: with the actions shuffled, predictions are worse."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(8 * 8, 32), nn.LayerNorm(32), nn.Tanh())
    ksl = kstep.KSL(
        encoder, latent_dim=32, n_actions=4, transition_hidden=(64, 64), projection_hidden=64
    )
    optimizer = torch.optim.Adam([*encoder.parameters(), *ksl.parameters()], lr=1e-3)
    moves = torch.tensor([[0, 1], [1, 0], [0, -1], [-1, 0]])

    def draw(n: int) -> tuple[Tensor, Tensor]:
        actions = torch.randint(4, (n, K))
        start = torch.randint(8, (n, 1, 2))
        place = torch.cat((start, start + moves[actions].cumsum(1)), dim=1) % 8
        images = nn.functional.one_hot(place[..., 0] * 8 + place[..., 1], 64).float()
        return images.reshape(n, K + 1, 1, 8, 8), actions

    for _ in range(600):
        loss = ksl.loss(encoder, *draw(64))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        ksl.update_slow(encoder)
    images, actions = draw(512)
    right, wrong = ksl.loss(encoder, images, actions), ksl.loss(encoder, images, actions.flip(0))
    assert right.item() < 0.85 * wrong.item()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_actions": 4}, "either action_dim"),
        ({"action_dim": None}, "either action_dim"),
        ({"k": 0}, "k must be a whole number of at least 1, not 0"),
        ({"projection_hidden": 0}, "projection_hidden must be a whole number of at least 1"),
        ({"transition_hidden": 8}, "transition_hidden must be two sizes, not 8"),
        ({"transition_hidden": (8,)}, r"transition_hidden must be two sizes, not \(8,\)"),
        ({"latent_dim": 8.5}, "latent_dim must be a whole number"),
        ({"ema_rate": 1.5}, "ema_rate must lie between 0 and 1"),
        ({"encoder": lambda x: x}, "must be a torch.nn.Module, not function"),
        ({"encoder": nn.LazyLinear(D)}, "lazy layers: run it once"),
    ],
)
def test_it_refuses_what_it_cannot_be_made_of(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(KstepError, match=message):
        made(changes.pop("encoder", plain()), **changes)


def test_it_refuses_tensors_that_do_not_fit() -> None:
    encoder = plain()
    ksl = made(encoder)
    images, actions = data()
    discrete = made(encoder, action_dim=None, n_actions=4)
    wrong: list[tuple[kstep.KSL, tuple[Tensor, ...], str]] = [
        (ksl, (images[:, :3], actions), r"\(B, k \+ 1, ...\) with k = 3, not \(6, 3, 3, 12, 12\)"),
        (ksl, (images, actions[:, :2]), r"\(6, 3, 2\), not float32 \(6, 2, 2\)"),
        (ksl, (images, actions[..., 0].long()), "actions must be"),
        (discrete, (images, actions[..., 0]), "integers or one-hot.*not float32"),
        (discrete, (images, torch.full((B, K), 4)), "discrete actions must be 0 to 3, not 4 to 4"),
        (discrete, (images, torch.full((B, K), -1)), "discrete actions must be 0 to 3, not -1"),
        (ksl, (images, actions, torch.ones(B, K + 1)), r"mask must be \(B, k\) = \(6, 3\)"),
    ]
    for task, tensors, message in wrong:
        with pytest.raises(KstepError, match=message):
            task.loss(encoder, *tensors)
    with pytest.raises(KstepError, match=r"must return \(B, latent_dim\)"):
        ksl.loss(nn.Flatten(), images, actions)


def test_heads_have_the_precision_of_the_encoder() -> None:
    encoder = plain().double()
    ksl = made(encoder)
    images, actions = data()
    loss = ksl.loss(encoder, images.double(), actions)
    assert loss.dtype == torch.float64
    assert torch.autograd.grad(loss, [*encoder.parameters()][:1])[0].abs().sum() > 0


def test_the_package_offers_it_without_importing_torch_first() -> None:
    assert kstep.KSL.__module__ == "kstep.interop.ksl"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        kstep.nothing  # noqa: B018
