"""Gymnasium text environments with exact solvers. Importing this package registers their ids and does nothing else."""

from typing import Any

import gymnasium

from agent_envs.policies import demonstrations, novice_policy, optimal_policy, random_policy
from agent_envs.tasks import Task, TaskSet, task_set

__all__ = [
    "Task",
    "TaskSet",
    "demonstrations",
    "novice_policy",
    "optimal_policy",
    "random_policy",
    "registered_ids",
    "task_set",
]


def registered_ids() -> list[str]:
    """The ids of this package, in the order they were registered."""
    return [id for id, spec in gymnasium.registry.items() if str(spec.entry_point).startswith("agent_envs")]


def _register(id: str, entry_point: str, **kwargs: Any) -> None:
    """Register an id for `gymnasium.make` and, as a native batched environment, for `gymnasium.make_vec`."""
    vector_entry_point = f"agent_envs.vector:{entry_point.replace(':', '.')}"
    gymnasium.register(id, entry_point, vector_entry_point=vector_entry_point, kwargs=kwargs)


_NUMBER_SEARCH = "agent_envs.number_search:NumberSearchEnv"
_register("NumberSearch-v0", _NUMBER_SEARCH)
_register("NumberSearchEasy-v0", _NUMBER_SEARCH, high=8)
_register("NumberSearchHard-v0", _NUMBER_SEARCH, high=100, max_guesses=7)

_BANDIT = "agent_envs.bandits:BanditEnv"
_register("TwoArmedBandit-v0", _BANDIT, rewards=((1.0, 0.0),))
_register("TwoState-v0", _BANDIT, rewards=((11.0, 9.0), (0.0, 2.0)))
_register("Sort-v0", "agent_envs.sorting:SortEnv")

_CRAFTING = "agent_envs.crafting:CraftingEnv"
_register("Crafting-v0", _CRAFTING)
_register("CraftingEasy-v0", _CRAFTING, tier=0)
_register("CraftingHard-v0", _CRAFTING, tier=4)
