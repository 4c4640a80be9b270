"""The environments in SkyRL-gym, and the dataset rows that choose their tasks.

    from agent_envs.adapters.skyrl import register, skyrl_rows
    register()                                            # id "agent_envs"
    rows = skyrl_rows(task_set("NumberSearch-v0"))        # write them to Parquet for SkyRL's `data.train_data`
    env = skyrl_gym.make("agent_envs", extras=rows[0])    # SkyRL itself does this, a row an episode

SkyRL makes an environment a row and gives the row as `extras`, so the task is in the row: `env_id`, `seed`, `options`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import gymnasium
import gymnasium.wrappers

import agent_envs  # noqa: F401  registers the ids
from agent_envs.tasks import Task

try:
    import skyrl_gym  # pyright: ignore[reportMissingImports]
    from skyrl_gym.envs.base_text_env import (  # pyright: ignore[reportMissingImports]
        BaseTextEnv,
        BaseTextEnvStepOutput,
    )
except ImportError as error:
    raise ImportError("agent_envs.adapters.skyrl needs SkyRL-gym; install it with: pip install skyrl-gym") from error

ENV_CLASS = "agent_envs"


class SkyRLEnv(BaseTextEnv):
    """One episode of one row.

    Args:
        env_config: SkyRL's per-environment settings, `settings` among them (a mapping for `gymnasium.make`) or none.
        extras: the row: `env_id`, `seed`, `options` (JSON or a mapping).
    """

    def __init__(self, env_config: Any = None, extras: dict[str, Any] | None = None) -> None:
        super().__init__()
        row = extras or {}
        missing = [name for name in ("env_id", "seed") if row.get(name) is None]
        if missing:
            raise ValueError(f"the row lacks {missing[0]!r}; make the rows with skyrl_rows(task_set(...))")
        settings = dict((env_config or {}).get("settings") or {})
        self.env = gymnasium.make(row["env_id"], disable_env_checker=True, **settings)
        options = row.get("options") or {}
        self.options = json.loads(options) if isinstance(options, str) else dict(options)
        self.seed = int(row["seed"])
        self.total, self.info = 0.0, {}
        # A step is to cost little more than the environment's own; OrderEnforcing only checks that init came first.
        inner = self.env.env if isinstance(self.env, gymnasium.wrappers.OrderEnforcing) else self.env
        self._step = inner.step

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """The row's prompt, then the task's first observation as a user message."""
        observation, self.info = self.env.reset(seed=self.seed, options=self.options or None)
        self.turns, self.total = 0, 0.0
        self.max_turns = getattr(self.env.unwrapped, "max_turns", self.max_turns)
        return [*(prompt or []), {"role": "user", "content": observation}], self.info

    def step(self, action: str) -> BaseTextEnvStepOutput:
        observation, reward, terminated, truncated, info = self._step(action)
        reward, done = float(reward), terminated or truncated
        self.info, self.turns, self.total = info, self.turns + 1, self.total + reward
        metadata = {**info, "terminated": terminated, "truncated": truncated}
        if done:  # nobody reads on: the last answer is metadata, not a turn for the model
            metadata["last_observation"] = observation
        return {  # as BaseTextEnvStepOutput, which is such a dict, but made in half the time
            "observations": [] if done else [{"role": "user", "content": observation}],
            "reward": reward,
            "done": done,
            "metadata": metadata,
        }

    def get_metrics(self) -> dict[str, Any]:
        success = bool(self.info.get("is_success", False))
        return {"success": float(success), "return": self.total, "turns": self.turns}

    def close(self) -> None:
        self.env.close()


def register(id: str = ENV_CLASS) -> None:
    """Make `skyrl_gym.make(id, extras=row)` work; the row's `env_class` is that id. Safe to call twice."""
    if id not in skyrl_gym.envs.registration.registry:
        skyrl_gym.register(id=id, entry_point="agent_envs.adapters.skyrl:SkyRLEnv")


def skyrl_rows(tasks: Iterable[Task], system: str = "", id: str = ENV_CLASS) -> list[dict[str, Any]]:
    """Dataset rows in SkyRL's form: `prompt`, `env_class`, and the task."""
    prompt = [{"role": "system", "content": system}] if system else []
    return [{"data_source": task.env_id, "prompt": prompt, "env_class": id, **task.row()} for task in tasks]
