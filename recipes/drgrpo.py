"""Train a language model on a text environment by Dr. GRPO (or any method of `advantage`).

    python -m recipes.drgrpo --config recipes/number_search_tiny.yaml

Any key of the YAML can be overridden: `--seed 1 --output_dir runs/seed1 --advantage grpo`. The run folder then holds
adapter/, metrics.jsonl (a row a step), learning_curve.png, trajectories.txt, config.yaml and summary.json. With
`--save_strategy steps --save_steps 20`, a killed run goes on with `--resume_from_checkpoint true`.
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from peft import PeftModel
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from trl import get_peft_config

from agent_envs.tasks import Task
from recipes.common import (
    ModelArguments,
    TaskArguments,
    check_output,
    checkpoint_of,
    one_line_errors,
    parse,
    save_config,
    task_sets,
)
from trl_plugins.config import MultiTurnGRPOConfig
from trl_plugins.launch import load_policy_model
from trl_plugins.probe import probe, probe_table
from trl_plugins.report import MetricsFile, ProgressBar, learning_curve, read_metrics, show_trajectory
from trl_plugins.trainer import MultiTurnGRPOTrainer


def main() -> None:
    tasks, model_arguments, args = parse(TaskArguments, ModelArguments, MultiTurnGRPOConfig)
    folder = Path(args.output_dir)
    check_output(folder, args.resume_from_checkpoint)
    checkpoint = checkpoint_of(folder, args.resume_from_checkpoint)
    train_tasks, test_tasks = task_sets(tasks)
    trainer = build_trainer(model_arguments, args, train_tasks, test_tasks)
    if trainer.is_world_process_zero():
        folder.mkdir(parents=True, exist_ok=True)
    report = MetricsFile(folder / "metrics.jsonl")
    for callback in (report, ProgressBar()):
        trainer.add_callback(callback)
    for noisy in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(noisy)

    say = trainer.accelerator.print
    trainable = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in trainer.model.parameters())
    say(f"{model_arguments.model_name_or_path}: {trainable:,} of {total:,} parameters train, by {args.advantage}")
    if tasks.probe_tasks:
        spread = [train_tasks[i * len(train_tasks) // tasks.probe_tasks] for i in range(tasks.probe_tasks)]
        say("Before training, 8 sampled episodes a task:\n" + probe_table(probe(trainer, spread)))

    if trainer.is_world_process_zero() and checkpoint is None:
        save_config(folder, tasks, model_arguments, args)
    started = time.time()
    trainer.train(resume_from_checkpoint=checkpoint)
    seconds = time.time() - started
    args.eval_samples = tasks.final_eval_samples
    final = trainer.evaluate()
    report.flush()
    if trainer.is_world_process_zero():
        write_results(trainer, folder, tasks.env_id, final, seconds, list(test_tasks))


def build_trainer(
    model_arguments: ModelArguments, args: MultiTurnGRPOConfig, train_tasks: object, test_tasks: object
) -> MultiTurnGRPOTrainer:
    """The trainer for a model argument; the model is loaded here so that its type is the config's `dtype`."""
    dtype = model_arguments.dtype
    if dtype not in (None, "auto", "float32", "bfloat16", "float16"):
        raise ValueError(f"dtype={dtype!r} is unknown; use float32, bfloat16, float16 or auto")
    model, tokenizer = load_policy_model(
        str(model_arguments.model_name_or_path),
        dtype if dtype in (None, "auto") else getattr(torch, dtype),
        revision=model_arguments.model_revision,
        attn_implementation=model_arguments.attn_implementation,
        trust_remote_code=args.trust_remote_code,
    )
    # An adapter's folder goes on training that adapter; a second one on top would start from nothing.
    peft_config = None if isinstance(model, PeftModel) else get_peft_config(model_arguments)
    if peft_config is not None and peft_config.target_modules == {"all-linear"}:  # type: ignore[attr-defined]
        peft_config.target_modules = "all-linear"  # type: ignore[attr-defined]
    return MultiTurnGRPOTrainer(
        model,
        args,
        train_tasks,  # type: ignore[arg-type]
        test_tasks,  # type: ignore[arg-type]
        processing_class=tokenizer,
        peft_config=peft_config,
    )


def write_results(
    trainer: MultiTurnGRPOTrainer,
    folder: Path,
    env_id: str,
    final: dict[str, float],
    seconds: float,
    test_tasks: list[Task],
) -> None:
    trainer.save_model(str(folder / "adapter"))
    rows = read_metrics(folder / "metrics.jsonl")
    ceiling = best_possible(trainer, test_tasks)
    learning_curve(rows, folder / "learning_curve.png", f"{env_id}, {trainer.args.advantage}", ceiling)
    tokenizer = trainer.chat.tokenizer
    shown = [show_trajectory(t, tokenizer) for t in trainer.play(test_tasks[:4], seed=0)]
    note = "Tokens in «» were sampled by the model and carry loss; all others do not.\n\n"
    (folder / "trajectories.txt").write_text(note + "\n\n".join(shown) + "\n")
    before = next((r for r in rows if "eval_success_sampled" in r), final)
    summary = {
        "env_id": env_id,
        "advantage": trainer.args.advantage,
        "seed": trainer.args.seed,
        "steps": trainer.state.global_step,
        "train_seconds": round(seconds, 1),
        "before": {k: v for k, v in before.items() if k.startswith("eval_success")},
        "after": {k: v for k, v in final.items() if k.startswith(("eval_success", "eval_games"))},
        "best_possible": ceiling,
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    limit = "" if ceiling is None else f" (best possible {ceiling:.4f})"
    greedy = [row.get("eval_success_greedy", math.nan) for row in (before, final)]
    print(
        f"success sampled {before['eval_success_sampled']:.3f} -> {final['eval_success_sampled']:.3f} "
        f"± {final['eval_success_sampled_stderr']:.3f}, greedy {greedy[0]:.4f} -> {greedy[1]:.4f}{limit}; "
        f"trained {seconds:.0f} s; see {folder}/"
    )


def best_possible(trainer: MultiTurnGRPOTrainer, tasks: list[Task]) -> float | None:
    """The success rate of optimal play, where the environment's info tells it at reset (`value`)."""
    values = []
    for task in tasks:
        _, info = trainer.env_pool.lend()(task.env_id).reset(seed=task.seed, options=dict(task.options))
        values.append(info.get("value"))
    return None if None in values else float(sum(values) / len(values))


if __name__ == "__main__":
    one_line_errors(main)
