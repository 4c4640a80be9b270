"""The one test that every adapter passes: the same tasks and actions give the same rewards and the same ends.

An adapter's test plays each `Episode` through its framework and compares what came back with what is recorded here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
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


# --- For frameworks that only show a model the conversation ----------------------------------------------------------

COMMANDS = ("mine log", "craft planks", "craft stick", "craft table")


def reply_to(messages: Sequence[str]) -> str:
    """A player that looks at nothing but the conversation so far (observations and replies in turn): the same words
    always get the same reply, now and then one that holds no action."""
    digest = hashlib.sha256("\n".join(messages).encode()).digest()
    rng = np.random.default_rng(list(digest[:8]))
    if rng.random() < 0.1:
        return JUNK[int(rng.integers(1, len(JUNK)))]  # not the empty reply: some frameworks refuse one
    exits = re.findall(r"Exits: ([^.]+)\.", messages[-1])
    if not exits:
        return f"guess({rng.integers(1, 17)})"
    choices = [*COMMANDS, *(f"go {place}" for place in exits[-1].split(", "))]
    return choices[int(rng.integers(len(choices)))]


def conversations(env_id: str, n: int = 200) -> list[Episode]:
    """n seeded tasks played by `reply_to` on the plain environment."""
    env: Any = gymnasium.make(env_id).unwrapped
    found = []
    for task in agent_envs.task_set(env_id, "test", n):
        first, _ = env.reset(seed=task.seed, options=task.options)
        said, turns = [first], []
        while not turns or not turns[-1].done:
            said.append(reply_to(said))
            turns.append(Turn(said[-1], *env.step(said[-1])[:4]))
            said.append(turns[-1].observation)
        found.append(Episode(task.seed, task.options, first, turns))
    assert 0 < sum(episode.total > 0 for episode in found) < n, "the player only wins or only loses"
    return found
