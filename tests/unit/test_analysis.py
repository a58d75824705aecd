"""The analyses against latents whose answers are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm, ortho_group

from kstep.analysis import evaluation_set, fit
from kstep.analysis.collapse import collapse, effective_rank, uniformity
from kstep.analysis.distances import share, typical_distance
from kstep.analysis.evaluation_set import EvaluationSet
from kstep.analysis.gradients import gradients
from kstep.analysis.horizon import horizon, predictions
from kstep.analysis.perturbation import (
    PERTURBATIONS,
    changes_in_sensitivity,
    erased,
    mirrored,
    noisy,
    perturbation,
    translated,
)
from kstep.analysis.reward_mse import reward_mse
from kstep.analysis.reward_pca import principal_components, reward_pca, separability
from kstep.analysis.saliency import attention, focus, overlay, sensitivity, side_by_side
from kstep.analysis.state_probe import state_probe
from kstep.analysis.tables import Row
from kstep.analysis.temporal import temporal
from kstep.auxiliary.ksl import KSL
from kstep.nets.encoder import PixelEncoder, PixelEncoderConfig
from kstep.run.update_angles import Angle, angles, direction, live_angles
from kstep.types import KstepError
from tests.make import agent_and_replay

RNG = np.random.default_rng(5)
N, D = 400, 6
EPISODE = np.repeat(np.arange(8), 50)
REWARD = RNG.uniform(0, 2, N)
LATENTS = RNG.normal(size=(N, D))
ROTATION = ortho_group.rvs(D, random_state=1)
CONSTANT = np.full((N, D), 0.7)


def test_a_latent_equal_to_the_reward_has_no_error() -> None:
    latents = np.column_stack((REWARD, LATENTS[:, :3]))
    measured = reward_mse(latents, REWARD, EPISODE)
    assert measured.in_sample == pytest.approx(0.0, abs=1e-20)
    assert measured.held_out == pytest.approx(0.0, abs=1e-20)
    assert measured.variance == pytest.approx(REWARD.var())


def test_a_constant_encoder_knows_nothing_of_reward() -> None:
    measured = reward_mse(CONSTANT, REWARD, EPISODE)
    assert measured.in_sample == pytest.approx(REWARD.var())
    assert measured.held_out >= measured.in_sample


def test_noise_looks_better_in_sample_than_held_out() -> None:
    wide = RNG.normal(size=(N, 100))
    measured = reward_mse(wide, REWARD, EPISODE)
    assert measured.in_sample < measured.variance < measured.held_out


def test_a_rotation_changes_nothing() -> None:
    latents = LATENTS * [5, 3, 2, 1, 1, 0.5] + np.outer(REWARD, np.ones(D))
    turned = latents @ ROTATION
    state = RNG.normal(size=(N, 3))
    left, right = (reward_mse(z, REWARD, EPISODE) for z in (latents, turned))
    assert (left.in_sample, left.held_out) == pytest.approx((right.in_sample, right.held_out))
    one, other = (reward_pca(z, REWARD, EPISODE) for z in (latents, turned))
    assert one.variance == pytest.approx(other.variance)
    assert np.allclose(np.abs(one.components), np.abs(other.components))
    assert one.separability_2 == pytest.approx(other.separability_2)
    assert one.separability_all == pytest.approx(other.separability_all, abs=0.01)
    assert temporal(latents, EPISODE).distance == pytest.approx(temporal(turned, EPISODE).distance)
    assert effective_rank(latents) == pytest.approx(effective_rank(turned))
    assert uniformity(latents) == pytest.approx(uniformity(turned))
    assert typical_distance(latents) == pytest.approx(typical_distance(turned))
    assert np.allclose(state_probe(latents, state, EPISODE), state_probe(turned, state, EPISODE))


def test_what_is_normalized_does_not_depend_on_scale() -> None:
    small = temporal(0.01 * LATENTS, EPISODE)
    whole = temporal(LATENTS, EPISODE)
    assert small.distance == pytest.approx(0.01 * whole.distance)
    assert small.normalized == pytest.approx(whole.normalized)
    versions = LATENTS + 0.1 * RNG.normal(size=(3, N, D))
    one = perturbation(versions, LATENTS)
    other = perturbation(0.01 * versions, 0.01 * LATENTS)
    assert other.distance == pytest.approx(0.01 * one.distance)
    assert other.normalized == pytest.approx(one.normalized)


def test_spread_is_the_distance_of_two_random_states() -> None:
    left, right = RNG.integers(0, N, (2, 100_000))
    drawn = np.sqrt(np.mean(np.sum((LATENTS[left] - LATENTS[right]) ** 2, axis=1)))
    assert typical_distance(LATENTS) == pytest.approx(drawn, rel=0.01)
    assert typical_distance(np.array([[0.0], [2.0]])) == pytest.approx(np.sqrt(2.0))
    assert np.isnan(share(0.0, CONSTANT))


def test_folds_hold_out_whole_episodes_and_every_state_once() -> None:
    masks = list(fit.held_out_states(EPISODE))
    assert len(masks) == 5
    assert (np.sum(masks, axis=0) == 1).all()
    for mask in masks:
        assert not set(EPISODE[mask]) & set(EPISODE[~mask])
    alone = list(fit.held_out_states(np.zeros(10)))
    assert (np.sum(alone, axis=0) == 1).all()
    assert len(alone) == 5


def test_consecutive_latents_by_hand() -> None:
    latents = np.array([[0.0, 0], [3, 4], [3, 4], [100, 100], [100, 101]])
    measured = temporal(latents, np.array([0, 0, 0, 1, 1]))
    assert measured.distance == pytest.approx((5 + 0 + 1) / 3)
    assert temporal(CONSTANT, EPISODE).distance == 0.0
    assert np.isnan(temporal(CONSTANT, EPISODE).normalized)


def test_perturbed_latents_by_hand() -> None:
    versions = np.array([[[0.0, 0]], [[3, 4]], [[3, 0]]])  # sides 5, 3, 4
    alone = perturbation(versions, LATENTS)
    assert alone.distance == pytest.approx(4.0)
    assert (alone.states, np.isnan(alone.error)) == (1, True)
    two = perturbation(np.concatenate((versions, 2 * versions), axis=1), LATENTS)
    assert (two.distance, two.error) == pytest.approx((6.0, 2.0))  # 4 and 8
    still = perturbation(np.stack([CONSTANT] * 3), CONSTANT)
    assert still.distance == 0.0


def test_changes_in_sensitivity_by_hand() -> None:
    rows: list[Row] = [
        {
            "label": "a",
            "task": "t",
            "seed": seed,
            "env_steps": at,
            "perturbation": "noise",
            "distance": value,
            "normalized": value / 10,
        }
        for seed, values in ((1, (1.0, 3.0, 2.0)), (2, (5.0, 5.0, 5.0)))
        for at, value in zip((10, 20, 30), values, strict=True)
    ]
    (change,) = changes_in_sensitivity(rows[::-1])
    assert change["distance"] == pytest.approx((1.5 + 0.0) / 2)
    assert change["normalized"] == pytest.approx(0.075)
    assert (change["seeds"], change["every"]) == (2, 10)
    # Neither the untrained encoder nor the last one, closer to the one before, belongs in it.
    odd: list[Row] = [{**rows[0], "env_steps": at, "distance": 99.0} for at in (0, 33)]
    assert changes_in_sensitivity([*odd, *rows]) == [change]
    # Tasks are told apart.
    other: list[Row] = [{**row, "task": "u", "distance": 7.0} for row in rows]
    both = changes_in_sensitivity([*rows, *other])
    assert [(c["task"], c["distance"]) for c in both] == [("t", change["distance"]), ("u", 0.0)]
    (alone,) = changes_in_sensitivity(rows[:1])
    assert np.isnan(float(alone["distance"]))


STACKS = RNG.integers(60, 200, (5, 3, 24, 24, 3)).astype(np.uint8)


def test_perturbed_images() -> None:
    rng = np.random.default_rng(0)
    before = STACKS.copy()
    for perturb in PERTURBATIONS.values():
        version = perturb(STACKS, rng)
        assert (version.shape, version.dtype) == (STACKS.shape, np.dtype(np.uint8))
        assert (version != STACKS).any(axis=(1, 2, 3, 4)).all()
    assert (before == STACKS).all()
    black = (erased(STACKS, rng) == 0).all(axis=-1)
    assert (black == black[:, :1]).all()  # all frames of a stack alike
    shares = black[:, 0].mean(axis=(1, 2))
    assert ((shares > 0.01) & (shares < 0.4)).all()
    noise = noisy(np.full((4, 3, 24, 24, 3), 128, np.uint8), rng).astype(float) - 128
    assert noise.std() == pytest.approx(0.15 * 255, rel=0.02)
    assert noise.mean() == pytest.approx(0.0, abs=1.0)
    assert (
        kstest(noise.ravel() + rng.uniform(-0.5, 0.5, noise.size), norm(0, 0.15 * 255).cdf)[1]
        > 0.001
    )
    assert noisy(np.zeros((1, 1, 8, 8, 3), np.uint8), rng).min() == 0  # cut off, not wrapped round
    assert noisy(np.zeros((1, 1, 64, 64, 3), np.uint8), rng).max() < 230
    assert (mirrored(mirrored(STACKS, rng), rng) == STACKS).all()


def test_translated_images_are_moved_by_up_to_four_pixels_and_their_border_repeated() -> None:
    many = np.repeat(STACKS[:1], 300, axis=0)
    padded = np.pad(STACKS[0], ((0, 0), (4, 4), (4, 4), (0, 0)), mode="edge")
    moved = {
        (down, across): padded[:, down : down + 24, across : across + 24]
        for down in range(9)
        for across in range(9)
    }
    found = set()
    for version in translated(many, np.random.default_rng(1)):
        (place,) = [where for where, image in moved.items() if np.array_equal(image, version)]
        found.add(place)
    assert {down for down, _ in found} == {across for _, across in found} == set(range(9))


def test_principal_components_of_a_known_cloud() -> None:
    cloud = RNG.normal(size=(2_000, 4)) * [4.0, 2.0, 1.0, 0.0] @ ortho_group.rvs(4, random_state=2)
    components, shares = principal_components(cloud)
    assert shares == pytest.approx([16 / 21, 4 / 21, 1 / 21], rel=0.1)
    assert components.std(axis=0) == pytest.approx([4, 2, 1], rel=0.1)
    narrow, shares = principal_components(cloud[:, :1])
    assert narrow.shape == (2_000, 3)
    assert shares == pytest.approx([1, 0, 0])
    assert (principal_components(CONSTANT)[1] == 0).all()
    wide = RNG.normal(size=(20, 50))  # more dimensions than states
    components, shares = principal_components(wide)
    _, values, _ = np.linalg.svd(wide - wide.mean(axis=0))
    assert shares == pytest.approx(values[:3] ** 2 / (values**2).sum())
    assert np.linalg.norm(components, axis=0) == pytest.approx(values[:3])
    assert np.abs(components.T @ components - np.diag(values[:3] ** 2)).max() < 1e-6


def test_separability_of_known_latents() -> None:
    latents = np.column_stack((REWARD * 10, LATENTS))
    perfect = reward_pca(latents, REWARD, EPISODE)
    assert perfect.separability_2 > 0.97
    assert perfect.separability_all > 0.97
    chance = separability(LATENTS, REWARD > 1, EPISODE)
    assert 0.4 < chance < 0.6
    assert separability(CONSTANT, REWARD > 1, EPISODE) == pytest.approx(0.5, abs=0.05)
    assert np.isnan(separability(LATENTS, REWARD > 5, EPISODE))


def test_few_high_rewards_count_as_much_as_many_low() -> None:
    high = np.arange(N) % 20 == 0
    assert separability(np.zeros((N, 2)), high, EPISODE) == pytest.approx(0.5)
    assert separability(high[:, None] + 0.01 * LATENTS, high, EPISODE) == 1.0


def test_collapse_of_known_latents() -> None:
    assert collapse(CONSTANT).effective_rank == 1.0
    assert collapse(CONSTANT).uniformity == pytest.approx(0.0)
    assert collapse(CONSTANT).spread_largest == pytest.approx(0.0, abs=1e-12)
    rounded = (0.3 + 1e-7 * LATENTS).astype(np.float32)  # equal up to float32's last bits
    assert effective_rank(rounded) == 1.0
    assert np.isnan(share(1e-7, rounded))
    assert effective_rank(0.3 + 1e-3 * LATENTS) > 5.0
    axes = np.concatenate((np.eye(D), -np.eye(D)))
    assert effective_rank(axes) == pytest.approx(D)
    line = np.outer(REWARD, np.arange(1, D + 1))
    assert effective_rank(line) == pytest.approx(1.0, abs=1e-6)
    half = LATENTS * [1, 1, 1, 0, 0, 0]
    assert collapse(half).silent == 0.5
    assert effective_rank(half) <= 3.0
    opposite = np.array([[1.0, 0], [-5.0, 0]])
    assert uniformity(opposite) == pytest.approx(-8.0)


def test_state_probe_reads_what_is_there() -> None:
    state = np.column_stack((LATENTS @ ROTATION[:, 0], RNG.normal(size=N), np.full(N, 3.0)))
    known, unknown, fixed = state_probe(LATENTS, state, EPISODE)
    assert known == pytest.approx(1.0)
    assert unknown < 0.1
    assert np.isnan(fixed)


def adam(gradient_sequence: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    parameter = torch.nn.Parameter(torch.zeros_like(gradient_sequence[0]))
    optimizer = torch.optim.Adam([parameter], lr=1.0)
    for gradient in gradient_sequence:
        before = parameter.detach().clone()
        parameter.grad = gradient
        optimizer.step()
    state = dict(optimizer.state[parameter])
    # The last step with rate 1 is the direction itself.
    assert torch.allclose(before - parameter, direction(state, (0.9, 0.999)).float(), atol=1e-6)
    return state


def test_angles_between_known_directions() -> None:
    torch.manual_seed(0)
    steps = [torch.randn(4, 3) for _ in range(5)]
    one = {"a": adam(steps), "b": adam(steps), "only here": adam(steps)}
    other = {"a": adam(steps), "b": adam([-step for step in steps])}
    found = angles(one, other, normalizations=["b"])
    assert set(found) == {"a", "b"}
    assert found["a"].cosine == pytest.approx(1.0)
    assert found["b"].cosine == pytest.approx(-1.0)
    summary = gradients(found)
    assert summary.pooled == pytest.approx(0.0, abs=1e-9)
    assert summary.mean == pytest.approx(0.0, abs=1e-9)
    assert summary.mean_without_norms == pytest.approx(1.0)
    assert (summary.conflicts, summary.tensors) == (1, 2)


def test_each_direction_has_its_own_count_of_updates() -> None:
    steps = [torch.randn(3, 3) for _ in range(7)]
    found = angles({"a": adam(steps)}, {"a": adam(steps[-1:])})
    signs = direction(adam(steps), (0.9, 0.999)).flatten()
    expected = torch.cosine_similarity(signs, steps[-1].sign().flatten().double(), dim=0)
    assert found["a"].cosine == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize(
    ("method", "shared"),
    [("ksl", 12), ("curl", 12), ("drq", 0), ("ksl-one-optimizer", 0), ("proto_rl", 0)],
)
def test_live_optimizers(method: str, shared: int) -> None:
    agent, replay = agent_and_replay(method)
    assert live_angles(agent.optimizers, agent.encoder) == {}
    for _ in range(2):
        agent.update(replay)
    found = live_angles(agent.optimizers, agent.encoder)
    assert len(found) == shared
    if found:
        assert set(found) == {name for name, _ in agent.encoder.named_parameters()}
        assert [name for name, angle in found.items() if angle.normalization] == [
            "head.1.weight",
            "head.1.bias",
        ]


@pytest.mark.parametrize("method", ["ksl", "curl", "ksl-conv"])
def test_angles_are_those_between_the_steps_that_were_taken(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, replay = agent_and_replay(method)
    moved: dict[str, dict[str, torch.Tensor]] = {}
    minimize = agent.optimizers.minimize

    def watched(name: str, loss: torch.Tensor, *, partly: bool = False) -> None:
        before = {key: p.detach().clone() for key, p in agent.encoder.named_parameters()}
        minimize(name, loss, partly=partly)
        moved[name] = {key: p.detach() - before[key] for key, p in agent.encoder.named_parameters()}

    monkeypatch.setattr(agent.optimizers, "minimize", watched)
    for _ in range(3):
        agent.update(replay)
    found = live_angles(agent.optimizers, agent.encoder)
    assert found
    for key, angle in found.items():
        one, other = (moved[name][key].double().flatten() for name in ("critic", "auxiliary"))
        taken = float(torch.cosine_similarity(one, other, dim=0))
        assert angle.cosine == pytest.approx(taken, abs=2e-3)


def test_a_parameter_that_does_not_move_has_no_say_in_the_mean() -> None:
    moving, still = Angle(0.5, (1.0, 1.0), False), Angle(0.0, (0.0, 1.0), False)
    assert gradients({"a": moving, "b": still}).mean == 0.5
    assert np.isnan(gradients({"b": still}).mean)


def test_horizon_of_known_predictions() -> None:
    path = np.cumsum(RNG.normal(size=(30, 6, 8)), axis=1) + 3 * RNG.normal(size=(30, 1, 8))
    start, reached = path[:, 0], path[:, 1:]
    perfect = horizon(5.0 * reached, reached, start)
    assert perfect.steps == 5
    assert perfect.model == pytest.approx(np.zeros(5))
    still = horizon(np.repeat(start[:, None], 5, axis=1), reached, start)
    assert still.steps == 0
    assert still.model == pytest.approx(still.still)
    fades = np.concatenate((reached[:, :2], -reached[:, 2:]), axis=1)
    assert horizon(fades, reached, start).steps == 2
    opposite = horizon(-reached, reached, start)
    assert opposite.model == pytest.approx(np.full(5, 4.0))


@pytest.mark.parametrize("batch", [64, 3])  # of 3: one without any state to begin from
@pytest.mark.parametrize("method", ["ksl", "ksl-conv", "ksl-k1-l2"])
def test_predictions_go_with_the_actions_taken_and_the_states_reached(
    method: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation_set, "BATCH", batch)
    agent, _ = agent_and_replay(method)
    assert isinstance(agent.auxiliary, KSL)
    borrowed = agent.auxiliary.borrowed_layers
    assert borrowed == (2 if method == "ksl-k1-l2" else 0)
    layers = agent.core.borrowed_layers(borrowed)
    encode = agent.encoder.features if method == "ksl-conv" else agent.encoder
    size, episode = agent.spec.frame_shape[0], np.repeat([0, 1], [6, 5])
    on = EvaluationSet(
        frames={size: RNG.integers(0, 256, (11, size, size, 3)).astype(np.uint8)},
        action=RNG.uniform(-1, 1, (11, agent.spec.action_dim)).astype(np.float32),
        reward=np.zeros(11),
        state=np.zeros((11, 1)),
        quantities=("none",),
        episode=episode,
        stack=agent.method.stack,
    )
    predicted, reached, start = predictions(agent, on, 4)
    begins = [0, 1, 5 + 1]  # those with four more states in their episode
    assert predicted.shape[:2] == reached.shape[:2] == (3, 4)
    with torch.no_grad():
        for index, begin in enumerate(begins):
            views = torch.from_numpy(on.stacks(np.arange(begin, begin + 5)))
            target = agent.auxiliary.targets(agent.auxiliary_slow_encoder, views[:, None])[
                :, 0
            ].numpy()
            assert start[index] == pytest.approx(target[0], abs=1e-5)
            assert reached[index] == pytest.approx(target[1:], abs=1e-5)
            latent = encode(views[:1])
            for j in range(4):
                action = torch.from_numpy(on.action[begin + j : begin + j + 1])
                latent = agent.auxiliary.transition(latent, action, layers)
                wanted = agent.auxiliary.predictor(agent.auxiliary.projector(latent))[0].numpy()
                assert predicted[index, j] == pytest.approx(wanted, abs=1e-5)
    with pytest.raises(KstepError, match="longer than 9 decisions"):
        predictions(agent, on, 9)
    foreign = replace(on, action=np.zeros((11, 5), np.float32))
    with pytest.raises(KstepError, match="actions have 5 numbers, the agent's 2"):
        predictions(agent, foreign, 4)


def test_sensitivity_of_an_encoder_that_sees_one_corner() -> None:
    def encode(stacks: torch.Tensor) -> torch.Tensor:
        corner = stacks[:, :, :2, :2].flatten(1)
        return torch.stack((3.0 * corner.sum(1), 4.0 * corner.sum(1)), dim=1)

    maps = sensitivity(encode, STACKS, torch.Generator().manual_seed(0))
    assert maps.shape == (5, 24, 24)
    assert (maps[:, :2, :2] > 0).all()
    assert maps[:, 2:].max() == maps[:, :, 2:].max() == 0.0


def test_sensitivity_estimates_the_norm_of_the_jacobian() -> None:
    weights = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))

    def encode(stacks: torch.Tensor) -> torch.Tensor:
        return stacks[:, :, 0, 0, 0] @ weights.T

    maps = sensitivity(encode, STACKS, torch.Generator().manual_seed(0))
    assert maps[0, 0, 0] == pytest.approx(float(weights.norm()), rel=0.35)


def test_attention_is_where_the_map_is_active() -> None:
    maps = np.zeros((2, 6, 6, 4))
    maps[:, 0, 0] = 2.0
    enlarged = attention(maps, (2, 2), 24, 24)
    assert enlarged.shape == (2, 24, 24)
    assert enlarged[0, 3, 3] == enlarged.max() == pytest.approx(4.0)  # the middle of 7 pixels
    assert enlarged[0, 3, 5] == pytest.approx(2.0)  # half way to the next unit
    assert enlarged[0, 3, 1] == pytest.approx(2.0)  # as far on the other side, where there is none
    assert not enlarged[:, 7:].any()
    even, focused = np.ones((2, 10, 10)), np.zeros((2, 10, 10))
    focused[:, 0] = 1.0
    assert (focus(even), focus(focused)) == pytest.approx((0.1, 1.0))


@pytest.mark.parametrize("strides", [(2, 1, 1, 1), (2, 2, 1, 1)])
def test_attention_lies_on_what_an_encoder_sees(strides: tuple[int, ...]) -> None:
    # Its initial weights see only the middle pixel.
    config = PixelEncoderConfig(strides=strides, init="delta_orthogonal")
    encoder = PixelEncoder(config, (84, 84, 3), 1)
    for row, column in ((11, 43), (59, 71)):
        image = np.zeros((1, 1, 84, 84, 3), np.uint8)
        image[:, :, row, column] = 255
        with torch.no_grad():
            active = encoder.features(torch.from_numpy(image)).view(-1, *encoder.feature_shape)
        seen = attention(active.numpy(), strides, 84, 84)[0]
        assert np.unravel_index(seen.argmax(), seen.shape) == (row, column)


def test_overlays_are_pictures() -> None:
    frames = STACKS[:, -1]
    maps = np.zeros((5, 24, 24))
    assert overlay(frames, maps, 2).shape == (5, 48, 48, 3)
    pictures = side_by_side(frames, (maps, maps), 4)
    assert pictures.shape == (5, 96, 288, 3)
    assert pictures.dtype == np.uint8
