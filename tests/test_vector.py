"""The native vector environment equals Gymnasium's SyncVectorEnv, for every id and every autoreset mode."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Text
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from agent_envs.number_search import NumberSearchEnv
from agent_envs.vector import TextVectorEnv
from tests.test_envs_contract import IDS, JUNK, choose

MODES = list(AutoresetMode)
N = 5


def assert_same(a, b, where="info"):
    """Equal in value, type, dtype and mask."""
    assert type(a) is type(b), where
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same(a[key], b[key], f"{where}[{key!r}]")
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype, where
        assert a.shape == b.shape, where
        assert a.tolist() == b.tolist(), where
    elif isinstance(a, tuple):
        assert len(a) == len(b), where
        for i, (left, right) in enumerate(zip(a, b, strict=True)):
            assert_same(left, right, f"{where}[{i}]")
    else:
        assert a == b, where


def make_vec(id, num_envs=1, **kwargs) -> Any:
    return gymnasium.make_vec(id, num_envs, **kwargs)


def pair(id, mode, n=N) -> tuple[Any, Any]:
    sync = make_vec(id, n, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode})
    native = make_vec(id, n, autoreset_mode=mode)
    assert isinstance(sync, SyncVectorEnv)
    assert isinstance(native, TextVectorEnv)
    return sync, native


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("id", IDS)
def test_equals_sync_vector_env(id, mode):
    sync, native = pair(id, mode)
    rng = np.random.default_rng(0)
    assert_same(native.reset(seed=11), sync.reset(seed=11))
    ended = 0
    for _ in range(max(60, native.envs[0].max_turns + 5)):
        actions = tuple("x" if env._done else choose(env, rng) for env in native.envs)
        left, right = native.step(actions), sync.step(actions)
        assert_same(left, right, "step")
        done = left[2] | left[3]
        ended += int(done.sum())
        if mode == AutoresetMode.SAME_STEP:
            assert ("final_obs" in left[4]) == done.any()
        if mode == AutoresetMode.DISABLED and done.any():
            seeds = [int(seed) if rng.random() < 0.5 else None for seed in rng.integers(0, 1000, N)]
            options = {"reset_mask": done}
            assert_same(native.reset(seed=seeds, options=options), sync.reset(seed=seeds, options=dict(options)))
            assert options == {"reset_mask": done}, "the caller's options were changed"
    assert ended >= N
    assert_same(native.reset(seed=list(range(N)), options={}), sync.reset(seed=list(range(N)), options={}))
    assert_same(native.reset(), sync.reset())
    assert native.np_random_seed == sync.np_random_seed
    sync.close()
    native.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("id", IDS)
def test_attributes_equal_sync_vector_env(id, mode):
    sync, native = pair(id, mode)
    assert native.metadata == sync.metadata
    assert native.metadata["autoreset_mode"] is mode
    for name in ("num_envs", "render_mode", "single_action_space", "single_observation_space"):
        assert getattr(native, name) == getattr(sync, name)
    assert native.action_space == sync.action_space
    assert native.observation_space == sync.observation_space
    assert native.spec is not None
    assert native.spec.id == id
    assert id in repr(native)
    assert native.unwrapped is native
    observations, _ = native.reset(seed=0)
    sync.reset(seed=0)
    assert observations in native.observation_space
    native.action_space.seed(4)
    sync.action_space.seed(4)
    actions = native.action_space.sample()
    assert actions == sync.action_space.sample()
    assert_same(native.step(actions), sync.step(actions))
    for name in ("max_turns", "_done"):
        assert native.get_attr(name) == sync.get_attr(name)
    assert native.call("get_state") == sync.call("get_state")
    assert native.metadata is not native.envs[0].metadata


def test_one_environment_and_the_callers_kwargs():
    env = make_vec("NumberSearch-v0", high=3, max_guesses=1, render_mode="ansi")
    observations, infos = env.reset(seed=[7], options={"target": 2})
    assert observations == ("Find the hidden number from 1 to 3. You have 1 guess. Reply with one number.",)
    assert infos["target"].tolist() == [2]
    _, rewards, terminations, truncations, infos = env.step(["2"])
    assert (rewards.tolist(), terminations.tolist(), truncations.tolist()) == ([1.0], [True], [False])
    assert env.render()[0].endswith("> 2\ncorrect")
    env = make_vec("NumberSearch-v0", num_envs=2, autoreset_mode="SameStep")
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


def test_next_step_ignores_the_action_and_pays_nothing():
    env = make_vec("TwoArmedBandit-v0", num_envs=2)
    env.reset(seed=0)
    observations, rewards, terminations, *_ = env.step(("A", "B"))
    assert observations == ("A pays 1.", "B pays 0.")
    assert rewards.tolist() == [1, 0]
    assert terminations.all()
    observations, rewards, terminations, _, infos = env.step(("A", "A"))
    assert observations[0].startswith("Choose A or B")
    assert rewards.tolist() == [0, 0]
    assert not terminations.any()
    assert infos["choice"].tolist() == [None, None]


def test_same_step_keeps_the_last_observation_and_info():
    env = make_vec("NumberSearch-v0", num_envs=3, autoreset_mode=AutoresetMode.SAME_STEP)
    env.reset(seed=0, options={"target": 11})
    observations, rewards, terminations, _, infos = env.step(("11", "8", "no idea"))
    assert observations[0].startswith("Find the hidden number")
    assert observations[1] == "higher"
    assert rewards.tolist() == [1, 0, 0]
    assert terminations.tolist() == [True, False, False]
    assert infos["final_obs"].tolist() == ["correct", None, None]
    assert infos["_final_obs"].tolist() == infos["_final_info"].tolist() == [True, False, False]
    assert infos["final_info"]["is_success"].tolist() == [True, False, False]
    assert infos["final_info"]["guess"][0] == 11
    assert infos["guess"].tolist() == [0, 8, 0], "only the second environment's last reply held a guess"
    assert infos["_guess"].tolist() == [False, True, False]


def test_disabled_refuses_to_step_an_ended_episode():
    env = make_vec("TwoState-v0", num_envs=3, autoreset_mode=AutoresetMode.DISABLED)
    env.reset(seed=0)
    env.step(("A", "B", "A"))
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"\[0, 1, 2\]"):
        env.step(("A", "B", "A"))
    observations, infos = env.reset(options={"reset_mask": np.array([True, False, True]), "state": 1})
    assert observations[1] == "B pays 9." or observations[1] == "B pays 2."
    assert infos["_state"].tolist() == [True, False, True]
    assert infos["state"][[0, 2]].tolist() == [1, 1]
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"\[1\]"):
        env.step(("A", "B", "A"))


@pytest.mark.parametrize("id", IDS)
def test_step_before_reset_raises(id):
    env = make_vec(id, num_envs=2)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(env.action_space.sample())


def test_wrong_arguments_are_named():
    env = make_vec("NumberSearch-v0", num_envs=2)
    env.reset(seed=np.int64(3))
    assert env.np_random_seed == (3, 4)
    with pytest.raises(ValueError, match="3 actions for 2"):
        env.step(("1", "2", "3"))
    with pytest.raises(TypeError, match="not a single string"):
        env.step("12")
    with pytest.raises(ValueError, match="1 seeds for 2"):
        env.reset(seed=[1])
    with pytest.raises(TypeError, match="numpy array of bool"):
        env.reset(options={"reset_mask": [True, False]})
    with pytest.raises(TypeError, match="numpy array of bool"):
        env.reset(options={"reset_mask": np.array([1, 0])})
    with pytest.raises(ValueError, match="shape"):
        env.reset(options={"reset_mask": np.array([True])})
    with pytest.raises(ValueError, match="reset nothing"):
        env.reset(options={"reset_mask": np.array([False, False])})
    with pytest.raises(ValueError, match="at least 1"):
        make_vec("NumberSearch-v0", num_envs=0)
    with pytest.raises(ValueError, match="sometimes"):
        make_vec("NumberSearch-v0", num_envs=2, autoreset_mode="sometimes")
    with pytest.raises(ValueError, match="1 values for 2"):
        env.set_attr("max_retries", [1])
    env.set_attr("max_retries", [1, 5])
    assert env.get_attr("max_retries") == (1, 5)
    env.set_attr("max_retries", 3)
    assert env.get_attr("max_retries") == (3, 3)


def test_gymnasium_vector_wrappers_work_on_it():
    inner = make_vec("NumberSearch-v0", num_envs=3)
    env = gymnasium.wrappers.vector.DictInfoToList(gymnasium.wrappers.vector.RecordEpisodeStatistics(inner))
    env.reset(seed=0, options={"target": 8})
    *_, infos = env.step(("8", "9", "junk"))
    assert infos[0]["episode"]["r"] == 1.0
    assert "episode" not in infos[1]
    assert infos[1]["guess"] == 9
    assert "guess" not in infos[2]


class Odd(NumberSearchEnv):
    """Infos of every kind that Gymnasium's vector form distinguishes, some of them now and then."""

    def _info(self, *args):
        info = super()._info(*args)
        k = self.target
        info |= {"np": np.float32(k), "array": np.full((2, 3), k), "dict": {"x": k, "deep": {"y": str(k)}}, "list": [k]}
        if k % 2:
            info |= {"odd": k, "odd_text": str(k), "odd_array": np.arange(2.0) * k, "odd_dict": {"z": (k, k)}}
        return info


