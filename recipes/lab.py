"""The lecture's worked examples: `python -m recipes.lab bandit|two_state|sort|number_search|all`.

Everything here is small enough to be summed exactly, so each sampled estimate is shown beside the truth. Only numpy is
needed for the numbers; pictures (lab_pictures.py, matplotlib) go to runs/lab/, unless `--no-pictures`. Each
`*_numbers` function gives what its command prints.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import agent_envs  # noqa: F401 (registers the ids)
from agent_envs.number_search import optimal_guesses, q_value, value
from agent_envs.sorting import POINTS, Reward, loophole, max_points

Numbers = dict[str, Any]

# --- Weights ---------------------------------------------------------------------------------------------------------


def raw(rewards: np.ndarray) -> np.ndarray:
    """REINFORCE: the reward itself. rewards (..., G), groups in the last axis."""
    return np.asarray(rewards, dtype=float)


def centred(rewards: np.ndarray) -> np.ndarray:
    """The reward minus its group's mean."""
    return rewards - np.mean(rewards, axis=-1, keepdims=True)


def normalised(rewards: np.ndarray) -> np.ndarray:
    """Centred, and divided by the group's population standard deviation; a tied group gets 0, not 0/0."""
    spread = np.std(rewards, axis=-1, keepdims=True)
    return centred(rewards) / np.where(spread == 0, 1.0, spread)


WEIGHTS = {"raw": raw, "centred": centred, "normalised": normalised}

# --- Two-armed bandit ------------------------------------------------------------------------------------------------


def bandit_numbers(p: float = 0.25, baseline: float = 0.5, runs: int = 8, samples: int = 400) -> Numbers:
    """The single-sample gradient of J = p(A) * 1 in the logit: its values, mean and spread, with and without baseline.

    For p = sigmoid(theta), d log p(A) / d theta = 1 - p and d log p(B) / d theta = -p.
    """
    rewards = np.array(_base_env("TwoArmedBandit-v0").rewards[0])
    chances, scores = np.array([p, 1 - p]), np.array([1 - p, -p])
    numbers: Numbers = {"true gradient": float(chances @ (rewards * scores))}
    for name, b in (("no baseline", 0.0), (f"baseline {baseline:g}", baseline)):
        estimates = (rewards - b) * scores + 0.0  # of A, of B ("+ 0.0" makes a -0 a 0)
        mean = float(chances @ estimates)
        drawn = estimates[np.random.default_rng(0).choice(2, size=(runs, samples), p=chances)]
        numbers[name] = {
            "A": float(estimates[0]),
            "B": float(estimates[1]),
            "mean": mean,
            "std": float(np.sqrt(chances @ (estimates - mean) ** 2)),
            "running": np.cumsum(drawn, axis=1) / np.arange(1, samples + 1),
        }
    return numbers


# --- Two states ------------------------------------------------------------------------------------------------------


def two_state_numbers() -> Numbers:
    """The four rewards of the uniform policy, raw and minus their state's mean."""
    rewards = np.array(_base_env("TwoState-v0").rewards)
    less = rewards - rewards.mean(axis=1, keepdims=True)
    return {
        "rewards": rewards,
        "state means": rewards.mean(axis=1),
        "centred": less,
        "std of the rewards": float(rewards.std(ddof=1)),
        "std of the centred rewards": float(less.std(ddof=1)),
        "raw prefers 9 in state 1 to 2 in state 2": bool(rewards[0, 1] > rewards[1, 1]),
        "centred prefers 9 in state 1 to 2 in state 2": bool(less[0, 1] > less[1, 1]),
    }


# --- Sorting ---------------------------------------------------------------------------------------------------------


