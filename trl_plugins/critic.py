"""The learned value baseline: V(h) read off the policy's own backbone by a small head with an optimiser of its own.

The backbone is passed over once more without gradient, so the head never moves the policy. A batch's weights come from
the head as it was before it learned from that batch: a baseline that had seen the batch's returns would depend on the
actions it is a baseline for, and bias the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from trl_plugins.rollout import Trajectory

HIDDEN = 128
MAX_TOKENS = 16_384  # of one backbone pass, padding included


class Critic:
    """V over histories.

    Args:
        width: of the backbone's hidden states.
        learning_rate: of the head (Adam). epochs: passes over each batch.
        seed: of the head's first weights; every process must use the same.
    """

    def __init__(self, width: int, learning_rate: float, epochs: int, seed: int, device: Any = "cpu") -> None:
        generator = torch.Generator().manual_seed(seed)
        first, last = nn.Linear(width, HIDDEN), nn.Linear(HIDDEN, 1)
        with torch.no_grad():
            first.weight.copy_(torch.randn(first.weight.shape, generator=generator) / width**0.5)
            for zeroed in (first.bias, last.weight, last.bias):
                zeroed.zero_()  # V starts at 0 everywhere: REINFORCE
        self.head = nn.Sequential(nn.LayerNorm(width, elementwise_affine=False), first, nn.Tanh(), last).to(device)
        self.optimizer = torch.optim.Adam(self.head.parameters(), lr=learning_rate)
        self.epochs = epochs

    def values(self, features: torch.Tensor) -> torch.Tensor:
        """(N, T, width) -> (N, T), without gradient."""
        with torch.no_grad():
            return self.head(features).squeeze(-1)

    def learn(self, features: torch.Tensor, targets: torch.Tensor, counts: torch.Tensor) -> float:
        """Move V towards `targets` (N, T) where `counts` (N, T bool); the mean squared error before that."""
        x, y = features[counts], targets[counts]
        if not len(y):
            return 0.0
        first_error = 0.0
        for epoch in range(self.epochs):
            loss = (self.head(x).squeeze(-1) - y).square().mean()
            first_error = loss.item() if epoch == 0 else first_error
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return first_error

    def state_dict(self) -> dict[str, Any]:
        return {"head": self.head.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])


@torch.no_grad()
def turn_features(model: Any, trajectories: Sequence[Trajectory], max_turns: int) -> torch.Tensor:
    """The last hidden state at the end of each history, where the policy is about to speak: (N, max_turns, width) in
    float32, 0 after an episode's end. The model's mode is left as it was."""
    width, device = model.config.get_text_config().hidden_size, next(model.parameters()).device
    features = torch.zeros(len(trajectories), max_turns, width, device=device)
    tokens = [t.prompt_ids + t.completion_ids for t in trajectories]
    rows = sorted((row for row, t in enumerate(trajectories) if t.turns), key=lambda row: len(tokens[row]))
    training = model.training
    model.eval()
    try:
        while rows:
            count = 1
            while count < len(rows) and len(tokens[rows[count]]) * (count + 1) <= MAX_TOKENS:
                count += 1
            part, rows = rows[:count], rows[count:]
            longest = len(tokens[part[-1]])
            # Padded at the right, where a causal model needs no mask.
            ids = torch.tensor([tokens[row] + [0] * (longest - len(tokens[row])) for row in part], device=device)
            output = model(input_ids=ids, output_hidden_states=True, use_cache=False, logits_to_keep=1)
            for states, row in zip(output.hidden_states[-1], part, strict=True):
                ends = _history_ends(trajectories[row])
                features[row, : len(ends)] = states[ends].float()
    finally:
        model.train(training)
    return features


def _history_ends(trajectory: Trajectory) -> list[int]:
    """The position of the last token before each turn's reply."""
    ends, at = [], len(trajectory.prompt_ids)
    for turn in trajectory.turns:
        ends.append(at - 1)
        at += len(turn.action_ids) + len(turn.reply_ids)
    return ends
