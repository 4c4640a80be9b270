"""All methods on one task: the same base, seeds and number of episodes; one figure with bands and one table.

    python -m recipes.compare --config recipes/number_search_compare.yaml

Each run's evaluations go to OUTPUT/METHOD-SEED.json as it ends; started again with --resume_from_checkpoint true, only
the missing runs are made. The table gives the episodes until sampled success first reaches `reach` of the best possible
and the success at the end, means over seeds with 95% intervals (Student's t).
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from transformers.trainer_callback import PrinterCallback, ProgressCallback, TrainerCallback

from recipes.common import (
    ModelArguments,
    TaskArguments,
    check_output,
    one_line_errors,
    parse,
    save_config,
    task_sets,
)
from recipes.drgrpo import best_possible, build_trainer
from trl_plugins.config import MultiTurnGRPOConfig, use_method
from trl_plugins.report import ProgressBar
from trl_plugins.weights import NORMALISERS

# 97.5% quantiles of Student's t for 1, 2, ... degrees of freedom.
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass
class CompareArguments:
    """What is compared."""

    methods: list[str] = field(
        default_factory=lambda: list(NORMALISERS),
        metadata={"help": "Values of `advantage`."},
    )
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2], metadata={"help": "Seeds of each method."})
    reach: float = field(default=0.8, metadata={"help": "Share of the best possible success to be reached."})


class Evaluations(TrainerCallback):
    """Keeps (step, sampled success) of one run."""

    def __init__(self) -> None:
        self.points: list[tuple[int, float]] = []

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        self.points.append((state.global_step, metrics["eval_success_sampled"]))


def first_reached(points: Sequence[tuple[float, float]], level: float) -> float | None:
    """Where a curve first reaches a level, interpolated between its points; None where it never does."""
    for (x0, y0), (x1, y1) in pairwise(points):
        if y0 < level <= y1:
            return x0 + (x1 - x0) * (level - y0) / (y1 - y0)
    return points[0][0] if points[0][1] >= level else None


def mean_and_interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half width of its 95% interval (Student's t); NaN for one value."""
    if len(values) < 2:
        return values[0], math.nan
    quantile = T_QUANTILES[min(len(values) - 1, len(T_QUANTILES)) - 1]
    return statistics.fmean(values), quantile * statistics.stdev(values) / math.sqrt(len(values))


def table(runs: dict[str, list[list[tuple[int, float]]]], episodes_a_step: int, level: float) -> str:
    """`runs`: for each method its seeds' (step, success) points."""
    lines = [f"| method | seeds | episodes to {level:.3f} | success at the end |", "|---|---|---|---|"]
    for method, seeds in runs.items():
        reached = [first_reached(points, level) for points in seeds]
        found = [step * episodes_a_step for step in reached if step is not None]
        late = f" ({len(reached) - len(found)} of {len(reached)} never)" if len(found) < len(reached) else ""
        when = "{:.0f} ± {:.0f}".format(*mean_and_interval(found)) if found else "never"
        end = "{:.3f} ± {:.3f}".format(*mean_and_interval([points[-1][1] for points in seeds]))
        lines.append(f"| {method} | {len(seeds)} | {when}{late} | {end} |")
    return "\n".join(lines)


def draw(
    runs: dict[str, list[list[tuple[int, float]]]], episodes_a_step: int, ceiling: float | None, png: Path
) -> None:
    """Mean success against episodes, a panel a method with its seeds as thin lines and their range as a band."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(4, len(runs))
    rows = math.ceil(len(runs) / columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3 * columns, 2.6 * rows), layout="constrained", sharex=True, sharey=True, squeeze=False
    )
    for panel, (method, seeds) in zip(axes.flat, runs.items(), strict=False):
        x = [step * episodes_a_step for step, _ in seeds[0]]
        columns_of_values = list(zip(*[[value for _, value in points] for points in seeds], strict=True))
        panel.fill_between(x, *zip(*[(min(v), max(v)) for v in columns_of_values], strict=True), alpha=0.2)
        for points in seeds:
            panel.plot(x, [value for _, value in points], color="0.6", lw=0.7)
        panel.plot(x, [statistics.fmean(v) for v in columns_of_values], color="tab:blue")
        if ceiling is not None:
            panel.axhline(ceiling, color="tab:green", ls="--", lw=1)
        panel.set(title=method, ylim=(0, 1.03))
        panel.grid(alpha=0.25)
    for panel in axes.flat[len(runs) :]:
        panel.axis("off")
    figure.supxlabel("episodes")
    figure.supylabel("sampled success")
    figure.savefig(png, dpi=120)
    plt.close(figure)


def one_run(model: ModelArguments, args: MultiTurnGRPOConfig, tasks: Any, method: str, seed: int) -> tuple[Any, Any]:
    """Train one method on one seed: the (step, success) points and the best possible success."""
    args = deepcopy(args)
    use_method(args, method)
    args.seed = seed
    keep = Evaluations()
    trainer = build_trainer(model, args, *tasks)
    for callback in (keep, ProgressBar(f"{method} seed {seed}")):
        trainer.add_callback(callback)
    for noisy in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(noisy)
    trainer.train()
    return keep.points, best_possible(trainer, list(tasks[1]))


def main() -> None:
    compare, task_arguments, model, args = parse(CompareArguments, TaskArguments, ModelArguments, MultiTurnGRPOConfig)
    folder = Path(args.output_dir)
    check_output(folder, args.resume_from_checkpoint)
    tasks = task_sets(task_arguments)
    folder.mkdir(parents=True, exist_ok=True)
    save_config(folder, compare, task_arguments, model, args)
    runs: dict[str, list[list[tuple[int, float]]]] = {}
    ceiling = None
    for seed in compare.seeds:
        for method in compare.methods:
            path = folder / f"{method}-{seed}.json"
            if not path.exists():
                points, ceiling = one_run(model, args, tasks, method, seed)
                partial = path.with_suffix(".partial")
                partial.write_text(json.dumps({"points": points, "ceiling": ceiling}))
                partial.rename(path)
            saved = json.loads(path.read_text())
            ceiling = saved["ceiling"]
            runs.setdefault(method, []).append([tuple(point) for point in saved["points"]])
    episodes = args.generation_batch_size // args.steps_per_generation * args.gradient_accumulation_steps
    text = table(runs, episodes, compare.reach * (ceiling or 1.0))
    print(text)
    (folder / "table.md").write_text(text + "\n")
    draw(runs, episodes, ceiling, folder / "comparison.png")
    print(f"see {folder}/comparison.png")


if __name__ == "__main__":
    one_line_errors(main)
