"""Number Search: the lecture's numbers to the digit, the solver against brute force, the parser, the invalid modes."""

import re
from fractions import Fraction
from functools import cache
from typing import Any

import gymnasium
import numpy as np
import pytest

from agent_envs import demonstrations, novice_policy, random_policy
from agent_envs.number_search import NumberSearchEnv, narrow, optimal_guesses, parse_guess, q_value, value


def play(env, guesses, **options):
    """The return of a list of guesses and the answers to them."""
    env.reset(options=options)
    answers, total = [], 0.0
    for guess in guesses:
        answer, reward, terminated, *_ = env.step(str(guess))
        answers.append(answer)
        total += reward
        if terminated:
            break
    return total, answers


# --- Exact numbers, by enumeration that shares nothing with the solver -----------------------------------------------


@cache
def brute_value(n, k):
    """The best success rate over n numbers with k guesses: every guess tried, every answer followed."""
    if n == 0 or k == 0:
        return Fraction(0)
    return max(brute_q(n, k, guess) for guess in range(n + 2))


@cache
def brute_q(n, k, guess):
    """Of one guess among 0..n+1 where the hidden number is uniform over 1..n (0 and n+1 are wasted)."""
    below, above = max(0, min(guess - 1, n)), max(0, min(n - guess, n))
    won = Fraction(int(1 <= guess <= n), n)
    return won + Fraction(below, n) * brute_value(below, k - 1) + Fraction(above, n) * brute_value(above, k - 1)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_value_and_q_against_brute_force(k):
    for n in range(1, 34):
        assert value(n, k) == pytest.approx(float(brute_value(n, k)), abs=1e-12)
        for guess in range(n + 2):
            assert q_value(1, n, guess, k) == pytest.approx(float(brute_q(n, k, guess)), abs=1e-12)
        best = [guess for guess in range(1, n + 1) if brute_q(n, k, guess) == brute_value(n, k)]
        assert optimal_guesses(1, n, k) == best
        shifted = [guess - 20 for guess in best]
        assert optimal_guesses(-19, n - 20, k) == shifted, "the solver depends on where the range lies"


def success_rate(distribution, high=16, guesses=4):
    """The exact success rate of a policy over uniform targets; `distribution(low, high)` → {guess: probability}."""

    @cache
    def win(target, low, top, k):
        if k == 0:
            return Fraction(0)
        total = Fraction(0)
        for guess, probability in distribution(low, top).items():
            total += probability * (1 if guess == target else win(target, *narrow(low, top, guess, target), k - 1))
        return total

    return sum(win(target, 1, high, guesses) for target in range(1, high + 1)) / high


def test_random_play_succeeds_0_2275():
    everything = {guess: Fraction(1, 16) for guess in range(1, 17)}
    rate = success_rate(lambda low, high: everything)
    assert rate == 1 - Fraction(15, 16) ** 4
    assert round(float(rate), 4) == 0.2275


def test_random_play_within_the_range_succeeds_0_580():
    rate = success_rate(lambda low, high: {guess: Fraction(1, high - low + 1) for guess in range(low, high + 1)})
    assert round(float(rate), 3) == 0.580


def test_optimal_play_succeeds_15_times_in_16():
    assert value(16, 4) == 15 / 16 == 0.9375
    env, wins = NumberSearchEnv(), 0.0
    for target in range(1, 17):
        _, info = env.reset(options={"target": target})
        assert info["value"] == 0.9375
        while not env._done:
            _, reward, _, _, info = env.step(env.optimal_action())
            wins += reward
    assert wins / 16 == 0.9375


@pytest.mark.parametrize(
    ("id", "n", "k", "best"),
    [("NumberSearch-v0", 16, 4, 0.9375), ("NumberSearchEasy-v0", 8, 4, 1.0), ("NumberSearchHard-v0", 100, 7, 1.0)],
)
def test_each_id_has_its_ceiling(id, n, k, best):
    env: Any = gymnasium.make(id).unwrapped
    assert (env.low, env.high, env.max_guesses, env.max_turns) == (1, n, k, k)
    assert env.reset(seed=0)[1]["value"] == best == min(1, (2**k - 1) / n)


def test_optimal_openings_are_8_and_9():
    assert optimal_guesses(1, 16, 4) == [8, 9]
    assert NumberSearchEnv().action_space.contains("8")
    env = NumberSearchEnv()
    env.reset(seed=0)
    assert env.optimal_action() == "8"


