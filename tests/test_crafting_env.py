"""The environment: observations, rewards, endings, options, information, state, players and tasks."""

import gc
import hashlib
import json
import os
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace
from statistics import quantiles
from typing import Any

import gymnasium
import numpy as np
import pytest

import agent_envs
from agent_envs import demonstrations, optimal_policy, task_set
from agent_envs.crafting import CraftingEnv
from agent_envs.crafting.baselines import explore_then_plan
from agent_envs.crafting.table import PLAYERS, success_rate
from agent_envs.crafting.world import World


def play(env, act, seed=None, options=None):
    """Rewards and the last step's results."""
    env.reset(seed=seed, options=options)
    rewards, done = [], False
    while not done:
        _, reward, terminated, truncated, info = env.step(act())
        rewards.append(reward)
        done = terminated or truncated
    return rewards, terminated, truncated, info


def test_ids_and_their_tiers():
    for id, tier in (("Crafting-v0", 1), ("CraftingEasy-v0", 0), ("CraftingHard-v0", 4)):
        env: Any = gymnasium.make(id).unwrapped
        assert env.settings.tier == tier
    assert callable(agent_envs.novice_policy(gymnasium.make("Crafting-v0")))


def test_observations_read_as_documented():
    env = CraftingEnv(tier=0, goal="stick", count=2)
    text, info = env.reset(seed=3)
    lines = text.splitlines()
    assert lines[0] == "Commands: go X, mine X, craft X, smelt X, place X, give up. One a turn."
    assert lines[1:5] == ["Formulas:", "log: mine", "planks: craft 2 from 1 log", "stick: craft 2 from 1 planks"]
    assert lines[5] == "Map:"
    assert len(lines) == 6 + 3 + 4
    assert lines[-4] == f"Goal: 2 stick. Step 0/{info['budget']}."
    assert lines[-2:] == ["Have: nothing.", "Last: started."]
    here = env.task.world.places[env.state.place]  # type: ignore[union-attr]
    assert lines[-3].startswith(f"At {here}: ")
    assert lines[-3][3:] in lines[6:9]
    text, *_, info = env.step("smelt iron_ingot")
    assert text.splitlines()[3] == "Last: refused, need 1 iron_ore, have 0; need 1 coal, have 0; no furnace here."
    assert info["precondition_failed"] == "need 1 iron_ore, have 0; need 1 coal, have 0; no furnace here"
    assert info["parse_error"] is None
    text, *_, info = env.step("what now?")
    assert text.splitlines()[3] == "Last: no command; use go X, mine X, craft X, smelt X, place X, give up."
    assert (info["parse_error"], info["precondition_failed"]) == ("no_command", None)
    text = env.step("mine log\nmine log")[0]
    assert text.endswith("(first of several commands).")


def test_stations_and_admissible_commands_are_shown():
    env = CraftingEnv(tier=1, goal="wooden_pickaxe", show_admissible=True)
    env.reset(seed=4)
    text = ""
    while "place table" not in text:
        action = env.optimal_action()
        text = env.step(action)[0]
    assert text.splitlines()[4] == f"Can: {', '.join(env.admissible())}."
    where = env.task.world.places[env.state.place]  # type: ignore[union-attr]
    text = env.step("place table")[0]
    assert " Table here." in text.splitlines()[1]
    exit_ = env.task.world.places[env.task.world.exits[env.state.place][0]]  # type: ignore[union-attr]
    assert f" Table at {where}." in env.step(f"go {exit_}")[0].splitlines()[1]


@pytest.mark.parametrize("tier", range(6))
def test_observations_are_short(tier):
    env, lengths = CraftingEnv(tier=tier), []
    for seed in range(20):
        env.reset(seed=seed)
        done = False
        while not done:
            text, _, terminated, truncated, _ = env.step(env.explore_action())
            lengths.append(len(text))
            done = terminated or truncated
    # Full packs and two stations take a little more than 200 characters late in the long tiers.
    assert quantiles(lengths, n=20)[-1] <= (200 if tier < 4 else 230)
    assert quantiles(lengths, n=4)[-1] <= 200
    assert max(lengths) <= 300


