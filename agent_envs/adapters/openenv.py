"""The environments behind OpenEnv: a server with a session a client, a typed client, and the task sets.

    python -m agent_envs.adapters.openenv --env NumberSearch-v0 --port 8000
    openenv validate --url http://localhost:8000

    with GameClient(base_url="http://localhost:8000").sync() as client:
        result = client.reset(seed=0)                      # or reset(split="test", index=3), or options={...}
        result = client.step(GameAction(text="guess(8)"))
        result.observation.text, result.reward, result.done

A seed given to reset is the environment's own, in whatever session: a group of sessions with one seed plays one task.
"""

# pyright: reportAttributeAccessIssue=false
# (pyright takes this very file for the framework of the same name)

from __future__ import annotations

import argparse
from typing import Any
from uuid import uuid4

import gymnasium

from agent_envs.tasks import TaskSet, task_set

try:
    from openenv.core import EnvClient  # pyright: ignore[reportMissingImports]
    from openenv.core.client_types import StepResult  # pyright: ignore[reportMissingImports]
    from openenv.core.env_server.http_server import create_app  # pyright: ignore[reportMissingImports]
    from openenv.core.env_server.interfaces import Environment  # pyright: ignore[reportMissingImports]
    from openenv.core.env_server.types import (  # pyright: ignore[reportMissingImports]
        Action,
        EnvironmentMetadata,
        Observation,
        State,
    )
except ImportError as error:
    raise ImportError(
        "agent_envs.adapters.openenv needs OpenEnv 0.10 or newer; install it with: pip install openenv"
    ) from error


class GameAction(Action):
    """A reply, as free text."""

    text: str


class GameObservation(Observation):
    """What the player may see. `reward` (None at reset) and `done` are OpenEnv's own fields."""

    text: str
    terminated: bool = False
    truncated: bool = False
    is_success: bool = False
    parse_error: str | None = None


_FIELDS = set(GameObservation.model_fields)


def _unchecked(fields: dict[str, Any]) -> GameObservation:
    """`GameObservation.model_construct` without its search for defaults: every field is given. Checking the fields of
    each observation would cost more than the environment's own step."""
    seen = GameObservation.__new__(GameObservation)
    put = object.__setattr__
    put(seen, "__dict__", fields)
    put(seen, "__pydantic_fields_set__", _FIELDS.copy())
    put(seen, "__pydantic_extra__", None)
    put(seen, "__pydantic_private__", None)
    return seen


class GameEnvironment(Environment):
    """One environment as OpenEnv sees it: one session's game, and the tasks there are (OpenEnv's TaskProvider).

    Args:
        env_id: a registered id. options: reset options of every episode. settings: for `gymnasium.make`.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True  # nothing is shared between instances

    def __init__(self, env_id: str, options: dict[str, Any] | None = None, **settings: Any) -> None:
        super().__init__()
        self.env_id, self.options = env_id, dict(options or {})
        self.env = gymnasium.make(env_id, disable_env_checker=True, **settings)
        self._episode_id: str | None = None
        self._seed: int | None = None
        self._steps = 0

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str | None = None,
        index: int | None = None,
        options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> GameObservation:
        """Begin the episode of a seed, or of task `index` of a split, or of the next seed in this session's stream.

        Raises:
            ValueError: a seed and a task at once, a split without an index, or an unknown argument.
        """
        if kwargs:
            raise ValueError(f"reset takes seed, split and index, options; not {', '.join(kwargs)}")
        if (split is None) != (index is None):
            raise ValueError("split and index choose a task together; give both or neither")
        options = {**self.options, **(options or {})}
        if split is not None and index is not None:
            if seed is not None:
                raise ValueError("a task of a split has its own seed; give seed, or split and index")
            task = self._tasks(split)[index]
            seed, options = task.seed, {**task.options, **options}
        text, _ = self.env.reset(seed=seed, options=options)
        self._episode_id, self._seed, self._steps = episode_id or str(uuid4()), seed, 0
        return GameObservation(text=text)

    def step(self, action: GameAction | str, timeout_s: float | None = None, **kwargs: Any) -> GameObservation:
        """One turn. In process a reply may be given as it is: a GameAction costs half as much as a game's own step."""
        reply = action if isinstance(action, str) else action.text
        text, reward, terminated, truncated, info = self.env.step(reply)
        self._steps += 1
        fields = {
            "done": terminated or truncated,
            "reward": float(reward),
            "metadata": {},
            "text": text,
            "terminated": terminated,
            "truncated": truncated,
            "is_success": info.get("is_success", False),
            "parse_error": info.get("parse_error"),
        }
        return _unchecked(fields)

    @property
    def state(self) -> State:
        return State(episode_id=self._episode_id, step_count=self._steps, env_id=self.env_id, seed=self._seed)

    def close(self) -> None:
        self.env.close()

    def get_metadata(self) -> EnvironmentMetadata:
        about = (type(self.env.unwrapped).__doc__ or self.env_id).strip().split("\n")[0]
        return EnvironmentMetadata(name=self.env_id, description=about, version="0.1.0")

    # OpenEnv's TaskProvider.

    def _tasks(self, split: str) -> TaskSet:
        return task_set(self.env_id, split, **self.options)  # type: ignore[arg-type]

    def list_splits(self) -> list[str]:
        return ["train", "test"]

    def num_tasks(self, split: str) -> int:
        return len(self._tasks(split))

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        return {"index": index, **self._tasks(split)[index].row()}

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        tasks = self._tasks(split)
        return [{"index": i, **tasks[i].row()} for i in range(*slice(start, stop).indices(len(tasks)))]

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        return self.get_task_range(split)


class GameClient(EnvClient[GameAction, GameObservation, State]):
    """A session on a server, over a WebSocket; `.sync()` for use without asyncio."""

    def _step_payload(self, action: GameAction) -> dict[str, Any]:
        return {"text": action.text}

    def _parse_result(self, payload: dict[str, Any]) -> Any:
        reward, done = payload.get("reward"), bool(payload.get("done", False))
        observation = GameObservation(**{**payload["observation"], "reward": reward, "done": done})
        return StepResult(observation=observation, reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(**payload)


def make_app(env_id: str, sessions: int = 64, **settings: Any) -> Any:
    """A FastAPI app that serves `env_id` to up to `sessions` clients at a time."""
    return create_app(
        lambda: GameEnvironment(env_id, **settings),
        GameAction,
        GameObservation,
        env_name=env_id,
        max_concurrent_envs=sessions,
    )


def main() -> None:
    import uvicorn  # pyright: ignore[reportMissingImports]

    parser = argparse.ArgumentParser(description="Serve an environment with OpenEnv.")
    parser.add_argument("--env", default="NumberSearch-v0", help="a registered id")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--sessions", type=int, default=64, help="most clients at a time")
    arguments = parser.parse_args()
    uvicorn.run(make_app(arguments.env, arguments.sessions), host=arguments.host, port=arguments.port)


if __name__ == "__main__":
    main()
