"""During and after training: metrics as rows, the learning curve as a picture, trajectories with their mask."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, TrainerCallback

from trl_plugins.rollout import Trajectory


class MetricsFile(TrainerCallback):
    """Writes metrics.jsonl, one row a step: what was logged at that step, `eval_...` too where it was evaluated."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._row: dict[str, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Where a run resumes from a checkpoint, the rows after it are made anew."""
        if state.is_world_process_zero and self.path.is_file():
            rows = [row for row in read_metrics(self.path) if row["step"] <= state.global_step]
            again = rows.pop() if rows and rows[-1]["step"] == state.global_step else {}
            kept = self.path.with_suffix(".partial")
            kept.write_text("".join(json.dumps(row) + "\n" for row in rows))
            kept.replace(self.path)  # at once, so that a kill loses nothing
            self._row = again  # an evaluation at the start joins the checkpoint's row

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if state.is_world_process_zero and logs and "train_runtime" not in logs:
            if self._row and self._row["step"] != state.global_step:
                self.flush()
            self._row |= {"step": state.global_step, **logs}

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.flush()  # by now the step before has been logged, and evaluated if it was to be

    def flush(self) -> None:
        if self._row:
            with self.path.open("a") as file:
                file.write(json.dumps(self._row) + "\n")
            self._row = {}


class ProgressBar(TrainerCallback):
    """One bar for the whole run, with the success rate on it."""

    def __init__(self, name: str = "training") -> None:
        self._name = name
        self._bar: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        from tqdm import tqdm

        if state.is_world_process_zero:
            self._bar = tqdm(total=state.max_steps, initial=state.global_step, desc=self._name, smoothing=0.1)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if self._bar is None or not logs:
            return
        if "eval_success_sampled" in logs:
            greedy = logs.get("eval_success_greedy")
            text = f"step {state.global_step}: success {logs['eval_success_sampled']:.3f} sampled"
            self._bar.write(text + (f", {greedy:.4f} greedy" if greedy is not None else ""))
        elif "success" in logs:
            self._bar.set_postfix(success=f"{logs['success']:.2f}", entropy=f"{logs.get('entropy') or 0:.2f}")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._bar is not None:
            self._bar.update(1)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl. (A run that is being written, or was killed, may end in half a row: not one yet.)"""
    whole, _, _ = path.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def learning_curve(rows: Sequence[dict[str, Any]], png: Path, title: str, ceiling: float | None = None) -> None:
    """Success against steps, with the best possible drawn in where it is known. (The return of training episodes may
    hold shaping rewards of another scale; it is in metrics.jsonl.)"""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    trained = [r for r in rows if "success" in r]
    axes.plot(
        [r["step"] for r in trained],
        [r["success"] for r in trained],
        color="0.72",
        lw=1,
        label="success of training episodes",
    )
    for name, colour, label in (
        ("eval_success_sampled", "tab:blue", "evaluation success, sampled"),
        ("eval_success_greedy", "tab:orange", "evaluation success, greedy"),
    ):
        points = [(r["step"], r[name]) for r in rows if name in r]
        if points:
            axes.plot(*zip(*points, strict=True), "o-", color=colour, ms=4, label=label)
    if ceiling is not None:
        axes.axhline(ceiling, color="tab:green", ls="--", lw=1)
        axes.annotate(
            f"best possible {ceiling:.4f}",
            (0.01, ceiling),
            xycoords=("axes fraction", "data"),
            va="bottom",
            color="tab:green",
        )
    axes.set(xlabel="optimizer step", ylabel="success rate", title=title, ylim=(0, 1.03))
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(png, dpi=120)
    plt.close(figure)


def show_trajectory(trajectory: Trajectory, tokenizer: PreTrainedTokenizerBase) -> str:
    """One episode as text: tokens that carry loss stand in «guillemets» each, all others as they are."""
    task = trajectory.task
    outcome = "failed" if trajectory.failed else "success" if trajectory.is_success else "no success"
    lines = [f"=== {task.env_id} seed {task.seed} {task.options or ''}: {outcome}, return {trajectory.total_return:g}"]
    lines.append(f"prompt      {tokenizer.decode(trajectory.prompt_ids)!r}")
    mark = (lambda t: t) if trajectory.failed else (lambda t: f"«{t}»")
    for number, turn in enumerate(trajectory.turns, 1):
        said = "".join(mark(tokenizer.decode([token])) for token in turn.action_ids)
        notes = [f"reward {turn.reward:g}"] + ["cut"] * (turn.finish == "length") + ["invalid"] * turn.invalid
        lines.append(f"turn {number:<2} says {said}  ({', '.join(notes)})")
        if turn.reply_ids:
            lines.append(f"        env {tokenizer.decode(turn.reply_ids)!r}")
    if trajectory.failed:
        lines.append(f"        error {trajectory.error!r}")
    return "\n".join(lines)
