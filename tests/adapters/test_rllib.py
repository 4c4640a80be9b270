"""RLlib: its PPO over NumericView, in this process."""

import math
import sys

import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("ray.rllib")
pytest.importorskip("torch")

from agent_envs.adapters.numeric import NumericView  # noqa: E402
from agent_envs.adapters.rllib import make, ppo_config, register, train  # noqa: E402


@pytest.fixture(scope="module")
def runtime():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


def test_the_registered_environment_is_the_view():
    from ray.tune.registry import ENV_CREATOR, _global_registry  # type: ignore[reportMissingImports]

    assert _global_registry.get(ENV_CREATOR, register()) is make
    view = make({"id": "NumberSearch-v0", "max_guesses": 5})
    assert isinstance(view, NumericView)
    assert view.view.max_guesses == 5  # type: ignore[attr-defined]


def test_ppo_learns(runtime):
    found = train(ppo_config("NumberSearch-v0"), iterations=12)
    steps = [count for count, _ in found]
    # 16 environments play a batch of 4,096 steps and end the turn they are in.
    assert all(4096 * (i + 1) <= count <= 4112 * (i + 1) for i, count in enumerate(steps))
    returns = [value for _, value in found]
    assert all(math.isfinite(value) and 0 <= value <= 1 for value in returns)
    # Uniformly random guesses win 0.23 of the games; each number is over the last 100 games.
    assert sum(returns[-4:]) / 4 > max(0.30, sum(returns[:2]) / 2)


def test_ppo_plays_in_a_process_of_its_own(runtime):
    (found,) = train(ppo_config("CraftingEasy-v0", env_runners=1), iterations=1)
    assert found[0] >= 4096


def test_absent_framework_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "agent_envs.adapters.rllib", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'ray\[rllib\]'"):
        import agent_envs.adapters.rllib  # noqa: F401
