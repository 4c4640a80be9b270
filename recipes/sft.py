"""Cold start: fine-tune on games of the environment's own solver (or novice), before any reinforcement.

    python -m recipes.sft --config recipes/number_search_sft.yaml

Takes the YAML of any recipe here, and the keys of ColdStartArguments. The games are tokenised and masked as a rollout
would have made them. The run folder then holds adapter/ (the PEFT adapter), model/ (the same, merged into the base: a
start for every recipe, `--model_name_or_path runs/.../model`), masks.html (the first game, token by token),
config.yaml and summary.json.
"""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import datasets
import gymnasium
from peft import PeftModel
from transformers import set_seed
from transformers.trainer_callback import PrinterCallback, ProgressCallback

import agent_envs
from agent_envs.tasks import Task
from recipes.ceiling import CeilingArguments
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
from trl_plugins.config import MultiTurnGRPOConfig
from trl_plugins.masks import conversation_tokens, render_html
from trl_plugins.sft import fine_tune, sft_dataset

PLAYERS = {
    "optimal": agent_envs.optimal_policy,
    "novice": agent_envs.novice_policy,
    "random": agent_envs.random_policy,
}


@dataclass
class ColdStartArguments(CeilingArguments):
    """Whose games to learn from; how many, and how long, as in the ceiling (sft_games, sft_steps, ...)."""

    sft_player: str = field(default="optimal", metadata={"help": "Who plays the games: optimal, novice or random."})
    sft_hint: bool = field(
        default=False, metadata={"help": "Put the environment's hint into the prompts, so that hints are understood."}
    )
    sft_only_successes: bool = field(default=False, metadata={"help": "Learn from successful games alone."})

    def __post_init__(self) -> None:
        if self.sft_player not in PLAYERS:
            raise ValueError(f"sft_player={self.sft_player!r} is unknown; use one of {', '.join(PLAYERS)}")
        for name in ("sft_games", "sft_steps", "sft_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")


def main() -> None:
    tasks, model_arguments, sft, args = parse(TaskArguments, ModelArguments, ColdStartArguments, MultiTurnGRPOConfig)
    folder = Path(args.output_dir)
    check_output(folder, resume=False)
    train_tasks, test_tasks = task_sets(tasks)
    games = demonstrations(train_tasks, sft)
    set_seed(args.seed)  # a fresh adapter is drawn from the global generator
    trainer = build_trainer(model_arguments, args, train_tasks, test_tasks)
    for noisy in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(noisy)
    datasets.disable_progress_bars()
    folder.mkdir(parents=True, exist_ok=True)
    save_config(folder, tasks, model_arguments, sft, args)

    dataset = sft_dataset(trainer.chat, games, args.system_prompt)
    before, started = trainer.evaluate(), time.time()
    fine_tune(
        trainer.model,
        trainer.chat.tokenizer,
        dataset,
        str(folder),
        max_steps=sft.sft_steps,
        per_device_train_batch_size=sft.sft_batch,
        learning_rate=sft.sft_learning_rate,
        lr_scheduler_type="linear",
        seed=args.seed,
    )
    seconds = time.time() - started
    args.eval_samples = tasks.final_eval_samples
    after = trainer.evaluate()
    save_policy(trainer, folder)
    tokens = conversation_tokens(trainer.chat, trainer.model, games[0], args.system_prompt)
    (folder / "masks.html").write_text(render_html(tokens, f"{tasks.env_id}: a game of the {sft.sft_player} player"))
    summary = {
        "env_id": tasks.env_id,
        "player": sft.sft_player,
        "games": len(games),
        "steps": sft.sft_steps,
        "seed": args.seed,
        "train_seconds": round(seconds, 1),
        **{
            name: {k: v for k, v in metrics.items() if k.startswith(("eval_success", "eval_games"))}
            for name, metrics in (("before", before), ("after", after))
        },
        "best_possible": best_possible(trainer, list(test_tasks)),
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    greedy = [metrics.get("eval_success_greedy", float("nan")) for metrics in (before, after)]
    print(
        f"success sampled {before['eval_success_sampled']:.3f} -> {after['eval_success_sampled']:.3f} "
        f"± {after['eval_success_sampled_stderr']:.3f}, greedy {greedy[0]:.4f} -> {greedy[1]:.4f}; "
        f"{len(games)} games of the {sft.sft_player} player, {seconds:.0f} s; see {folder}/"
    )


def demonstrations(tasks: Sequence[Task], sft: ColdStartArguments) -> list[list[dict[str, str]]]:
    """`sft_games` conversations on the training tasks in turn, each with its own seed.

    Raises:
        ValueError: the environment has no such player, or no game succeeded where only those are wanted.
    """
    rows = []
    envs: dict[str, Any] = {}
    for i in range(sft.sft_games):
        task = tasks[i % len(tasks)]
        env = envs.setdefault(task.env_id, gymnasium.make(task.env_id, disable_env_checker=True))
        try:
            policy = PLAYERS[sft.sft_player]
            rows += agent_envs.demonstrations(
                env, 1, task.seed + 2 * len(tasks) * (i // len(tasks)), policy, task.options, sft.sft_hint
            )
        except TypeError as error:
            wanted = f"sft_player={sft.sft_player}" + (", sft_hint" if sft.sft_hint else "")
            raise ValueError(f"{wanted}: {error}; give another player or env_id, or no sft_hint") from error
    games = [row["messages"] for row in rows if row["is_success"] or not sft.sft_only_successes]
    if not games:
        raise ValueError(
            f"none of {len(rows)} games of the {sft.sft_player} player succeeded; set sft_player to optimal, raise "
            "sft_games, or set sft_only_successes to false"
        )
    return games


def save_policy(trainer: Any, folder: Path) -> None:
    """adapter/ for PEFT, and model/ with the adapter merged in; where all weights were trained, model/ alone."""
    model: Any = trainer.model
    tokenizer = trainer.chat.tokenizer
    if isinstance(model, PeftModel):
        model.save_pretrained(str(folder / "adapter"))
        tokenizer.save_pretrained(folder / "adapter")
        model = copy.deepcopy(model).merge_and_unload()
    model.save_pretrained(str(folder / "model"))
    tokenizer.save_pretrained(folder / "model")


if __name__ == "__main__":
    one_line_errors(main)
