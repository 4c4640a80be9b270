"""Many environments, one policy: `collect_rollouts` plays them together and returns tokens and masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium

from agent_envs.policies import with_hint
from agent_envs.tasks import Task
from trl_plugins.chat import Chat, Finish, Message

Env = gymnasium.Env[str, str]
EnvFn = Callable[[], Env]


@dataclass(frozen=True)
class Sample:
    """One reply as sampled. `finish` is "stop" where an end token was sampled, else "length" (the cap)."""

    ids: list[int]
    logprobs: list[float]
    finish: Finish


@dataclass(frozen=True)
class Turn:
    """One reply and the environment's answer."""

    action_ids: list[int]
    """What the policy sampled, the end-of-turn token included if it was sampled."""
    logprobs: list[float]
    """Of those tokens, at the sampling temperature."""
    reward: float
    reply_ids: list[int]
    """The environment's words and the template's glue up to the next turn; empty on the last."""
    finish: Finish
    invalid: bool = False
    """The environment found no action in it (`info["parse_error"]`)."""
    state_value: float = math.nan
    """V* of the history it was given in, where the environment's info tells it (`value`)."""
    state_key: str = ""
    """Names the environment's state it was given in, where that was asked for."""


@dataclass
class Trajectory:
    """One episode. C below is the number of tokens after the prompt."""

    task: Task
    messages: list[Message]
    """The opening as messages."""
    prompt_ids: list[int]
    turns: list[Turn] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    is_success: bool = False
    error: Exception | None = None
    """What the environment raised; the trajectory then carries no loss and counts in no baseline."""
    info: dict[str, Any] = field(default_factory=dict)
    demonstration: bool = False
    """Played by the environment's solver, not by the policy."""

    @property
    def failed(self) -> bool:
        return self.error is not None

    @property
    def total_return(self) -> float:
        """Sum of the rewards of all turns; NaN where the environment failed."""
        return math.nan if self.failed else sum(turn.reward for turn in self.turns)

    @property
    def completion_ids(self) -> list[int]:
        """(C,) everything after the prompt."""
        return [token for turn in self.turns for token in (*turn.action_ids, *turn.reply_ids)]

    @property
    def env_mask(self) -> list[int]:
        """(C,) 1 on tokens the policy sampled, 0 on the environment's; all 0 where the environment failed."""
        sampled = 0 if self.failed else 1
        return [m for turn in self.turns for m in [sampled] * len(turn.action_ids) + [0] * len(turn.reply_ids)]

    @property
    def logprobs(self) -> list[float]:
        """(C,) sampling log-probabilities, 0 on the environment's tokens."""
        return [p for turn in self.turns for p in (*turn.logprobs, *[0.0] * len(turn.reply_ids))]

    @property
    def turn_index(self) -> list[int]:
        """(C,) the turn each token belongs to, from 0; an environment's answer belongs to the turn before it."""
        return [i for i, t in enumerate(self.turns) for _ in range(len(t.action_ids) + len(t.reply_ids))]


class Policy(Protocol):
    """Samples one reply for each context. Contexts only grow: what was in one stays in it."""

    def start(self, prompts: Sequence[list[int]], seed: int) -> None:
        """A new batch of episodes with these openings; all randomness from here on comes from `seed`."""
        ...

    def act(self, rows: Sequence[int], contexts: Sequence[list[int]]) -> list[Sample]:
        """One reply for each context; `rows` are their indices in `start`'s prompts (a finished row never returns)."""
        ...


class RolloutError(RuntimeError):
    """Too many environments failed; `__cause__` is the first error."""


def collect_rollouts(
    tasks: Sequence[Task],
    make_env: Callable[[str], Env],
    policy: Policy,
    chat: Chat,
    *,
    max_turns: int,
    seed: int,
    system_prompt: str | None = None,
    max_context: int | None = None,
    max_failed_share: float = 0.5,
    state_keys: bool = False,
    discard: Callable[[Env], None] = lambda env: None,
) -> list[Trajectory]:
    """Play one episode of each task, all together, and return them in order.

    An exception in one environment marks that trajectory failed and the others go on.

    Args:
        tasks: N task instances; each environment is reset with its task's seed and options.
        make_env: called with a task's environment id; must give an environment that no other task of this call holds.
        policy: samples all replies; its cap on tokens a turn is its own.
        chat: the append-only tokens of the conversation.
        max_turns: an episode still running after so many turns is truncated.
        seed: of all sampling.
        system_prompt: put before the first observation.
        max_context: most tokens a context may have when a reply is sampled (the model's positions less a turn's cap);
            an episode whose next context would be longer is truncated before it.
        max_failed_share: above this share of failed episodes, stop.
        state_keys: note each turn's `state_key` (the environment's own `state_key()`).
        discard: called with each environment that failed, at the end.

    Raises:
        RolloutError: more than `max_failed_share` of the environments failed; the first error is its cause.
    """
    envs: list[Env | None] = []
    trajectories: list[Trajectory] = []
    for task in tasks:
        env, trajectory = _begin(task, make_env, chat, system_prompt)
        envs.append(env)
        trajectories.append(trajectory)
    _check_failures(trajectories, max_failed_share)
    policy.start([t.prompt_ids for t in trajectories], seed)
    contexts = [list(t.prompt_ids) for t in trajectories]
    live = [row for row, trajectory in enumerate(trajectories) if not trajectory.failed]
    for turn in range(max_turns):
        if not live:
            break
        samples = policy.act(live, [contexts[row] for row in live])
        going = []
        for row, sample in zip(live, samples, strict=True):
            last = turn == max_turns - 1
            reply = _play(envs[row], trajectories[row], sample, chat, last, max_context, state_keys)
            if reply is not None:
                contexts[row] += reply
                going.append(row)
        live = going
    for env, trajectory in zip(envs, trajectories, strict=True):
        if env is not None and trajectory.failed:
            discard(env)
    _check_failures(trajectories, max_failed_share)
    return trajectories


