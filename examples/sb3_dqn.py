"""Stable-Baselines3's DQN with KSL on a small pixel task, in four environments at once.

python examples/sb3_dqn.py                      # needs `pip install '.[sb3]'`
"""

from __future__ import annotations

from functools import partial

import tyro
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from kstep.envs import EnvConfig, make
from kstep.interop.stable_baselines3 import KSLCallback


def main(decisions: int = 20_000, seed: int = 1, ksl: bool = True) -> float:
    """Train and return the mean return of the greedy policy."""
    environment = partial(make, EnvConfig("toy_arrows", size=36), seed)
    model = DQN(
        "CnnPolicy",
        make_vec_env(environment, n_envs=4, seed=seed),
        learning_rate=5e-4,
        buffer_size=decisions,
        learning_starts=min(1_000, decisions // 4),
        batch_size=32,
        train_freq=1,  # one update for four decisions, one in each environment
        target_update_interval=500,
        exploration_fraction=0.5,
        policy_kwargs={"net_arch": [128], "features_extractor_kwargs": {"features_dim": 50}},
        seed=seed,
    )
    callback = KSLCallback(k=3) if ksl else None
    model.learn(decisions, callback=callback)
    test = make_vec_env(environment, n_envs=1, seed=seed + 1000)
    mean, deviation = evaluate_policy(model, test, n_eval_episodes=20)
    print(f"return {mean:.1f} ± {deviation:.1f} after {decisions} decisions; above 6 is learned")
    return float(mean)  # type: ignore[arg-type]


if __name__ == "__main__":
    tyro.cli(main)
