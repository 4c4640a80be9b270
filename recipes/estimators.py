"""Is the estimator right? Each method's gradient, through the real trainer, against the true gradient.

    python -m recipes.estimators                     (--episodes 400000 by default)
    python -m recipes.estimators --policy tabular    (a softmax policy over histories in place of the language model)

The task is Number Search over 1..4 with two guesses, the policy the embedded base model with a LoRA adapter, its head
restricted to the four numbers and its turns to one token, so that the true J and its gradient are finite sums over
every episode (trl_plugins/exact.py). Episodes are sampled by the trainer's own rollout and weighted by its own method.
The gradient of the trainer's own loss is linear in the weights, so it is computed once for each distinct episode and
turn and added up from there; for some batches the sum is checked against the trainer's gradient of the whole batch.

For each method: the mean estimate along the true gradient, relative to it (the scale known in advance divided out),
with a 95% interval; the cosine between the mean estimate and the truth; the variance of one batch's estimate as a
ratio to REINFORCE's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import numpy as np
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_envs.tasks import Task
from recipes.common import one_line_errors
from trl_plugins.config import MultiTurnGRPOConfig, loss_type_of
from trl_plugins.exact import exact_return, restrict_to, walk
from trl_plugins.rollout import Trajectory
from trl_plugins.tiny_base import tiny_base_path
from trl_plugins.trainer import MultiTurnGRPOTrainer, spread_over_tokens, tokens_for_trl
from trl_plugins.weights import NORMALISERS, PER_TURN, SINGLE

NUMBERS, GUESSES, GROUP = 4, 2, 16
BASELINE = 0.5  # of method constant, and the threshold of rest
LIMITS: dict[str, Any] = {"max_turns": GUESSES, "max_turn_tokens": 1, "epsilon": 0.0}
BATCH = 4 * NUMBERS * GROUP  # episodes: four groups of each task
TASKS = [Task("NumberSearch-v0", n, {"high": NUMBERS, "max_guesses": GUESSES, "target": n + 1}) for n in range(NUMBERS)]
CHECKED = 4  # batches whose gradient is also taken whole

SHRUNK = (GROUP - 1) / GROUP  # a mean that holds the member itself takes 1/G of the signal away
SCALES = {"group_mean": SHRUNK, "dr_grpo": SHRUNK / GUESSES, "grpo": SHRUNK}  # what an expectation is known to carry
METHODS = [
    *((method, "trajectory") for method in NORMALISERS if method not in PER_TURN),
    *((method, "reward_to_go") for method in NORMALISERS),
    *((method, "turn_group") for method in NORMALISERS if method not in SINGLE),
]
METHODS.sort(key=lambda of: of != ("reinforce", "trajectory"))  # the yardstick first, the others as they were


def known_bias(method: str, credit: str) -> str:
    """Why a method's direction is not the gradient's, "" where it is."""
    if method in ("grpo", "batch_norm"):
        return "divides by std and length" if method == "grpo" else "divides by std"
    if method in ("group_mean", "dr_grpo") and credit != "trajectory":
        return "its mean holds the turn itself, one of a number that varies"
    return ""


class Learner(Protocol):
    """What `measure` needs of a policy: its episodes, its weights, and the gradient of its loss."""

    @property
    def running_mean(self) -> float | None:
        """The average so far of method running_mean; it can be set."""
        ...

    @running_mean.setter
    def running_mean(self, value: float | None) -> None: ...

    def true_gradient(self) -> tuple[float, torch.Tensor]:
        """J and its gradient (P,), by enumerating every episode."""
        ...

    def play(self, tasks: Sequence[Task], seed: int) -> list[Trajectory]: ...

    def select(self, advantage: str, credit: str) -> None:
        """Switch the method."""
        ...

    def weights(self, trajectories: list[Trajectory], returns: torch.Tensor) -> torch.Tensor:
        """(N,), or (N, turns) where credit goes by turns."""
        ...

    def gradient(self, trajectories: Sequence[Trajectory], weights: torch.Tensor) -> torch.Tensor:
        """Minus the gradient (P,) of the loss on these episodes with these weights."""
        ...


class LanguageModelLearner:
    """The real trainer on the finite task: its rollout, its weights, its loss.

    Every adapter weight is moved off its start, so that all gradients are alive.
    """

    def __init__(self, folder: str, seed: int) -> None:
        path = tiny_base_path()
        tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModelForCausalLM.from_pretrained(path)
        restrict_to(model, number_tokens(tokenizer))
        args = MultiTurnGRPOConfig(
            folder,
            max_turns=GUESSES,
            max_turn_tokens=1,
            num_generations=GROUP,
            per_device_train_batch_size=BATCH,
            baseline=BASELINE,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            seed=seed,
            max_steps=1,
        )
        groups = TASKS * (BATCH // GROUP // NUMBERS)
        self.trainer = MultiTurnGRPOTrainer(model, args, groups, processing_class=tokenizer)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self._trained():
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
        self.trainer.current_gradient_accumulation_steps = 1  # Trainer.train() would set it

    def _trained(self) -> list[torch.nn.Parameter]:
        return [p for p in self.trainer.model.parameters() if p.requires_grad]

    def _flat(self) -> torch.Tensor:
        return torch.cat([p.grad.flatten() for p in self._trained() if p.grad is not None]).double()

    @property
    def running_mean(self) -> float | None:
        return self.trainer.running_mean

    @running_mean.setter
    def running_mean(self, value: float | None) -> None:
        self.trainer.running_mean = value

    def true_gradient(self) -> tuple[float, torch.Tensor]:
        trainer = self.trainer
        tree = walk(trainer.model, trainer.chat, TASKS, trainer.env_pool.lend(), **LIMITS)
        trainer.model.zero_grad()
        value = exact_return(trainer.model, tree)
        value.backward()
        return value.item(), self._flat()

    def play(self, tasks: Sequence[Task], seed: int) -> list[Trajectory]:
        return self.trainer.play(tasks, seed)

    def select(self, advantage: str, credit: str) -> None:
        self.trainer.args.advantage, self.trainer.args.credit = advantage, credit
        self.trainer.loss_type = loss_type_of(advantage)
        self.trainer.max_completion_length = self.trainer.loss_divisor()

    def weights(self, trajectories: list[Trajectory], returns: torch.Tensor) -> torch.Tensor:
        return self.trainer.weights(trajectories, returns)

    def gradient(self, trajectories: Sequence[Trajectory], weights: torch.Tensor) -> torch.Tensor:
        played = tokens_for_trl(trajectories, self.trainer.eos_token_ids[0])
        ids = played["completion_ids"]
        if weights.dim() == 2:
            weights = spread_over_tokens(weights, [t.turn_index for t in trajectories], max(map(len, ids)))
        inputs = {
            "prompt_ids": _padded(played["prompt_ids"], left=True),
            "prompt_mask": _padded([[1] * len(row) for row in played["prompt_ids"]], left=True),
            "completion_ids": _padded(ids),
            "completion_mask": _padded([[1] * len(row) for row in ids]),
            "tool_mask": _padded(played["env_mask"]),
            "advantages": weights.float(),
        }
        self.trainer.model.train()
        self.trainer.model.zero_grad()
        self.trainer.compute_loss(self.trainer.model, inputs).backward()
        return -self._flat()


def number_tokens(tokenizer: Any) -> list[int]:
    return [tokenizer.convert_tokens_to_ids(str(n + 1)) for n in range(NUMBERS)]


def _padded(rows: list[list[int]], left: bool = False) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([[0] * (width - len(r)) + r if left else r + [0] * (width - len(r)) for r in rows])


class Episodes:
    """Sampled episodes as counts: the gradient of each distinct episode's each turn, for weight 1 and no normaliser."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.index: dict[tuple[int, ...], int] = {}
        self.gradients: list[torch.Tensor] = []  # of (episode, turn) at index episode * GUESSES + turn
        self.lengths: list[int] = []

    def find(self, trajectory: Trajectory) -> int:
        key = tuple(trajectory.completion_ids)
        if key not in self.index:
            self.index[key] = len(self.index)
            self.learner.select("reinforce", "reward_to_go")
            for turn in range(GUESSES):
                one = torch.zeros(1, GUESSES)
                one[0, turn] = 1.0
                self.gradients.append(self.learner.gradient([trajectory], one))
            self.lengths.append(sum(trajectory.env_mask))
        return self.index[key]

    def coefficients(self, found: Sequence[int], weights: torch.Tensor, normaliser: str) -> dict[int, float]:
        """What a batch's gradient is made of: the factor of each (episode, turn)."""
        by_turn = weights[:, None].expand(-1, GUESSES) if weights.dim() == 1 else weights
        total: dict[int, float] = {}
        for episode, row in zip(found, by_turn.double().tolist(), strict=True):
            divisor = {"none": 1, "constant": GUESSES, "own_length": self.lengths[episode]}[normaliser] * len(found)
            for turn, weight in enumerate(row):
                at = episode * GUESSES + turn
                total[at] = total.get(at, 0.0) + weight / divisor
        return total


