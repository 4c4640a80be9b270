"""The rollout with a scripted policy: masks, rewards, failures, caps; no model needed."""

import math
from typing import Any

import gymnasium
import pytest

import agent_envs
from agent_envs.tasks import Task
from agent_envs.text import FreeText
from trl_plugins.chat import Chat
from trl_plugins.policies import ScriptedPolicy
from trl_plugins.report import show_trajectory
from trl_plugins.rollout import EnvPool, RolloutError, Trajectory, collect_rollouts


class Fragile(gymnasium.Env[str, str]):
    """Breaks at the turn given by `options["breaks"]` (0: at reset) in the way given by `options["how"]`."""

    observation_space = action_space = FreeText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.options, self.turn = options or {}, 0
        if self.options.get("breaks") == 0:
            raise OSError("no disk")
        return "go", {}

    def step(self, action: str) -> Any:
        self.turn += 1
        if self.options.get("breaks") == self.turn:
            if self.options.get("how") == "nan":
                return "x", math.nan, False, False, {}
            raise OSError("no disk")
        return "on", 1.0, self.turn == 3, False, {"is_success": self.turn == 3}


def play(
    tiny: tuple[Any, Any], tasks: list[Task], say: Any, env_fn: Any = None, **kwargs: Any
) -> tuple[Chat, list[Trajectory]]:
    tokenizer = tiny[1]
    chat = Chat(tokenizer, [tokenizer.eos_token_id])
    policy = ScriptedPolicy(lambda t: tokenizer.encode(t), tokenizer.eos_token_id, say)
    settings: dict[str, Any] = {"max_turns": 4, "seed": 0} | kwargs
    return chat, collect_rollouts(tasks, EnvPool(env_fn).lend(), policy, chat, **settings)


def target(number: int) -> Task:
    return Task("NumberSearch-v0", seed=0, options={"target": number})


def test_tokens_and_masks_of_one_game(tiny: tuple[Any, Any]) -> None:
    chat, (game,) = play(tiny, [target(11)], lambda row, turn: ["8", "12", "11"][turn])
    assert (game.total_return, game.terminated, game.truncated, game.is_success) == (1.0, True, False, True)
    assert [turn.reward for turn in game.turns] == [0.0, 0.0, 1.0]
    text = chat.tokenizer.decode(game.prompt_ids + game.completion_ids, skip_special_tokens=False)
    assert text.endswith(
        "<|assistant|>8<|end|><|user|>higher<|end|><|assistant|>12<|end|><|user|>lower<|end|><|assistant|>11<|end|>"
    )
    assert game.env_mask == [1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1]
    assert game.turn_index == [0] * 6 + [1] * 6 + [2] * 2
    assert len(game.completion_ids) == len(game.logprobs) == len(game.env_mask)
    assert "«11»«<|end|>»  (reward 1)" in show_trajectory(game, chat.tokenizer)


def test_ragged_episodes_stay_in_order(tiny: tuple[Any, Any]) -> None:
    script = {0: ["8"], 1: ["1", "2", "3", "4"], 2: ["16", "what?", "9"]}
    _, games = play(tiny, [target(8), target(11), target(9)], lambda row, turn: script[row][turn])
    assert [g.total_return for g in games] == [1.0, 0.0, 1.0]
    assert [len(g.turns) for g in games] == [1, 4, 3]
    assert [t.invalid for t in games[2].turns] == [False, True, False]


def test_an_episode_still_running_is_truncated(tiny: tuple[Any, Any]) -> None:
    _, (game,) = play(tiny, [target(11)], lambda row, turn: "1", max_turns=2)
    assert (game.truncated, game.terminated, len(game.turns)) == (True, False, 2)
    assert game.turns[-1].reply_ids == []


def test_a_context_that_would_not_fit_is_truncated(tiny: tuple[Any, Any]) -> None:
    def guess_one(row: int, turn: int) -> str:
        return "1"

    _, (free,) = play(tiny, [target(11)], guess_one)
    third = len(free.prompt_ids) + sum(len(t.action_ids) + len(t.reply_ids) for t in free.turns[:2])
    _, (game,) = play(tiny, [target(11)], guess_one, max_context=third)
    assert (len(game.turns), game.truncated, game.turns[-1].reply_ids) == (3, True, [])
    _, (shorter,) = play(tiny, [target(11)], guess_one, max_context=third - 1)
    assert (len(shorter.turns), shorter.truncated) == (2, True)


def test_a_system_prompt_comes_first(tiny: tuple[Any, Any]) -> None:
    chat, (game,) = play(tiny, [target(8)], lambda row, turn: "8", system_prompt="Be brief.")
    assert chat.tokenizer.decode(game.prompt_ids).startswith("<|system|>Be brief.<|end|><|user|>Find")


@pytest.mark.parametrize(("breaks", "how"), [(0, "raise"), (2, "raise"), (2, "nan")])
def test_one_broken_environment_does_not_stop_the_others(tiny: tuple[Any, Any], breaks: int, how: str) -> None:
    tasks = [Task("", 0), Task("", 1, {"breaks": breaks, "how": how}), Task("", 2)]
    _, games = play(tiny, tasks, lambda row, turn: "1", env_fn=Fragile)
    assert [g.failed for g in games] == [False, True, False]
    assert [g.total_return for g in games if not g.failed] == [3.0, 3.0]
    assert math.isnan(games[1].total_return)
    assert set(games[1].env_mask) <= {0}
    assert games[1].is_success is False


def test_too_many_broken_environments_stop_with_the_first_error(tiny: tuple[Any, Any]) -> None:
    tasks = [Task("", 7, {"breaks": 1}), Task("", 8, {"breaks": 2}), Task("", 9)]
    with pytest.raises(RolloutError, match=r"2 of 3 environments failed .*seed 7.*no disk") as error:
        play(tiny, tasks, lambda row, turn: "1", env_fn=Fragile)
    assert isinstance(error.value.__cause__, OSError)


def test_the_pool_never_lends_an_environment_twice() -> None:
    pool = EnvPool()
    lend = pool.lend()
    first, second = lend("NumberSearch-v0"), lend("NumberSearch-v0")
    assert first is not second
    assert pool.lend()("NumberSearch-v0") is first


def test_an_environment_that_failed_is_never_lent_again(tiny: tuple[Any, Any]) -> None:
    pool = EnvPool(Fragile)
    tokenizer = tiny[1]
    chat = Chat(tokenizer, [tokenizer.eos_token_id])
    policy = ScriptedPolicy(lambda t: tokenizer.encode(t), tokenizer.eos_token_id, lambda row, turn: "1")
    tasks = [Task("", 0), Task("", 1, {"breaks": 2}), Task("", 2)]
    lend = pool.lend()
    collect_rollouts(tasks, lend, policy, chat, max_turns=4, seed=0, discard=pool.discard)
    lend = pool.lend()
    assert all(getattr(lend(""), "options", {}).get("breaks") is None for _ in range(3))


def test_several_environment_ids_in_one_rollout(tiny: tuple[Any, Any]) -> None:
    tasks = [target(8), Task("NumberSearchEasy-v0", 0, {"target": 8}), *agent_envs.task_set("NumberSearchHard-v0")[7:8]]
    _, games = play(tiny, tasks, lambda row, turn: "8", max_turns=7)
    assert [g.total_return for g in games] == [1.0, 1.0, 1.0]
