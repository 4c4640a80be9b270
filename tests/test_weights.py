"""Every weight against a table made by hand."""

import math

import pytest
import torch

from trl_plugins import weights

NAN = math.nan


def test_group_mean_on_the_lecture_group() -> None:
    assert weights.group_mean(torch.tensor([1.0, 1, 0, 0]), 4).tolist() == [0.5, 0.5, -0.5, -0.5]


def test_grpo_on_the_lecture_group_is_one_with_population_std() -> None:
    got = weights.grpo(torch.tensor([1.0, 1, 0, 0]), 4, std="population", eps=0.0)
    assert got.tolist() == [1.0, 1.0, -1.0, -1.0]


def test_grpo_with_sample_std_and_eps_as_trl() -> None:
    returns = torch.tensor([1.0, 1, 0, 0])
    torch.testing.assert_close(weights.grpo(returns, 4), (returns - 0.5) / (returns.std() + 1e-4))


@pytest.mark.parametrize(("lone", "sign"), [(1.0, 1), (0.0, -1)])
def test_a_lone_outcome_of_eight(lone: float, sign: int) -> None:
    returns = torch.full((8,), 1.0 - lone)
    returns[3] = lone
    got = weights.dr_grpo(returns, 8)
    assert got[3].item() == sign * 7 / 8
    assert got[0].item() == -sign / 8


@pytest.mark.parametrize("name", ["group_mean", "dr_grpo", "grpo"])
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1 / 3])
def test_a_tied_group_is_exactly_zero(name: str, value: float) -> None:
    assert weights.trajectory_weights(name, torch.full((7,), value), 7).abs().max().item() == 0.0


def test_groups_never_mix() -> None:
    got = weights.group_mean(torch.tensor([1.0, 0, 5, 5]), 2)
    assert got.tolist() == [0.5, -0.5, 0.0, 0.0]


@pytest.mark.parametrize("name", sorted(set(weights.NORMALISERS) - {"batch_norm", *weights.PER_TURN}))
def test_failed_trajectories_count_in_nothing(name: str) -> None:
    with_failure = weights.trajectory_weights(name, torch.tensor([1.0, NAN, 0, 0]), 4, baseline=0.5)
    without = weights.trajectory_weights(name, torch.tensor([1.0, 0, 0]), 3, baseline=0.5)
    assert with_failure[1].item() == 0.0
    torch.testing.assert_close(with_failure[[0, 2, 3]], without)


def test_a_group_that_failed_whole_is_zero() -> None:
    assert weights.trajectory_weights("grpo", torch.tensor([NAN, NAN]), 2).tolist() == [0.0, 0.0]


def test_reinforce_is_the_return() -> None:
    assert weights.reinforce(torch.tensor([1.0, 0.25])).tolist() == [1.0, 0.25]


