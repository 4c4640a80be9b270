"""One face for every environment's players: the exact solver, a novice, a random player, and their conversations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from agent_envs.text import TextPolicy

Env = gymnasium.Env[str, str]
PolicyMaker = Callable[..., TextPolicy]


def optimal_policy(env: Env) -> TextPolicy:
    """The solver's next action for the environment's present state, as a callable.

    Raises:
        TypeError: the environment has no solver.
    """
    return _method(env, "optimal_action")


def novice_policy(env: Env, seed: int | None = None) -> TextPolicy:
    """A player that knows the rules and is often careless; what the embedded base model was trained on."""
    return _seeded(_method(env, "novice_action"), seed)


def random_policy(env: Env, seed: int | None = None) -> TextPolicy:
    """A player that draws among legal actions."""
    return _seeded(_method(env, "random_action"), seed)


def with_hint(env: Env, observation: str) -> str:
    """A reset observation with the environment's hint under it.

    Raises:
        TypeError: the environment offers none.
    """
    return f"{observation}\n{_method(env, 'hint')()}"


def _seeded(method: Callable[[np.random.Generator], str], seed: int | None) -> TextPolicy:
    # A stream of its own: with the environment's seed as it stands, a player's first draw would be the hidden target.
    rng = np.random.default_rng(None if seed is None else [seed, 1])
    return lambda: method(rng)


def _method(env: Env, name: str) -> Callable[..., str]:
    method = getattr(env.unwrapped, name, None)
    if method is None:
        raise TypeError(f"{type(env.unwrapped).__name__} has no {name}()")
    return method


def demonstrations(
    env: Env,
    n: int,
    seed: int,
    policy: PolicyMaker = optimal_policy,
    options: dict[str, Any] | None = None,
    hint: bool = False,
) -> list[dict[str, Any]]:
    """Play n episodes with seeds seed .. seed+n-1 and return them as conversations.

    Args:
        env: any environment with the policy asked for.
        n: number of episodes, at least 1.
        policy: `optimal_policy`, or `novice_policy` / `random_policy`, which are seeded with each episode's seed.
        options: reset options, the same for each episode.
        hint: whether the environment's hint stands under the reset observation.

    Returns:
        n rows {"messages": [{"role", "content"}, ...], "seed", "return", "is_success"}; the messages start with the
        reset observation and end with the last action.
    """
    if n < 1:
        raise ValueError(f"n={n}: ask for at least one demonstration")
    rows = []
    for episode_seed in range(seed, seed + n):
        observation, info = env.reset(seed=episode_seed, options=options)
        observation = with_hint(env, observation) if hint else observation
        act = policy(env) if policy is optimal_policy else policy(env, seed=episode_seed)
        messages, total, done = [{"role": "user", "content": observation}], 0.0, False
        while not done:
            action = act()
            messages.append({"role": "assistant", "content": action})
            observation, reward, terminated, truncated, info = env.step(action)
            total, done = total + float(reward), terminated or truncated
            if not done:
                messages.append({"role": "user", "content": observation})
        rows.append({"messages": messages, "seed": episode_seed, "return": total, "is_success": info["is_success"]})
    return rows
