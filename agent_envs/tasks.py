"""Task sets: index-addressable, reproducible task instances whose train and test splits cannot overlap.

A task is an environment id, a seed and reset options; playing it again gives the same episode for the same actions.
Train tasks have even seeds, test tasks odd ones, so no seed is in both, whatever the sizes. (Number Search has as
many tasks as numbers: there a test task shares its target with a train task, for playing well for all is the task.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

import gymnasium

Split = Literal["train", "test"]


@dataclass(frozen=True)
class Task:
    """One task instance. `options` go to `reset`; `difficulty` only orders tasks (higher is harder); `hint` asks a
    player to put the environment's `hint()` under its first observation."""

    env_id: str
    seed: int
    options: dict[str, Any] = field(default_factory=dict)
    difficulty: float = 0.0
    hint: bool = False

    def row(self) -> dict[str, Any]:
        """A flat row for a `datasets.Dataset`; options as JSON, so that rows of several environments share columns."""
        options = json.dumps(self.options, sort_keys=True)
        return {"env_id": self.env_id, "seed": self.seed, "options": options, "difficulty": self.difficulty}


class TaskSet(Sequence[Task]):
    """The tasks 0 .. size-1 of one environment and split, made on access (see `task_set`)."""

    def __init__(self, env_id: str, split: Split, size: int, options: dict[str, Any]) -> None:
        if split not in ("train", "test"):
            raise ValueError(f"split={split!r} is unknown; use 'train' or 'test'")
        if size < 1:
            raise ValueError(f"size={size}: a task set has at least one task")
        self.env_id, self.split, self.size, self.options = env_id, split, size, dict(options)
        self._env = gymnasium.make(env_id, disable_env_checker=True).unwrapped

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.size))]
        if not -self.size <= index < self.size:
            raise IndexError(f"task {index} of a set of {self.size}")
        index %= self.size
        seed = 2 * index + (self.split == "test")
        # An environment may spread its tasks (each target once) and rate them; without that, the seed alone varies.
        spread = getattr(self._env, "task_options", None)
        options = spread(index, self.options) if spread else dict(self.options)
        rate = getattr(self._env, "task_difficulty", None)
        return Task(self.env_id, seed, options, float(rate(seed, options)) if rate else 0.0)

    def __iter__(self) -> Iterator[Task]:
        return (self[i] for i in range(self.size))

    def rows(self) -> list[dict[str, Any]]:
        """All tasks as flat rows: `datasets.Dataset.from_list(task_set(...).rows())` is a dataset for the trainer."""
        return [task.row() for task in self]


def task_set(env_id: str, split: Split = "train", size: int | None = None, **options: Any) -> TaskSet:
    """The task set of an environment id.

    Args:
        env_id: a registered id.
        split: "train" (even seeds) or "test" (odd seeds).
        size: number of tasks; the default is the environment's own (`default_tasks`), else 256.
        options: reset options that all tasks share.

    Raises:
        ValueError: unknown split or a size below 1. gymnasium.error.Error: unknown id.
    """
    if size is None:
        count = getattr(gymnasium.make(env_id, disable_env_checker=True).unwrapped, "default_tasks", None)
        size = 256 if count is None else int(count(options))
    return TaskSet(env_id, split, size, options)


def row_task(row: dict[str, Any]) -> Task:
    """The task of a dataset row: `env_id`, `seed`, and `options` as JSON text or a dict (both may be left out)."""
    options = row.get("options") or {}
    options = json.loads(options) if isinstance(options, str) else dict(options)
    options = {key: value for key, value in options.items() if value is not None}  # `datasets` fills in missing keys
    if row.get("seed") is None:
        raise ValueError(f"the dataset row {row} has no `seed`; every task needs one, for its group to be one instance")
    return Task(row.get("env_id") or "", int(row["seed"]), options, float(row.get("difficulty") or 0.0))