@dataclass
class Estimate:
    """What was measured of one method."""

    method: str
    credit: str
    bias: float
    interval: float
    cosine: float
    variance: float
    variance_ratio: float = 0.0

    @property
    def unbiased(self) -> bool:
        return abs(self.bias) <= self.interval


def measure(learner: Learner, episodes: int, truth: torch.Tensor, seed: int) -> tuple[list[Estimate], float]:
    """Estimates of every method on the same sampled episodes, and the largest relative difference between an added-up
    gradient and that of the whole batch's loss."""
    known, batches = Episodes(learner), max(episodes // BATCH, 2)
    seen: list[list[dict[int, float]]] = [[] for _ in METHODS]
    worst = 0.0
    running: float | None = None
    for number in tqdm(range(batches), desc="sampling", unit=f" batches of {BATCH}"):
        tasks = [task for task in TASKS * (BATCH // GROUP // NUMBERS) for _ in range(GROUP)]
        trajectories = learner.play(tasks, seed=seed * 1_000_003 + number)
        returns = torch.tensor([t.total_return for t in trajectories])
        found = [known.find(t) for t in trajectories]
        for at, (method, credit) in enumerate(METHODS):
            learner.select(method, credit)
            learner.running_mean = running
            weights = learner.weights(trajectories, returns)
            running = learner.running_mean
            coefficients = known.coefficients(found, weights, NORMALISERS[method])
            seen[at].append(coefficients)
            if number < CHECKED:
                whole = learner.gradient(trajectories, weights)
                added = sum(known.gradients[i] * c for i, c in coefficients.items())
                worst = max(worst, ((whole - added).norm() / whole.norm().clamp(min=1e-12)).item())
    basis = torch.stack(known.gradients)
    gram, along = (basis @ basis.T).numpy(), (basis @ truth).numpy() / truth.dot(truth).item()
    estimates = []
    for (method, credit), batches_seen in zip(METHODS, seen, strict=True):
        matrix = np.zeros((len(batches_seen), len(known.gradients)))
        for row, coefficients in enumerate(batches_seen):
            matrix[row, list(coefficients)] = list(coefficients.values())
        if method == "running_mean":
            matrix = matrix[1:]  # its first batch has no average yet
        matrix /= SCALES.get(method, 1.0)
        projected, mean = matrix @ along, matrix.mean(0)
        length = float(np.sqrt(mean @ gram @ mean))
        centred = matrix - mean
        estimates.append(
            Estimate(
                method,
                credit,
                bias=float(projected.mean() - 1),
                interval=float(1.96 * projected.std(ddof=1) / np.sqrt(len(projected))),
                cosine=float(mean @ along) * float(truth.norm()) / length,
                variance=float(np.einsum("bi,ij,bj->", centred, gram, centred) / (len(centred) - 1)),
            )
        )
    for estimate in estimates:
        estimate.variance_ratio = estimate.variance / estimates[0].variance
    return estimates, worst


def table(estimates: Sequence[Estimate]) -> str:
    lines = [
        "| method | credit | relative bias (95% interval) | cosine | variance / REINFORCE's | |",
        "|---|---|---|---|---|---|",
    ]
    for e in estimates:
        note = known_bias(e.method, e.credit) or ("unbiased" if e.unbiased else "outside its interval")
        bias = f"{e.bias:+.4f} ± {e.interval:.4f}"
        lines.append(f"| {e.method} | {e.credit} | {bias} | {e.cosine:.4f} | {e.variance_ratio:.3f} | {note} |")
    return "\n".join(lines)


def draw(estimates: Sequence[Estimate], png: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 1.2 + 0.28 * len(estimates)), layout="constrained", sharey=True
    )
    names = [f"{e.method}, {e.credit.replace('_', ' ')}" for e in estimates]
    rows = np.arange(len(estimates))[::-1]
    colours = ["tab:red" if known_bias(e.method, e.credit) else "tab:blue" for e in estimates]
    edge = 0.15  # beyond it a number stands in place of a point, so that the intervals around 0 can be seen
    for row, e, colour in zip(rows, estimates, colours, strict=True):
        if abs(e.bias) < edge:
            left.errorbar(e.bias, row, xerr=e.interval, fmt="o", ms=4, color=colour, capsize=3)
        else:
            side = "right" if e.bias > 0 else "left"
            words = f"{e.bias:+.2f} →" if e.bias > 0 else f"← {e.bias:+.2f}"
            left.text(math.copysign(edge * 1.04, e.bias), row, words, color=colour, ha=side, va="center")
    left.axvline(0, color="0.4", lw=1)
    left.set_xlim(-edge / 2 if all(e.bias > -edge / 2 for e in estimates) else -1.1 * edge, 1.1 * edge)
    left.set(title="bias along the true gradient", xlabel="relative bias, 95% interval")
    left.set_yticks(rows, names)
    right.barh(rows, [e.variance_ratio for e in estimates], color=colours)
    right.axvline(1, color="0.4", lw=1)
    right.set(title="variance of one batch's estimate", xlabel="ratio to REINFORCE's")
    for axes in (left, right):
        axes.grid(alpha=0.25, axis="x")
        axes.margins(y=0.02)
    figure.savefig(png, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=400_000)
    parser.add_argument("--policy", choices=("language_model", "tabular"), default="language_model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/estimators"))
    arguments = parser.parse_args()
    if arguments.output_dir.exists():
        raise FileExistsError(f"{arguments.output_dir} already exists; choose another --output_dir")
    arguments.output_dir.mkdir(parents=True)
    if arguments.policy == "tabular":
        from recipes.tabular import TabularLearner

        learner: Learner = TabularLearner(arguments.seed)
    else:
        learner = LanguageModelLearner(str(arguments.output_dir), arguments.seed)
    value, truth = learner.true_gradient()
    print(f"true J = {value:.6f}, |gradient| = {truth.norm():.6f}, over {truth.numel():,} parameters")
    estimates, worst = measure(learner, arguments.episodes, truth, arguments.seed)
    print(f"added-up against whole-batch gradients: largest relative difference {worst:.1e}")
    text = table(estimates)
    print(text)
    (arguments.output_dir / "table.md").write_text(text + "\n")
    (arguments.output_dir / "estimates.json").write_text(json.dumps([vars(e) for e in estimates], indent=1) + "\n")
    draw(estimates, arguments.output_dir / "estimators.png")
    print(f"see {arguments.output_dir}/estimators.png")


if __name__ == "__main__":
    one_line_errors(main)