def test_rewards_to_go_by_hand() -> None:
    rewards = torch.tensor([[0.25, 0.5, 1.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    assert weights.rewards_to_go(rewards).tolist() == [[1.75, 1.5, 1.0], [1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]
    assert weights.rewards_to_go(rewards, 0.5)[0].tolist() == [0.75, 1.0, 1.0]


def test_turn_weights_by_hand() -> None:
    # Two members; the second ends after one turn. Turn 0: to go 1.5 and 0.5, mean 1. Turn 1: the first alone.
    rewards = torch.tensor([[0.5, 1.0], [0.5, 0.0]])
    got = weights.turn_weights("dr_grpo", rewards, torch.tensor([2, 1]), 2)
    assert got.tolist() == [[0.5, 0.0], [-0.5, 0.0]]
    raw = weights.turn_weights("reinforce", rewards, torch.tensor([2, 1]), 2)
    assert raw.tolist() == [[1.5, 1.0], [0.5, 0.0]]


def test_turn_weights_equal_trajectory_weights_where_all_play_on_to_one_last_reward() -> None:
    rewards = torch.tensor([[0.0, 0, 1], [0, 0, 0], [0, 0, 1], [0, 0, 0]])
    for name in ("reinforce", "group_mean", "dr_grpo", "grpo"):
        by_turn = weights.turn_weights(name, rewards, torch.tensor([3, 3, 3, 3]), 4)
        whole = weights.trajectory_weights(name, rewards.sum(1), 4)
        torch.testing.assert_close(by_turn, whole[:, None].expand(4, 3))


def test_a_failed_trajectory_counts_in_no_turn() -> None:
    rewards = torch.tensor([[1.0, 1.0], [0.0, 0.0], [NAN, NAN]])
    got = weights.turn_weights("dr_grpo", rewards, torch.tensor([2, 2, 1]), 3)
    assert got.tolist() == [[1.0, 0.5], [-1.0, -0.5], [0.0, 0.0]]


def test_oracle_by_hand() -> None:
    # Two turns from V* = 15/16 by way of 1/2 to a win; and one turn that loses.
    rewards, values = torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.tensor([[0.9375, 0.5], [0.9375, 0.0]])
    got = weights.turn_weights("oracle", rewards, torch.tensor([2, 1]), 2, values=values)
    assert got.tolist() == [[0.0625, 0.5], [-0.9375, 0.0]]


def test_value_by_hand() -> None:
    # d = (0 + V1 - V0, 1 - V1) = (0.25, 0.25); lambda 0 keeps d, lambda 1 gives reward-to-go - V, 1/2 lies between.
    rewards, values = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.75]])
    for gae_lambda, first in ((0.0, 0.25), (0.5, 0.375), (1.0, 0.5)):
        got = weights.turn_weights("value", rewards, torch.tensor([2]), 1, values=values, gae_lambda=gae_lambda)
        assert got.tolist() == [[first, 0.25]]
    discounted = weights.value(rewards, values, discount=0.5, gae_lambda=1.0)
    assert discounted.tolist() == [[0.0, 0.25]]  # 0.5 x 1 - 0.5, 1 - 0.75


def test_value_of_a_failed_trajectory_is_zero() -> None:
    rewards = torch.tensor([[NAN, NAN], [1.0, 0.0]])
    got = weights.turn_weights("value", rewards, torch.tensor([2, 1]), 2, values=torch.tensor([[0.5, 0.5], [0.25, 0]]))
    assert got.tolist() == [[0.0, 0.0], [0.75, 0.0]]


def test_turns_with_one_key_are_one_group() -> None:
    # All three open in history 0 (to go 1, 0, 1: mean 2/3); history 1 holds two turns (1, 0), history 2 a lone one.
    rewards = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 1.0]])
    keys = torch.tensor([[0, 1], [0, 1], [0, 2]])
    got = weights.shared_turn_weights("dr_grpo", rewards, keys)
    torch.testing.assert_close(got, torch.tensor([[1 / 3, 0.5], [-2 / 3, -0.5], [1 / 3, 0.0]]))
    out = weights.shared_turn_weights("rloo", rewards, keys)
    torch.testing.assert_close(out, torch.tensor([[0.5, 1.0], [-1.0, -1.0], [0.5, 0.0]]))


def test_turns_after_the_end_and_failed_ones_count_in_no_group() -> None:
    rewards = torch.tensor([[1.0, 0.0], [0.0, 0.0], [NAN, NAN]])
    got = weights.shared_turn_weights("dr_grpo", rewards, torch.tensor([[0, -1], [0, 1], [0, 1]]))
    assert got.tolist() == [[0.5, 0.0], [-0.5, 0.0], [0.0, 0.0]]


def test_per_turn_methods_have_no_trajectory_weight() -> None:
    with pytest.raises(ValueError, match="advantage='value' gives credit turn by turn"):
        weights.trajectory_weights("value", torch.zeros(2), 2)


def test_rloo_by_hand() -> None:
    # Others' means: 1/3, 1/3, 2/3, 2/3.
    got = weights.rloo(torch.tensor([1.0, 1, 0, 0]), 4)
    torch.testing.assert_close(got, torch.tensor([2 / 3, 2 / 3, -2 / 3, -2 / 3]))
    assert weights.rloo(torch.tensor([1.0, NAN]), 2).tolist() == [0.0, 0.0]
    assert weights.rloo(torch.tensor([1.0, 0.0]), 2).tolist() == [1.0, -1.0]


def test_constant_rest_and_batch_norm_by_hand() -> None:
    returns = torch.tensor([1.0, 0.5, 0.0])
    assert weights.constant(returns, 0.5).tolist() == [0.5, 0.0, -0.5]
    assert weights.rest(returns, 0.5).tolist() == [1.0, 1.0, 0.0]
    torch.testing.assert_close(weights.batch_norm(returns, eps=0.0), torch.tensor([1.0, 0.0, -1.0]))


def test_running_mean_compares_with_earlier_batches_alone() -> None:
    first, second = torch.tensor([1.0, 0.0]), torch.tensor([1.0, NAN])
    average = weights.next_running_mean(None, first, 0.9)
    assert average == 0.5
    assert average is not None
    assert weights.running_mean(second, average).tolist() == [0.5, 0.0]
    assert weights.next_running_mean(average, second, 0.9) == pytest.approx(0.55)
    assert weights.next_running_mean(average, torch.tensor([NAN]), 0.9) == average


def test_zero_variance_share() -> None:
    assert weights.zero_variance_share(torch.tensor([0.0, 0, 1, 1, 1, 0, NAN, 1]), 2) == 0.75


def test_errors_name_the_thing() -> None:
    with pytest.raises(ValueError, match="advantage='ppo'"):
        weights.trajectory_weights("ppo", torch.zeros(2), 2)
    with pytest.raises(ValueError, match="3 returns do not fill groups of 2"):
        weights.group_mean(torch.zeros(3), 2)