@pytest.mark.parametrize("tier", range(6))
@pytest.mark.parametrize("reward", ["sparse", "milestone", "potential"])
def test_rewards_of_optimal_play(tier, reward):
    env = CraftingEnv(tier=tier, reward=reward, impossible_fraction=0)
    for seed in range(6):
        rewards, terminated, truncated, info = play(env, env.optimal_action, seed)
        assert (terminated, truncated, info["is_success"]) == (True, False, True)
        ancestors = env.task.world.table.ancestors(env.task.goal)  # type: ignore[union-attr]
        extra = {"sparse": 0.0, "milestone": 0.5 if ancestors else 0.0, "potential": 1.0}[reward]
        assert sum(rewards) == pytest.approx(1 + extra)
        if reward == "potential":
            assert rewards[:-1] == pytest.approx([1 / len(rewards)] * (len(rewards) - 1))
        if reward == "sparse":
            assert rewards[:-1] == [0.0] * (len(rewards) - 1)


def test_time_running_out_is_truncation():
    env = CraftingEnv(tier=0, budget=3)
    rewards, terminated, truncated, info = play(env, lambda: "hm", seed=0)
    assert (rewards, terminated, truncated, info["is_success"]) == ([0.0] * 3, False, True, False)
    assert env._last.endswith("Out of steps")


def test_the_goal_on_the_last_step_is_a_success_and_no_truncation():
    env = CraftingEnv(tier=0, goal="stick", count=1, info_level="full")
    _, info = env.reset(seed=2)
    _, terminated, truncated, info = play(env, env.optimal_action, 2, {"budget": info["optimal_steps"]})
    assert (terminated, truncated, info["is_success"]) == (True, False, True)


def test_budgets():
    for tier, rule in ((0, lambda best, n: 2 * best + 4), (3, lambda best, n: 2 * best + 4 + 2 * (n - 1))):
        env = CraftingEnv(tier=tier, info_level="full")
        for seed in range(10):
            _, info = env.reset(seed=seed)
            assert info["budget"] == rule(info["optimal_steps"], len(env.task.world.places))  # type: ignore[union-attr]
    env = CraftingEnv(tier=5, info_level="full", impossible_fraction=0)
    for seed in range(10):
        _, info = env.reset(seed=seed)
        assert info["budget"] == int(np.ceil(round(1.3 * info["optimal_steps"], 9)))


def test_options_hold_for_one_episode():
    env = CraftingEnv(tier=0)
    usual = env.reset(seed=1)
    options = {
        "tier": 4, "goal": "diamond", "count": 2, "places": 7, "map": "known", "quantities": "full",
        "reward": "milestone", "impossible_fraction": 0.0, "distractors": 1, "show_admissible": True,
    }  # fmt: skip
    text, info = env.reset(seed=1, options=options)
    assert env.task is not None
    assert (env.task.goal, env.task.count, len(env.task.world.places), env.task.hidden) == ("diamond", 2, 7, False)
    assert "planks: craft 4 from 1 log" in text
    assert "\nCan: " in text
    assert len(env.task.shown) == 14
    assert info["budget"] <= env.max_turns
    assert env.reset(seed=1) == usual
    # An option never shifts the stream of later episodes.
    env.reset(seed=1, options=options)
    after = env.reset()
    env.reset(seed=1)
    assert env.reset() == after


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tier": 6}, "tier=6"),
        ({"tier": True}, "tier=True"),
        ({"goal": "unobtainium"}, "unobtainium"),
        ({"count": 0}, "count=0"),
        ({"count": -2}, "count=-2"),
        ({"count": 10**9}, "count="),
        ({"places": 1}, "places=1"),
        ({"places": 9}, "places=9"),
        ({"places": 3, "goal": "diamond"}, "kinds of place"),
        ({"map": "foggy"}, "foggy"),
        ({"quantities": "many"}, "many"),
        ({"reward": "dense"}, "dense"),
        ({"budget": 0}, "budget=0"),
        ({"impossible_fraction": 1.5}, "impossible_fraction=1.5"),
        ({"distractors": -1}, "distractors=-1"),
        ({"show_admissible": "yes"}, "show_admissible"),
    ],
)
def test_bad_options_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        CraftingEnv(**options)
    with pytest.raises(ValueError, match=words):
        CraftingEnv().reset(options=options)


