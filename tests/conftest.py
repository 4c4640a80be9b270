"""Shared by the training tests: offline, two threads, the embedded base, and a trainer made small."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agent_envs


@pytest.fixture
def make_trainer(tmp_path: Path) -> Callable[..., Any]:
    """A MultiTurnGRPOTrainer on the embedded base, small enough for a test; keyword arguments go to its config."""
    from trl_plugins.config import MultiTurnGRPOConfig
    from trl_plugins.tiny_base import tiny_base_path
    from trl_plugins.trainer import MultiTurnGRPOTrainer

    def make(trainer: dict[str, Any] | None = None, **settings: Any) -> MultiTurnGRPOTrainer:
        defaults: dict[str, Any] = {
            "max_turns": 4,
            "max_turn_tokens": 4,
            "num_generations": 4,
            "per_device_train_batch_size": 16,
            "max_steps": 2,
            "learning_rate": 1e-3,
            "logging_steps": 1,
            "bf16": False,
            "gradient_checkpointing": False,
            "dataloader_pin_memory": False,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "eval_samples": 2,
        }
        args = MultiTurnGRPOConfig(str(tmp_path / "run"), **(defaults | settings))
        given: dict[str, Any] = {
            "model": tiny_base_path(),
            "train_dataset": agent_envs.task_set("NumberSearch-v0", "train"),
            "eval_dataset": agent_envs.task_set("NumberSearch-v0", "test"),
        }
        return MultiTurnGRPOTrainer(args=args, **(given | (trainer or {})))

    return make


@pytest.fixture(scope="session")
def tiny() -> tuple[Any, Any]:
    """The embedded base's model and tokenizer; not to be changed by a test."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from trl_plugins.tiny_base import tiny_base_path

    return AutoModelForCausalLM.from_pretrained(tiny_base_path()), AutoTokenizer.from_pretrained(tiny_base_path())
