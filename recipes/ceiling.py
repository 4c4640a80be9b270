"""Measure the ceiling before the climb: how far can this base go with these LoRA settings, if told the answers?

    python -m recipes.ceiling --config recipes/number_search_tiny.yaml

Fine-tunes the same model with the same adapter on games of the exact solver, then plays the held-out tasks. What it
reaches bounds what reinforcement can reach. Takes every key of the recipe's YAML, and those of CeilingArguments.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import gymnasium

import agent_envs
from recipes.common import ModelArguments, TaskArguments, one_line_errors, parse, task_sets
from recipes.drgrpo import best_possible, build_trainer
from trl_plugins.config import MultiTurnGRPOConfig
from trl_plugins.sft import fine_tune, sft_dataset


@dataclass
class CeilingArguments:
    """The short fine-tuning on solver games."""

    sft_games: int = field(default=512, metadata={"help": "Solver games to learn from, on the training tasks."})
    sft_steps: int = field(default=300, metadata={"help": "Steps of sft_batch games."})
    sft_batch: int = field(default=64, metadata={"help": "Games a step."})
    sft_learning_rate: float = field(default=2e-3, metadata={"help": "Falls linearly to 0."})


def main() -> None:
    tasks, model_arguments, ceiling, args = parse(TaskArguments, ModelArguments, CeilingArguments, MultiTurnGRPOConfig)
    train_tasks, test_tasks = task_sets(tasks)
    with tempfile.TemporaryDirectory() as scratch:
        args.output_dir = scratch
        trainer = build_trainer(model_arguments, args, train_tasks, test_tasks)
        say = trainer.accelerator.print
        before = trainer.evaluate()
        env = gymnasium.make(tasks.env_id, disable_env_checker=True)
        games = [
            agent_envs.demonstrations(env, 1, task.seed, options=task.options)[0]["messages"]
            for task in (train_tasks[i % len(train_tasks)] for i in range(ceiling.sft_games))
        ]
        fine_tune(
            trainer.model,
            trainer.chat.tokenizer,
            sft_dataset(trainer.chat, games, args.system_prompt),
            scratch,
            max_steps=ceiling.sft_steps,
            per_device_train_batch_size=ceiling.sft_batch,
            learning_rate=ceiling.sft_learning_rate,
            lr_scheduler_type="linear",
            seed=args.seed,
        )
        after = trainer.evaluate()
        best = best_possible(trainer, list(test_tasks))
    for name, metrics in (("before", before), ("after solver games", after)):
        sampled, error = metrics["eval_success_sampled"], metrics["eval_success_sampled_stderr"]
        greedy = metrics.get("eval_success_greedy", float("nan"))
        say(f"{name:<20} sampled {sampled:.3f} ± {error:.3f}, greedy {greedy:.4f}")
    if best is not None:
        say(f"{'best possible':<20} {best:.4f}")


if __name__ == "__main__":
    one_line_errors(main)
