"""What the recipes share: arguments, one-line errors, the run folder, the model path."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

import yaml
from transformers.trainer import TRAINER_STATE_NAME
from trl import ModelConfig, TrlParser

from agent_envs.tasks import Task
from trl_plugins.launch import tasks_of
from trl_plugins.one_line import one_line_errors as one_line_errors


@dataclass
class TaskArguments:
    """Which tasks to train on and to hold out."""

    env_id: str = field(default="NumberSearch-v0", metadata={"help": "A registered Gymnasium id."})
    train_tasks: int | None = field(default=None, metadata={"help": "Size of the training set; unset, the env's own."})
    test_tasks: int | None = field(default=None, metadata={"help": "Size of the held-out set; unset, the env's own."})
    train_mix: list[str] | None = field(
        default=None,
        metadata={"help": "In place of one training set, several: each a mapping of env_id, size and reset options."},
    )
    test_mix: list[str] | None = field(default=None, metadata={"help": "The same for the held-out tasks."})
    probe_tasks: int = field(default=8, metadata={"help": "Tasks probed before training, 8 rollouts each; 0 for none."})
    final_eval_samples: int = field(default=100, metadata={"help": "Sampled games a task in the last evaluation."})


@dataclass
class ModelArguments(ModelConfig):
    """TRL's model arguments, with LoRA on all linear layers by default."""

    model_name_or_path: str | None = field(
        default="tiny", metadata={"help": "A model's or an adapter's folder, or a hub id; 'tiny' is the embedded base."}
    )
    dtype: str | None = field(default="float32", metadata={"help": "Weights' type: float32, bfloat16 or auto."})
    use_peft: bool = field(default=True, metadata={"help": "Train a LoRA adapter; false trains all weights."})
    lora_dropout: float = field(
        default=0.0, metadata={"help": "TRL's 0.05 would make the loss see another policy than the one that sampled."}
    )
    lora_target_modules: list[str] | None = field(
        default_factory=lambda: ["all-linear"], metadata={"help": "Modules LoRA adapts."}
    )


def parse(*dataclasses: Any) -> tuple[Any, ...]:
    """`--config FILE.yaml` plus overrides; a key that nothing knows is an error that names it."""
    try:
        return TrlParser(dataclasses).parse_args_and_config(fail_with_unknown_args=True)
    except ValueError as error:
        if "Unknown arguments from config file" in str(error):
            keys = [
                k for k in str(error).split("[", 1)[-1].split("]", 1)[0].replace("'", "").split(", ") if k[:2] == "--"
            ]
            raise ValueError(
                f"the config file has unknown keys: {', '.join(keys)}; see --help for the known ones"
            ) from None
        raise


def resumes(resume: Any) -> bool:
    """Whether `resume_from_checkpoint`, a word from the command line or a YAML value, asks to go on with a run."""
    return str(resume).lower() not in ("none", "false", "")


def check_output(folder: Path, resume: Any) -> None:
    """Never write over a run: a folder with something in it is refused unless the run is resumed."""
    if resumes(resume) and str(resume).lower() != "true" and not Path(resume).is_dir():
        raise FileNotFoundError(f"resume_from_checkpoint={resume}: there is no such checkpoint folder")
    if not resumes(resume) and folder.exists() and any(folder.iterdir()):
        raise FileExistsError(
            f"{folder} already holds a run; choose another --output_dir, delete it, or pass --resume_from_checkpoint"
        )


def checkpoint_of(folder: Path, resume: Any) -> str | None:
    """The checkpoint a run goes on from: the folder named, or for `true` the last one in `folder` that was written
    whole (a killed run may leave half a one); None where there is none, and the run begins anew.
    """
    if not resumes(resume):
        return None
    if str(resume).lower() != "true":
        return str(resume)
    whole = {_step_of(path): path for path in folder.glob("checkpoint-*")}
    whole.pop(None, None)
    return str(whole[max(whole)]) if whole else None  # type: ignore[type-var]


def _step_of(checkpoint: Path) -> int | None:
    """The step of a whole checkpoint; its state is written last."""
    try:
        return int(json.loads((checkpoint / TRAINER_STATE_NAME).read_text())["global_step"])
    except (OSError, ValueError):
        return None


def save_config(folder: Path, *arguments: Any) -> None:
    """config.yaml: what the run was given, YAML and overrides together, fit for `--config`; config_full.json: every
    argument as it was resolved."""
    named = {f.name: getattr(group, f.name) for group in arguments for f in fields(group)}
    values = json.loads(json.dumps(named, default=lambda v: v.value if isinstance(v, Enum) else str(v)))
    given = {key: values[key] for key in _given_keys() if key in values} | {"output_dir": str(folder)}
    (folder / "config.yaml").write_text(yaml.safe_dump(given, sort_keys=True))
    (folder / "config_full.json").write_text(json.dumps(values, indent=1, sort_keys=True) + "\n")


def _given_keys() -> list[str]:
    """The names set by the YAML file and on the command line."""
    words = sys.argv[1:]
    keys = [w[2:].split("=", 1)[0] for w in words if w.startswith("--")]
    if "--config" in words:
        keys += list(yaml.safe_load(Path(words[words.index("--config") + 1]).read_text()))
    return sorted(set(keys) - {"config"})


def task_sets(arguments: TaskArguments) -> tuple[Sequence[Task], Sequence[Task]]:
    """Training and held-out tasks of the run."""
    return (
        tasks_of(arguments.env_id, "train", arguments.train_mix, arguments.train_tasks),
        tasks_of(arguments.env_id, "test", arguments.test_mix, arguments.test_tasks),
    )
