"""TextArena: a registered game for one player, paid at its end."""

import random

import equality
import pytest

ta = pytest.importorskip("textarena")

from agent_envs.adapters.textarena import PREFIX, register_all  # noqa: E402

NAMES = register_all()


@pytest.mark.parametrize("id", equality.IDS)
def test_same_rewards_and_ends(id):
    for episode in equality.episodes(id):
        env = ta.make(PREFIX + id + "-raw", options=episode.options)
        env.reset(num_players=1, seed=episode.seed)
        assert [message for _, message, _ in env.get_observation()[1]] == [episode.first]
        for turn in episode.turns:
            done, info = env.step(turn.action)
            assert done == turn.done
            assert (info["reward"], info["terminated"], info["truncated"]) == (
                turn.reward,
                turn.terminated,
                turn.truncated,
            )
            assert env.get_observation()[1][-1][1] == turn.observation
        rewards, game_info = env.close()
        assert rewards[0] == pytest.approx(episode.total)
        assert game_info[0]["turn_count"] == len(episode.turns)


def test_the_game_so_far_as_one_string():
    env = ta.make(PREFIX + "NumberSearch-v0", options={"target": 11})
    env.reset(num_players=1, seed=0)
    env.get_observation()
    env.step("8")
    _, text = env.get_observation()
    assert isinstance(text, str)
    assert "Find the hidden number" in text
    assert "higher" in text


def test_global_generator_is_untouched():
    random.seed(1)
    before = random.getstate()
    env = ta.make(PREFIX + "NumberSearch-v0")
    env.reset(num_players=1, seed=3)
    env.step("8")
    assert random.getstate() == before


def test_one_player():
    assert register_all() == NAMES
    with pytest.raises(ValueError, match="one player"):
        ta.make(PREFIX + "NumberSearch-v0").reset(num_players=2)
