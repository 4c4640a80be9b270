"""The environments as an Inspect AI evaluation: a sample is one task instance, the solver plays it turn by turn.

    inspect eval agent_envs/game -T env=NumberSearch-v0 --model openai/gpt-4o-mini

Scores: `episode_return` (mean and standard error over samples), `is_success` (accuracy and standard error).
"""

# pyright: reportAttributeAccessIssue=false
# (pyright takes this very file for the framework of the same name)

from __future__ import annotations

from typing import Any

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
        "agent_envs.adapters.inspect_ai needs Inspect; install it with: pip install inspect-ai"
    ) from error


@solver
def play() -> Any:
    """Plays the sample's game: the model's reply is the action, the next observation the next user message."""

    async def solve(state: Any, generate: Any) -> Any:
        env = gymnasium.make(state.metadata["env"], disable_env_checker=True)
        env.reset(seed=state.metadata["seed"], options=dict(state.metadata["options"]))
        total, turns, invalid, info, done = 0.0, 0, 0, {}, False
        while not done:
            state = await generate(state, tool_calls="none")
            observation, reward, terminated, truncated, info = env.step(state.output.completion)
            total, turns, done = total + float(reward), turns + 1, terminated or truncated
            invalid += bool(info.get("parse_error"))
            state.messages.append(ChatMessageUser(content=observation))
        state.metadata["episode"] = {
            "episode_return": total,
            "is_success": bool(info.get("is_success", False)),
            "turns": turns,
            "invalid": invalid,
        }
        return state

    return solve


@scorer(metrics={"episode_return": [mean(), stderr()], "is_success": [mean(), stderr()]})
def episode() -> Any:
    """What the game paid and whether it was won."""

    async def score(state: Any, target: Any) -> Any:
        found = state.metadata["episode"]
        value = {"episode_return": found["episode_return"], "is_success": float(found["is_success"])}
        return Score(value=value, explanation=f"{found['turns']} turns, {found['invalid']} without an action")

    return score


@task
def game(
    env: str = "NumberSearch-v0", split: str = "test", size: int | None = None, options: dict[str, Any] | None = None
) -> Any:
    """The tasks of `agent_envs.task_set(env, split, size, **options)`."""
    made, samples = gymnasium.make(env, disable_env_checker=True), []
    for one in task_set(env, split, size, **(options or {})):  # type: ignore[arg-type]
        first, _ = made.reset(seed=one.seed, options=dict(one.options))
        about = {"env": one.env_id, "seed": one.seed, "options": one.options}
        samples.append(Sample(input=first, id=one.seed, metadata=about))
    return Task(dataset=MemoryDataset(samples, name=env), solver=play(), scorer=episode(), name="game", version=1)
