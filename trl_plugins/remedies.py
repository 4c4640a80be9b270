"""What to do when every trajectory of a group fails: each remedy is one option, and all are off by default.

- curriculum: tasks are drawn by how learnable they are, p(1 - p) of their running success rate, with a floor.
- hint_share: so large a share of the groups play with the environment's hint in the prompt; it fades to nothing.
- resample_rounds: groups whose returns are all equal are played again with other tasks, so many times at most
  (DAPO's dynamic sampling, Yu et al. 2025, with a bound).
- demonstrations: in a group where nobody succeeds, the last member's place is taken by the solver's episode.
- entropy_bonus_failing: such a group ties and has no gradient; it gets the entropy bonus all the same (trainer.py).

Whole groups are drawn, so every process decides about its own from the seed of its rollout.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from agent_envs.policies import optimal_policy
from agent_envs.tasks import Task, row_task
from trl_plugins.chat import Chat
from trl_plugins.rollout import Env, Sample, Trajectory
from trl_plugins.weights import tied_groups

SHAPE = 0.1  # gamma of demonstrations "shaped"


class Curriculum:
    """Draws dataset rows: a level by its p(1 - p), then a row of it uniformly.

    A level is an environment id and a task's difficulty, so tasks that nobody has played yet share what is known of
    others as hard; p starts at 1/2, which is to say: try it.

    Args:
        rows: the training tasks.
        floor: least weight of a level (p(1 - p) is at most 0.25), so that none is given up for good.
        decay: of p's exponential average, an observation being a group's success rate.
    """

    def __init__(self, rows: Sequence[dict[str, Any]], floor: float, decay: float) -> None:
        self.floor, self.decay = floor, decay
        self.members: dict[str, list[int]] = {}
        for index, row in enumerate(rows):
            self.members.setdefault(level_of(row), []).append(index)
        self.success = dict.fromkeys(self.members, 0.5)

    def probabilities(self) -> dict[str, float]:
        """Of drawing each level."""
        raw = {level: max(p * (1 - p), self.floor) for level, p in self.success.items()}
        total = sum(raw.values())
        return {level: weight / total for level, weight in raw.items()}

    def draw(self, rng: np.random.Generator) -> int:
        """The index of a row."""
        chances = self.probabilities()
        level = list(chances)[int(rng.choice(len(chances), p=list(chances.values())))]
        return self.members[level][int(rng.integers(len(self.members[level])))]

    def observe(self, outcomes: Sequence[tuple[str, float]]) -> None:
        """(level, success rate of a group), in the same order on every process."""
        for level, rate in outcomes:
            self.success[level] = self.decay * self.success[level] + (1 - self.decay) * rate

    @property
    def mean_success(self) -> float:
        """Mean p over levels: how far the curriculum has come."""
        return sum(self.success.values()) / len(self.success)


def level_of(row: dict[str, Any]) -> str:
    return f"{row.get('env_id') or ''} {float(row.get('difficulty') or 0.0):g}"


def faded(start: float, until: float, step: int, steps: int) -> float:
    """`start` at the first step, fading linearly to 0 at the share `until` of the run's steps."""
    end = until * max(steps, 1)
    return start * max(0.0, 1.0 - step / end) if end else 0.0