def _begin(
    task: Task, make_env: Callable[[str], Env], chat: Chat, system_prompt: str | None
) -> tuple[Env | None, Trajectory]:
    env: Env | None = None
    try:
        env = make_env(task.env_id)
        observation, info = env.reset(seed=task.seed, options=dict(task.options))
        if not isinstance(observation, str):
            raise TypeError(f"{task.env_id}: reset returned {type(observation).__name__}, text environments return str")
        if task.hint:
            observation = with_hint(env, observation)
    except Exception as error:
        messages = chat.opening_messages("(the environment failed)", system_prompt)
        return env, Trajectory(task, messages, chat.opening_ids(messages), error=error)
    messages = chat.opening_messages(observation, system_prompt)
    return env, Trajectory(task, messages, chat.opening_ids(messages), info=info)


def _play(
    env: Env | None,
    trajectory: Trajectory,
    sample: Sample,
    chat: Chat,
    last: bool,
    limit: int | None,
    state_keys: bool,
) -> list[int] | None:
    """Step one environment with a sampled reply; what its context grows by, or None where the episode is over."""
    assert env is not None
    reward, invalid, reply_ids, done = 0.0, False, [], True
    state_value, state_key = float(trajectory.info.get("value", math.nan)), ""
    try:
        if state_keys:
            state_key = env.unwrapped.state_key()  # type: ignore[attr-defined]
        observation, raw_reward, terminated, truncated, info = env.step(chat.said(sample.ids))
        reward = float(raw_reward)
        if not math.isfinite(reward):
            raise ValueError(f"{trajectory.task.env_id}: the reward {raw_reward!r} is not a finite number")
        invalid = bool(info.get("parse_error"))
        done = terminated or truncated
        trajectory.terminated, trajectory.truncated, trajectory.info = bool(terminated), bool(truncated), info
        trajectory.is_success = bool(info.get("is_success", False))
        if not done:
            reply_ids = chat.glue_ids(sample.ids, observation)
            used = len(trajectory.prompt_ids) + sum(len(t.action_ids) + len(t.reply_ids) for t in trajectory.turns)
            if last or (limit is not None and used + len(sample.ids) + len(reply_ids) > limit):
                trajectory.truncated, done, reply_ids = True, True, []
    except Exception as error:
        trajectory.error, done, reply_ids = error, True, []
    turn = Turn(sample.ids, sample.logprobs, reward, reply_ids, sample.finish, invalid, state_value, state_key)
    trajectory.turns.append(turn)
    return None if done else [*sample.ids, *reply_ids]


def _check_failures(trajectories: Sequence[Trajectory], max_failed_share: float) -> None:
    failed = [t for t in trajectories if t.failed]
    if len(failed) > max_failed_share * len(trajectories):
        task = failed[0].task
        raise RolloutError(
            f"{len(failed)} of {len(trajectories)} environments failed (at most {max_failed_share:.0%} may); first: "
            f"{task.env_id}, seed {task.seed}, options {task.options}: {failed[0].error!r}"
        ) from failed[0].error


class EnvPool:
    """Environments made once and reused: `lend()` starts a round in which no environment is handed out twice."""

    def __init__(self, env_fn: EnvFn | None = None) -> None:
        self._env_fn = env_fn
        self._pool: dict[str, list[Env]] = {}
        self._lent: dict[str, int] = {}

    def lend(self) -> Callable[[str], Env]:
        self._lent = {}
        return self._next

    def _next(self, env_id: str) -> Env:
        pool, index = self._pool.setdefault(env_id, []), self._lent.get(env_id, 0)
        if index == len(pool):
            make = self._env_fn or (lambda: gymnasium.make(env_id, disable_env_checker=True))
            pool.append(make())
        self._lent[env_id] = index + 1
        return pool[index]

    def discard(self, env: Env) -> None:
        """Never lend this environment again: it has failed, and what state that left it in nobody knows."""
        for env_id, pool in self._pool.items():
            if env in pool:
                at = pool.index(env)
                if at < self._lent.get(env_id, 0):
                    self._lent[env_id] -= 1
                del pool[at]
