"""A softmax policy over histories: one row of logits for each context, in the same rollout as a language model.

For `recipes.estimators --policy tabular`. It shares the rollout, the weights and the tree with the language model; the
loss, a weighted sum of log-probabilities, is written out here, since TRL's needs a language model.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoTokenizer

from agent_envs.tasks import Task
from recipes.estimators import BASELINE, GROUP, GUESSES, LIMITS, NUMBERS, TASKS, number_tokens
from trl_plugins.chat import Chat
from trl_plugins.exact import exact_return, walk
from trl_plugins.policies import TransformersPolicy
from trl_plugins.rollout import EnvPool, Trajectory, collect_rollouts
from trl_plugins.tiny_base import tiny_base_path
from trl_plugins.trainer import derive_seed, turn_keys
from trl_plugins.weights import (
    NORMALISERS,
    next_running_mean,
    rewards_to_go,
    shared_turn_weights,
    trajectory_weights,
    turn_weights,
)

ROWS = 16  # more than the contexts there are (7)


class TabularModel(torch.nn.Module):
    """Answers like a causal language model, from a table (ROWS, NUMBERS) of logits: the whole context picks the row."""

    def __init__(self, tokens: Sequence[int], vocabulary: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(derive_seed(seed))
        self.table = torch.nn.Parameter(torch.randn(ROWS, NUMBERS, generator=generator, dtype=torch.double))
        self.tokens, self.vocabulary = list(tokens), vocabulary
        self.row_of: dict[tuple[int, ...], int] = {}

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: Any) -> Any:
        contexts = [tuple(i[m.bool()].tolist()) for i, m in zip(input_ids, attention_mask, strict=True)]
        rows = [self.row_of.setdefault(context, len(self.row_of)) for context in contexts]
        logits = self.table.new_full((len(rows), self.vocabulary), -1e4)
        logits[:, self.tokens] = self.table[rows]
        return SimpleNamespace(logits=logits[:, None].expand(-1, input_ids.shape[1], -1))


class TabularLearner:
    """See `recipes.estimators.Learner`."""

    def __init__(self, seed: int) -> None:
        tokenizer: Any = AutoTokenizer.from_pretrained(tiny_base_path())
        self.chat = Chat(tokenizer, [tokenizer.eos_token_id])
        self.model = TabularModel(number_tokens(tokenizer), len(tokenizer), seed)
        self.pool = EnvPool()
        self.running_mean: float | None = None
        self.advantage, self.credit = "reinforce", "trajectory"
        self.told = torch.zeros(
            ROWS, 2
        )  # of each history: the sum of its rewards-to-go in earlier batches, their count

    def true_gradient(self) -> tuple[float, torch.Tensor]:
        tree = walk(self.model, self.chat, TASKS, self.pool.lend(), **LIMITS)
        self.model.zero_grad()
        value = exact_return(self.model, tree)
        value.backward()
        return value.item(), self._flat()

    def _flat(self) -> torch.Tensor:
        assert self.model.table.grad is not None
        return self.model.table.grad.flatten().clone()

    def play(self, tasks: Sequence[Task], seed: int) -> list[Trajectory]:
        policy = TransformersPolicy(self.model, list(self.chat.end_ids), 1, carry_cache=False)
        return collect_rollouts(tasks, self.pool.lend(), policy, self.chat, max_turns=GUESSES, seed=seed)

    def select(self, advantage: str, credit: str) -> None:
        self.advantage, self.credit = advantage, credit

    def weights(self, trajectories: list[Trajectory], returns: torch.Tensor) -> torch.Tensor:
        baseline = BASELINE
        if self.advantage == "running_mean":
            baseline = 0.0 if self.running_mean is None else self.running_mean
            self.running_mean = next_running_mean(self.running_mean, returns, 0.9)
        if self.credit == "trajectory":
            return trajectory_weights(self.advantage, returns, GROUP, baseline=baseline)
        rewards, oracle = torch.zeros(2, len(trajectories), GUESSES)
        rows = torch.full((len(trajectories), GUESSES), -1)
        for i, trajectory in enumerate(trajectories):
            for t, turn in enumerate(trajectory.turns):
                rewards[i, t], oracle[i, t] = turn.reward, turn.state_value
                rows[i, t] = self.model.row_of[tuple(self._context(trajectory, t))]
        if self.credit == "turn_group":
            names = [name for t in trajectories for name in turn_keys(t, "history")]
            numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
            keys = torch.full_like(rows, -1)
            keys[rows >= 0] = torch.tensor([numbers[name] for name in names])
            return shared_turn_weights(self.advantage, rewards, keys)
        values = oracle if self.advantage == "oracle" else None
        if self.advantage == "value":  # the mean so far, history by history
            values = (self.told[:, 0] / self.told[:, 1].clamp(min=1))[rows] * (rows >= 0)
            played = rows >= 0
            for column, amounts in enumerate((rewards_to_go(rewards)[played], torch.ones(int(played.sum())))):
                self.told[:, column].index_add_(0, rows[played], amounts)
        lengths = torch.tensor([len(t.turns) for t in trajectories])
        return turn_weights(self.advantage, rewards, lengths, GROUP, baseline=baseline, values=values)

    @staticmethod
    def _context(trajectory: Trajectory, turn: int) -> list[int]:
        context = list(trajectory.prompt_ids)
        for earlier in trajectory.turns[:turn]:
            context += [*earlier.action_ids, *earlier.reply_ids]
        return context

    def gradient(self, trajectories: Sequence[Trajectory], weights: torch.Tensor) -> torch.Tensor:
        by_turn = weights[:, None].expand(-1, GUESSES) if weights.dim() == 1 else weights
        total = self.model.table.new_zeros(())
        for trajectory, row in zip(trajectories, by_turn.double(), strict=True):
            divisor = {"none": 1, "constant": GUESSES, "own_length": len(trajectory.turns)}[NORMALISERS[self.advantage]]
            for t, (turn, weight) in enumerate(zip(trajectory.turns, row, strict=False)):
                logps = self.model.table[self.model.row_of[tuple(self._context(trajectory, t))]].log_softmax(-1)
                total = total + weight / divisor * logps[self.model.tokens.index(turn.action_ids[0])]
        self.model.zero_grad()
        (total / len(trajectories)).backward()
        return self._flat()
