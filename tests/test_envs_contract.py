"""The one contract that every registered environment of this package keeps. A new id is tested by being registered."""

import copy
import hashlib
import json
import os
import random
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import agent_envs

IDS = sorted(agent_envs.registered_ids())
PLAYERS = ["optimal_action", "novice_action", "random_action"]
JUNK = ["", "I would rather not.", "<think>8", "\\boxed{}", "```", "A B", "9 9", "guess(1) guess(2)", "0 0 0 0", "\n\n"]


def make(id, **kwargs) -> Any:
    return gymnasium.make(id, **kwargs).unwrapped


def choose(env, rng):
    """A novice's action, one time in five a reply that is no action at all."""
    return JUNK[int(rng.integers(len(JUNK)))] if rng.random() < 0.2 else env.novice_action(rng)


def play(env, rng, seed=None, options=None, act=choose) -> list[Any]:
    """One episode as a list of everything that it returned."""
    turns, done = [("reset", *env.reset(seed=seed, options=options))], False
    while not done:
        action = act(env, rng)
        turns.append((action, *env.step(action)))
        done = turns[-1][3] or turns[-1][4]
    return turns


def transcript(id, seeds=range(10)):
    """Episodes of one environment as text: seeded ones, and after each an unseeded one that continues its stream."""
    env, episodes = make(id), []
    for seed in seeds:
        rng = np.random.default_rng([seed, 7])
        episodes += [play(env, rng, seed), play(env, rng)]
    return repr(episodes)


def digest(id, seeds=range(10)):
    return hashlib.sha256(transcript(id, seeds).encode()).hexdigest()


def digests():
    """One hash an id; a fresh process prints these."""
    return {id: digest(id) for id in IDS}