def test_info_levels():
    minimal, full = CraftingEnv(tier=4), CraftingEnv(tier=4, info_level="full")
    _, info = minimal.reset(seed=0)
    assert set(info) == {
        "is_success", "parse_error", "precondition_failed", "command", "several_commands", "step", "budget",
    }  # fmt: skip
    _, more = full.reset(seed=0)
    assert set(more) == {*info, "admissible", "optimal_steps", "remaining_steps"}
    assert more["admissible"] == full.admissible()
    assert minimal.optimal_steps() == more["optimal_steps"] == more["remaining_steps"]
    _, impossible = full.reset(seed=0, options={"impossible_fraction": 1.0})
    assert not {"optimal_steps", "remaining_steps"} & set(impossible)
    with pytest.raises(ValueError, match="info_level"):
        CraftingEnv(info_level="some")  # type: ignore[arg-type]


def test_state_goes_on_in_another_environment():
    env, other = CraftingEnv(tier=3, reward="potential"), CraftingEnv(tier=3, reward="potential")
    for seed in range(8):
        env.reset(seed=seed, options={"quantities": "perturbed"})
        for _ in range(seed * 2):
            env.step(env.explore_action())
        other.set_state(json.loads(json.dumps(env.get_state())))
        assert other.state_hash() == env.state_hash()
        rng, copy = np.random.default_rng(1), np.random.default_rng(1)
        for _ in range(5):
            assert env.step(env.novice_action(rng)) == other.step(other.novice_action(copy))
        assert env.optimal_action() == other.optimal_action()


def test_the_state_hash_tells_states_apart():
    env, seen = CraftingEnv(tier=2), {}
    for seed in range(5):
        env.reset(seed=seed)
        for _ in range(10):
            text = json.dumps(env.snapshot, sort_keys=True)
            assert seen.setdefault(env.state_hash(), text) == text
            env.step(env.optimal_action())
    assert len(seen) == 50


def test_optimal_policy_and_demonstrations():
    env = gymnasium.make("Crafting-v0", tier=2)
    rows = demonstrations(env, 5, seed=10)
    assert all(row["is_success"] and row["return"] == 1.0 for row in rows)
    env.reset(seed=10)
    assert rows[0]["messages"][1]["content"] == optimal_policy(env)()


def test_explore_then_plan_uses_only_what_it_has_seen():
    """Where two hidden maps look the same so far, it does the same."""
    env = CraftingEnv(tier=4, places=8)
    moves = {}
    for seed in range(100):
        text, _ = env.reset(seed=seed)
        seen = "\n".join(line for line in text.splitlines() if not line.startswith("Goal:")), env.task.goal  # type: ignore[union-attr]
        action = env.explore_action()
        assert moves.setdefault(seen, action) == action
        # Nor does it depend on what lies behind the exits: removing everything there changes nothing.
        world, here = env.task.world, env.state.place  # type: ignore[union-attr]
        held = tuple(items if i == here else () for i, items in enumerate(world.resources))
        bare = replace(env.task, world=World(world.table, world.places, world.exits, held))  # type: ignore[type-var]
        assert str(explore_then_plan(bare, env.state, env.visited)) == action


def test_players_in_their_order():
    seeds = range(120)
    rates = {}
    for tier in (0, 1):
        env = CraftingEnv(tier=tier)
        rates[tier] = {name: success_rate(env, player, seeds) for name, player in PLAYERS.items()}
        assert rates[tier]["solver"] == rates[tier]["explore-then-plan"] == 1.0
        assert rates[tier]["give up"] == 0.0
    assert 0.2 <= (rates[0]["novice"] + rates[1]["novice"]) / 2 <= 0.35
    assert success_rate(CraftingEnv(tier=4), PLAYERS["explore-then-plan"], range(40)) >= 0.95


