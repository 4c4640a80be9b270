"""The environments as an Inspect AI evaluation: a sample is one task instance, the solver plays it turn by turn.

    inspect eval agent_envs/game -T env=NumberSearch-v0 --model openai-api/local/my-model

or, from Python, `inspect_ai.eval(game("NumberSearch-v0"), model=...)`. Inspect finds the task by this package's entry
point. All arguments of `game` are `-T` too: `-T split=train -T size=64 -T 'options={"tier": 0}'`.
"""

# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# (pyright takes this very file for the framework of the same name)

from __future__ import annotations

from typing import Any, Literal

import gymnasium

from agent_envs.tasks import task_set

try:
    from inspect_ai import Task, task  # pyright: ignore[reportMissingImports]
    from inspect_ai.dataset import MemoryDataset, Sample  # pyright: ignore[reportMissingImports]
    from inspect_ai.model import ChatMessageUser  # pyright: ignore[reportMissingImports]
    from inspect_ai.scorer import Score, mean, scorer, stderr  # pyright: ignore[reportMissingImports]
    from inspect_ai.solver import solver  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError(
        "agent_envs.adapters.inspect_ai needs Inspect AI; install it with: pip install inspect-ai"
    ) from error

EPISODE = "episode"  # where in a sample's store the solver leaves what the scorer reads


@solver
def play(settings: dict[str, Any] | None = None) -> Any:
    """Plays the sample's game: the model's reply is the action, the next observation the next user message.

    What has been played is stored after every turn, so that an episode that one of Inspect's limits cuts short
    (--message-limit and its kin) is scored by what it was paid so far.

    Args:
        settings: for `gymnasium.make`.
    """

    async def solve(state: Any, generate: Any) -> Any:
        env = gymnasium.make(state.metadata["env"], disable_env_checker=True, **(settings or {}))
        env.reset(seed=state.metadata["seed"], options=dict(state.metadata["options"]))
        rewards, errors, observation, done = [], [], None, False
        state.store.set(EPISODE, {"rewards": [], "parse_errors": [], "is_success": False})
        while not done:
            if observation is not None:
                state.messages.append(ChatMessageUser(content=observation))
            state = await generate(state, tool_calls="none")
            observation, reward, terminated, truncated, info = env.step(state.output.completion)
            rewards, errors = [*rewards, float(reward)], [*errors, info.get("parse_error")]
            done = terminated or truncated
            played = {"rewards": rewards, "parse_errors": errors, "is_success": bool(info.get("is_success", False))}
            played |= {"terminated": terminated, "truncated": truncated, "last_observation": observation}
            state.store.set(EPISODE, played)
        env.close()
        return state

    return solve


METRICS = {
    "is_success": [mean(), stderr()],
    "episode_return": [mean(), stderr()],
    "turns": [mean()],
    "invalid": [mean()],
}


@scorer(metrics=METRICS)
def episode() -> Any:
    """Whether the game was won, what it paid, how long it took, and how many replies held no action."""

    async def score(state: Any, target: Any) -> Any:
        played = state.store.get(EPISODE)
        if played is None:
            raise ValueError("there is no episode to score: the task's own solver, play(), must run")
        value = {
            "is_success": int(played["is_success"]),
            "episode_return": sum(played["rewards"]),
            "turns": len(played["rewards"]),
            "invalid": sum(reason is not None for reason in played["parse_errors"]),
        }
        return Score(value=value, answer=state.output.completion, metadata=played)

    return score


@task
def game(
    env: str = "NumberSearch-v0",
    split: Literal["train", "test"] = "test",
    size: int | None = None,
    options: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
) -> Any:
    """The tasks of `agent_envs.task_set(env, split, size, **options)`; a sample's id is its seed.

    Args:
        settings: for `gymnasium.make`.
    """
    made, samples = gymnasium.make(env, disable_env_checker=True, **(settings or {})), []
    for one in task_set(env, split, size, **(options or {})):
        first, _ = made.reset(seed=one.seed, options=dict(one.options))
        about = {"env": one.env_id, "seed": one.seed, "options": one.options}
        samples.append(Sample(input=first, id=one.seed, metadata=about))
    dataset = MemoryDataset(samples, name=f"{env} {split}")
    return Task(dataset=dataset, solver=play(settings), scorer=episode(), name="game", version=1)
