"""The numeric view: it knows what the text says and no more, it is the same game, and PPO learns in it."""

import time
from statistics import median
from typing import Any

import equality
import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import agent_envs
from agent_envs.adapters.numeric import NumericView

IDS = ["NumberSearch-v0", "NumberSearchHard-v0", "CraftingEasy-v0", "Crafting-v0", "CraftingHard-v0"]


def choose(view, rng):
    """An action its mask allows, one time in five any action; giving up only where nothing else is left."""
    mask = np.ones(view.action_space.n, bool) if rng.random() < 0.2 else view.action_masks()
    actions = [a for a in np.flatnonzero(mask) if view.action_text(a) != "give up"] or np.flatnonzero(mask)
    return int(rng.choice(actions))


@pytest.mark.filterwarnings("ignore:.*maximum value is infinity.*")
@pytest.mark.parametrize("id", IDS)
def test_gymnasium_checker(id):
    check_env(NumericView(id), skip_render_check=True)


@pytest.mark.parametrize("id", IDS)
def test_same_game_as_the_text(id):
    view, env = NumericView(id), gymnasium.make(id).unwrapped
    wins = 0
    for task in agent_envs.task_set(id, "test", 200):
        rng = np.random.default_rng(task.seed)
        _, info = view.reset(seed=task.seed, options=task.options)
        assert info == env.reset(seed=task.seed, options=task.options)[1]
        done = False
        while not done:
            action = choose(view, rng)
            answer = env.step(view.action_text(action))[1:]
            step: Any = view.step(np.int64(action))  # type: ignore[arg-type]
            observation, *rest = step
            assert tuple(rest) == answer
            assert observation in view.observation_space
            done = rest[1] or rest[2]
        wins += rest[3]["is_success"]
    assert 0 <= wins < 200


@pytest.mark.parametrize("id", IDS)
def test_the_mask_is_what_is_not_refused(id):
    view = NumericView(id)
    for seed in range(30):
        rng = np.random.default_rng(seed)
        view.reset(seed=seed)
        done = False
        while not done:
            action = choose(view, rng)
            allowed = view.action_masks()[action]
            *_, terminated, truncated, info = view.step(action)
            done = terminated or truncated
            if "precondition_failed" in info:
                refused = info["parse_error"] or info["precondition_failed"]
                assert allowed == (refused is None)
            elif allowed:
                assert info["parse_error"] is None


def test_number_search_shows_no_more_than_the_answers():
    """Two targets that the same guesses answer alike look alike, whatever else the info holds."""
    seen: dict[Any, set[bytes]] = {}
    view = NumericView("NumberSearch-v0")
    for target in range(1, 17):
        rng = np.random.default_rng(0)
        observation, _ = view.reset(options={"target": target})
        history: tuple[Any, ...] = ()
        done = False
        while not done:
            seen.setdefault(history, set()).add(observation.tobytes())
            action = int(rng.integers(16))
            observation, reward, done, *_ = view.step(action)
            history = (*history, action, reward, target > action + 1)
    assert all(len(rows) == 1 for rows in seen.values())


def test_a_hidden_map_stays_hidden():
    """Tasks with one goal and one start look alike until a step shows a difference."""
    view = NumericView("Crafting-v0", tier=3)
    observation, _ = view.reset(seed=0)
    crafting: Any = view.env
    world, here = crafting.task.world, crafting.state.place
    far = [place for place in range(len(world.places)) if place != here and place not in world.exits[here]]
    assert far, "choose a seed with a place out of sight"
    assert len(view.view.slots) == 1 + len(world.exits[here])  # type: ignore[attr-defined]
    # Moving what is out of sight changes nothing that is seen.
    resources = list(world.resources)
    for place in range(len(resources)):
        if place != here:
            resources[place] = ()
    world.resources = tuple(resources)
    view.view.begin()
    assert np.array_equal(view.view.observe(), observation)
    beyond = next(a for a in range(view.action_space.n) if view.action_text(a) == "go")  # type: ignore[attr-defined]
    assert view.step(beyond)[-1]["parse_error"]


