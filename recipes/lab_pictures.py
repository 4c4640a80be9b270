"""The pictures of recipes.lab, each drawn from the numbers that its command prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10.5, "font.size": 9.5})
BLUE, ORANGE, GREEN, GREY, INK = "#2f6db3", "#d97b29", "#3d8f5a", "#b4bac2", "#333333"

Numbers = dict[str, Any]


def draw_bandit(numbers: Numbers, path: Path) -> None:
    """Left: the two values a sample can take. Right, below each other: running averages of eight runs."""
    figure, axes = plt.subplots(2, 2, figsize=(10, 5.6), width_ratios=(1, 1.7), sharex="col", layout="constrained")
    truth = numbers["true gradient"]
    for row, (name, colour) in enumerate(zip(list(numbers)[1:], (ORANGE, BLUE), strict=True)):
        case, (left, right) = numbers[name], axes[row]
        left.bar([case["A"], case["B"]], [0.25, 0.75], width=0.03, color=colour)
        for arm, chance, side in (("A", 0.25, case["A"]), ("B", 0.75, case["B"])):
            left.annotate(f"{arm}: {side:g}", (side, chance), (0, 3), textcoords="offset points", ha="center")
        left.axvline(truth, ymax=0.78, color=INK, ls="--", lw=1)
        left.axvspan(truth - case["std"], truth + case["std"], color=colour, alpha=0.15, lw=0)
        left.set(ylim=(0, 0.92), ylabel="probability", title=f"{name}: mean {case['mean']:.4f}, std {case['std']:.3f}")
        right.plot(np.arange(1, case["running"].shape[1] + 1), case["running"].T, color=colour, lw=0.9, alpha=0.8)
        right.axhline(truth, color=INK, ls="--", lw=1)
        right.set(ylim=(-0.05, 0.8), xscale="log", ylabel="average so far", title=f"{name}: 8 runs")
    axes[1, 0].set_xlabel("one sample's estimate (dashed: mean, band: ± std)")
    axes[1, 1].set_xlabel("samples")
    axes[0, 1].annotate(f"true gradient {truth:.4f}", (400, truth), (-2, 22), textcoords="offset points", ha="right")
    figure.suptitle("Two-armed bandit: same mean, a third of the spread")
    figure.savefig(path, dpi=140)
    plt.close(figure)


def draw_two_state(numbers: Numbers, path: Path) -> None:
    """The four weights, raw and centred."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for ax, key, title in zip(axes, ("rewards", "centred"), ("raw reward", "minus the state's mean"), strict=True):
        weights = numbers[key].ravel()
        bars = ax.bar(range(4), weights, color=[BLUE, ORANGE] * 2, width=0.65)
        ax.bar_label(bars, [f"{weight:g}" if key == "rewards" else f"{weight:+g}" for weight in weights], padding=3)
        ax.axhline(0, color=INK, lw=0.8)
        ax.axvline(1.5, color=INK, lw=0.5, ls=":")
        ax.set_xticks(range(4), ["state 1\nA (better)", "state 1\nB", "state 2\nA", "state 2\nB (better)"])
        ax.set(title=f"{title}: std {weights.std(ddof=1):.2f}", ylabel="weight on log π")
        ax.margins(y=0.15)
    figure.suptitle("Two states: raw, the worse action of state 1 (9) outweighs the better one of state 2 (2)")
    figure.savefig(path, dpi=140)
    plt.close(figure)


