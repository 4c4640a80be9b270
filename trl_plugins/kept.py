"""Kept games: which of those played, and as a Dataset to read, share and train on."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from datasets import Dataset

from trl_plugins.chat import Chat, Message
from trl_plugins.rollout import Trajectory


def select(
    returns: Sequence[float],
    tasks: Sequence[Hashable],
    threshold: float = -math.inf,
    top_share: float | None = None,
    max_per_task: int | None = None,
    seed: int = 0,
) -> list[int]:
    """Indices of the kept games, in playing order.

    Args:
        returns: (N,) one a game; NaN (the environment failed) is never kept.
        tasks: (N,) the task of each, for `max_per_task`.
        threshold: keep returns of at least this.
        top_share: keep at most this share of all sound games, the best (rounded up).
        max_per_task: keep at most so many a task, the best.
        seed: games of equal return are chosen among by chance.
    """
    order = [int(i) for i in np.random.default_rng(seed).permutation(len(returns)) if not math.isnan(returns[i])]
    most = len(order) if top_share is None else math.ceil(top_share * len(order))
    best_first = sorted(order, key=lambda i: -returns[i])[:most]  # a stable sort: chance decides ties
    kept: list[int] = []
    count: dict[Hashable, int] = {}
    for i in best_first:
        count[tasks[i]] = count.get(tasks[i], 0) + 1
        if returns[i] >= threshold and (max_per_task is None or count[tasks[i]] <= max_per_task):
            kept.append(i)
    return sorted(kept)


def game_row(trajectory: Trajectory, chat: Chat, iteration: int) -> dict[str, Any]:
    """One kept game: `conversation` to read, `ids` and `mask` (T,) to train on (1 on sampled tokens), `return`,
    `iteration`, and its task as `env_id`, `seed`, `options`."""
    task = trajectory.task.row()
    return {
        "conversation": conversation(trajectory, chat),
        "ids": [*trajectory.prompt_ids, *trajectory.completion_ids],
        "mask": [0] * len(trajectory.prompt_ids) + trajectory.env_mask,
        "return": trajectory.total_return,
        "is_success": trajectory.is_success,
        "iteration": iteration,
        **{name: task[name] for name in ("env_id", "seed", "options")},
    }


def conversation(trajectory: Trajectory, chat: Chat) -> list[Message]:
    """The game as messages, for people to read; never tokenised again."""
    messages = list(trajectory.messages)
    for turn in trajectory.turns:
        messages.append({"role": "assistant", "content": chat.said(turn.action_ids)})
        if turn.reply_ids:
            words = _between_glue(chat, turn.action_ids, turn.reply_ids)
            messages.append({"role": chat.reply_role, "content": words})
    return messages


def _between_glue(chat: Chat, action_ids: list[int], reply_ids: list[int]) -> str:
    """The environment's words in a reply: what stands between the glue that a known word has around it."""
    known = "word"
    before, _, after = _decode(chat, chat.glue_ids(action_ids, known)).partition(known)
    text = _decode(chat, reply_ids)
    if text.startswith(before) and text.endswith(after):
        return text[len(before) : len(text) - len(after)]
    return chat.said(reply_ids)  # a decoder that does not give back the text: leave out the special tokens only


def _decode(chat: Chat, ids: list[int]) -> str:
    return str(chat.tokenizer.decode(ids, skip_special_tokens=False))


def labelled(games: Dataset) -> Dataset:
    """Kept games as SFTTrainer takes them: `input_ids` and `labels`, -100 on every token the policy did not sample."""
    pairs = zip(games["ids"], games["mask"], strict=True)
    labels = [[i if m else -100 for i, m in zip(ids, mask, strict=True)] for ids, mask in pairs]
    return Dataset.from_dict({"input_ids": list(games["ids"]), "labels": labels})
