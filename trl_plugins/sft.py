"""Supervised fine-tuning on conversations, through TRL's SFTTrainer, on the very tokens a rollout would have made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from trl_plugins.chat import Chat, Message


def sft_dataset(chat: Chat, conversations: Sequence[Sequence[Message]], system_prompt: str | None = None) -> Dataset:
    """Conversations as `input_ids` and `labels` (-100 on all the assistant did not say)."""
    rows = []
    for conversation in conversations:
        messages = [*([{"role": "system", "content": system_prompt}] if system_prompt else []), *conversation]
        ids, mask = chat.conversation(messages)
        rows.append({"input_ids": ids, "labels": [i if m else -100 for i, m in zip(ids, mask, strict=True)]})
    return Dataset.from_list(rows)


def fine_tune(model: Any, tokenizer: Any, dataset: Dataset, output_dir: str, **settings: Any) -> SFTTrainer:
    """Train `model` (its trainable parameters, an adapter's where there is one) on `dataset`; the trainer, trained.

    Args:
        settings: SFTConfig fields (max_steps, learning_rate, per_device_train_batch_size, seed, ...).
    """
    defaults = {
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "gradient_checkpointing": False,
        "bf16": False,
        "dataloader_pin_memory": False,
        "max_length": None,
        "loss_type": "nll",
    }
    config = SFTConfig(output_dir, **(defaults | settings))
    trainer = SFTTrainer(model=model, args=config, train_dataset=dataset, processing_class=tokenizer)
    trainer.train()
    return trainer