class SortPolicy:
    """A softmax over the numbers for each position, independent of the others (non-autoregressive).

    Its input for numbers x is, for each v, which of the counts 0..n the numbers <= v have; its logits are linear in it.
    All inputs and answers are enumerated, so J and the success rate are exact.
    """

    def __init__(self, n: int = 3, high: int = 3) -> None:
        self.n, self.size = n, high + 1
        self.lists = np.array(list(product(range(self.size), repeat=n)))  # (X, n): every input, and every answer
        counts = (self.lists[:, :, None] <= np.arange(self.size)).sum(axis=1)  # (X, size)
        self.inputs = np.eye(n + 1)[counts].reshape(len(self.lists), -1)  # (X, F)
        self.logit_weights = np.zeros((n, self.size, self.inputs.shape[1]))

    def chances(self) -> np.ndarray:
        """p(number at position), for every input: (X, n, size)."""
        logits = np.einsum("nvf,xf->xnv", self.logit_weights, self.inputs)
        odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return odds / odds.sum(axis=-1, keepdims=True)

    def points(self, reward: Reward) -> np.ndarray:
        """Of every answer to every input, as a share of the right answer's: (X, X)."""
        lists = [tuple(numbers) for numbers in self.lists.tolist()]
        return np.array([[POINTS[reward](x, y) for y in lists] for x in lists]) / max_points(reward, self.n)

    def expected(self, table: np.ndarray) -> float:
        """The exact expectation of a table (X, X) over uniform inputs and this policy's answers."""
        chances, answers = self.chances(), np.ones_like(table)
        for position in range(self.n):
            answers *= chances[:, position][:, self.lists[:, position]]
        return float((answers * table).sum(axis=1).mean())

    def update(self, x: np.ndarray, answers: np.ndarray, weights: np.ndarray, rate: float) -> float:
        """One step of `rate` up the mean of weight * log π(answer); returns the step's norm.

        x: indices of the inputs (B,); answers: numbers (B, G, n); weights (B, G).
        """
        scores = np.eye(self.size)[answers] - self.chances()[x][:, None]  # (B, G, n, size): d log π / d logits
        step = rate * np.einsum("bg,bgnv,bf->nvf", weights, scores, self.inputs[x]) / weights.size
        self.logit_weights += step
        return float(np.linalg.norm(step))


def train_sort(reward: Reward, method: str, seed: int, steps: int = 400, rate: float = 1.0) -> np.ndarray:
    """Train on 8 inputs with 8 answers each a step; returns (steps + 1, 2): exact success rate, exact mean reward."""
    policy, rng = SortPolicy(), np.random.default_rng(seed)
    paid, right = policy.points(reward), policy.points("exact")
    index = policy.size ** np.arange(policy.n)[::-1]  # of an answer among policy.lists
    curve = [(policy.expected(right), policy.expected(paid))]
    for _ in range(steps):
        x = rng.integers(len(policy.lists), size=8)
        cumulated = policy.chances()[x].cumsum(axis=-1)[:, None]  # (8, 1, n, size)
        answers = (rng.random((8, 8, policy.n, 1)) > cumulated[..., :-1]).sum(axis=-1)
        rewards = paid[x[:, None], answers @ index]
        policy.update(x, answers, WEIGHTS[method](rewards), rate)
        curve.append((policy.expected(right), policy.expected(paid)))
    return np.array(curve)


def tied_updates() -> dict[str, float]:
    """How far each method moves the policy on a group of four answers that all earn the same."""
    moved, x = {}, np.array([27])  # the input 1 2 3
    answers = np.array([[[1, 0, 0], [0, 2, 0], [0, 0, 3], [3, 2, 1]]])  # one right position each
    for method, weigh in WEIGHTS.items():
        moved[method] = SortPolicy().update(x, answers, weigh(np.array([[1 / 3] * 4])), rate=1.0)
    return moved


