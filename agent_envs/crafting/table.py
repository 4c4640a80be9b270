"""`python -m agent_envs.crafting.table`: how hard each tier is, and how its players fare, as a Markdown table."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import mean

import numpy as np

from agent_envs.crafting.env import CraftingEnv
from agent_envs.crafting.solver import solve
from agent_envs.crafting.tiers import TIERS

Player = Callable[[CraftingEnv, np.random.Generator], str]

PLAYERS: dict[str, Player] = {
    "random": lambda env, rng: env.random_action(rng),
    "novice": lambda env, rng: env.novice_action(rng),
    "explore-then-plan": lambda env, rng: env.explore_action(),
    "solver": lambda env, rng: env.optimal_action(),
    "give up": lambda env, rng: "give up",
}
COLUMNS = ("tier", "map", "L* min/mean/max", "budget max", "max_turns", *PLAYERS, "impossible", "unsolved")


def success_rate(env: CraftingEnv, player: Player, seeds: range) -> float:
    """Share of the seeds' episodes that the player wins. A player's random stream is its own, fixed by the seed."""
    wins = 0
    for seed in seeds:
        _, info = env.reset(seed=seed)
        rng, done = np.random.default_rng([seed, 1]), False
        while not done:
            _, _, terminated, truncated, info = env.step(player(env, rng))
            done = terminated or truncated
        wins += info["is_success"]
    return wins / len(seeds)


def tier_row(tier: int, seeds: range) -> tuple[str, ...]:
    """One line of the table, in the order of COLUMNS."""
    env = CraftingEnv(tier=tier)
    steps, budgets, statuses = [], [], []
    for seed in seeds:
        env.reset(seed=seed)
        task = env.task
        assert task is not None
        budgets.append(task.budget)
        statuses.append(solve(task.world, task.start, task.goal, task.count).status)
        if not task.impossible:
            steps.append(task.reference_steps or 0)
    rates = [f"{success_rate(env, player, seeds):.3f}" for player in PLAYERS.values()]
    return (
        str(tier),
        TIERS[tier].map,
        f"{min(steps)} / {mean(steps):.1f} / {max(steps)}",
        str(max(budgets)),
        str(env.max_turns),
        *rates,
        f"{statuses.count('impossible') / len(seeds):.3f}",
        f"{statuses.count('unsolved') / len(seeds):.3f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=500, help="tasks a tier (seeds 0, 1, ...)")
    tasks = parser.parse_args().tasks
    print(f"Success over {tasks} tasks a tier; L* in the tasks that are possible, knowing the whole map.\n")
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    for tier in range(len(TIERS)):
        print("| " + " | ".join(tier_row(tier, range(tasks))) + " |", flush=True)


if __name__ == "__main__":
    main()
