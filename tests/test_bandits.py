"""The two bandits: rules, parser, options, and the lecture's numbers that follow from their rewards."""

import gymnasium
import numpy as np
import pytest

from agent_envs import task_set
from agent_envs.bandits import BanditEnv, best_actions, invalid_pay, letter, parse_choice


@pytest.mark.parametrize(
    "reply",
    [
        *(
            "A",
            "a",
            " A ",
            "A.",
            "Choice: A",
            "Action: A",
            "action:a",
            "choose(A)",
            "I pick choose( a ).",
            r"\boxed{A}",
        ),
        *(
            "<choice>A</choice>",
            '{"choice": "A"}',
            "```\nA\n```",
            "```text\nchoose(A)\n```",
            "Let me see.\nA\n",
            "A\r\n",
        ),
        *("<think>B is bad</think>A", "<think>choose(B)</think>\nchoose(A)", "A\nchoose(A)", "Action: A\nA"),
    ],
)
def test_accepted_choices(reply):
    assert parse_choice(reply) == ("A", None)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        *[("", "no_choice"), ("A or B", "no_choice"), ("I choose A", "no_choice"), ("AB", "no_choice")],
        *[("\N{KELVIN SIGN}", "no_choice"), ("choose()", "no_choice"), ("choose(AB)", "no_choice"), ("Ä", "no_choice")],
        *[("A\nB", "ambiguous"), ("choose(A) choose(B)", "ambiguous"), (r"A" "\n" r"\boxed{B}", "ambiguous")],
        *[("<think>A", "unfinished_thought"), ("A <think>", "unfinished_thought")],
    ],
)  # fmt: skip
def test_refused_choices(reply, reason):
    assert parse_choice(reply) == (None, reason)


def test_rules():
    assert [letter(action) for action in (0, 1, 25)] == ["A", "B", "Z"]
    assert best_actions((1, 3, 3)) == [1, 2]
    assert invalid_pay((11, 9)) == 0
    assert invalid_pay((-1, -2)) == -2, "a reply without a choice must not beat a choice"


@pytest.mark.parametrize(("action", "reward", "success"), [("A", 1.0, True), ("B", 0.0, False)])
def test_two_armed_bandit(action, reward, success):
    env = gymnasium.make("TwoArmedBandit-v0")
    observation, info = env.reset(seed=0)
    assert "state" not in observation
    assert info["state"] == 0
    _, paid, terminated, truncated, info = env.step(action)
    assert (paid, terminated, truncated, info["is_success"]) == (reward, True, False, success)


@pytest.mark.parametrize(("state", "action", "reward"), [(0, "A", 11), (0, "B", 9), (1, "A", 0), (1, "B", 2)])
def test_two_state(state, action, reward):
    env = gymnasium.make("TwoState-v0")
    observation, _ = env.reset(options={"state": state})
    assert f"state {state + 1} of 2" in observation
    _, paid, _, _, info = env.step(action)
    assert paid == reward
    assert info["is_success"] == (action == "AB"[state])


def test_two_state_numbers_of_the_lecture():
    rewards = np.array(gymnasium.make("TwoState-v0").unwrapped.rewards)  # type: ignore[attr-defined]
    assert rewards.mean(axis=1).tolist() == [10, 1]
    assert round(float(rewards.std(ddof=1)), 2) == 5.32
    assert round(float((rewards - rewards.mean(axis=1, keepdims=True)).std(ddof=1)), 2) == 1.15
    assert rewards[0, 1] > rewards[1, 1], "raw, the worse action of one state outweighs the better of the other"


def test_both_states_occur_and_the_option_does_not_shift_the_stream():
    env = BanditEnv(((11, 9), (0, 2)))
    states = [env.reset(seed=seed)[1]["state"] for seed in range(200)]
    assert 70 < sum(states) < 130
    env.reset(seed=5)
    drawn = [env.reset()[1]["state"] for _ in range(20)]
    env.reset(seed=5, options={"state": 0})
    assert [env.reset()[1]["state"] for _ in range(20)] == drawn
    assert [task.options["state"] for task in task_set("TwoState-v0", size=4)] == [0, 1, 0, 1]


def test_invalid_replies_end_the_episode_unpaid():
    env = BanditEnv(((-3.0, -1.0, -2.0),))
    for reply, reason in (("D", "unknown_choice"), ("nothing", "no_choice")):
        env.reset()
        observation, reward, terminated, _, info = env.step(reply)
        assert (reward, terminated, info["parse_error"], info["is_success"]) == (-3.0, True, reason, False)
        assert "A, B or C" in observation
    env.reset()
    assert env.step("B")[1] == -1.0


@pytest.mark.parametrize(
    "rewards", [(), ((1.0,),), ((1, 2), (1, 2, 3)), ((1, float("nan")),), ((1, float("inf")),), ((0.0,) * 27,)]
)
def test_unfit_rewards(rewards):
    with pytest.raises(ValueError, match="rewards="):
        BanditEnv(rewards)


@pytest.mark.parametrize("state", [2, -1, 0.0, "0", True, None])
def test_unfit_state(state):
    with pytest.raises(ValueError, match="state="):
        gymnasium.make("TwoState-v0").reset(options={"state": state})


def test_players():
    env, rng = BanditEnv(((11, 9), (0, 2))), np.random.default_rng(0)
    for state in (0, 1):
        env.reset(options={"state": state})
        assert env.optimal_action() == "AB"[state]
        novice = [env.novice_action(rng) == env.optimal_action() for _ in range(2000)]
        assert abs(np.mean(novice) - 0.65) < 0.05
        assert {env.random_action(rng) for _ in range(50)} == {"A", "B"}