def fresh(code, **environ):
    """What a new Python process prints when it runs the code."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environ},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def fresh_digests(hash_seed):
    code = "import json, test_envs_contract as t; print(json.dumps(t.digests()))"
    return json.loads(fresh(code, PYTHONHASHSEED=hash_seed))


def test_there_are_ids():
    assert {"NumberSearch-v0", "TwoArmedBandit-v0", "TwoState-v0", "Sort-v0"} <= set(IDS)


@pytest.mark.parametrize("id", IDS)
def test_gymnasium_checker_finds_nothing(id):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(id))


@pytest.mark.parametrize("id", IDS)
def test_same_seed_same_transcript(id):
    assert transcript(id) == transcript(id)
    assert transcript(id, range(10)) != transcript(id, range(10, 20))


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
@pytest.mark.parametrize("id", IDS)
def test_same_transcript_in_another_process(id, hash_seed):
    assert fresh_digests(hash_seed)[id] == digest(id)


@pytest.mark.full
@pytest.mark.parametrize("id", IDS)
def test_same_transcript_for_1000_seeds(id):
    code = f"import test_envs_contract as t; print(t.digest({id!r}, range(1000)))"
    here = digest(id, range(1000))
    assert {fresh(code, PYTHONHASHSEED=seed).strip() for seed in ("0", "1", "4242") for _ in range(2)} == {here}


@pytest.mark.parametrize("id", IDS)
def test_state_through_json_mid_episode(id):
    env, other = make(id), make(id)
    for seed in range(10):
        rng = np.random.default_rng(seed)
        env.reset(seed=seed)
        for _ in range(seed % max(1, env.max_turns)):  # a different depth each time, the start included
            if env.step(choose(env, rng))[2]:
                break
        state = json.loads(json.dumps(env.get_state()))
        other.set_state(state)
        assert other.get_state() == state
        rngs = copy.deepcopy(rng), copy.deepcopy(rng)
        assert finish(env, rngs[0]) == finish(other, rngs[1])
        # The stream of later episodes goes on identically too.
        assert play(env, rngs[0]) == play(other, rngs[1])
        assert env.get_state() == other.get_state()


def finish(env, rng):
    """The rest of the present episode."""
    turns = []
    while not env._done:
        action = choose(env, rng)
        turns.append((action, *env.step(action)))
    return turns


@pytest.mark.parametrize("id", IDS)
def test_state_refuses_missing_and_unknown_fields(id):
    env = make(id)
    env.reset(seed=0)
    state = env.get_state()
    for bad in ({**state, "surplus": 1}, {key: value for key, value in state.items() if key != "rng"}, {}):
        with pytest.raises(ValueError, match="state has fields"):
            env.set_state(bad)


@pytest.mark.parametrize("id", IDS)
def test_deepcopy_is_independent(id):
    env = make(id)
    env.reset(seed=3)
    clone, state = copy.deepcopy(env), env.get_state()
    end = finish(clone, np.random.default_rng(1))
    assert env.get_state() == state, "playing the copy moved the original"
    assert finish(env, np.random.default_rng(1)) == end


ACTIONS = ["8", "guess(8)", "A", "choose(B)", "0 1 2 3", "[3, 2, 1]", "take 2 wood", "craft plank", "look", "Action: "]
MARKS = [
    "<think>",
    "</think>",
    "```text\n",
    "```",
    "\\boxed{",
    "}",
    "(",
    ")",
    ":",
    "-1",
    "9" * 5000,
    "٣",
    "\x00",
    "🙂",
    "\ud800",
]
FRAGMENTS = st.sampled_from([*JUNK, *ACTIONS, *MARKS, " "])
REPLIES = st.one_of(
    st.text(max_size=60),
    st.text(st.characters(), max_size=20),
    st.lists(FRAGMENTS, max_size=8).map("".join),
    st.lists(FRAGMENTS, max_size=8).map("\n".join),
)


def fuzz(id, seed, replies):
    """Any replies at all, in as many episodes as they fill: no exception, no pay without an action, an end in time."""
    env, turn = make(id), 0
    env.reset(seed=seed)
    for reply in replies + [replies[-1]] * env.max_turns:  # so that the last episode has the turns to end in
        observation, reward, terminated, truncated, info = env.step(reply)
        turn += 1
        assert type(observation) is str
        assert type(reward) is float
        assert type(terminated) is bool
        assert type(truncated) is bool
        assert isinstance(info["is_success"], bool)
        assert info["parse_error"] is None or isinstance(info["parse_error"], str)
        assert not (info["parse_error"] and (reward > 0 or info["is_success"])), "a reply without an action was paid"
        assert terminated or truncated or turn < env.max_turns, f"still running after {turn} turns"
        if terminated or truncated:
            env.reset()
            turn = 0


@pytest.mark.parametrize("id", IDS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(seed=st.integers(0, 2**31), replies=st.lists(REPLIES, min_size=1, max_size=8))
def test_any_text_is_a_turn(id, seed, replies):
    fuzz(id, seed, replies)


@pytest.mark.full
@pytest.mark.parametrize("id", IDS)
@settings(max_examples=10_000, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(seed=st.integers(0, 2**31), replies=st.lists(REPLIES, min_size=5, max_size=8))
def test_50_000_replies(id, seed, replies):
    fuzz(id, seed, replies)


@pytest.mark.parametrize("id", IDS)
def test_programming_errors_raise(id):
    env = make(id)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(env.action_space.sample())
    play(env, np.random.default_rng(0), seed=0)
    for _ in range(2):
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(env.action_space.sample())
    env.reset(seed=0)
    for wrong in (None, 3, b"8", ["8"]):
        with pytest.raises(TypeError, match="text"):
            env.step(wrong)
    with pytest.raises(ValueError, match="no_such_option"):
        env.reset(options={"no_such_option": 1})
    with pytest.raises(gymnasium.error.ResetNeeded):
        gymnasium.make(id).step("8")


@pytest.mark.parametrize("id", IDS)
def test_infos_hold_what_gymnasium_can_batch(id):
    """One type a key: `None` or a float in the place of an int breaks, or silently rounds, Gymnasium's vector infos."""
    env, types = make(id), {}
    for seed in range(20):
        for _, observation, *_, info in play(env, np.random.default_rng(seed), seed):
            assert {"is_success", "parse_error"} <= set(info)
            assert observation in env.observation_space
            for key, value in info.items():
                types.setdefault(key, set()).add(type(value))
    for key, kinds in types.items():
        if kinds & {int, float, bool} or any(issubclass(kind, np.number) for kind in kinds):
            assert len(kinds) == 1, f"info[{key!r}] is sometimes {kinds}; leave the key out where it has no value"


