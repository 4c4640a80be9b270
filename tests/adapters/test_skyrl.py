"""SkyRL-gym: BaseTextEnv's protocol, and rows that choose the task."""

import equality
import pytest

import agent_envs
from agent_envs.tasks import Task

skyrl_gym = pytest.importorskip("skyrl_gym")

from agent_envs.adapters.skyrl import register, skyrl_rows  # noqa: E402

register()


@pytest.mark.parametrize("id", equality.IDS)
def test_same_rewards_and_ends(id):
    for episode in equality.episodes(id):
        (row,) = skyrl_rows([Task(id, episode.seed, episode.options)], system="Play.")
        env = skyrl_gym.make(row["env_class"], env_config={}, extras=row)
        prompt, _ = env.init(row["prompt"])
        assert [message["content"] for message in prompt] == ["Play.", episode.first]
        for turn in episode.turns:
            out = env.step(turn.action)
            assert (out["reward"], out["done"]) == (turn.reward, turn.done)
            assert (out["metadata"]["terminated"], out["metadata"]["truncated"]) == (turn.terminated, turn.truncated)
            assert [m["content"] for m in out["observations"]] == ([] if turn.done else [turn.observation])
        assert env.get_metrics()["return"] == pytest.approx(episode.total)
        assert env.get_metrics()["turns"] == len(episode.turns)
        env.close()


def test_metrics_add_up():
    metrics = []
    for row in skyrl_rows(agent_envs.task_set("NumberSearch-v0", "test")):
        env = skyrl_gym.make("agent_envs", extras=row)
        env.init(row["prompt"])
        done = False
        while not done:
            done = env.step(env.env.unwrapped.optimal_action())["done"]
        metrics.append(env.get_metrics())
    assert type(env).aggregate_metrics(metrics)["success"] == 15 / 16


def test_a_row_without_a_task_says_so():
    register()
    with pytest.raises(ValueError, match="skyrl_rows"):
        skyrl_gym.make("agent_envs", extras={"env_id": "NumberSearch-v0"})
