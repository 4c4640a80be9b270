"""The worked examples print the lecture's numbers (SPEC §7) and draw their pictures."""

import numpy as np
import pytest

from recipes import lab


def printed(capsys, *argv):
    lab.main([*argv, "--no-pictures"])
    return capsys.readouterr().out


def test_bandit_prints_the_lectures_numbers(capsys):
    out = printed(capsys, "bandit")
    assert "true gradient 0.1875" in out
    assert "no baseline: A 0.75, B 0, mean 0.1875, std 0.325" in out
    assert "baseline 0.5: A 0.375, B 0.125, mean 0.1875, std 0.108" in out


def test_bandit_running_averages_close_in_on_the_truth():
    numbers = lab.bandit_numbers(runs=200, samples=2000)
    last = {name: case["running"][:, -1] for name, case in numbers.items() if isinstance(case, dict)}
    for name, ends in last.items():
        assert abs(ends.mean() - 0.1875) < 4 * numbers[name]["std"] / np.sqrt(200 * 2000)
    assert last["no baseline"].std() / last["baseline 0.5"].std() == pytest.approx(3, rel=0.01)


def test_bandit_at_theta_minus_1_1():
    p = 1 / (1 + np.exp(1.1))
    assert round(p, 2) == 0.25
    numbers = lab.bandit_numbers(p=p)
    assert numbers["true gradient"] == pytest.approx(p * (1 - p))
    assert round(numbers["no baseline"]["std"], 3) == 0.325
    assert round(numbers["baseline 0.5"]["std"], 3) == 0.108


def test_two_state_prints_the_lectures_numbers(capsys):
    out = printed(capsys, "two_state")
    assert "std of the rewards 5.32\n" in out
    assert "std of the centred rewards 1.15\n" in out
    assert "raw prefers 9 in state 1 to 2 in state 2 True" in out
    assert "centred prefers 9 in state 1 to 2 in state 2 False" in out


def test_weights_of_a_group():
    rewards = np.array([[1.0, 1, 0, 0], [2, 2, 2, 2], [0, 0, 0, 0]])
    assert lab.normalised(rewards).tolist() == [[1, 1, -1, -1], [0] * 4, [0] * 4]
    assert lab.centred(rewards).tolist() == [[0.5, 0.5, -0.5, -0.5], [0] * 4, [0] * 4]
    assert lab.raw(rewards).tolist() == rewards.tolist()
    lone = np.eye(8)[0]
    assert lab.centred(lone)[0] == 7 / 8
    assert lab.centred(1 - lone)[0] == -7 / 8


def test_a_tied_group_moves_nothing_but_the_raw_weights():
    moved = lab.tied_updates()
    assert moved["raw"] > 0.1
    assert moved["centred"] == moved["normalised"] == 0


def test_sort_prints_the_group_the_tie_and_the_loophole(capsys):
    numbers = lab.sort_numbers(seeds=1, steps=3)
    lines = "\n".join(lab._show(key, number) for key, number in numbers.items())
    assert "normalised [ 1.  1. -1. -1.]" in lines
    assert "centred 0, normalised 0" in lines
    assert "points, dense: right answer 7, repetition 7, constant 5" in lines
    assert "points, dense_closed: right answer 7, repetition 4, constant 3" in lines


def test_the_sort_policys_gradient_is_the_gradient_of_its_exact_expectation():
    """The mean of update() over every answer, weighted by its chance, against finite differences of J."""
    policy = lab.SortPolicy(n=2, high=1)
    rng = np.random.default_rng(0)
    policy.logit_weights = rng.normal(size=policy.logit_weights.shape)
    table, start = policy.points("dense"), policy.logit_weights.copy()
    gradient = np.zeros_like(start)
    for x in range(len(policy.lists)):
        for y, answer in enumerate(policy.lists):
            policy.logit_weights = start.copy()
            chance = np.prod([policy.chances()[x, i, number] for i, number in enumerate(answer)])
            policy.update(np.array([x]), answer[None, None], np.array([[chance * table[x, y]]]), rate=1.0)
            gradient += (policy.logit_weights - start) / len(policy.lists)
    for index in [(0, 0, 0), (1, 1, 3), (0, 1, 5), (1, 0, 2)]:
        ends = []
        for sign in (1, -1):
            policy.logit_weights = start.copy()
            policy.logit_weights[index] += sign * 1e-5
            ends.append(policy.expected(table))
        assert gradient[index] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-8)


def test_sorting_is_learned_by_every_method_and_the_open_dense_reward_is_gamed():
    for method in lab.WEIGHTS:
        success = lab.train_sort("positions", method, seed=0)[:, 0]
        assert success[0] == pytest.approx(1 / 64)
        assert success[-1] > 0.6
    success, paid = lab.train_sort("dense", "centred", seed=0)[-1]
    assert paid > 0.95
    assert success < 0.6, "nearly all of the reward, and half of the answers wrong"


def test_number_search_prints_the_lectures_numbers(capsys):
    out = printed(capsys, "number_search")
    assert "J 0.5\n" in out
    assert "V* at the start 0.9375" in out
    assert "optimal openings [8, 9]" in out
    numbers = lab.number_search_numbers()
    assert numbers["returns"] == {"τ1": 1, "τ2": 1, "τ3": 0, "τ4": 0}
    assert numbers["A there"] == pytest.approx({9: -1 / 9, 10: 2 / 9, 11: -1 / 9})
    assert numbers["Q after 8, 12"] == pytest.approx({9: 2 / 3, 10: 1, 11: 2 / 3})


@pytest.mark.parametrize("example", lab.EXAMPLES)
def test_pictures_are_drawn(example, tmp_path):
    pytest.importorskip("matplotlib")
    from recipes.lab_pictures import PICTURES

    numbers = lab.sort_numbers(seeds=2, steps=3) if example == "sort" else lab.EXAMPLES[example]()
    PICTURES[example](numbers, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
