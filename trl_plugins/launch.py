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

from agent_envs.tasks import Task, task_set
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


def training_tasks(look: LookArguments) -> Sequence[Task]:
    """The training tasks, as a recipe's YAML names them.

    Raises:
        ValueError: no such environment.
    """
    tasks: list[Task] = []
    for entry in look.train_mix or [{}]:
        options = dict(yaml.safe_load(entry)) if isinstance(entry, str) else dict(entry)
        env_id = str(options.pop("env_id", look.env_id))
        try:
            tasks += task_set(env_id, "train", options.pop("size", look.train_tasks), **options)
        except gymnasium.error.Error as error:
            raise ValueError(f"env_id={env_id!r} is not a registered environment ({error})") from error
    return tasks


def load_policy_model(path: str, dtype: str = "float32") -> tuple[Any, Any]:
    """Model and tokenizer of a folder or hub id; a folder with a PEFT adapter gives its base with the adapter on."""
    path = tiny_base_path() if path == "tiny" else path
    if not (Path(path) / "adapter_config.json").is_file():
        return AutoModelForCausalLM.from_pretrained(path, dtype=dtype), AutoTokenizer.from_pretrained(path)
    base = str(PeftConfig.from_pretrained(path).base_model_name_or_path)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
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