def draw_sort(numbers: Numbers, path: Path) -> None:
    """Learning curves, the tied group, the loophole's pay, and what training on it gives."""
    figure, ((curves, tied), (pay, loop)) = plt.subplots(2, 2, figsize=(11, 7.4), layout="constrained")
    for (method, runs), colour in zip(numbers["success by method"].items(), (ORANGE, BLUE, GREEN), strict=True):
        _band(curves, runs[:, :, 0], colour, method)
    curves.set(
        title="reward: right positions; one step size for all",
        xlabel="update",
        ylabel="success rate (exact)",
        ylim=(0, 1.02),
    )
    curves.legend(loc="lower right", frameon=False)
    bars = tied.bar(
        list(numbers["update of a tied group"]),
        list(numbers["update of a tied group"].values()),
        color=(ORANGE, BLUE, GREEN),
        width=0.55,
    )
    tied.bar_label(bars, fmt="%.3g", padding=3)
    tied.set(title="a group whose rewards all tie", ylabel="size of the update")
    tied.margins(y=0.15)
    answers = numbers["answers to 2 1 2 0"]
    for shift, reward, colour in ((-0.19, "dense", ORANGE), (0.19, "dense_closed", BLUE)):
        points = list(numbers[f"points, {reward}"].values())
        pay.bar_label(pay.bar(np.arange(3) + shift, points, 0.36, color=colour, label=reward), padding=2)
    pay.set_xticks(range(3), [f"{name}\n{' '.join(map(str, answer))}" for name, answer in answers.items()])
    pay.set(title="the loophole: what answers to 2 1 2 0 earn", ylabel="points of 7", ylim=(0, 9.4))
    pay.legend(loc="upper right", frameon=False, ncols=2)
    for (reward, runs), colour in zip(numbers["success by reward"].items(), (ORANGE, BLUE), strict=True):
        _band(loop, runs[:, :, 0], colour, f"{reward}: success")
        loop.plot(runs[:, :, 1].mean(axis=0), color=colour, lw=1, ls="--", label=f"{reward}: reward (share)")
    loop.set(title="trained on the dense reward, open and closed", xlabel="update", ylim=(0, 1.02))
    loop.legend(loc="lower right", frameon=False)
    figure.suptitle("Sorting three numbers of 0..3 with independent positions: 5 seeds, mean and range")
    figure.savefig(path, dpi=140)
    plt.close(figure)


def draw_number_search(numbers: Numbers, path: Path) -> None:
    """Q* of the sixteen openings, and Q, V, A after 8, 12."""
    figure, (opening, later) = plt.subplots(1, 2, figsize=(10, 4), width_ratios=(2.2, 1), layout="constrained")
    q, best = numbers["Q* of each opening"], numbers["optimal openings"]
    opening.bar(list(q), list(q.values()), color=[BLUE if guess in best else GREY for guess in q], width=0.7)
    opening.axhline(numbers["V* at the start"], color=INK, lw=0.8, ls="--")
    opening.annotate("V* = 0.9375", (1, numbers["V* at the start"]), (0, 4), textcoords="offset points")
    opening.set(title="success rate after each opening", xlabel="first guess", xticks=list(q), ylim=(0, 1.05))
    q, advantage = numbers["Q after 8, 12"], numbers["A there"]
    bars = later.bar([str(guess) for guess in q], list(q.values()), color=[GREY, BLUE, GREY], width=0.6)
    later.bar_label(bars, [f"A = {advantage[guess]:+.3f}" for guess in q], padding=3)
    later.axhline(numbers["V of the uniform policy there"], color=INK, lw=0.8, ls="--")
    later.annotate("V = 7/9", (-0.3, 7 / 9), (0, 4), textcoords="offset points")
    later.set(title="after 8 → higher, 12 → lower", xlabel="third guess", ylim=(0, 1.15))
    figure.suptitle("Number Search: exact values")
    figure.savefig(path, dpi=140)
    plt.close(figure)


def _band(ax: Any, runs: np.ndarray, colour: str, label: str) -> None:
    ax.plot(runs.mean(axis=0), color=colour, lw=1.8, label=label)
    ax.fill_between(range(runs.shape[1]), runs.min(axis=0), runs.max(axis=0), color=colour, alpha=0.18, lw=0)


PICTURES = {
    "bandit": draw_bandit,
    "two_state": draw_two_state,
    "sort": draw_sort,
    "number_search": draw_number_search,
}
