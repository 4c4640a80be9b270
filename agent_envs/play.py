"""Play any environment in a terminal, or watch a policy play it.

python -m agent_envs.play                                       the ids there are
python -m agent_envs.play NumberSearch-v0                       you play
python -m agent_envs.play Crafting-v0 --options '{"tier": 2}' --policy optimal --delay 0.5
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

import agent_envs
from agent_envs.text import Info, TextPolicy

Env = gymnasium.Env[str, str]
Player = Callable[[], "str | None"]
"""Called, it shows and returns the next reply; None to leave the game."""


# --- Players ---------------------------------------------------------------------------------------------------------


def policy_names(env: Env) -> list[str]:
    """The environment's own players, by the names of its `*_action` methods; `optimal` first where there is one."""
    names = [name.removesuffix("_action") for name in dir(type(env.unwrapped)) if name.endswith("_action")]
    return sorted(names, key=lambda name: (name != "optimal", name))


def named_policy(env: Env, name: str, seed: int) -> TextPolicy:
    """The player of that name as a callable; its random stream is that of `agent_envs.policies` for the same seed.

    Raises:
        ValueError: the environment has no such player.
    """
    if not policy_names(env):
        raise ValueError(f"{env.spec.id if env.spec else env} has no policy of its own; play it yourself")
    if name not in policy_names(env):
        raise ValueError(f"policy {name!r} is not offered; use human, {', '.join(policy_names(env))}")
    method = getattr(env.unwrapped, f"{name}_action")
    if not inspect.signature(method).parameters:
        return method
    rng = np.random.default_rng([seed, 1])
    return lambda: method(rng)


def watched(policy: TextPolicy, delay: float) -> Player:
    """A policy whose replies are shown, each after `delay` seconds."""

    def act() -> str:
        time.sleep(delay)
        action = policy()
        _say(f"> {action}")
        return action

    return act


def human(env: Env) -> Player:
    """Whoever types. `?` asks the solver, if there is one, and takes no turn; Ctrl-D leaves the game."""
    solver = "optimal" in policy_names(env)
    _say("Type a reply and press Enter." + (" ? shows the solver's choice." if solver else "") + " Ctrl-D leaves.")
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (gives input() a history; not there on every system)

    def act() -> str | None:
        while True:
            try:
                reply = input("> ")
            except (EOFError, KeyboardInterrupt):
                _say("")
                return None
            if not sys.stdin.isatty():
                _say(reply)  # a pipe shows nothing of what it sends; the game should still read as one
            if not solver or reply.strip() != "?":
                return reply
            _say(f"The solver's choice: {named_policy(env, 'optimal', 0)()}")

    return act


# --- The game --------------------------------------------------------------------------------------------------------


def play(env: Env, act: Player, seed: int, options: dict[str, Any] | None = None) -> Info:
    """Play one episode, showing it line by line.

    Returns:
        the last info.
    """
    observation, info = env.reset(seed=seed, options=options)
    _say(observation)
    total, turns, done = 0.0, 0, False
    while not done:
        action = act()
        if action is None:
            _say(f"Left after {_count(turns, 'turn')}.")
            return info
        observation, reward, terminated, truncated, info = env.step(action)
        turns, total, done = turns + 1, total + float(reward), terminated or truncated
        _say(observation + (f"  [reward {reward:g}]" if reward else ""))
    result = {True: "Success", False: "No success"}.get(info.get("is_success"), "Over")  # type: ignore[arg-type]
    _say(f"{result}: return {total:g} in {_count(turns, 'turn')}.")
    return info


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _say(text: str) -> None:
    print(text, flush=True)


# --- The command -----------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m agent_envs.play", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("id", nargs="?", help="an environment id; without it, the ids are listed")
    parser.add_argument("--seed", type=int, help="the episode's seed; drawn and shown if left out")
    parser.add_argument(
        "--policy", default="human", help="human (default), optimal, novice, random, or another player of the id"
    )
    parser.add_argument("--options", default="{}", metavar="JSON", help="reset options, for instance '{\"tier\": 2}'")
    parser.add_argument("--delay", type=float, default=0.0, metavar="S", help="seconds before a watched reply")
    args = parser.parse_args(argv)
    if args.id is None:
        _say("\n".join(agent_envs.registered_ids()))
        return
    seed = int(np.random.default_rng().integers(10_000)) if args.seed is None else args.seed
    options = _options(parser, args.options)
    if args.delay < 0:
        parser.error(f"--delay {args.delay:g} is negative")
    try:
        env = gymnasium.make(args.id)
        observation, _ = env.reset(seed=seed, options=options)  # whatever is wrong with the arguments shows here
        if not isinstance(observation, str):
            parser.error(f"{args.id} does not speak text. {_ids_hint()}")
        policy = None if args.policy == "human" else named_policy(env, args.policy, seed)
    except (gymnasium.error.UnregisteredEnv, ImportError) as error:
        parser.error(f"{error} {_ids_hint()}")
    except (gymnasium.error.Error, ValueError) as error:
        parser.error(str(error))
    _say(f"{args.id}, seed {seed}, played by {args.policy}.")
    act = human(env) if policy is None else watched(policy, args.delay)
    _say("")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # bytes that are no text are a bad reply, not an error
    with contextlib.suppress(KeyboardInterrupt):
        play(env, act, seed, options)


def _options(parser: argparse.ArgumentParser, text: str) -> dict[str, Any]:
    try:
        options = json.loads(text)
    except json.JSONDecodeError as error:
        parser.error(f"--options {text!r} is not JSON: {error}")
    if not isinstance(options, dict):
        parser.error(f"--options {text!r} is not a JSON object")
    return options


def _ids_hint() -> str:
    return f"The ids of this package: {', '.join(agent_envs.registered_ids())}"


if __name__ == "__main__":
    main()
