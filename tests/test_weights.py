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


@pytest.mark.parametrize("name", sorted(set(weights.NORMALISERS) - {"batch_norm"}))
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
