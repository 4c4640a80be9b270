"""Before training: does the reward vary? A few rollouts on a handful of tasks, and what their rewards say.

    python -m trl_plugins.probe --config recipes/number_search_tiny.yaml

Takes the YAML of any recipe, and LookArguments, ProbeArguments and the trainer's arguments on the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
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


_COLOURS = {"learnable": "tab:blue", "too hard": "tab:red", "too easy": "tab:green"}


def probe_picture(probes: Sequence[TaskProbe], png: Path, title: str) -> None:
    """A bar for each rollout's return, sorted, task by task; the colour is the task's verdict."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    figure, axes = plt.subplots(figsize=(max(6.0, 1.1 * len(probes)), 4), layout="constrained")
    for place, task in enumerate(probes):
        width = 0.8 / max(len(task.returns), 1)
        at = [place - 0.4 + (i + 0.5) * width for i in range(len(task.returns))]
        colour = _COLOURS[task.verdict]
        axes.bar(at, sorted(task.returns), width * 0.85, color=colour)
        axes.plot(at, sorted(task.returns), ".", color=colour, ms=5)  # a return of 0 has no bar
    names = [f"seed {p.task.seed}\n{p.successes}/{len(p.returns)}" for p in probes]
    axes.set_xticks(range(len(probes)), names)
    axes.set(xlabel="task, and how many of its rollouts succeed", ylabel="return", title=title)
    axes.axhline(0, color="0.4", lw=0.8)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)
    seen = {p.verdict for p in probes}
    handles = [Patch(color=colour, label=verdict) for verdict, colour in _COLOURS.items() if verdict in seen]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False)
    png.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(png, dpi=120)
    plt.close(figure)


@dataclass
class ProbeArguments:
    """How much to probe, and where the picture goes."""

    probe_tasks: int = field(default=8, metadata={"help": "Training tasks probed, spread over the set."})
    probe_rollouts: int = field(default=8, metadata={"help": "Sampled episodes a task."})
    picture: str | None = field(default=None, metadata={"help": "The bar picture; unset, runs/probe/<env_id>.png."})

    def __post_init__(self) -> None:
        for name in ("probe_tasks", "probe_rollouts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")


def main() -> None:
    from trl_plugins.config import MultiTurnGRPOConfig
    from trl_plugins.launch import LookArguments, parse_any_recipe, playing_trainer, training_tasks

    look, arguments, args = parse_any_recipe(LookArguments, ProbeArguments, MultiTurnGRPOConfig)
    tasks = training_tasks(look)
    count = min(arguments.probe_tasks, len(tasks))
    spread = [tasks[i * len(tasks) // count] for i in range(count)]
    probes = probe(playing_trainer(look, args, spread), spread, arguments.probe_rollouts, args.seed)
    print(probe_table(probes))
    png = Path(arguments.picture or f"runs/probe/{look.env_id.replace('/', '_')}.png")
    title = f"{look.env_id}, {look.model_name_or_path}: {arguments.probe_rollouts} rollouts a task"
    probe_picture(probes, png, title)
    print(f"picture: {png}")


if __name__ == "__main__":
    from trl_plugins.launch import one_line_errors

    one_line_errors(main)
