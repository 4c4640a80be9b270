"""The environments in verifiers (v1 API): a taskset, an environment that plays the user, and a harness that replies.

    vf-eval agent-envs-verifiers --env.taskset.env NumberSearch-v0 \\
        --client.base-url http://localhost:8000/v1 -m my-model

verifiers finds them by the name of the module `agent_envs_verifiers`, which only passes on what stands here. Its own
harnesses start a program of their own for each reply; a game needs none, so `ReplyHarness` asks the model in process.
"""

# pyright: reportAttributeAccessIssue=false
# (pyright takes this very file for the framework of the same name)

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import gymnasium

from agent_envs.tasks import task_set

try:
    import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
    from openai import AsyncOpenAI  # pyright: ignore[reportMissingImports]
    from verifiers.v1.dialects.chat import message_to_wire  # pyright: ignore[reportMissingImports]
    from verifiers.v1.runtimes import ProgramResult  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError(
        "agent_envs.adapters.verifiers needs verifiers 0.4 or newer; install it with: pip install verifiers"
    ) from error

__all__ = ["GameConfig", "GameData", "GameEnv", "GameEnvConfig", "GameTask", "GameTaskset", "ReplyHarness"]


class GameConfig(vf.TasksetConfig):
    """Which tasks: `--env.taskset.env Crafting-v0 --env.taskset.options '{"tier": 0}'`."""

    env: str = "NumberSearch-v0"
    """A registered Gymnasium id."""
    split: Literal["train", "test"] = "test"
    size: int | None = None
    """How many tasks; the environment's own number where unset."""
    options: dict[str, Any] = {}  # noqa: RUF012  (pydantic copies it)
    """Reset options that all tasks share."""


class GameData(vf.TaskData):
    """One task instance: everything that `reset` needs."""

    env: str
    seed: int
    options: dict[str, Any]


class GameTask(vf.Task[GameData, vf.State, vf.TaskConfig]):
    """A game to be played; the environment scores it."""


class GameTaskset(vf.Taskset[GameTask, GameConfig]):
    """`agent_envs.task_set` as a taskset; a task's prompt is its first observation."""

    def load(self) -> Iterator[GameTask]:
        env = gymnasium.make(self.config.env, disable_env_checker=True)
        for task in task_set(self.config.env, self.config.split, self.config.size, **self.config.options):
            prompt, _ = env.reset(seed=task.seed, options=dict(task.options))
            data = GameData(
                name=f"{task.env_id} {task.seed}",
                prompt=prompt,
                env=task.env_id,
                seed=task.seed,
                options=dict(task.options),
            )
            yield GameTask(data, self.config.task)


class GameEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig(runtime={"type": "subprocess"})
    """In this process: a game runs no code of the model's, so it needs no sandbox."""


class GameEnv(vf.Env[GameEnvConfig]):
    """Plays one game: the model's reply is the action, the next observation the next user turn.

    Records the reward `episode_return`, and the metrics `is_success`, `turns` and `invalid` (replies without an
    action). A model that stops early keeps what it was paid so far.
    """

    async def run(self, task: Any, agents: Any) -> None:
        env = gymnasium.make(task.data.env, disable_env_checker=True)
        env.reset(seed=task.data.seed, options=dict(task.data.options))
        total, turns, invalid, info, done = 0.0, 0, 0, {}, False
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                observation, reward, terminated, truncated, info = env.step(segment.last_reply)
                total, turns, done = total + float(reward), turns + 1, terminated or truncated
                invalid += bool(info.get("parse_error"))
                if done:
                    break
                segment = await interaction.turn(observation)
        trace = interaction.trace
        trace.record_reward("episode_return", total, 1.0)
        for name, value in (("is_success", info.get("is_success", False)), ("turns", turns), ("invalid", invalid)):
            trace.record_metric(name, float(value))


class ReplyHarness(vf.Harness[vf.HarnessConfig]):
    """One streamed reply a turn, asked for in this process, through verifiers' interception like any other harness."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        system, prompt = self.resolve_prompt(data)
        said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(map(message_to_wire, prompt))
        messages: Any = ([{"role": "system", "content": system}] if system else []) + said
        # The interception answers on loopback; a busy machine may need more than the client's five seconds to connect.
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0, timeout=600.0) as client:
            stream = await client.chat.completions.create(model=ctx.model, messages=messages, stream=True)
            async for _ in stream:  # the interception keeps the reply on the trace
                pass
        return ProgramResult(exit_code=0, stdout="", stderr="")