def test_the_novice_never_gives_up_and_never_errs_in_form():
    env, rng = CraftingEnv(tier=4), np.random.default_rng(0)
    for seed in range(20):
        env.reset(seed=seed)
        done = False
        while not done:
            _, _, terminated, truncated, info = env.step(env.novice_action(rng))
            assert info["parse_error"] is None
            assert info["command"] != "give up"
            done = terminated or truncated


def test_tasks_take_every_goal_in_turn_and_are_rated():
    tasks = task_set("Crafting-v0", "train", 24, tier=2)
    assert [task.options["goal"] for task in tasks[:4]] == ["stone_pickaxe", "furnace"] * 2
    env = CraftingEnv(info_level="full")
    for task in tasks:
        _, info = env.reset(seed=task.seed, options=task.options)
        assert info["optimal_steps"] == task.difficulty
    assert task_set("Crafting-v0", size=3, tier=2, goal="stick")[1].options["goal"] == "stick"


# --- Determinism and size --------------------------------------------------------------------------------------------


def digest(seeds):
    """A hash of everything that episodes of all tiers show, with all rewards, and of their states."""
    env, said = CraftingEnv(info_level="full"), hashlib.sha256()
    for seed in seeds:
        options = {"tier": seed % 6, "reward": ("sparse", "milestone", "potential")[seed // 6 % 3]}
        rng, done = np.random.default_rng([seed, 3]), False
        said.update(repr(env.reset(seed=seed, options=options)).encode())
        while not done:
            # The solver's word one time in three, so that episodes get somewhere.
            action = env.optimal_action() if rng.random() < 0.3 else env.novice_action(rng)
            result = env.step(action)
            said.update(repr((action, result)).encode())
            done = result[2] or result[3]
        said.update(env.state_hash().encode())
    return said.hexdigest()


def fresh_digest(seeds, hash_seed):
    code = f"import test_crafting_env as t; print(t.digest({seeds!r}))"
    environ = {**os.environ, "PYTHONHASHSEED": hash_seed}
    here = os.path.dirname(os.path.abspath(__file__))
    done = subprocess.run([sys.executable, "-c", code], env=environ, cwd=here, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_same_episodes_in_any_process():
    assert fresh_digest(range(18), "4242") == digest(range(18))


@pytest.mark.full
def test_same_episodes_for_1000_seeds_in_6_processes():
    found = [fresh_digest(range(1000), hash_seed) for hash_seed in ("0", "1", "4242") for _ in range(2)]
    print(f"1,000 seeds in {len(found)} processes: {len(set(found))} digest")
    assert set(found) == {digest(range(1000))}


FLAT = 250_000  # one formula table kept for each reset would be 8 kB times hundreds; the rest is the interpreter's


def check_flat(resets):
    """Memory after many resets, beyond what it was once the caches were full, in bytes."""
    tracemalloc.start()
    env, held = CraftingEnv(tier=5, quantities="perturbed"), []
    env.reset(seed=0)
    for part in (resets // 3, resets - resets // 3):
        for _ in range(part):
            env.reset()
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    return held[1] - held[0]


def test_resets_leave_memory_flat():
    assert check_flat(900) < FLAT


@pytest.mark.full
def test_10_000_resets_leave_memory_and_time_flat():
    grown = check_flat(10_000)
    env, seconds = CraftingEnv(tier=4), []
    for _ in range(10):
        start = time.perf_counter()
        for seed in range(1000):  # the same tasks each time
            env.reset(seed=seed)
        seconds.append(time.perf_counter() - start)
    print(f"10,000 resets: memory grew by {grown} bytes; seconds for each 1,000: {[round(s, 2) for s in seconds]}")
    assert grown < FLAT
