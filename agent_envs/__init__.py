"""Gymnasium text environments with exact solvers. Importing this package registers their ids and does nothing else."""

import gymnasium

from agent_envs.policies import demonstrations, novice_policy, optimal_policy, random_policy
from agent_envs.tasks import Task, TaskSet, task_set

__all__ = ["Task", "TaskSet", "demonstrations", "novice_policy", "optimal_policy", "random_policy", "task_set"]

_NUMBER_SEARCH = "agent_envs.number_search:NumberSearchEnv"
gymnasium.register("NumberSearch-v0", _NUMBER_SEARCH)
gymnasium.register("NumberSearchEasy-v0", _NUMBER_SEARCH, kwargs={"high": 8})
gymnasium.register("NumberSearchHard-v0", _NUMBER_SEARCH, kwargs={"high": 100, "max_guesses": 7})
