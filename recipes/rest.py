"""Train a language model on a text environment by ReST or ReST-EM: play, keep the good games, fine-tune on them.

    python -m recipes.rest --config recipes/number_search_rest.yaml

Takes the YAML of any recipe here, and the keys of RestArguments (`--method rest_em`, `--threshold 0.5`). How to play
and evaluate (max_turns, temperature, eval_samples, seed, ...) are the trainer's arguments; those of its own update
(advantage, learning_rate, ...) are not used. The run folder then holds what `recipes.drgrpo` leaves (adapter/,
metrics.jsonl, learning_curve.png, trajectories.txt, config.yaml, summary.json), and each iteration's kept games as a
`datasets` Dataset in iteration_001/kept/ and so on. A killed run goes on with `--resume_from_checkpoint true`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import datasets
from transformers import set_seed
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from recipes.common import (
    ModelArguments,
    TaskArguments,
    check_output,
    one_line_errors,
    parse,
    save_config,
    task_sets,
)
from recipes.drgrpo import build_trainer, write_results
from trl_plugins.config import MultiTurnGRPOConfig
from trl_plugins.rest import NothingKept, RestArguments, read_state, run_rest


def main() -> None:
    tasks, model_arguments, rest, args = parse(TaskArguments, ModelArguments, RestArguments, MultiTurnGRPOConfig)
    folder = Path(args.output_dir)
    check_output(folder, args.resume_from_checkpoint)
    train_tasks, test_tasks = task_sets(tasks)
    set_seed(args.seed)  # a fresh adapter is drawn from the global generator
    trainer = build_trainer(model_arguments, args, train_tasks, test_tasks)
    if trainer.accelerator.num_processes > 1:
        raise ValueError("recipes.rest runs as one process; start it with python, not with accelerate launch")
    for noisy in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(noisy)
    datasets.disable_progress_bars()
    folder.mkdir(parents=True, exist_ok=True)
    save_config(folder, tasks, model_arguments, rest, args)
    print(
        f"{model_arguments.model_name_or_path} by {rest.method}: {len(train_tasks)} tasks x {rest.grow_samples} games"
    )

    stopped: NothingKept | None = None
    try:
        run_rest(trainer, train_tasks, rest, folder)
    except NothingKept as error:  # what was learnt before is written all the same; the advice comes last
        stopped = error
    state = read_state(folder)
    args.eval_samples = tasks.final_eval_samples
    final = trainer.evaluate()
    trainer.args.advantage, trainer.state.global_step = rest.method, state.steps  # what the summary and title say
    write_results(trainer, folder, tasks.env_id, final, state.seconds, list(test_tasks[:4]))
    _add_to_summary(folder, iterations=state.iteration, stopped=None if stopped is None else str(stopped))
    if stopped is not None:
        raise stopped


def _add_to_summary(folder: Path, **facts: object) -> None:
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts, indent=1) + "\n")


if __name__ == "__main__":
    one_line_errors(main)
