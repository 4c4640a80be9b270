"""Returns to weights: every method is the weight it puts on the log-probability of the tokens the policy sampled.

The policy gradient is the SFT gradient times a weight. Each function here takes the returns of N trajectories, groups
in rows of `group_size`, and gives N weights; a trajectory whose environment failed has return NaN, counts in no
statistic and gets weight 0. What the loss divides by (a token constant, the response's own length, nothing) is the
method's second half and stands in `NORMALISERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch

Advantage = Literal[
    "dr_grpo",
    "grpo",
    "group_mean",
    "rloo",
    "batch_norm",
    "reinforce",
    "constant",
    "running_mean",
    "value",
    "oracle",
    "rest",
]
Normaliser = Literal["constant", "own_length", "none"]
StdKind = Literal["sample", "population"]

NORMALISERS: dict[str, Normaliser] = {
    "dr_grpo": "constant",
    "grpo": "own_length",
    "group_mean": "none",
    "rloo": "none",
    "batch_norm": "none",
    "reinforce": "none",
    "constant": "none",
    "running_mean": "none",
    "value": "none",
    "oracle": "none",
    "rest": "none",
}
"""What a trajectory's summed loss is divided by: the constant C = max_turns x max_turn_tokens, its own number of
sampled tokens, or nothing."""

SINGLE = ("reinforce", "constant", "running_mean", "value", "oracle", "rest", "batch_norm")
"""Methods that compare with nothing inside a group, so that one trajectory a task is enough."""

PER_TURN = ("value", "oracle")
"""Methods whose baseline is a value of the turn's history: they give credit turn by turn."""

CREDITS: dict[str, str] = {
    "trajectory": "all tokens of a trajectory share the weight of its return",
    "reward_to_go": "each turn has the weight of the rewards from it on (discounted by `discount`), compared with the "
    "same turn of the group's other members",
    "turn_group": "each turn has the weight of the rewards from it on, compared with every turn of the batch that was "
    "taken in the same history (`turn_group_by: history`) or, in the same task, in the same state "
    "(`turn_group_by: state`); `gigpo_omega` mixes in the trajectory's weight (GiGPO, Feng et al. 2025, eq. 8)",
}
"""Config value -> what a turn's tokens are weighted by."""


def reinforce(returns: torch.Tensor) -> torch.Tensor:
    """w = R (Williams 1992). returns (N,) -> (N,)."""
    return returns.nan_to_num(0.0)


def constant(returns: torch.Tensor, baseline: float) -> torch.Tensor:
    """w = R - b for a fixed b (Williams 1992). returns (N,) -> (N,)."""
    return (returns - baseline).nan_to_num(0.0)


def running_mean(returns: torch.Tensor, baseline: float) -> torch.Tensor:
    """w = R - exponential average of the returns of earlier batches (Williams 1992). returns (N,) -> (N,).

    `baseline` is the average before this batch (`next_running_mean` moves it on): one that held this batch's returns
    would depend on the actions it is a baseline for.
    """
    return constant(returns, baseline)


def next_running_mean(average: float | None, returns: torch.Tensor, decay: float) -> float | None:
    """The average after a batch: decay x before + (1 - decay) x the batch's mean return; the first batch starts it."""
    if bool(returns.isnan().all()):
        return average
    mean = returns.nanmean().item()
    return mean if average is None else decay * average + (1 - decay) * mean


def rest(returns: torch.Tensor, threshold: float) -> torch.Tensor:
    """w = 1 where R >= threshold, else 0: the filter of ReST (Gulcehre et al. 2023, section 3), used online.

    returns (N,) -> (N,).
    """
    return (returns >= threshold).to(returns.dtype)


def oracle(to_go: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """w = G_t - V*(h_t) for turn t: reward-to-go less the value of optimal play from there, told by the environment.

    No learner outside a classroom has V*; it is a yardstick. to_go, values (N, T) -> (N, T).
    """
    return to_go - values


def value(rewards: torch.Tensor, values: torch.Tensor, discount: float = 1.0, gae_lambda: float = 1.0) -> torch.Tensor:
    """w = sum over l of (discount x lambda)^l d_(t+l) for turn t, where d_t = r_t + discount V(h_(t+1)) - V(h_t) with a
    learned V (GAE over turns, Schulman et al. 2016, eq. 16).

    With lambda 1 it is reward-to-go - V(h_t). rewards, values (N, T), 0 after an episode's end -> (N, T).
    """
    after = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=1)
    return rewards_to_go(rewards + discount * after - values, discount * gae_lambda)