@pytest.mark.parametrize("mode", MODES)
def test_infos_of_every_kind_equal_sync(mode):
    sync: Any = SyncVectorEnv([Odd] * 8, autoreset_mode=mode)
    native: Any = TextVectorEnv(Odd, 8, mode)
    assert_same(native.reset(seed=1), sync.reset(seed=1))
    rng = np.random.default_rng(0)
    for _ in range(4 if mode == AutoresetMode.DISABLED else 40):
        actions = tuple(env.optimal_action() if rng.random() < 0.6 else str(rng.choice(JUNK)) for env in native.envs)
        if any(env._done for env in native.envs) and mode == AutoresetMode.DISABLED:
            break
        assert_same(native.step(actions), sync.step(actions))


# --- Gymnasium's own AsyncVectorEnv -----------------------------------------------------------------------------------


class Spelled(NumberSearchEnv):
    """As an environment with a plain Text space, the way other packages declare their observations."""

    def __init__(self):
        super().__init__()
        self.observation_space = Text(200, charset="".join(map(chr, range(32, 127))))


def test_async_shared_memory_loses_the_text_of_a_text_space_but_ours_is_refused():
    lost = gymnasium.vector.AsyncVectorEnv([Spelled] * 2)  # shared_memory=True is the default
    try:
        observations, _ = lost.reset(seed=0)
        assert not any("hidden number" in text for text in observations), "Gymnasium mended this: say so in vector.py"
    finally:
        lost.close()
    with pytest.raises(ValueError, match="shared_memory=False"):
        make_vec("NumberSearch-v0", num_envs=2, vectorization_mode="async")


@pytest.mark.parametrize("id", ["NumberSearch-v0", "Sort-v0"])
def test_async_without_shared_memory_equals_ours(id):
    native = make_vec(id, num_envs=2)
    parallel = make_vec(id, num_envs=2, vectorization_mode="async", vector_kwargs={"shared_memory": False})
    try:
        assert_same(native.reset(seed=5), parallel.reset(seed=5))
        rng = np.random.default_rng(0)
        for _ in range(12):
            actions = tuple("x" if env._done else choose(env, rng) for env in native.envs)
            assert_same(native.step(actions), parallel.step(actions))
    finally:
        parallel.close()
