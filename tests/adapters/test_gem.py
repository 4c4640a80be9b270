"""GEM: registered, made singly and in batches, seeded right and without touching the global generators."""

import random

import equality
import numpy as np
import pytest

gem = pytest.importorskip("gem")
pytest.importorskip("gem.core")  # another package is called gem too

from agent_envs.adapters.gem import PREFIX, register_all  # noqa: E402

NAMES = register_all()


@pytest.mark.parametrize("id", equality.IDS)
def test_same_rewards_and_ends(id):
    for episode in equality.episodes(id):
        env = gem.make(PREFIX + id, options=episode.options)
        assert env.reset(seed=episode.seed)[0] == episode.first
        for turn in episode.turns:
            assert env.step(turn.action)[:4] == (turn.observation, turn.reward, turn.terminated, turn.truncated)


def test_registered_once():
    assert register_all() == NAMES
    assert len(NAMES) == 9


@pytest.mark.parametrize("async_mode", [False, True])
def test_make_vec_gives_each_its_own_seed(async_mode):
    def firsts(seed, resets=1):
        envs = gem.make_vec([PREFIX + "CraftingEasy-v0"] * 4, seed=seed, async_mode=async_mode)
        return [envs.reset()[0] for _ in range(resets)][-1]

    batch = list(firsts(5))
    single = [gem.make(PREFIX + "CraftingEasy-v0").reset(seed=5 + i)[0] for i in range(4)]
    assert batch == single
    assert len(set(batch)) == 4
    assert list(firsts(5, resets=2)) == list(firsts(5, resets=2))
    assert list(firsts(5, resets=2)) != batch


def test_vector_steps():
    envs = gem.make_vec([PREFIX + "NumberSearch-v0"] * 3, seed=0, options={"target": 11})
    envs.reset()
    observations, rewards, terminated, _, _ = envs.step(["8", "11", "12"])
    assert list(rewards) == [0.0, 1.0, 0.0]
    assert list(terminated) == [False, True, False]
    assert observations[0] == "higher"
    assert observations[2] == "lower"


def test_global_generators_are_untouched():
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    before = random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    env = gem.make(PREFIX + "NumberSearch-v0", seed=3)
    env.reset()
    env.reset(seed=4)
    env.step(env.sample_random_action())
    assert (random.getstate(), repr(np.random.get_state())) == before  # noqa: NPY002


def test_spawn_in_the_same_state():
    env = gem.make(PREFIX + "NumberSearch-v0", options={"target": 11})
    env.reset(seed=0)
    env.step("8")
    other = env.spawn(same_state=True)
    assert other.step("11")[1:3] == (1.0, True)
    assert env.step("12")[0] == "lower"