def batch_norm(returns: torch.Tensor, eps: float = 1e-4) -> torch.Tensor:
    """w = (R - mean) / (std + eps) over the whole batch, tasks mixed (GEM's return batch normalisation, 2025).

    returns (N,) -> (N,); the standard deviation is the sample's.
    """
    return grpo(returns, len(returns), eps=eps)


def rloo(returns: torch.Tensor, group_size: int) -> torch.Tensor:
    """w = R - mean of the group's other members (RLOO, Kool et al. 2019, Ahmadian et al. 2024). returns (N,) -> (N,).

    That is (R - group mean) x n / (n - 1) for n members; a lone one has nothing to compare with and gets 0.
    """
    count = (~_groups(returns, group_size).isnan()).sum(dim=1, keepdim=True)
    centred = group_mean(returns, group_size).view(-1, group_size)
    return (centred * count / (count - 1).clamp(min=1)).flatten()


def group_mean(returns: torch.Tensor, group_size: int) -> torch.Tensor:
    """w = R - mean of the group (the baseline of GRPO, Shao et al. 2024, without its divisions). returns (N,) -> (N,).

    A group whose returns are all equal gets exactly 0.
    """
    groups = _groups(returns, group_size)
    centred = groups - groups.nanmean(dim=1, keepdim=True)
    return centred.masked_fill(_tied(groups), 0.0).nan_to_num(0.0).flatten()


def dr_grpo(returns: torch.Tensor, group_size: int) -> torch.Tensor:
    """w = R - mean of the group; the loss then divides by one constant for all (Dr. GRPO, Liu et al. 2025, eq. 1)."""
    return group_mean(returns, group_size)


def grpo(returns: torch.Tensor, group_size: int, std: str = "sample", eps: float = 1e-4) -> torch.Tensor:
    """w = (R - mean) / (std + eps) within the group (GRPO, Shao et al. 2024, section 4.1). returns (N,) -> (N,).

    `std="sample"` divides squares by n - 1 as TRL does, `"population"` by n; `eps` is TRL's 1e-4.
    """
    groups = _groups(returns, group_size)
    valid = ~groups.isnan()
    centred = group_mean(returns, group_size).view_as(groups)
    count = valid.sum(dim=1, keepdim=True) - (1 if std == "sample" else 0)
    deviation = (centred.square().sum(dim=1, keepdim=True) / count.clamp(min=1)).sqrt()
    return (centred / (deviation + eps)).flatten()


def trajectory_weights(
    advantage: str, returns: torch.Tensor, group_size: int, std: str = "sample", baseline: float = 0.0
) -> torch.Tensor:
    """The weights (N,) of the method named `advantage`.

    `baseline` is b of "constant", the average so far of "running_mean", and the threshold of "rest".

    Raises:
        ValueError: an unknown method, or returns that do not fill whole groups.
    """
    methods: dict[str, Callable[[], torch.Tensor]] = {
        "reinforce": lambda: reinforce(returns),
        "constant": lambda: constant(returns, baseline),
        "running_mean": lambda: running_mean(returns, baseline),
        "rest": lambda: rest(returns, baseline),
        "batch_norm": lambda: batch_norm(returns),
        "rloo": lambda: rloo(returns, group_size),
        "group_mean": lambda: group_mean(returns, group_size),
        "dr_grpo": lambda: dr_grpo(returns, group_size),
        "grpo": lambda: grpo(returns, group_size, std),
    }
    if advantage in PER_TURN:
        raise ValueError(f"advantage={advantage!r} gives credit turn by turn; use credit='reward_to_go'")
    if advantage not in methods:
        raise ValueError(f"advantage={advantage!r} is unknown; use one of {', '.join(get_args(Advantage))}")
    return methods[advantage]()


