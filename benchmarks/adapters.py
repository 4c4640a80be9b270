"""What a step costs in each framework installed here: `python -m benchmarks.adapters [--seconds 2.0] [--ids ...]`.

The same seeded episodes with the same actions, on plain `gymnasium.make(id)` (its checks included) and through each
adapter in turn, in one run; only steps are timed, not resets. A time is that of the best round of 50 episodes: a busy
machine only ever adds to it. `bare` is `gymnasium.make(id, disable_env_checker=True)`, which adapters stand on.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np

import agent_envs
from agent_envs.tasks import Task

Begin = Callable[[Task, list[str]], list[Callable[[], Any]]]
"""Resets to a task; returns the calls that step through the given actions."""
EPISODES = 50  # a round


def plain(id: str, **settings: Any) -> Begin:
    env = gymnasium.make(id, **settings)

    def begin(task: Task, actions: list[str]) -> list[Callable[[], Any]]:
        env.reset(seed=task.seed)
        return [lambda action=action: env.step(action) for action in actions]

    return begin


def trl(id: str) -> Begin:
    import trl as _trl  # noqa: F401

    from agent_envs.adapters.trl import trl_environment
    from agent_envs.crafting.commands import parse_command
    from agent_envs.crafting.formulas import LITE
    from agent_envs.number_search import parse_guess

    env: Any = trl_environment(id)()

    def call(action: str) -> Callable[[], Any]:
        if hasattr(env, "guess"):
            number = parse_guess(action)[0]
            return lambda: env.guess(number)
        command: Any = parse_command(action, LITE).command
        method = getattr(env, command.verb)
        return (lambda: method(command.name)) if command.name else (lambda: method())

    def begin(task: Task, actions: list[str]) -> list[Callable[[], Any]]:
        env.reset(seed=task.seed)
        return [call(action) for action in actions]

    return begin


def gem(id: str) -> Begin:
    import gem.core  # pyright: ignore[reportMissingImports]

    from agent_envs.adapters.gem import PREFIX, register_all

    register_all()
    env = gem.make(PREFIX + id)

    def begin(task: Task, actions: list[str]) -> list[Callable[[], Any]]:
        env.reset(seed=task.seed)
        return [lambda action=action: env.step(action) for action in actions]

    return begin


def skyrl(id: str) -> Begin:
    import skyrl_gym  # pyright: ignore[reportMissingImports]

    from agent_envs.adapters.skyrl import register, skyrl_rows

    register()
    env: Any = skyrl_gym.make("agent_envs", extras=skyrl_rows([Task(id, 0)])[0])

    def begin(task: Task, actions: list[str]) -> list[Callable[[], Any]]:
        env.seed = task.seed  # SkyRL makes an environment a row; that is no part of a step
        env.init([])
        return [lambda action=action: env.step(action) for action in actions]

    return begin


def textarena(id: str) -> Begin:
    """With the reading of the observation, which there is a call of its own."""
    import textarena as ta  # pyright: ignore[reportMissingImports]

    from agent_envs.adapters.textarena import PREFIX, register_all

    register_all()
    env = ta.make(PREFIX + id + "-raw")

    def begin(task: Task, actions: list[str]) -> list[Callable[[], Any]]:
        env.reset(num_players=1, seed=task.seed)
        return [lambda action=action: (env.get_observation(), env.step(action)) for action in actions]

    return begin


def openenv(id: str, wrapped: bool = False) -> Begin:
    """In process, without the server; replies as they are, or each wrapped in a GameAction, as the server gets them."""
    from agent_envs.adapters.openenv import GameAction, GameEnvironment

    env = GameEnvironment(id)

    def begin(task: Task, actions: list[str]) -> list[Callable[[], Any]]:
        env.reset(seed=task.seed)
        if wrapped:
            return [lambda action=action: env.step(GameAction(text=action)) for action in actions]
        return [lambda action=action: env.step(action) for action in actions]

    return begin


ADAPTERS = {
    "TRL": trl,
    "GEM": gem,
    "SkyRL-gym": skyrl,
    "TextArena": textarena,
    "OpenEnv": openenv,
    "OpenEnv GameAction": partial(openenv, wrapped=True),
}


def script(id: str) -> list[tuple[Task, list[str]]]:
    """Seeded episodes, half of them played well and half by a novice."""
    env: Any = gymnasium.make(id).unwrapped
    env.action_space.seed(0)
    found = []
    for i, task in enumerate(agent_envs.task_set(id, "test", EPISODES)):
        env.reset(seed=task.seed)
        rng, actions, done = np.random.default_rng(i), [], False
        while not done:
            actions.append(env.novice_action(rng) if i % 2 else env.optimal_action())
            done = any(env.step(actions[-1])[2:4])
        found.append((task, actions))
    return found


def one_round(begin: Begin, episodes: list[tuple[Task, list[str]]]) -> float:
    """Seconds a step."""
    spent, steps = 0.0, 0
    for task, actions in episodes:
        calls = begin(task, actions)
        start = time.perf_counter()
        for call in calls:
            call()
        spent, steps = spent + time.perf_counter() - start, steps + len(calls)
    return spent / steps


def measure(id: str, seconds: float) -> None:
    sides: dict[str, Begin] = {"gymnasium.make": plain(id), "bare": plain(id, disable_env_checker=True)}
    absent = []
    for name, make in ADAPTERS.items():
        try:
            sides[name] = make(id)
        except ImportError:
            absent.append(name)
    episodes = script(id)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for begin in sides.values():  # warm
        one_round(begin, episodes)
    end = time.perf_counter() + seconds * len(sides)
    while time.perf_counter() < end or len(times["bare"]) < 5:
        for name, begin in sides.items():
            times[name].append(one_round(begin, episodes))
    base, bare = min(times["gymnasium.make"]), min(times["bare"])
    print(f"{id}: {len(times['bare'])} rounds" + (f"; not installed: {', '.join(absent)}" if absent else ""))
    print(f"{'':20}{'us a step':>12}{'/ gymnasium.make':>20}{'/ bare':>10}")
    for name, found in times.items():
        step = min(found)
        print(f"{name:20}{step * 1e6:>12.2f}{step / base:>20.2f}{step / bare:>10.2f}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each side and id (default 2)")
    parser.add_argument("--ids", nargs="+", default=["NumberSearch-v0", "CraftingEasy-v0"])
    args = parser.parse_args(argv)
    for id in args.ids:
        measure(id, args.seconds)


if __name__ == "__main__":
    main()
