"""The statistics of a report against plain loops and closed forms."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import mannwhitneyu

from deir.experiments.report import statistics

settings.register_profile("deir", deadline=None, derandomize=True, database=None)
settings.load_profile("deir")

NUMBERS = st.floats(-100, 100, allow_subnormal=False)
RUNS = arrays(float, st.integers(1, 9), elements=NUMBERS)
GROUPS = st.lists(RUNS, min_size=1, max_size=4)


def test_interpolation_is_linear_inside_and_unknown_outside():
    x, values = np.array([10.0, 20, 30, 40]), np.array([np.nan, 1.0, 3.0, 2.0])
    found = statistics.interpolate(x, values, np.array([5.0, 10, 20, 25, 30, 35, 40, 41]))
    np.testing.assert_array_equal(found, [np.nan, np.nan, 1, 2, 3, 2.5, 2, np.nan])
    assert np.isnan(statistics.interpolate(x, np.full(4, np.nan), x)).all()


def test_a_gap_inside_a_curve_is_bridged():
    found = statistics.interpolate(np.array([1.0, 2, 3]), np.array([1.0, np.nan, 5]), np.array([2.0]))
    np.testing.assert_array_equal(found, [3])


def test_the_common_grid_has_every_place_or_evenly_picked_ones():
    same = statistics.common_grid([np.array([8.0, 16]), np.array([4.0, 8, 12, 16])], 10)
    np.testing.assert_array_equal(same, [4, 8, 12, 16])
    picked = statistics.common_grid([np.arange(1.0, 1001)], 5)
    assert len(picked) == 5 and picked[0] == 1 and picked[-1] == 1000
    assert np.ptp(np.diff(picked)) <= 1


def test_final_value_is_the_mean_of_the_last_tenth():
    frames = np.arange(1.0, 101)
    assert statistics.final_value(frames, frames) == pytest.approx(95.5)  # 91 … 100
    assert statistics.final_value(frames, np.where(frames > 99, np.nan, frames)) == pytest.approx(95)
    assert math.isnan(statistics.final_value(frames, np.full(100, np.nan)))
    assert statistics.final_value(np.array([8.0]), np.array([0.5])) == 0.5


def test_area_under_a_straight_line_is_its_middle():
    frames = np.array([10.0, 20, 50, 100])
    assert statistics.area(frames, 2 * frames) == pytest.approx(110)
    assert statistics.area(frames, np.full(4, 0.3)) == pytest.approx(0.3)
    assert statistics.area(frames, np.array([np.nan, 20, 50, 100])) == pytest.approx(60)  # from the first known value
    assert statistics.area(frames, np.array([np.nan, np.nan, np.nan, 7])) == 7
    assert math.isnan(statistics.area(frames, np.full(4, np.nan)))


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=20), st.floats(0, 1))
def test_first_reach_equals_a_loop(points, threshold):
    frames = np.arange(1.0, len(points) + 1)
    values = np.array([value if known else np.nan for value, known in points])
    expected = math.inf
    for frame, (value, known) in zip(frames, points, strict=True):
        if known and value >= threshold:
            expected = frame
            break
    assert statistics.first_reach(frames, values, threshold) == expected


@given(GROUPS)
def test_mean_and_error_over_tasks_equal_a_loop(groups):
    mean, error = statistics.mean_and_error(groups)
    assert mean == pytest.approx(sum(sum(g) / len(g) for g in groups) / len(groups), abs=1e-9)
    if min(len(g) for g in groups) < 2:
        assert np.isnan(error)
        return
    squares = [sum((x - g.mean()) ** 2 for x in g) / (len(g) - 1) / len(g) for g in groups]
    assert error == pytest.approx(math.sqrt(sum(squares)) / len(groups), abs=1e-9)


@given(GROUPS)
def test_interquartile_mean_cuts_a_quarter_at_each_end(groups):
    values = sorted(x for group in groups for x in group)
    cut = len(values) // 4
    kept = values[cut : len(values) - cut]
    assert statistics.interquartile_mean(groups) == pytest.approx(sum(kept) / len(kept), abs=1e-9)


def test_the_bootstrap_draws_within_tasks():
    low, high = np.zeros((3, 1)), np.full((5, 1), 7.0)
    found = statistics.interquartile_interval([low, high], 200)
    # every draw has three runs of one task and five of the other: the same middle half each time
    assert found.low == found.estimate == found.high == pytest.approx((0 + 7 * 3) / 4)


def test_interquartile_interval_equals_a_loop():
    rng = np.random.default_rng(3)
    groups = [rng.normal(size=(4, 3)), rng.normal(2, 1, size=(6, 3))]
    found = statistics.interquartile_interval(groups, 300, seed=5)
    draws = statistics.draw([4, 6], 300, np.random.default_rng(5))
    for point in range(3):
        estimates = []
        for first, second in zip(*draws, strict=True):
            values = sorted([*groups[0][first, point], *groups[1][second, point]])
            estimates.append(sum(values[2:8]) / 6)
        assert found.low[point] == pytest.approx(np.quantile(estimates, 0.025))
        assert found.high[point] == pytest.approx(np.quantile(estimates, 0.975))


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        found = statistics.interquartile_interval([rng.normal(size=(30, 1))], 200, seed=trial)
        hits += bool(found.low[0] <= 0 <= found.high[0])
    assert 0.88 <= hits / 200 <= 0.99


def test_one_run_has_no_interval():
    found = statistics.interquartile_interval([np.ones((1, 2))], 100)
    np.testing.assert_array_equal(found.estimate, 1)
    assert np.isnan(found.low).all() and np.isnan(found.high).all()
    one = statistics.probability_of_improvement([np.array([1.0])], [np.array([0.0, 2.0])], 100)
    assert one.estimate == 0.5 and np.isnan(one.low)


def test_many_points_are_drawn_in_parts_with_the_same_result(monkeypatch):
    groups = [np.random.default_rng(1).normal(size=(5, 40))]
    whole = statistics.interquartile_interval(groups, 100)
    monkeypatch.setattr(statistics, "_CHUNK", 2_000)
    for a, b in zip(whole, statistics.interquartile_interval(groups, 100), strict=True):
        np.testing.assert_array_equal(a, b)


@settings(max_examples=50)
@given(GROUPS, st.lists(NUMBERS, min_size=1, max_size=5))
def test_performance_profile_equals_a_loop(groups, thresholds):
    found = statistics.performance_profile(groups, np.array(thresholds), 100)
    for threshold, share, low, high in zip(thresholds, *found, strict=True):
        expected = sum(sum(x > threshold for x in g) / len(g) for g in groups) / len(groups)
        assert share == pytest.approx(expected)
        assert np.isnan(low) or 0 <= low <= high <= 1


@settings(max_examples=50)
@given(st.lists(st.tuples(RUNS, RUNS), min_size=1, max_size=3))
def test_probability_of_improvement_is_the_mann_whitney_statistic(pairs):
    ours, others = [x.round() for x, _ in pairs], [y.round() for _, y in pairs]  # rounded: with ties
    expected = np.mean([mannwhitneyu(x, y).statistic / (len(x) * len(y)) for x, y in zip(ours, others, strict=True)])
    found = statistics.probability_of_improvement(ours, others, 100)
    assert found.estimate == pytest.approx(expected)
    back = statistics.probability_of_improvement(others, ours, 100)
    assert found.estimate + back.estimate == pytest.approx(1)


def test_probability_interval_equals_a_loop():
    rng = np.random.default_rng(2)
    ours, others = [rng.integers(0, 4, 3).astype(float)], [rng.integers(0, 4, 5).astype(float)]
    generator = np.random.default_rng(9)
    rows = statistics.draw([3], 200, generator)[0]
    columns = statistics.draw([5], 200, generator)[0]
    drawn = [
        np.mean([1.0 if x > y else 0.5 if x == y else 0.0 for x in ours[0][i] for y in others[0][j]])
        for i, j in zip(rows, columns, strict=True)
    ]
    found = statistics.probability_of_improvement(ours, others, 200, seed=9)
    assert found.low == pytest.approx(np.quantile(drawn, 0.025))
    assert found.high == pytest.approx(np.quantile(drawn, 0.975))


@settings(max_examples=30)
@given(st.data())
def test_a_band_counts_only_runs_with_a_value(data):
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    element = st.one_of(st.just(np.nan), NUMBERS)
    groups = [data.draw(arrays(float, (size, 4), elements=element)) for size in sizes]
    found = statistics.band(groups, 100)
    for point in range(4):
        present = [[x for x in group[:, point] if not math.isnan(x)] for group in groups]
        assert found.runs[point] == sum(map(len, present))
        if not all(present):
            assert np.isnan(found.mean[point]) and np.isnan(found.iqm[point])
            continue
        assert found.mean[point] == pytest.approx(np.mean([np.mean(p) for p in present]), abs=1e-9)
        values = sorted(x for p in present for x in p)
        cut = len(values) // 4
        assert found.iqm[point] == pytest.approx(np.mean(values[cut : len(values) - cut]), abs=1e-9)