def test_worked_values_after_8_and_12():
    env = NumberSearchEnv()
    for target in (9, 10, 11):
        env.reset(options={"target": target})
        assert env.step("8")[0] == "higher"
        answer, *_, info = env.step("12")
        assert answer == "lower"
        assert info["range"] == (9, 11)
        assert info["guesses_left"] == 2
        assert info["value"] == 1.0
    q = {guess: q_value(9, 11, guess, 2) for guess in (9, 10, 11)}
    assert q == {9: pytest.approx(2 / 3), 10: 1.0, 11: pytest.approx(2 / 3)}
    uniform = sum(q.values()) / 3
    assert uniform == pytest.approx(7 / 9)
    assert q[10] - uniform == pytest.approx(2 / 9)
    assert q[11] - uniform == q[9] - uniform == pytest.approx(-1 / 9)


def test_four_reference_trajectories():
    env = NumberSearchEnv()
    assert play(env, [8, 12, 10, 11], target=11) == (1.0, ["higher", "lower", "higher", "correct"])
    assert play(env, [4, 12, 10, 11], target=11) == (1.0, ["higher", "lower", "higher", "correct"])
    assert play(env, [16, 8, 12, 10], target=11)[0] == 0.0
    assert play(env, [1, 2, 3, 4], target=11) == (0.0, ["higher", "higher", "higher", "higher. No guesses left."])
    returns = [
        play(env, guesses, target=11)[0]
        for guesses in ([8, 12, 10, 11], [4, 12, 10, 11], [16, 8, 12, 10], [1, 2, 3, 4])
    ]
    assert sum(p * r for p, r in zip((0.30, 0.20, 0.25, 0.25), returns, strict=True)) == pytest.approx(0.5)


def test_four_means_four():
    env = NumberSearchEnv()
    assert len(play(env, [1, 2, 3, 4, 5, 6], target=16)[1]) == 4
    assert play(env, [1, 2, 3, 16], target=16)[0] == 1.0, "the fourth guess counts"
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("16")


def test_a_wasted_guess_is_worth_what_is_left():
    assert q_value(1, 16, 0, 4) == q_value(1, 16, 17, 4) == value(16, 3)
    assert q_value(1, 16, 8, 0) == 0.0
    env = NumberSearchEnv()
    env.reset(options={"target": 11})
    env.step("8")
    assert env.step("3")[-1]["range"] == (9, 16), "a guess that the answers rule out widened the range"


# --- What the observation says ---------------------------------------------------------------------------------------


def test_the_observation_never_leaks_the_target():
    env = NumberSearchEnv()
    assert len({env.reset(options={"target": target})[0] for target in range(1, 17)}) == 1
    for guess in range(1, 17):
        for side in (range(1, guess), range(guess + 1, 17)):
            answers = set()
            for target in side:
                env.reset(options={"target": target})
                answers.add(env.step(str(guess))[0])
            assert len(answers) <= 1, "targets on one side of a guess are told apart"
    for target in (3, 14):
        env.reset(options={"target": target})
        for reply in ("junk", "0", "99", "1"):
            text, _, _, _, info = env.step(reply)
            named = set(map(int, re.findall(r"\d+", text)))
            assert named <= {1, 16}, text
            assert info["target"] == target


def test_targets_are_uniform_and_seeded():
    env = NumberSearchEnv()
    drawn = [env.reset(seed=seed)[1]["target"] for seed in range(1600)]
    counts = np.bincount(drawn, minlength=17)[1:]
    assert counts.min() > 60
    assert counts.max() < 145
    assert drawn == [env.reset(seed=seed)[1]["target"] for seed in range(1600)]
    env.reset(seed=5)
    following = [env.reset()[1]["target"] for _ in range(20)]
    env.reset(seed=5, options={"target": 1})
    assert [env.reset()[1]["target"] for _ in range(20)] == following