def failing_groups(trajectories: Sequence[Trajectory], size: int) -> list[int]:
    """The groups where nobody succeeds."""
    return [
        group
        for group in range(len(trajectories) // size)
        if not any(t.is_success for t in trajectories[group * size : (group + 1) * size])
    ]


Play = Callable[[list[Task], int], list[Trajectory]]
"""Plays each task once, from a seed."""


@dataclasses.dataclass
class Batch:
    """What was played: a row and a trajectory an episode, groups in order, and what the remedies did."""

    rows: list[dict[str, Any]]
    trajectories: list[Trajectory]
    facts: dict[str, float] = dataclasses.field(default_factory=dict)


class Remedies:
    """Plays training batches with the remedies that the arguments ask for.

    Args:
        args: a MultiTurnGRPOConfig.
        dataset: the training rows, from which tasks are drawn; None where the trainer has no fixed set of them.
        play, demonstrate: an episode a task, by the policy and by the solver.
        gather: joins lists over processes.
    """

    def __init__(self, args: Any, dataset: Any, play: Play, demonstrate: Play, gather: Callable[[list], list]) -> None:
        self.args, self.dataset, self._play, self._demonstrate, self._gather = args, dataset, play, demonstrate, gather
        self.curriculum: Curriculum | None = None
        if args.curriculum or args.resample_rounds:
            if dataset is None:
                raise ValueError("curriculum and resample_rounds draw tasks, so they need a training set with a length")
            if args.curriculum:
                self.curriculum = Curriculum(dataset, args.curriculum_floor, args.curriculum_decay)

    def play_batch(self, rows: Sequence[dict[str, Any]], seed: int, step: int, steps: int) -> Batch:
        """Play the groups of `rows` (each row repeated `num_generations` times), or others in their place.

        Args:
            seed: of the draws and of the sampling, another one for each process.
            step, steps: how far the run is, for what fades.
        """
        args, size = self.args, self.args.num_generations
        rng, chance = np.random.default_rng([seed, 7]), faded(args.hint_share, args.hint_until, step, steps)
        groups = [self._drawn(rng) if self.curriculum else row for row in rows[::size]]
        facts = {"hinted_share": 0.0} if args.hint_share else {}
        outcomes: list[tuple[str, float]] = []

        def played(chosen: Sequence[dict[str, Any]], seed: int) -> list[Trajectory]:
            hints = [chance > 0 and rng.random() < chance for _ in chosen]
            tasks = [dataclasses.replace(row_task(row), hint=hint) for row, hint in zip(chosen, hints, strict=True)]
            got = self._play([task for task in tasks for _ in range(size)], seed)
            for i, row in enumerate(chosen):
                sound = [t.is_success for t in got[i * size : (i + 1) * size] if not t.failed]
                outcomes.extend([(level_of(row), sum(sound) / len(sound))] if sound else [])
            if args.hint_share:
                facts["hinted_share"] += sum(hints) / len(groups)
            return got

        trajectories = played(groups, seed)
        resampled = 0
        for attempt in range(args.resample_rounds):
            returns = torch.tensor([t.total_return for t in trajectories], dtype=torch.double)
            tied = tied_groups(returns, size).nonzero().flatten().tolist()
            if not tied:
                break
            again = [self._drawn(rng) for _ in tied]
            for i, (group, got) in enumerate(zip(tied, _chunks(played(again, seed + 1 + attempt), size), strict=True)):
                groups[group], trajectories[group * size : (group + 1) * size] = again[i], got
            resampled += len(tied)
        if args.resample_rounds:
            facts["resampled_groups"] = resampled / len(groups)
        if args.demonstrations != "none":
            failing = failing_groups(trajectories, size)
            for group, shown in zip(failing, self._shown(trajectories, failing, size), strict=True):
                trajectories[(group + 1) * size - 1] = shown
            facts["demonstrated_share"] = len(failing) / len(groups)
        outcomes = self._gather(outcomes)
        if self.curriculum:
            self.curriculum.observe(outcomes)
            facts["curriculum_success"] = self.curriculum.mean_success
        return Batch([row for row in groups for _ in range(size)], trajectories, facts)

    def _drawn(self, rng: np.random.Generator) -> dict[str, Any]:
        index = self.curriculum.draw(rng) if self.curriculum else int(rng.integers(len(self.dataset)))
        return self.dataset[index]

    def _shown(self, trajectories: Sequence[Trajectory], groups: Sequence[int], size: int) -> list[Trajectory]:
        """The solver's episode for each of these groups, in the group's own prompt."""
        shown = self._demonstrate([trajectories[group * size].task for group in groups], 0) if groups else []
        for trajectory in shown:
            trajectory.demonstration = True
        return shown

    def state_dict(self) -> dict[str, Any]:
        return {"curriculum": self.curriculum.success if self.curriculum else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.curriculum and state.get("curriculum"):
            self.curriculum.success.update(state["curriculum"])


def _chunks(items: Sequence[Trajectory], size: int) -> list[list[Trajectory]]:
    return [list(items[start : start + size]) for start in range(0, len(items), size)]


class SolverPolicy:
    """A rollout policy that says what each environment's solver would; for `collect_rollouts`.

    Args:
        chat: whose tokenizer turns an action into tokens, the end of turn after it.
        make_env: lends environments; `self.lend` is what `collect_rollouts` must be given in its place.
    """

    def __init__(self, chat: Chat, make_env: Callable[[str], Env]) -> None:
        self._chat, self._make_env = chat, make_env
        self._envs: list[Env] = []

    def lend(self, env_id: str) -> Env:
        self._envs.append(self._make_env(env_id))
        return self._envs[-1]

    def start(self, prompts: Sequence[list[int]], seed: int) -> None:
        if len(prompts) != len(self._envs):
            raise RuntimeError(f"{len(prompts)} episodes, but {len(self._envs)} environments were lent")

    def act(self, rows: Sequence[int], contexts: Sequence[list[int]]) -> list[Sample]:
        samples = []
        for row in rows:
            ids = self._chat.saying_ids(optimal_policy(self._envs[row])())
            samples.append(Sample(ids, [0.0] * len(ids), "stop"))
        return samples


def off_policy_factors(kind: str, logprobs: torch.Tensor) -> torch.Tensor:
    """What a demonstration's tokens' weights are multiplied by, given their log-probabilities under the policy.

    The solver is deterministic, so the importance ratio of a token is p / 1.
    - "plain": 1, as if the policy had sampled them: SFT with an advantage for its weight; biased, and never silent.
    - "importance": p, the token's importance ratio; an unlikely demonstration teaches next to nothing.
    - "shaped": gamma p / (p + gamma)^2, the gradient of p / (p + gamma) (LUFFY, Yan et al. 2025, policy shaping), with
      gamma = 0.1: largest at p = gamma.
    """
    p = logprobs.exp()
    if kind == "plain":
        return torch.ones_like(p)
    if kind == "importance":
        return p
    if kind == "shaped":
        return SHAPE * p / (p + SHAPE).square()
    raise ValueError(f"demonstrations={kind!r} is unknown; use none, plain, importance or shaped")