def rewards_to_go(rewards: torch.Tensor, discount: float = 1.0) -> torch.Tensor:
    """G_t = r_t + discount G_(t+1): what comes from a turn on. rewards (N, T), 0 after an episode's end -> (N, T).

    With one reward at the end and no discount every turn's is the return (Sutton and Barto 2018, eq. 3.9).
    """
    to_go = rewards.clone()
    for t in range(rewards.shape[1] - 2, -1, -1):
        to_go[:, t] += discount * to_go[:, t + 1]
    return to_go


def turn_weights(
    advantage: str,
    rewards: torch.Tensor,
    lengths: torch.Tensor,
    group_size: int,
    discount: float = 1.0,
    std: str = "sample",
    baseline: float = 0.0,
    values: torch.Tensor | None = None,
    gae_lambda: float = 1.0,
) -> torch.Tensor:
    """The method named `advantage` on rewards-to-go, turn by turn: a group's turn t is one group of its own.

    A member's baseline at turn t is the mean reward-to-go of the group's members that are still playing at turn t, so
    rewards before the turn drop out of both. A turn that one member alone is playing has nothing to compare with.

    Args:
        rewards: (N, T), NaN throughout where the environment failed, 0 after an episode's end.
        lengths: (N,) turns played.
        values: (N, T), what "value" and "oracle" compare with, 0 after an episode's end.

    Returns:
        (N, T), 0 after an episode's end.
    """
    played = playing(lengths, rewards.shape[1])
    if advantage in PER_TURN:
        if values is None:
            raise ValueError(f"advantage={advantage!r} needs the values of the turns' histories")
        weights = (
            value(rewards, values, discount, gae_lambda)
            if advantage == "value"
            else oracle(rewards_to_go(rewards, discount), values)
        )
        return weights.masked_fill(~played, 0.0).nan_to_num(0.0)
    by_turn = rewards_to_go(rewards, discount).masked_fill(~played, torch.nan)
    columns = [trajectory_weights(advantage, by_turn[:, t], group_size, std, baseline) for t in range(rewards.shape[1])]
    return torch.stack(columns, dim=1)


def shared_turn_weights(
    advantage: str, rewards: torch.Tensor, keys: torch.Tensor, discount: float = 1.0, std: str = "sample"
) -> torch.Tensor:
    """The method named `advantage` on rewards-to-go, where turns with the same key are one group.

    A turn whose key no other turn has gets 0: there is nothing to compare it with.

    Args:
        rewards: (N, T), NaN throughout where the environment failed, 0 after an episode's end.
        keys: (N, T) whole numbers, -1 after an episode's end.

    Returns:
        (N, T), 0 after an episode's end.
    """
    to_go = rewards_to_go(rewards, discount)
    weights = torch.zeros_like(to_go)
    counts = (keys >= 0) & ~to_go.isnan()
    found, sizes = keys[counts].unique(return_counts=True)
    for key in found[sizes > 1].tolist():
        members = counts & (keys == key)
        returns = to_go[members]
        weights[members] = trajectory_weights(advantage, returns, len(returns), std)
    return weights


def playing(lengths: torch.Tensor, turns: int) -> torch.Tensor:
    """(N, turns) bool: which turns were played, from how many each trajectory has (N,)."""
    return torch.arange(turns, device=lengths.device) < lengths[:, None]


def tied_groups(returns: torch.Tensor, group_size: int) -> torch.Tensor:
    """(groups,) bool: those whose returns are all equal (NaN aside), which give no gradient at all."""
    return _tied(_groups(returns, group_size)).squeeze(1)


def zero_variance_share(returns: torch.Tensor, group_size: int) -> float:
    """Share of groups that are tied."""
    return tied_groups(returns, group_size).float().mean().item()


def _groups(returns: torch.Tensor, group_size: int) -> torch.Tensor:
    if returns.numel() % group_size:
        raise ValueError(f"{returns.numel()} returns do not fill groups of {group_size}")
    return returns.view(-1, group_size)


def _tied(groups: torch.Tensor) -> torch.Tensor:
    """(groups, 1) bool: all returns that count are equal (compared as they are: a mean would leave a residue)."""
    low = groups.nan_to_num(torch.inf).amin(dim=1, keepdim=True)
    high = groups.nan_to_num(-torch.inf).amax(dim=1, keepdim=True)
    return low >= high