# --- The parser ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [
        *("8", " 8 ", "8.", "8\n", "8\r\n", "08", "+8", "guess(8)", "guess( 8 )", "GUESS(8)", "Guess: 8", "guess:8"),
        *("Action: 8", "Action: guess(8)", "Action:\nguess(8)", r"\boxed{8}", r"So $\boxed{8}$.", "<guess>8</guess>"),
        *('{"guess": 8}', '{ "guess" : 8 }', "```\n8\n```", "```python\nguess(8)\n```", "```json\n{\"guess\": 8}\n```"),
        *("The middle is best.\n8", "I guess(8) now", "8\n8", "guess(8), that is \\boxed{8}"),
        *("<think>9 or 7?</think>8", "<think>\nguess(9)\n</think>\n\nguess(8)", "<thinking>9</thinking>8", "</think>8"),
        *("<think>9</think> no <think>7</think> 8", "<THINK>9</THINK>8"),
    ],
)  # fmt: skip
def test_accepted_replies(reply):
    assert parse_guess(reply) == (8, None)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        *[(reply, "no_guess") for reply in ("", " ", "\n", "eight", "I say 8", "8 or 9", "8, 9", "8.5", "1e3", "--8")],
        *[
            (reply, "no_guess")
            for reply in ("٨", "８", "guess()", "guess(eight)", "guess(8.5)", "guess: ", "0x8", "8 9")
        ],
        *[(reply, "ambiguous") for reply in ("8\n9", "guess(8) guess(9)", "guess(8)\n9", "\\boxed{8} \\boxed{9}")],
        *[(reply, "unfinished_thought") for reply in ("<think>8", "8 <think> hm", "<think>a</think><think>\n8")],
    ],
)
def test_refused_replies(reply, reason):
    assert parse_guess(reply) == (None, reason)


def test_numbers_out_of_all_bounds():
    for digits, number in (("0", 0), ("-3", -3), ("17", 17), ("9" * 5000, 10**18), ("-" + "9" * 5000, -(10**18))):
        assert parse_guess(digits) == (number, None)
        env = NumberSearchEnv()
        env.reset(seed=0)
        text, reward, *_, info = env.step(digits)
        assert info["parse_error"] == "out_of_range"
        assert reward == 0
        assert "from 1 to 16" in text
    assert parse_guess("0" * 5000 + "8") == (8, None)


def test_long_replies_take_linear_time():
    for reply in (
        "8" * 200_000,
        "guess(" * 50_000,
        " " * 200_000 + "x",
        "8\n" * 50_000,
        "<think>" * 50_000,
        "`" * 200_000,
    ):
        parse_guess(reply)


# --- Invalid replies -------------------------------------------------------------------------------------------------


def test_invalid_consume():
    env = NumberSearchEnv()
    env.reset(options={"target": 8})
    for left, reply in ((3, "hm"), (2, "99"), (1, "8\n9")):
        text, reward, terminated, _, info = env.step(reply)
        assert (reward, terminated, info["guesses_left"], info["range"]) == (0, False, left, (1, 16))
        assert text.endswith("It cost a guess.")
    text, reward, terminated, _, info = env.step("<think>")
    assert (reward, terminated, info["value"]) == (0, True, 0.0)
    assert text.endswith("No guesses left.")


def test_invalid_terminate():
    env = NumberSearchEnv(invalid="terminate")
    env.reset(options={"target": 8})
    assert env.step("9")[2] is False
    text, reward, terminated, _, info = env.step("hm")
    assert (reward, terminated, info["is_success"], info["parse_error"]) == (0, True, False, "no_guess")
    assert text.endswith("The game is over.")


def test_invalid_retry():
    env = NumberSearchEnv(invalid="retry", max_retries=2)
    assert env.max_turns == 6
    env.reset(options={"target": 16})
    for free in (True, True, False):
        text, *_, info = env.step("hm")
        assert text.endswith("It cost no guess." if free else "It cost a guess.")
    assert info["guesses_left"] == 3
    assert [env.step(guess)[2] for guess in ("1", "2", "3")] == [False, False, True]
    _, info = env.reset()
    assert info["guesses_left"] == 4
    assert env.step("hm")[0].endswith("It cost no guess."), "retries were not renewed"
    never = NumberSearchEnv(invalid="retry", max_retries=0)
    never.reset(seed=0)
    assert never.step("hm")[0].endswith("It cost a guess.")


@pytest.mark.parametrize("invalid", ["consume", "terminate", "retry"])
def test_every_mode_ends_within_max_turns(invalid):
    rng = np.random.default_rng(0)
    env = NumberSearchEnv(invalid=invalid)
    for seed in range(50):
        env.reset(seed=seed)
        for _ in range(env.max_turns):
            if env.step("hm" if rng.random() < 0.5 else env.random_action(rng))[2]:
                break
        assert env._done


# --- Options ---------------------------------------------------------------------------------------------------------


def test_options_hold_for_one_episode():
    env = NumberSearchEnv()
    text, info = env.reset(seed=0, options={"low": -2, "high": 0, "max_guesses": 1, "target": -2})
    assert text == "Find the hidden number from -2 to 0. You have 1 guess. Reply with one number."
    assert info["value"] == pytest.approx(1 / 3)
    assert env.step("-2")[1] == 1.0
    assert "from 1 to 16. You have 4 guesses" in env.reset()[0]
    assert env.reset(options={"target": np.int64(3)})[1]["target"] == 3
    assert type(env.target) is int


