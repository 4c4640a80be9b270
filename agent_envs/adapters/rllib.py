"""Ray RLlib over `NumericView`: a registered environment, PPO's settings for it, and a command.

    python -m agent_envs.adapters.rllib --env NumberSearch-v0 --iterations 30                # in this process
    RAY_ADDRESS=HEAD:6379 python -m agent_envs.adapters.rllib --env NumberSearch-v0 --env-runners 16    # on a cluster

From Python: `register()`, then `PPOConfig().environment("agent_envs", env_config={"id": "NumberSearch-v0"})`; further
keys of `env_config` go to `gymnasium.make`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from agent_envs.adapters.numeric import NumericView

try:
    import ray  # pyright: ignore[reportMissingImports]
    from ray.rllib.algorithms.ppo import PPOConfig  # pyright: ignore[reportMissingImports]
    from ray.rllib.core.rl_module.default_model_config import (  # pyright: ignore[reportMissingImports]
        DefaultModelConfig,
    )
    from ray.tune.registry import register_env  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError(
        "agent_envs.adapters.rllib needs RLlib and torch; install them with: pip install 'ray[rllib]' torch"
    ) from error

NAME = "agent_envs"


def make(env_config: Any) -> NumericView:
    settings = dict(env_config)
    return NumericView(settings.pop("id"), **settings)


def register() -> str:
    """Tell RLlib about the environments, on every machine of the cluster; returns the name for `environment()`."""
    register_env(NAME, make)
    return NAME


def ppo_config(env: str, env_runners: int = 0, **settings: Any) -> Any:
    """PPO as it learns Number Search in a minute on one core.

    Args:
        env: a registered id that has a numeric view.
        env_runners: processes that play, each a core somewhere in the cluster; 0 plays in the calling process.
        settings: for `gymnasium.make`.
    """
    return (
        PPOConfig()
        .environment(register(), env_config={"id": env, **settings})
        .env_runners(num_env_runners=env_runners, num_envs_per_env_runner=16)
        .learners(num_learners=0, num_gpus_per_learner=0)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64]))
        .training(
            gamma=1.0 if env.startswith("NumberSearch") else 0.95,  # see NumericView's notes on Crafting
            lambda_=1.0 if env.startswith("NumberSearch") else 0.95,
            lr=1e-3,
            train_batch_size_per_learner=4096,
            minibatch_size=512,
            num_epochs=4,
            entropy_coeff=0.01,
            clip_param=0.2,
            use_kl_loss=False,
            vf_clip_param=10.0,
        )
        .debugging(seed=0)
    )


def train(config: Any, iterations: int) -> list[tuple[int, float]]:
    """(steps so far, mean return of the episodes that ended in it) of each iteration."""
    algorithm, found = config.build_algo(), []
    try:
        for i in range(iterations):
            result = algorithm.train()["env_runners"]
            found.append((int(result["num_env_steps_sampled_lifetime"]), float(result["episode_return_mean"])))
            print(f"iteration {i + 1}: {found[-1][0]} steps, return {found[-1][1]:.3f}", flush=True)
    finally:
        algorithm.stop()
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m agent_envs.adapters.rllib", description="PPO by RLlib")
    parser.add_argument("--env", default="NumberSearch-v0", help="an id that has a numeric view")
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--env-runners", type=int, default=0, help="processes that play (default: this one)")
    args = parser.parse_args(argv)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # A cluster in RAY_ADDRESS is joined; else one is started here, for this run.
    ray.init(**({} if os.environ.get("RAY_ADDRESS") else {"include_dashboard": False}))
    try:
        train(ppo_config(args.env, args.env_runners), args.iterations)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