def sort_numbers(seeds: int = 5, steps: int = 400) -> Numbers:
    """Weights of a group, a tied group's update, the loophole's pay, and learning curves."""
    example = (2, 1, 2, 0)
    shown = {"right answer": tuple(sorted(example)), "repetition": loophole(example), "constant": (2, 2, 2, 2)}
    curves = {method: np.array([train_sort("positions", method, s, steps) for s in range(seeds)]) for method in WEIGHTS}
    dense: dict[Reward, np.ndarray] = {
        reward: np.array([train_sort(reward, "centred", s, steps) for s in range(seeds)])
        for reward in ("dense", "dense_closed")
    }
    return {
        "weights of rewards 1 1 0 0": {name: weigh(np.array([1.0, 1, 0, 0])) for name, weigh in WEIGHTS.items()},
        "update of a tied group": tied_updates(),
        "answers to 2 1 2 0": shown,
        "points, dense": {name: POINTS["dense"](example, answer) for name, answer in shown.items()},
        "points, dense_closed": {name: POINTS["dense_closed"](example, answer) for name, answer in shown.items()},
        "success by method": curves,
        "success by reward": dense,
    }


# --- Number Search ---------------------------------------------------------------------------------------------------

TRAJECTORIES = {"τ1": (8, 12, 10, 11), "τ2": (4, 12, 10, 11), "τ3": (16, 8, 12, 10), "τ4": (1, 2, 3, 4)}
PROBABILITIES = (0.30, 0.20, 0.25, 0.25)


def number_search_numbers() -> Numbers:
    """The four reference trajectories played for target 11, their J, and the advantages after 8, 12."""
    env, returns = gymnasium.make("NumberSearch-v0"), {}
    for name, guesses in TRAJECTORIES.items():
        env.reset(options={"target": 11})
        rewards = [float(env.step(str(guess))[1]) for guess in guesses]
        returns[name] = sum(rewards)
    q = {guess: q_value(9, 11, guess, k=2) for guess in (9, 10, 11)}
    v = sum(q.values()) / 3
    return {
        "returns": returns,
        "J": float(np.dot(PROBABILITIES, list(returns.values()))),
        "V* at the start": value(16, 4),
        "Q* of each opening": {guess: q_value(1, 16, guess, k=4) for guess in range(1, 17)},
        "optimal openings": optimal_guesses(1, 16, 4),
        "Q after 8, 12": q,
        "V of the uniform policy there": v,
        "A there": {guess: q[guess] - v for guess in q},
    }


# --- Command ---------------------------------------------------------------------------------------------------------


def _base_env(id: str) -> Any:
    return gymnasium.make(id).unwrapped


def _show(name: str, number: Any) -> str:
    if isinstance(number, dict):
        return f"{name}: " + ", ".join(_show(str(key), entry) for key, entry in number.items() if key != "running")
    if isinstance(number, np.ndarray) and number.ndim == 3:  # seeds, steps, (success, reward)
        return f"{name} {number[:, -1, 0].mean():.3f} (reward {number[:, -1, 1].mean():.3f})"
    if isinstance(number, np.ndarray):
        return f"{name} " + np.array2string(number, precision=4, separator=" ").replace("\n", "")
    if isinstance(number, float):
        return f"{name} {number:.{3 if 'std' in name else 4}g}"
    return f"{name} {number}"


EXAMPLES: dict[str, Callable[[], Numbers]] = {
    "bandit": bandit_numbers,
    "two_state": two_state_numbers,
    "sort": sort_numbers,
    "number_search": number_search_numbers,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Print an example's numbers and save its picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("example", choices=[*EXAMPLES, "all"])
    parser.add_argument("--out", type=Path, default=Path("runs/lab"), help="folder for the pictures")
    parser.add_argument("--no-pictures", action="store_true", help="numbers only; matplotlib is not needed")
    args = parser.parse_args(argv)
    for name in EXAMPLES if args.example == "all" else [args.example]:
        numbers = EXAMPLES[name]()
        print(f"# {name}")
        for key, number in numbers.items():
            print(_show(key, number))
        if not args.no_pictures:
            from recipes import lab_pictures  # only here: the numbers need no matplotlib

            args.out.mkdir(parents=True, exist_ok=True)
            lab_pictures.PICTURES[name](numbers, args.out / f"{name}.png")
            print(f"picture: {args.out / f'{name}.png'}")


if __name__ == "__main__":
    main()
