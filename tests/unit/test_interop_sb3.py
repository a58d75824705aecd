"""KSL beside the real Stable-Baselines3: sequences from its buffer, its runs left as they are."""

from __future__ import annotations

import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

pytest.importorskip("stable_baselines3")

from stable_baselines3 import DQN, PPO, SAC, TD3, HerReplayBuffer
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.torch_layers import FlattenExtractor, NatureCNN
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnv,
    VecNormalize,
    VecTransposeImage,
)

from kstep.errors import KstepError
from kstep.interop.stable_baselines3 import KSLCallback, sequences
from kstep.types import Array
from tests.make import moved, snapshot

SIZE = 36  # the least that NatureCNN takes
SMALL: dict[str, Any] = {"transition_hidden": (16, 16), "projection_hidden": 16}


class Painted(gymnasium.Env[Array, Any]):
    """Frames that show which environment, episode and decision they are from; unequal episodes.

    Every third episode is ended by a time limit, the others are terminal.
    """

    def __init__(self, number: int = 0, *, discrete: bool = True) -> None:
        self.number, self.episode, self.t = number, -1, 0
        self.observation_space = spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)
        self.action_space = (
            spaces.Discrete(5) if discrete else spaces.Box(-2.0, 2.0, (2,), np.float32)
        )
        self.taken: dict[tuple[int, int], Any] = {}

    def frame(self) -> Array:
        return np.full((SIZE, SIZE, 3), (self.number, self.episode, self.t), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self.frame(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.taken[self.episode, self.t] = action
        self.t += 1
        over = self.t == 1 + (self.episode * 7 + self.number) % 6
        cut = self.episode % 3 == 0
        return self.frame(), 1.0, over and not cut, over and cut, {}


def painted(number: int = 1, *, discrete: bool = True) -> DummyVecEnv:
    return DummyVecEnv([partial(Painted, i, discrete=discrete) for i in range(number)])


def model_on(env: Any, kind: type[OffPolicyAlgorithm] = DQN, **options: Any) -> OffPolicyAlgorithm:
    settings: dict[str, Any] = {"buffer_size": 100, "learning_starts": 8, "batch_size": 4}
    settings |= {"seed": 0, "device": "cpu", "policy_kwargs": {"net_arch": [8]}}
    settings["policy_kwargs"]["features_extractor_kwargs"] = {"features_dim": 8}
    model: OffPolicyAlgorithm = kind("CnnPolicy", env, **{**settings, **options})
    return model


def ksl(**options: Any) -> KSLCallback:
    return KSLCallback(**{**SMALL, **options})


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("environments", [1, 3])
@pytest.mark.parametrize("decisions", [[40], [97], [40, 31, 12]], ids=["partly", "full", "resumed"])
def test_sequences_are_consecutive_and_end_where_their_episode_does(
    compact: bool, environments: int, decisions: list[int]
) -> None:
    """A ring of 60 transitions, at first not full, then wrapped, with calls of `learn` between."""
    env = painted(environments)
    options: dict[str, Any] = {"optimize_memory_usage": compact}
    if compact:
        options["replay_buffer_kwargs"] = {"handle_timeout_termination": False}
    model = model_on(env, buffer_size=60, gradient_steps=0, train_freq=1, **options)
    for steps in decisions:
        model.learn(steps * environments)
    buffer, k = model.replay_buffer, 4
    assert buffer is not None
    assert buffer.full == (sum(decisions) * environments >= 60)
    observations, actions, mask = sequences(buffer, 3000, k, np.random.default_rng(0))
    assert observations.shape == (3000, k + 1, 3, SIZE, SIZE)
    assert np.ptp(observations, axis=(3, 4)).max() == 0
    number, episode, t = np.moveaxis(observations[:, :, :, 0, 0].astype(int), 2, 0)

    worlds: list[Any] = env.envs
    stored: set[tuple[int, int, int]] = set()
    slots = range(buffer.size())
    for slot, i in ((slot, i) for slot in slots for i in range(environments)):
        if not (compact and buffer.full and slot == buffer.pos):
            stored.add(tuple(map(int, buffer.observations[slot, i, :, 0, 0])))  # type: ignore[arg-type]
    starts = set(zip(number[:, 0], episode[:, 0], t[:, 0], strict=True))
    assert starts == stored  # every transition can be the first
    for b in range(len(mask)):
        i, e, first = number[b, 0], episode[b, 0], t[b, 0]
        newest = worlds[i].episode, worlds[i].t
        for j in range(k):
            decision = first + j
            # One array for all observations keeps no last one, but for that of the running episode.
            lost = compact and (i, e, decision + 1) not in stored and (e, decision + 1) != newest
            assert mask[b, j] == ((i, e, decision) in stored and not lost and mask[b, :j].all())
            if mask[b, j]:
                assert (number[b, j + 1], episode[b, j + 1], t[b, j + 1]) == (i, e, decision + 1)
                assert actions[b, j] == worlds[i].taken[e, decision]


def test_stored_actions_reach_ksl_between_minus_one_and_one() -> None:
    env = painted(discrete=False)
    model = model_on(env, SAC, gradient_steps=0)
    model.learn(30)
    assert model.replay_buffer is not None
    _, actions, mask = sequences(model.replay_buffer, 100, 2, np.random.default_rng(0))
    assert actions.shape == (100, 2, 2)
    assert 0.5 < np.abs(actions[mask]).max() <= 1.0


SHARED = {"share_features_extractor": True}
CASES = [
    pytest.param(DQN, {}, False, {"q_net"}, id="dqn"),
    pytest.param(SAC, {}, False, {"critic"}, id="sac"),
    pytest.param(SAC, {}, True, {"actor", "critic"}, id="sac-both"),
    pytest.param(SAC, SHARED, True, {"actor"}, id="sac-shared"),
    pytest.param(TD3, {}, True, {"actor", "critic"}, id="td3-both"),
]


@pytest.mark.parametrize(("kind", "policy", "actor", "networks"), CASES)
def test_it_trains_these_extractors_and_nothing_without_a_learning_rate(
    kind: type[OffPolicyAlgorithm], policy: dict[str, Any], actor: bool, networks: set[str]
) -> None:
    """With a rate of 0 all of Stable-Baselines3's weights and actions are those of a run without
    KSL: its random numbers are not touched."""

    def trained(callback: KSLCallback | None) -> OffPolicyAlgorithm:
        model = model_on(painted(2, discrete=kind is DQN), kind, train_freq=1)
        model.policy_kwargs.update(policy)
        if policy:
            model._setup_model()  # with another policy
        return model.learn(40, callback=callback)

    nothing, without = ksl(learning_rate=0.0, actor=actor), trained(None)
    still = trained(nothing)
    assert not moved(without.policy.state_dict(), still.policy.state_dict())
    assert nothing.updates == still._n_updates > 5
    callback = ksl(actor=actor)
    changed = moved(without.policy.state_dict(), trained(callback).policy.state_dict())
    assert set(callback.parts) == networks
    for name in networks:
        assert f"{name}.features_extractor.cnn.0.weight" in changed
    before, part = nothing.parts, callback.parts[next(iter(networks))]
    same_part = before[next(iter(networks))]
    assert moved(same_part.ksl.task.state_dict(), part.ksl.task.state_dict())


@pytest.mark.parametrize(
    "options",
    [
        {"train_freq": 1},
        {"train_freq": 4, "gradient_steps": 2},
        {"train_freq": 3, "gradient_steps": -1},
        {"train_freq": (2, "episode"), "gradient_steps": -1},
        {"learning_starts": 1000},
        {"gradient_steps": 0},
        {"n_steps": 3, "train_freq": 1},
    ],
    ids=str,
)
def test_it_takes_as_many_steps_as_the_algorithm(options: dict[str, Any]) -> None:
    callback = ksl()
    model = model_on(painted(1 if isinstance(options.get("train_freq"), tuple) else 2), **options)
    model.learn(50, callback=callback)
    assert callback.updates == model._n_updates


def test_save_load_and_evaluation_are_those_of_stable_baselines3(tmp_path: Path) -> None:
    env, callback = painted(discrete=False), ksl()
    model = model_on(env, SAC)
    model.learn(20, callback=callback)
    model.save(tmp_path / "model")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        assert not any(b"kstep" in archive.read(name) for name in archive.namelist())
    loaded = SAC.load(tmp_path / "model", env=env)
    assert not moved(model.policy.state_dict(), loaded.policy.state_dict())
    frame: Any = env.reset()
    assert np.array_equal(
        model.predict(frame, deterministic=True)[0], loaded.predict(frame, deterministic=True)[0]
    )
    mean, _ = evaluate_policy(loaded, painted(discrete=False), n_eval_episodes=4, warn=False)
    assert mean == (1 + 2 + 3 + 4) / 4  # the lengths of the first episodes

    callback.save(tmp_path / "ksl.safetensors")
    resumed = ksl()
    resumed.load(tmp_path / "ksl.safetensors")
    loaded.learn(1, callback=resumed, reset_num_timesteps=False)  # collects one, then both learn
    assert resumed.updates == callback.updates + 1
    before = snapshot(callback.state())
    model.learn(1, callback=callback, reset_num_timesteps=False)  # continues with its own
    assert callback.updates == resumed.updates
    assert "critic/slow_encoder.cnn.0.weight" in moved(before, callback.state())


def test_it_reports_latents_that_are_all_alike() -> None:
    callback, model = ksl(batch_size=16), model_on(painted())
    model.learn(20, callback=callback)
    assert model.replay_buffer is not None
    stored = model.replay_buffer.observations
    stored[:, :, :, :18] = np.random.default_rng(0).integers(0, 256, (100, 1, 3, 1, 1))
    encoder = callback.parts["q_net"].encoder
    observations, _, _ = callback._batch()
    with torch.no_grad():
        latents = encoder(observations[:, 0]).double()
    latents /= latents.norm(dim=1, keepdim=True)
    expected = sum(float(latents[i] @ latents[i - 1]) for i in range(16)) / 16
    assert expected < 0.9999
    assert callback.update()["q_net_cosine"] == pytest.approx(expected, abs=1e-6)
    last: Any = encoder.get_submodule("linear.0")
    with torch.no_grad():
        last.weight.zero_()
        last.bias.fill_(1.0)
    found = callback.update()
    assert found["q_net_cosine"] == pytest.approx(1.0)
    model.learn(1, callback=callback, reset_num_timesteps=False)
    assert {f"ksl/{name}" for name in found} <= model.logger.name_to_value.keys()


def test_a_loaded_ksl_continues_bit_for_bit(tmp_path: Path) -> None:
    env, callback = painted(), ksl()
    model = model_on(env, train_freq=1)
    model.learn(20, callback=callback)
    callback.save(tmp_path / "ksl.safetensors")
    weights = snapshot(model.policy.state_dict())
    expected = [callback.update() for _ in range(2)], snapshot(callback.state())
    model.policy.load_state_dict(weights)
    other = ksl(seed=0)
    other.load(tmp_path / "ksl.safetensors")
    other.init_callback(model)
    assert ([other.update() for _ in range(2)]) == expected[0]
    assert not moved(expected[1], other.state())


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("shift", [0, 4])
def test_images_are_moved_and_normalized_as_the_policy_sees_them(
    shift: int, normalized: bool
) -> None:
    env: VecEnv = VecTransposeImage(painted())
    options: dict[str, Any] = {}
    if normalized:
        env = VecNormalize(env)
        options = {"policy_kwargs": {"normalize_images": False}}
    callback, model = ksl(shift=shift, batch_size=16), model_on(env, **options)
    model.learn(20, callback=callback)
    buffer = model.replay_buffer
    assert buffer is not None
    images = np.random.default_rng(1).integers(0, 256, buffer.observations.shape).astype(np.uint8)
    buffer.observations[:] = images
    observations, _, _ = callback._batch()
    assert observations.dtype == torch.float32
    shown: Any = env.normalize_obs(images) if isinstance(env, VecNormalize) else images / 255
    stored = {frame.astype(np.float32).tobytes() for frame in shown[: buffer.size(), 0]}
    found = sum(frame.numpy().tobytes() in stored for frame in observations[:, 0])
    assert found == 16 if shift == 0 else found < 4


class OwnExtractor(NatureCNN):
    """Its first layer is frozen, and one is never used."""

    def __init__(self, space: Any, features_dim: int = 8) -> None:
        super().__init__(space, features_dim, normalized_image=True)
        self.cnn[0].requires_grad_(False)
        self.unused = torch.nn.Linear(2, 2)


def test_frozen_and_unused_layers_stay_as_they_are(tmp_path: Path) -> None:
    policy = {"features_extractor_class": OwnExtractor, "net_arch": [8]}
    callback = ksl()
    model = model_on(painted(), policy_kwargs=policy)
    before = snapshot(model.policy.state_dict())
    model.learn(20, callback=callback)
    changed = moved(before, model.policy.state_dict())
    extractor = "q_net.features_extractor"
    assert f"{extractor}.cnn.2.weight" in changed
    assert not {f"{extractor}.cnn.0.weight", f"{extractor}.unused.weight"} & set(changed)
    callback.save(tmp_path / "x")
    other = ksl()
    other.load(tmp_path / "x")
    model.learn(1, callback=other, reset_num_timesteps=False)
    assert other.updates == callback.updates + 1


def test_what_it_cannot_work_with_is_refused_by_name(tmp_path: Path) -> None:
    def refused(message: str, model: Any) -> None:
        with pytest.raises(KstepError, match=message):
            model.learn(1, callback=ksl())

    refused("PPO has none", PPO("CnnPolicy", painted(), n_steps=2, batch_size=2, device="cpu"))
    refused("use CnnPolicy", DQN("MlpPolicy", "CartPole-v1", buffer_size=10, device="cpu"))
    frozen = model_on(painted())
    frozen.policy.get_submodule("q_net.features_extractor").requires_grad_(False)
    refused("no features extractor that learns", frozen)
    shared = {"policy_kwargs": {"share_features_extractor": True}}
    refused("actor and critic share", model_on(painted(discrete=False), SAC, **shared))

    class Floats(Painted):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.Box(0.0, 1.0, (SIZE, SIZE, 3), np.float32)

    own: dict[str, Any] = {"normalize_images": False, "features_extractor_class": FlattenExtractor}
    model = DQN("CnnPolicy", Floats(), buffer_size=10, policy_kwargs=own, device="cpu")
    refused(r"observations \(36, 36, 3\) have their channels last", model)

    class Goals(gymnasium.Env[Any, Any]):
        observation_space = spaces.Dict(
            {n: spaces.Box(0, 1, (2,)) for n in ("observation", "achieved_goal", "desired_goal")}
        )
        action_space = spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return self.observation_space.sample(), {}

    her: Any = {"replay_buffer_class": HerReplayBuffer, "buffer_size": 10, "device": "cpu"}
    refused("not from HerReplayBuffer", DQN("MultiInputPolicy", DummyVecEnv([Goals]), **her))

    with pytest.raises(KstepError, match="nothing to save"):
        ksl().save(tmp_path / "x")
    callback = ksl()
    model_on(painted()).learn(1, callback=callback)
    callback.save(tmp_path / "x")
    other = ksl(k=2, projection_hidden=8)
    other.load(tmp_path / "x")
    with pytest.raises(KstepError, match="belongs to another model or to other settings: q_net/"):
        model_on(painted()).learn(1, callback=other)
    with pytest.raises(KstepError):
        ksl().load(tmp_path / "missing")
    # Another seed of an experiment, say, which the first one's slow encoder would teach.
    with pytest.raises(KstepError, match="this KSLCallback belongs to another model: make a new"):
        model_on(painted(), seed=1).learn(1, callback=callback)
    callback.load(tmp_path / "x")
    model_on(painted()).learn(1, callback=callback)
    for options in ({"batch_size": 0}, {"shift": -1}, {"learning_rate": lambda left: left}):
        with pytest.raises(KstepError, match=f"^{next(iter(options))} must be "):
            ksl(**options)