def test_errors_say_what_to_do():
    with pytest.raises(TypeError, match="no numeric view"):
        NumericView("Sort-v0")
    with pytest.raises(ValueError, match="larger sizes"):
        NumericView("NumberSearch-v0").reset(options={"high": 20})
    with pytest.raises(ValueError, match="places="):
        NumericView("CraftingEasy-v0").reset(options={"tier": 4})
    view = NumericView("NumberSearch-v0")
    view.reset(seed=0)
    with pytest.raises(IndexError):
        view.step(16)
    with pytest.raises(ValueError, match="not in"):
        view.step(-1)


@pytest.mark.parametrize("id", equality.IDS)
def test_stepping_costs_less_than_twice(id):
    view, env, rng = NumericView(id), gymnasium.make(id), np.random.default_rng(0)
    script = []
    for seed in range(100):
        view.reset(seed=seed)
        actions, done = [], False
        while not done:
            actions.append(choose(view, rng))
            script.append((seed, actions[-1], view.action_text(actions[-1])))
            *_, terminated, truncated, _ = view.step(actions[-1])
            done = terminated or truncated

    def seconds(env, column):
        total, last = 0.0, None
        for row in script:
            if row[0] != last:
                env.reset(seed=row[0])
                last = row[0]
            start = time.thread_time()
            env.step(row[column])
            total += time.thread_time() - start
        return total

    ratios = [seconds(view, 1) / seconds(env, 2) for _ in range(5)]
    assert median(ratios) < 2, ratios


# --- Stable-Baselines3 -----------------------------------------------------------------------------------------------


def success(model, view, tasks, masked=False):
    """Share of the tasks that the model, at its most likely actions, wins."""
    wins = 0
    for task in tasks:
        observation, _ = view.reset(seed=task.seed, options=task.options)
        done, info = False, {}
        while not done:
            masks = {"action_masks": view.action_masks()} if masked else {}
            action, _ = model.predict(observation, deterministic=True, **masks)
            observation, _, terminated, truncated, info = view.step(int(action))
            done = terminated or truncated
        wins += info["is_success"]
    return wins / len(tasks)


@pytest.mark.parametrize("id", IDS)
def test_sb3_checker(id):
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    checker.check_env(NumericView(id), warn=True)


def learn(algorithm, id, steps, **settings):
    vec = pytest.importorskip("stable_baselines3.common.vec_env")
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    envs = vec.DummyVecEnv([lambda: NumericView(id)] * 16)
    defaults = {"n_steps": 256, "batch_size": 512, "n_epochs": 4, "learning_rate": 1e-3, "gamma": 1.0}
    model = algorithm("MlpPolicy", envs, seed=0, device="cpu", **(defaults | settings))
    start = time.monotonic()
    model.learn(steps)
    print(f"{algorithm.__name__} {id}: {steps} steps in {time.monotonic() - start:.0f} s")
    return model


NUMBER_SEARCH = {"ent_coef": 0.01, "gae_lambda": 1.0}
# A discount below 1: without it nothing prefers an early success, and walking in circles is as good as working.
CRAFTING = {"ent_coef": 0.02, "gamma": 0.95, "gae_lambda": 0.95}


def test_sb3_ppo_learns_number_search():
    sb3 = pytest.importorskip("stable_baselines3")
    model = learn(sb3.PPO, "NumberSearch-v0", 300_000, **NUMBER_SEARCH)
    rate = success(model, NumericView("NumberSearch-v0"), agent_envs.task_set("NumberSearch-v0", "test", 16))
    print(f"success {rate:.4f}")
    assert rate >= 0.90


def test_sb3_ppo_learns_crafting_tier_0():
    sb3 = pytest.importorskip("stable_baselines3")
    model = learn(sb3.PPO, "CraftingEasy-v0", 300_000, **CRAFTING)
    rate = success(model, NumericView("CraftingEasy-v0"), agent_envs.task_set("CraftingEasy-v0", "test", 200))
    print(f"success {rate:.4f}")
    assert rate >= 0.90


@pytest.mark.parametrize(("id", "steps"), [("NumberSearch-v0", 150_000), ("CraftingEasy-v0", 100_000)])
def test_maskable_ppo_learns(id, steps):
    contrib = pytest.importorskip("sb3_contrib")
    model = learn(contrib.MaskablePPO, id, steps, **(NUMBER_SEARCH if id == "NumberSearch-v0" else CRAFTING))
    rate = success(model, NumericView(id), agent_envs.task_set(id, "test", 16 if "Number" in id else 200), masked=True)
    print(f"success {rate:.4f}")
    assert rate >= 0.90
