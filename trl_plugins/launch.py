"""What the commands `trl_plugins.masks` and `trl_plugins.probe` share: they take any recipe's YAML and only play.

The recipes check their own keys; a command that only looks passes over the keys it has no use for, so that one YAML
serves both. A word on the command line that nothing knows is still an error.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import gymnasium
import yaml
from datasets import Dataset
from peft import PeftConfig, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.trainer_utils import IntervalStrategy
from trl import TrlParser

from agent_envs.tasks import Split, Task, task_set
from trl_plugins.config import MultiTurnGRPOConfig
from trl_plugins.one_line import one_line_errors as one_line_errors
from trl_plugins.tiny_base import tiny_base_path
from trl_plugins.trainer import MultiTurnGRPOTrainer


@dataclass
class LookArguments:
    """What is looked at: an environment's training tasks, and a model, trained or not."""

    env_id: str = field(default="NumberSearch-v0", metadata={"help": "A registered Gymnasium id."})
    train_tasks: int | None = field(default=None, metadata={"help": "Size of the training set; unset, the env's own."})
    train_mix: list[str] | None = field(
        default=None, metadata={"help": "Several training sets: each a mapping of env_id, size and reset options."}
    )
    model_name_or_path: str = field(
        default="tiny", metadata={"help": "A model's or an adapter's folder, or a hub id; 'tiny' is the embedded base."}
    )
    dtype: str = field(default="float32", metadata={"help": "Weights' type: float32, bfloat16 or auto."})


def parse_any_recipe(*dataclasses: Any) -> tuple[Any, ...]:
    """`--config FILE.yaml` of any recipe plus overrides; keys of the file meant for others are passed over."""
    return TrlParser(dataclasses).parse_args_and_config(fail_with_unknown_args=False)


def tasks_of(env_id: str, split: Split, mix: list[str] | None, size: int | None) -> list[Task]:
    """The tasks of a split as a YAML names them: `env_id`'s, or those of each entry of `mix` after one another.

    Args:
        mix: mappings (or YAML of them) of env_id, size and reset options, or ids alone.
        size: how many of each that names no size; None for the environment's own number.

    Raises:
        ValueError: no such environment, or one that cannot be made.
    """
    tasks: list[Task] = []
    for entry in mix or [{}]:
        given = yaml.safe_load(entry) if isinstance(entry, str) else entry
        options = {"env_id": given} if isinstance(given, str) else dict(given)
        name = str(options.pop("env_id", env_id))
        if ":" not in name and name not in gymnasium.registry:
            near = ", ".join(sorted(i for i in gymnasium.registry if i[:6] == name[:6])[:5])
            raise ValueError(
                f"env_id={name!r} is not a registered environment" + (f"; near it: {near}" if near else "")
            )
        wanted: Any = options.pop("size", size)
        try:
            tasks += task_set(name, split, wanted, **options)
        except (gymnasium.error.Error, ModuleNotFoundError) as error:
            raise ValueError(f"env_id={name!r} cannot be made: {error}") from error
    return tasks


def training_tasks(look: LookArguments) -> list[Task]:
    """The training tasks, as a recipe's YAML names them."""
    return tasks_of(look.env_id, "train", look.train_mix, look.train_tasks)


def load_policy_model(path: str, dtype: Any = "float32", **settings: Any) -> tuple[Any, Any]:
    """Model and tokenizer of a folder or hub id; a folder with a PEFT adapter gives its base with the adapter on.

    Args:
        settings: for `AutoModelForCausalLM.from_pretrained`.
    """
    path = tiny_base_path() if path == "tiny" else path
    if not (Path(path) / "adapter_config.json").is_file():
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, **settings)
        return model, AutoTokenizer.from_pretrained(path)
    base = str(PeftConfig.from_pretrained(path).base_model_name_or_path)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, **settings)
    named = path if (Path(path) / "tokenizer_config.json").is_file() else base
    return PeftModel.from_pretrained(model, path, is_trainable=True), AutoTokenizer.from_pretrained(named)


def playing_trainer(look: LookArguments, args: MultiTurnGRPOConfig, tasks: Sequence[Task]) -> MultiTurnGRPOTrainer:
    """A trainer that plays `tasks` as training would; it is never trained."""
    model, tokenizer = load_policy_model(look.model_name_or_path, look.dtype)
    args.eval_strategy, args.eval_on_start = IntervalStrategy.NO, False  # of the recipe; nothing is held out here
    most: int = args.generation_batch_size or 1
    args.generation_batch_size = min(most, len(tasks) * (args.num_generations or 1))  # it need not fill a batch
    rows = Dataset.from_list([task.row() for task in tasks])
    return MultiTurnGRPOTrainer(model, args, rows, processing_class=tokenizer)
