"""The one test that every adapter passes: the same tasks and actions give the same rewards and the same ends.

An adapter's test plays each `Episode` through its framework and compares what came back with what is recorded here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

import agent_envs

IDS = ("NumberSearch-v0", "CraftingEasy-v0")
JUNK = ("", "no idea", "guess(1) guess(2)", "<think>8", "go nowhere", "99")


@dataclass
class Turn:
    action: str
    observation: str
    reward: float
    terminated: bool
    truncated: bool

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


@dataclass
class Episode:
    """A task played by a careless player on the plain environment."""

    seed: int
    options: dict[str, Any]
    first: str
    turns: list[Turn]

    @property
    def rewards(self) -> list[float]:
        return [turn.reward for turn in self.turns]

    @property
    def ends(self) -> list[tuple[bool, bool]]:
        return [(turn.terminated, turn.truncated) for turn in self.turns]

    @property
    def total(self) -> float:
        return sum(self.rewards)


def episodes(env_id: str, n: int = 200, junk: float = 0.1) -> list[Episode]:
    """n seeded tasks, half of them played well and half by a novice; `junk` of the replies hold no action."""
    env: Any = gymnasium.make(env_id).unwrapped
    found = []
    for i, task in enumerate(agent_envs.task_set(env_id, "test", n)):
        rng = np.random.default_rng([task.seed, 3])
        first, _ = env.reset(seed=task.seed, options=task.options)
        turns: list[Turn] = []
        while not turns or not turns[-1].done:
            action = env.novice_action(rng) if i % 2 else env.optimal_action()
            if rng.random() < junk:
                action = JUNK[int(rng.integers(len(JUNK)))]
            turns.append(Turn(action, *env.step(action)[:4]))
        found.append(Episode(task.seed, task.options, first, turns))
    assert 0 < sum(episode.total > 0 for episode in found) < n, "the script only wins or only loses"
    return found