@pytest.mark.parametrize(
    ("options", "named"),
    [
        *[({"target": target}, "target=") for target in (0, 17, 8.0, "8", True, None)],
        *[({"high": 0}, "empty"), ({"low": 17}, "empty"), ({"low": "1"}, "low="), ({"high": 5.5}, "high=")],
        *[({"max_guesses": 0}, "max_guesses=0"), ({"max_guesses": True}, "max_guesses=True"), ({"goal": 1}, "'goal'")],
    ],
)
def test_unfit_options(options, named):
    with pytest.raises(ValueError, match=named):
        NumberSearchEnv().reset(options=options)


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        *[({"low": 3, "high": 2}, "empty"), ({"max_guesses": 0}, "no guess"), ({"invalid": "ignore"}, "invalid=")],
        *[({"max_retries": -1}, "negative"), ({"render_mode": "human"}, "render_mode="), ({"low": 1.0}, "low=")],
    ],
)
def test_unfit_arguments(kwargs, named):
    with pytest.raises(ValueError, match=named):
        NumberSearchEnv(**kwargs)


def test_a_failed_reset_does_not_outlive_the_next():
    env = NumberSearchEnv()
    env.reset(options={"target": 11})
    with pytest.raises(ValueError, match="target="):
        env.reset(options={"target": 99, "high": 20})
    assert env.reset(options={"target": 16})[1]["value"] == 0.9375


# --- Players and demonstrations --------------------------------------------------------------------------------------


def test_random_player_draws_from_the_whole_range_and_novice_sits_between():
    env, rng = NumberSearchEnv(), np.random.default_rng(0)
    rates = {}
    for player in ("random_action", "novice_action"):
        wins = 0
        for seed in range(3000):
            env.reset(seed=seed)
            while not env._done:
                wins += env.step(getattr(env, player)(rng))[1]
        rates[player] = wins / 3000
    assert abs(rates["random_action"] - 0.2275) < 0.03
    assert 0.3 < rates["novice_action"] < 0.55


def test_demonstrations():
    env = gymnasium.make("NumberSearch-v0")
    rows = demonstrations(env, 8, seed=100)
    assert rows == demonstrations(gymnasium.make("NumberSearch-v0"), 8, seed=100)
    assert [row["seed"] for row in rows] == list(range(100, 108))
    for row in rows:
        roles = [message["role"] for message in row["messages"]]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert row["messages"][1]["content"] == "8"
        assert row["return"] == float(row["is_success"])
        env.reset(seed=row["seed"])
        for action, answer in zip(row["messages"][1::2], row["messages"][2::2], strict=False):
            assert env.step(action["content"])[0] == answer["content"]
    (row,) = demonstrations(env, 1, seed=0, options={"target": 12})
    assert [message["content"] for message in row["messages"][1:]] == ["8", "higher", "12"]
    for policy in (novice_policy, random_policy):
        assert demonstrations(env, 5, 3, policy) == demonstrations(env, 5, 3, policy)
        assert demonstrations(env, 5, 3, policy) != demonstrations(env, 5, 4, policy)
    with pytest.raises(ValueError, match="n=0"):
        demonstrations(env, 0, seed=0)
    with pytest.raises(TypeError, match="CartPoleEnv has no optimal_action"):
        demonstrations(gymnasium.make("CartPole-v1"), 1, seed=0)


def test_a_player_does_not_see_the_target_through_its_seed():
    """A player seeded like the environment must not draw the hidden number by drawing the same stream."""
    env, hits = NumberSearchEnv(), 0
    for seed in range(500):
        env.reset(seed=seed)
        hits += random_policy(env, seed)() == str(env.target)
    assert hits / 500 < 0.12


def test_max_turns_follows_the_options() -> None:
    env: Any = gymnasium.make("NumberSearch-v0", invalid="retry", max_retries=3).unwrapped
    assert env.max_turns == 7
    env.reset(options={"max_guesses": 10})
    assert env.max_turns == 13
    env.reset()
    assert env.max_turns == 7


def test_a_refused_reset_changes_nothing() -> None:
    env: Any = gymnasium.make("NumberSearch-v0").unwrapped
    env.reset(seed=0)
    with pytest.raises(ValueError, match="target=99"):
        env.reset(options={"high": 50, "target": 99})
    assert (env.low, env.high) == (1, 16)
