"""The comparison's arithmetic by hand; its runs are those of the trainer."""

import math

import pytest

from recipes.compare import first_reached, mean_and_interval, table


def test_where_a_curve_first_reaches_a_level() -> None:
    points = [(0, 0.4), (10, 0.6), (20, 0.5), (30, 0.9)]
    assert first_reached(points, 0.5) == 5
    assert first_reached(points, 0.7) == 25
    assert first_reached(points, 0.95) is None
    assert first_reached(points, 0.3) == 0


def test_mean_and_interval_by_hand() -> None:
    mean, half = mean_and_interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.303 / math.sqrt(3))
    assert math.isnan(mean_and_interval([1.0])[1])


def test_table_counts_the_seeds_that_never_reach_the_level() -> None:
    runs = {"a": [[(0, 0.0), (10, 1.0)], [(0, 0.0), (10, 0.2)]]}
    line = table(runs, episodes_a_step=100, level=0.5).splitlines()[-1]
    assert line == "| a | 2 | 500 ± nan (1 of 2 never) | 0.600 ± 5.082 |"