@pytest.mark.parametrize("id", IDS)
def test_players_play_to_an_end(id):
    returns = {}
    for player in PLAYERS:
        env, rng = make(id), np.random.default_rng(0)

        def act(env, rng, player=player):
            method = getattr(env, player)
            return method() if player == "optimal_action" else method(rng)

        episodes = [play(env, rng, seed, act=act) for seed in range(20)]
        assert all(len(turns) - 1 <= env.max_turns for turns in episodes)
        assert all(turn[-1]["parse_error"] is None for turns in episodes for turn in turns)
        returns[player] = sum(turn[2] for turns in episodes for turn in turns[1:])
    assert returns["optimal_action"] >= max(returns["novice_action"], returns["random_action"])


@pytest.mark.parametrize("id", IDS)
def test_players_leave_the_environment_alone(id):
    env, rng = make(id), np.random.default_rng(0)
    env.reset(seed=5)
    state = env.get_state()
    for player in PLAYERS:
        getattr(env, player)() if player == "optimal_action" else getattr(env, player)(rng)
    assert env.get_state() == state


@pytest.mark.parametrize("id", IDS)
def test_global_generators_are_untouched(id):
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    before = random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    transcript(id, range(3))
    play(make(id), np.random.default_rng(0))  # an unseeded reset draws its own entropy
    assert (random.getstate(), repr(np.random.get_state())) == before  # noqa: NPY002


@pytest.mark.parametrize("id", IDS)
def test_ansi_render_is_the_transcript(id):
    env = make(id, render_mode="ansi")
    turns = play(env, np.random.default_rng(2), seed=2)
    lines = [turns[0][1], *(line for turn in turns[1:] for line in (f"> {turn[0]}", turn[1]))]
    assert env.render() == "\n".join(lines)
    env.reset(seed=3)
    assert "> " not in env.render(), "the last episode is still on the page"
    silent = make(id)
    silent.reset(seed=0)
    assert silent.render() is None


@pytest.mark.parametrize("id", IDS)
def test_spec_and_tasks(id):
    spec = gymnasium.spec(id)
    assert spec.id in spec.to_json()
    assert type(gymnasium.make(EnvSpec.from_json(spec.to_json())).unwrapped) is type(make(id))
    for split in ("train", "test"):
        for task in agent_envs.task_set(id, split)[:3]:
            env, again = make(id), make(id)
            assert env.reset(seed=task.seed, options=task.options) == again.reset(seed=task.seed, options=task.options)
            assert json.loads(task.row()["options"]) == task.options


@pytest.mark.parametrize("id", IDS)
def test_resets_do_not_grow_the_state(id):
    env = make(id)
    sizes = set()
    for seed in range(200):
        env.reset(seed=seed % 10)
        sizes.add((seed % 10, len(json.dumps(env.get_state()))))
    assert len(sizes) == 10


def test_import_leaves_torch_out():
    code = "import sys, agent_envs, gymnasium; gymnasium.make('NumberSearch-v0'); print(*sys.modules)"
    assert not {"torch", "transformers", "trl", "datasets", "matplotlib"} & set(fresh(code).split())


def test_module_prefix_registers():
    code = "import gymnasium as gym; print(gym.make('agent_envs:NumberSearch-v0').reset(seed=0)[1]['is_success'])"
    assert fresh(code).strip() == "False"
    code = (
        "import gymnasium as gym; print(gym.make_vec('agent_envs:NumberSearch-v0', num_envs=2).reset(seed=0)[0][1][:4])"
    )
    assert fresh(code).strip() == "Find"
