"""Before training: does the reward vary? A few rollouts on a handful of tasks, and what their rewards say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agent_envs.tasks import Task
from trl_plugins.rollout import Trajectory

Verdict = Literal["too hard", "too easy", "learnable"]


@dataclass(frozen=True)
class TaskProbe:
    """The returns of one task's rollouts and what they say."""

    task: Task
    returns: list[float]
    successes: int

    @property
    def verdict(self) -> Verdict:
        if len(set(self.returns)) > 1:
            return "learnable"
        return "too easy" if self.successes == len(self.returns) else "too hard"


def probe(trainer: Any, tasks: Sequence[Task], rollouts: int = 8, seed: int = 0) -> list[TaskProbe]:
    """Play `rollouts` sampled episodes of each task with the trainer's present policy."""
    trajectories: list[Trajectory] = trainer.play([t for t in tasks for _ in range(rollouts)], seed)
    probes = []
    for i, task in enumerate(tasks):
        mine = [t for t in trajectories[i * rollouts : (i + 1) * rollouts] if not t.failed]
        probes.append(TaskProbe(task, [t.total_return for t in mine], sum(t.is_success for t in mine)))
    return probes


def probe_table(probes: Sequence[TaskProbe]) -> str:
    """One line a task, then how many are learnable and what to do where few are."""
    lines = [f"{'task':<44} {'returns':<34} verdict"]
    for p in probes:
        name = f"{p.task.env_id} seed {p.task.seed} {p.task.options or ''}"
        lines.append(f"{name[:44]:<44} {' '.join(f'{r:g}' for r in sorted(p.returns)):<34} {p.verdict}")
    count = {v: sum(p.verdict == v for p in probes) for v in ("learnable", "too hard", "too easy")}
    lines.append(f"{count['learnable']} learnable, {count['too hard']} too hard, {count['too easy']} too easy")
    if count["too hard"] * 2 > len(probes):
        lines.append("most tasks give no signal: choose easier ones, give hints, or fine-tune on demonstrations first")
    elif count["too easy"] * 2 > len(probes):
        lines.append("most tasks are solved already: choose harder ones")
    return "\n".join(lines)
