"""Names to experiments, overrides, digests, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kstep.auxiliary.ksl import KSLConfig
from kstep.config import Experiment, FrozenEncoder, digest, resolve
from kstep.data.augment import Shift
from kstep.envs import PLANET
from kstep.methods import METHODS
from kstep.nets.encoder import PixelEncoderConfig
from kstep.rl.n_step import NStepConfig
from kstep.rl.sac import SACConfig
from kstep.run.folder import Run, RunFolder
from kstep.types import KstepError
from kstep.values import decode, difference, encode


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("preset", ["paper", "cpu", "debug"])
def test_experiments_survive_json(method: str, preset: str) -> None:
    experiment = resolve(method, "walker_walk", preset=preset)
    again = decode(Experiment, json.loads(json.dumps(encode(experiment))))
    assert again.method.name == method
    assert not difference(again, experiment)
    assert digest(again) == digest(experiment)


def test_run_folders_of_this_format_stay_the_same_experiments(tmp_path: Path) -> None:
    """Settings that came later are not stored while they have their defaults."""
    written = json.loads((Path(__file__).parents[1] / "legacy" / "format2.json").read_text())
    for name, expected in written["digests"].items():
        method, task, preset = name.split()
        assert digest(resolve(method, task, preset=preset)) == expected, name
    for number, config in enumerate(written["configs"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        run = Run.open(folder)
        assert not run.is_legacy
        assert run.digest == RunFolder(folder).identity() == config["digest"]
        assert Run.prepare(folder, run.experiment).encoder_backend == "torch"
        assert encode(run.experiment) == config["experiment"]


def test_a_later_setting_makes_another_experiment_once_it_is_set() -> None:
    plain = resolve("ksl", "cartpole_swingup")
    limited = resolve("ksl", "cartpole_swingup", overrides=["env.time_limit=500"])
    assert digest(limited) != digest(plain)
    assert decode(Experiment, encode(limited)).env.time_limit == 500
    assert ("env.time_limit", None, 500) in difference(plain, limited)


def test_the_default_is_the_papers_table() -> None:
    experiment = resolve("ksl", "walker_walk")
    learning, core, encoder = (
        experiment.method.learning,
        experiment.method.core,
        experiment.method.encoder,
    )
    assert isinstance(core, SACConfig)
    assert isinstance(encoder, PixelEncoderConfig)
    assert experiment.method.augment == Shift(pad=4)
    assert learning.initial_decisions == 1000
    assert experiment.method.stack == 3
    assert isinstance(experiment.method.auxiliary, KSLConfig)
    assert experiment.method.auxiliary.k == 3
    assert experiment.evaluation.episodes == 10
    assert experiment.evaluation.every == 20_000
    assert learning.betas == core.temperature_betas == (0.9, 0.999)
    assert learning.learning_rate == 1e-3
    assert learning.batch_size == 128
    assert (core.ema_rate, encoder.ema_rate) == (0.01, 0.05)
    assert (learning.ema_every, core.actor_every) == (2, 2)
    assert encoder.latent_dim == 50
    assert core.discount == 0.99
    assert core.initial_temperature == 0.1
    assert learning.replay_capacity == 100_000
    assert core.log_std_bounds == (-10, 2)
    assert PLANET == {
        "finger_spin": 2,
        "cartpole_swingup": 8,
        "reacher_easy": 4,
        "cheetah_run": 4,
        "walker_walk": 2,
        "ball_in_cup_catch": 4,
    }


def test_cheetah_learns_at_its_own_rate() -> None:
    own = {
        "drq-original": 1e-3,
        "sac_ae-original": 1e-3,
        "sac_pixel-original": 1e-3,
        "sac_state-original": 1e-4,
        "pi_sac-original": 3e-4,
        "proto_rl-original": 1e-4,
        "drq_v2": 1e-4,
        "ksl_drq_v2": 1e-4,
        "dqn": 1e-4,
        "ksl_dqn": 1e-4,
    }
    for method in METHODS:
        rate = resolve(method, "cheetah_run").method.learning.learning_rate
        assert rate == own.get(method, 2e-4), method
    held = resolve(
        "ksl", "cheetah_run", overrides=["method.learning.learning_rate=0.001"]
    ).method.learning
    assert held.learning_rate == 1e-3


def test_the_originals_bring_their_action_repeats_and_schedules() -> None:
    assert resolve("sac_state-original", "walker_walk").env.action_repeat == 1
    assert resolve("proto_rl-original", "cartpole_swingup").env.action_repeat == 2
    assert resolve("pi_sac-original", "finger_spin").env.action_repeat == 1
    assert resolve("pi_sac", "finger_spin").env.action_repeat is None
    original = resolve("pi_sac-original", "walker_walk").method
    assert original.auxiliary is not None
    assert (original.learning.initial_decisions, original.auxiliary.pretraining) == (10_000, 10_000)
    # The KSL paper's PI-SAC keeps its pretraining and takes everything else from the table (D48).
    for task, pretraining in (("finger_spin", 0), ("reacher_easy", 5_000), ("walker_walk", 10_000)):
        method = resolve("pi_sac", task).method
        assert method.auxiliary is not None
        assert (method.learning.initial_decisions, method.auxiliary.pretraining) == (
            1_000,
            pretraining,
        )
    assert resolve("rad-original", "cheetah_run").method.learning.initial_decisions == 10_000


def test_exploration_takes_half_of_the_budget_and_is_part_of_the_identity() -> None:
    short, long = (
        resolve("proto_rl", "walker_walk", env_steps=n).method.exploration
        for n in (100_000, 500_000)
    )
    assert short is not None
    assert long is not None
    assert (short.env_steps, long.env_steps) == (50_000, 250_000)
    assert digest(resolve("proto_rl", "walker_walk", env_steps=100_000)) != digest(
        resolve("proto_rl", "walker_walk", env_steps=500_000)
    )


def test_presets_change_what_they_say() -> None:
    paper, cpu = resolve("ksl", "walker_walk"), resolve("ksl", "walker_walk", preset="cpu")
    assert {key for key, _, _ in difference(paper, cpu)} == {"preset", "method.encoder.strides"}


def test_overrides_reach_any_depth() -> None:
    experiment = resolve(
        "ksl",
        "toy_reach",
        overrides=[
            "method.auxiliary.k=5",
            "method.encoder.strides=[2,2]",
            "method.learning.replay_capacity=5000",
            "method.encoder.tanh=false",
            "method.auxiliary.learning_rate=1e-4",
            "method.core.discount=1",
        ],
    )
    auxiliary, core, encoder = (
        experiment.method.auxiliary,
        experiment.method.core,
        experiment.method.encoder,
    )
    assert isinstance(auxiliary, KSLConfig)
    assert isinstance(core, SACConfig)
    assert isinstance(encoder, PixelEncoderConfig)
    assert auxiliary.k == 5
    assert encoder.strides == (2, 2)
    assert experiment.method.learning.replay_capacity == 5000
    assert encoder.tanh is False
    assert auxiliary.learning_rate == 1e-4
    assert core.discount == 1.0


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("method.auxiliari.k=5", "unknown key.*Did you mean 'auxiliary'"),
        ("method.auxiliary.kk=5", "unknown key.*Did you mean 'k'"),
        ("method.auxiliary.k", "not of the form key=value"),
        ("method.auxiliary.k=3.5", "method.auxiliary.k must be a whole number, not 3.5"),
        ("method.auxiliary.k=true", "must be a whole number"),
        ("method.encoder.init=orthogonl", "must be one of.*Did you mean 'orthogonal'"),
        ("method.encoder.strides=2", "must be a list"),
        ("method.core.log_std_bounds=[1]", "must have 2 entries, not 1"),
        ("method.learning.batch_size=0", "method.learning.batch_size must be at least 1"),
        ("method.core.discount=1.5", "method.core.discount must be at most 1.0, not 1.5"),
        ("env.observation=state", "cannot be set: it is what the method sees"),
        ("method.auxiliary.double_step=1", "must be true or false"),
        ("method.learning.replay_capacity=2", "and twice method.learning.initial_decisions=1000"),
        ("method.auxiliary.kind=ksll", "kind cannot be set"),
        ("method.encoder.tanh=1", "must be true or false"),
        ("seed=-1", "seed must be at least 0, not -1"),
        ("method.encoder=5", "must be a group of settings"),
        ("method.core.hidden.x=5", "unknown key"),
        ("method.auxiliary.turn=before", "must be one of first, after critic, last"),
        ("method.encoder.latent_dim=0", "must be at least 1"),
        ("method.core.log_std_bounds=[2, -10]", "must rise"),
        ("method.learning.initial_decisions=0", "must be at least 1"),
    ],
)
def test_wrong_overrides_are_refused_with_what_is_allowed(override: str, message: str) -> None:
    with pytest.raises(KstepError, match=message):
        resolve("ksl", "toy_reach", overrides=[override])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("kls", "walker_walk"), "Did you mean 'ksl'"),
        (("ksl", "walker_wlak"), "walker_walk"),
        (("ksl", "zzzz"), "zzzz"),
    ],
)
def test_wrong_names_get_the_nearest_right_one(names: tuple[str, str], message: str) -> None:
    with pytest.raises(KstepError, match=message):
        resolve(*names)
    with pytest.raises(KstepError, match="Did you mean 'debug'"):
        resolve("ksl", "walker_walk", preset="debgu")  # codespell:ignore debgu


@pytest.mark.parametrize(
    ("method", "overrides", "message"),
    [
        ("sac_pixel", ["method.auxiliary.one_optimizer=true"], "unknown key"),
        ("ksl-released", ["method.core.actor_latent=reused"], "needs method.core.actor_encoder"),
        ("pi_sac", ["method.auxiliary.z_dim=-3"], "z_dim must be at least 1, not -3"),
        (
            "proto_rl",
            ["method.auxiliary.encoder_learning_rate=NaN"],
            "must be a finite number, not nan",
        ),
        ("ksl", ["method.exploration.env_steps=5"], "unknown key"),
        ("ksl", ["env.size=100"], "follows from method.encoder.image_size"),
        ("ksl-k3-l1", ["method.core.hidden=64"], "must equal method.core.hidden=64"),
        ("proto_rl", ["method.exploration.env_steps=-5"], "must be at least 0, not -5"),
        ("ksl", ["method.learning.learning_rate=-1"], "must be at least 0.0, not -1"),
        ("ksl", ["method.learning.burst=-1"], "must be at least 0, not -1"),
        ("sac_state", ["method.augment.kind=crop"], "cannot be augmented"),
        (
            "sac_state",
            ["method.core.actor_encoder=share_convolutions"],
            "without convolutions to share",
        ),
        ("sac_pixel", ["method.learning.critic_trains=head"], "leaves the encoder untrained"),
        ("ksl-one-optimizer", ["method.auxiliary.double_step=true"], "one learning rate"),
        ("ksl", ["method.augment.kind=crop"], "needs frames of 100 pixels.*of 84: set both"),
        ("proto_rl", ["method.learning.critic_trains=all"], "exploration needs .*=head"),
        ("ksl", ['method.exploration={"bonus": 0.1}'], "needs an auxiliary task that rewards"),
        ("pi_sac", ["method.core.critic_views=2"], "see the same views: .*critic_views must be 1"),
        ("proto_rl", ["method.auxiliary.one_optimizer=true"], "needs .*critic_trains=all"),
        ("sac_state", ["method.core.actor_latent=reused"], "is its own latent"),
        ("sac_state", ["env.size=100"], "env.size is for pixels: this method sees the state"),
        ("ksl", ["env.camera=1"], "env.camera=1 is for tasks of the control suite"),
        ("ksl", ["method.auxiliary=null"], "method.auxiliary.kind cannot be set"),
        ("sac_pixel", ['method.auxiliary={"kind": "curl"}'], "auxiliary.kind cannot be set"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(
    method: str, overrides: list[str], message: str
) -> None:
    with pytest.raises(KstepError, match=message):
        resolve(method, "toy_reach", overrides=overrides)


def test_an_intrinsic_reward_is_of_single_decisions() -> None:
    """Its sum over the decisions of a return is not computed."""
    core = METHODS["drq_v2"].core
    assert isinstance(core, NStepConfig)
    explores = replace(METHODS["proto_rl"], core=core)
    with pytest.raises(KstepError, match=r"method\.core\.n_step must be 1, not 3"):
        explores.check()
    replace(explores, core=replace(core, n_step=1)).check()


def test_a_frozen_encoder_is_not_trained() -> None:
    frozen = FrozenEncoder("0" * 64, "ksl", "walker_walk", 1, 100_000)
    experiment = resolve("sac_pixel", "walker_run", frozen_encoder=frozen)
    assert experiment.method.learning.critic_trains == "nothing"
    for trains in ("all", "head"):
        with pytest.raises(KstepError, match=f"critic_trains={trains} would train the frozen"):
            resolve(
                "sac_pixel",
                "walker_run",
                frozen_encoder=frozen,
                overrides=[f"method.learning.critic_trains={trains}"],
            )
    with pytest.raises(KstepError, match="sees the state and takes no encoder"):
        resolve("sac_state", "walker_run", frozen_encoder=frozen)


def test_a_camera_is_for_simulated_pixels() -> None:
    assert resolve("ksl", "walker_walk", overrides=["env.camera=1"]).env.camera == 1
    with pytest.raises(KstepError, match="not for state of walker_walk"):
        resolve("sac_state", "walker_walk", overrides=["env.camera=1"])


def test_what_is_rendered_follows_from_what_is_seen() -> None:
    cropped = resolve(
        "ksl",
        "toy_reach",
        overrides=["method.augment.kind=crop", "method.auxiliary.augment.kind=crop"],
    )
    assert (cropped.method.encoder.image_size, cropped.env.size) == (84, 100)


def test_the_digest_sees_everything_but_the_budget() -> None:
    one = resolve("ksl", "walker_walk")
    assert digest(one) == digest(resolve("ksl", "walker_walk", env_steps=500_000))
    assert digest(one) != digest(resolve("ksl", "walker_walk", seed=2))
    assert digest(one) != digest(resolve("ksl", "walker_walk", preset="cpu"))
    assert digest(one) != digest(resolve("ksl", "walker_run"))
