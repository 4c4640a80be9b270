"""ReST and ReST-EM: play, keep the good games, fine-tune on them, and again.

One iteration is a Grow step (the present policy plays every training task several times) and one or more Improve steps
(SFT on the kept games, on the very tokens that were sampled). Seen as a policy gradient, the weight of a trajectory is
1 if it was kept, else 0.

- ReST (Gulcehre et al. 2023, algorithm 1): Improve continues from the current policy; thresholds may rise over several
  Improve steps on one Grow; kept games are added to those of earlier iterations.
- ReST-EM (Singh et al. 2023, algorithm 1): each Improve restarts from the base; several samples a task, at most k kept.

On disk, in the run folder: `base/` (the policy at the start), `iteration_001/kept/` (a `datasets` Dataset),
`iteration_001/improve_1/` (the policy after it), and `state.json`. Each appears whole or not at all (written under
another name, then renamed), and each step starts from what is on disk with a seed of its own, so a run killed at any
moment goes on to the same result.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, concatenate_datasets, load_from_disk
from peft import PeftModel, load_peft_weights, set_peft_model_state_dict
from transformers import AutoModelForCausalLM

from agent_envs.tasks import Task
from trl_plugins.kept import game_row, labelled, select
from trl_plugins.rollout import Trajectory
from trl_plugins.sft import fine_tune
from trl_plugins.trainer import derive_seed

_GROW, _KEEP, _IMPROVE = 1, 2, 3  # one stream of seeds each


@dataclass
class RestArguments:
    """ReST's own options; how to play comes from the trainer.

    Raises:
        ValueError: an option out of range, named with what it may be.
    """

    method: str = field(
        default="rest", metadata={"help": "rest: Improve continues from the current policy; rest_em: from the base."}
    )
    iterations: int = field(default=6, metadata={"help": "Grow-and-Improve rounds."})
    grow_samples: int = field(default=32, metadata={"help": "Episodes a task in each Grow step."})
    grow_batch: int = field(default=512, metadata={"help": "Most episodes played together; bounds memory."})
    threshold: float | None = field(
        default=None, metadata={"help": "Keep returns of at least this; 1 where no filter at all is given."}
    )
    thresholds: list[float] | None = field(
        default=None, metadata={"help": "Rising thresholds instead: one Improve step each, on the same Grow."}
    )
    top_share: float | None = field(
        default=None,
        metadata={"help": "Keep this share of the games, the best; with a threshold, games must pass both."},
    )
    max_kept_per_task: int | None = field(
        default=None, metadata={"help": "Most games kept a task and iteration, the best; unset, all."}
    )
    dataset: str = field(default="add", metadata={"help": "add to the games of earlier iterations, or replace them."})
    improve_epochs: float = field(default=2.0, metadata={"help": "Passes over the dataset in each Improve step."})
    improve_batch: int = field(default=64, metadata={"help": "Games an optimizer step."})
    improve_learning_rate: float = field(default=1e-3, metadata={"help": "Falls linearly to 0 in each Improve step."})

    def __post_init__(self) -> None:
        for name, allowed in (("method", ("rest", "rest_em")), ("dataset", ("add", "replace"))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is unknown; use one of {', '.join(allowed)}")
        for name in ("iterations", "grow_samples", "grow_batch", "improve_batch", "max_kept_per_task"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("improve_epochs", "improve_learning_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be above 0")
        if self.top_share is not None and not 0 < self.top_share <= 1:
            raise ValueError(f"top_share={self.top_share} is a share, so above 0 and at most 1")
        if self.threshold is not None and self.thresholds is not None:
            raise ValueError("threshold and thresholds are two ways to say one thing; give one of them")
        if self.thresholds is not None and (not self.thresholds or sorted(self.thresholds) != list(self.thresholds)):
            raise ValueError(f"thresholds={self.thresholds} must rise from one Improve step to the next")

    def steps(self) -> list[float]:
        """The threshold of each Improve step of an iteration; -inf where the top share alone decides."""
        if self.thresholds is not None:
            return list(self.thresholds)
        if self.threshold is not None:
            return [self.threshold]
        return [1.0 if self.top_share is None else -math.inf]


@dataclass
class RestState:
    """What state.json holds: how far the run has come, and the rows of metrics.jsonl."""

    iteration: int = 0
    """Iterations finished."""
    steps: int = 0
    """Optimizer steps in all Improve steps so far."""
    seconds: float = 0.0
    """Time of all Grow and Improve steps, evaluations left out."""
    policy: str = "base"
    """Folder of the current policy, inside the run folder."""
    rows: list[dict[str, Any]] = field(default_factory=list)


class NothingKept(ValueError):
    """No game of a Grow step passed the filter; the message says what to do. All earlier iterations are on disk."""


# --- On disk ---------------------------------------------------------------------------------------------------------


def write_folder(target: Path, write: Callable[[Path], Any]) -> None:
    """Fill a folder under another name, then rename it: `target` exists whole or not at all."""
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)  # what a kill left behind
    partial.mkdir(parents=True)
    write(partial)
    os.replace(partial, target)


def write_text(target: Path, text: str) -> None:
    """The same for a file, which may exist already."""
    partial = target.with_name(target.name + ".partial")
    partial.write_text(text)
    os.replace(partial, target)


def load_policy(model: Any, folder: Path) -> None:
    """Put the weights that `save_pretrained` wrote (an adapter's, or a whole model's) into `model`."""
    if isinstance(model, PeftModel):
        set_peft_model_state_dict(model, load_peft_weights(str(folder), device="cpu"))
    else:
        dtype = next(model.parameters()).dtype
        model.load_state_dict(AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).state_dict())


def read_state(folder: Path) -> RestState:
    """The state of a run folder; a new one where nothing has finished yet."""
    path = folder / "state.json"
    return RestState(**json.loads(path.read_text())) if path.exists() else RestState()


def _write_state(folder: Path, state: RestState) -> None:
    write_text(folder / "state.json", json.dumps(asdict(state)) + "\n")
    # Rewritten whole: a kill between the two leaves metrics.jsonl one iteration short, and resuming puts that right.
    write_text(folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in state.rows))


# --- The loop --------------------------------------------------------------------------------------------------------


def run_rest(
    trainer: Any, tasks: Sequence[Task], args: RestArguments, folder: Path, say: Callable[[str], None] = print
) -> RestState:
    """Run all iterations that `folder` does not hold yet; the trainer's model is then the last policy.

    Args:
        trainer: a MultiTurnGRPOTrainer; it plays, evaluates and holds the model, and is not trained itself.
        tasks: the training tasks, all played in each Grow step.
        args: the options.
        folder: the run folder.
        say: where to report progress.

    Raises:
        NothingKept: an iteration kept no game; the policy is that of the iteration before.
    """
    model = trainer.model
    if not (folder / "base").exists():
        write_folder(folder / "base", model.save_pretrained)
    state = read_state(folder)
    load_policy(model, folder / state.policy)
    if not state.rows:
        state.rows.append({"step": 0, "iteration": 0, **trainer.evaluate()})
        say(f"before: success {state.rows[0]['eval_success_sampled']:.3f} sampled")
    _write_state(folder, state)
    while state.iteration < args.iterations:
        _iterate(trainer, tasks, args, folder, state, say)
        _write_state(folder, state)
    return state


def _iterate(
    trainer: Any, tasks: Sequence[Task], args: RestArguments, folder: Path, state: RestState, say: Callable[[str], None]
) -> None:
    """One Grow and its Improve steps; the state moves on only when all of it is on disk."""
    number = state.iteration + 1
    home = folder / f"iteration_{number:03d}"
    home.mkdir(exist_ok=True)
    if not (home / "kept").exists():
        _grow(trainer, tasks, args, home, number)
    grown = json.loads((home / "grow.json").read_text())
    rows = [{"step": state.steps, "iteration": number, **grown}]
    policy, steps, seconds = state.policy, state.steps, grown["grow_seconds"]
    for step, threshold in enumerate(args.steps(), 1):
        target = home / f"improve_{step}"
        if not target.exists():
            games = training_games(folder, number, threshold, args.dataset)
            if not len(games):
                say(f"iteration {number}: no game reaches threshold {threshold:g} yet; its Improve step is left out")
                break
            start = folder / ("base" if args.method == "rest_em" else policy)
            seed = derive_seed(trainer.args.seed, _IMPROVE, number, step) % 2**31
            _improve(trainer, games, args, start, target, seed)
        improved = json.loads((target / "improve.json").read_text())
        policy, steps, seconds = (
            f"{home.name}/{target.name}",
            steps + improved["improve_steps"],
            (seconds + improved["improve_seconds"]),
        )
        shown = threshold if math.isfinite(threshold) else None
        rows.append({"step": steps, "iteration": number, "threshold": shown, **improved})
    load_policy(trainer.model, folder / policy)
    rows[-1] |= trainer.evaluate()
    say(
        f"iteration {number}: kept {grown['kept']} of {grown['games']} games (success {grown['success']:.3f}), "
        f"now {rows[-1]['eval_success_sampled']:.3f} sampled"
    )
    state.rows += rows
    state.iteration, state.steps, state.policy, state.seconds = number, steps, policy, state.seconds + seconds


def _grow(trainer: Any, tasks: Sequence[Task], args: RestArguments, home: Path, number: int) -> None:
    """Play, filter, and write `kept/` and `grow.json`."""
    started = time.time()
    plan = [task for task in tasks for _ in range(args.grow_samples)]
    games: list[Trajectory] = []
    for at in range(0, len(plan), args.grow_batch):
        seed = derive_seed(trainer.args.seed, _GROW, number, at)
        games += trainer.play(plan[at : at + args.grow_batch], seed)
    returns = [game.total_return for game in games]
    keys = [i // args.grow_samples for i in range(len(games))]
    seed = derive_seed(trainer.args.seed, _KEEP, number)
    kept = select(returns, keys, args.steps()[0], args.top_share, args.max_kept_per_task, seed)
    sound = [game for game in games if not game.failed]
    facts = {
        "return": float(np.mean([game.total_return for game in sound])),
        "success": float(np.mean([game.is_success for game in sound])),
        "best_return": max(game.total_return for game in sound),
        "games": len(games),
        "failed_games": len(games) - len(sound),
        "kept": len(kept),
        "tasks_kept": len({keys[i] for i in kept}),
        "grow_seconds": round(time.time() - started, 2),
    }
    if not kept:
        raise NothingKept(nothing_kept_advice(number, args, facts))
    write_text(home / "grow.json", json.dumps(facts) + "\n")
    rows = [game_row(games[i], trainer.chat, number) for i in kept]
    write_folder(home / "kept", lambda path: Dataset.from_list(rows).save_to_disk(str(path)))


def nothing_kept_advice(number: int, args: RestArguments, facts: dict[str, Any]) -> str:
    """What to do when an iteration keeps nothing."""
    return (
        f"iteration {number} kept none of {facts['games']} games (threshold {args.steps()[0]:g}, best return "
        f"{facts['best_return']:g}): lower threshold or give top_share where returns differ, raise grow_samples, "
        "choose easier tasks, or start from demonstrations (python -m recipes.sft); nothing is lost, and "
        "--resume_from_checkpoint true goes on from here with the new options"
    )


def training_games(folder: Path, number: int, threshold: float, dataset: str) -> Dataset:
    """The kept games an Improve step trains on: of this iteration, or of all up to it, with at least `threshold`."""
    first = number if dataset == "replace" else 1
    parts = [load_from_disk(str(folder / f"iteration_{i:03d}" / "kept")) for i in range(first, number + 1)]
    games = concatenate_datasets(parts)  # type: ignore[arg-type]
    return games.select([i for i, value in enumerate(games["return"]) if value >= threshold])


def _improve(trainer: Any, games: Dataset, args: RestArguments, start: Path, target: Path, seed: int) -> None:
    """SFT on the games from the policy in `start`; the new policy and `improve.json` into `target`."""
    started = time.time()
    load_policy(trainer.model, start)
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):  # SFTTrainer prints
        sft = fine_tune(
            trainer.model,
            trainer.chat.tokenizer,
            labelled(games),
            scratch,
            num_train_epochs=args.improve_epochs,
            per_device_train_batch_size=args.improve_batch,
            learning_rate=args.improve_learning_rate,
            lr_scheduler_type="linear",
            seed=seed,
            disable_tqdm=True,
        )
    facts = {
        "dataset": len(games),
        "loss": sft.state.log_history[-1]["train_loss"],
        "improve_steps": sft.state.global_step,
        "improve_seconds": round(time.time() - started, 2),
    }

    def write(path: Path) -> None:
        trainer.model.save_pretrained(path)
        (path / "improve.json").write_text(json.dumps(facts) + "\n")

    write_folder(target, write)
