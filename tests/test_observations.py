"""Variants of the observation: cell by cell, and by their statistics."""

from __future__ import annotations

import numpy as np
import pytest

from deir.envs.observations import add_noise, invisible_obstacles


def test_unseen_empty_and_wall_cannot_be_told_apart() -> None:
    for code in range(11):
        for colour in range(6):
            for state in range(3):
                cell = np.array([[[[code, colour, state]]]], dtype=np.uint8)  # [1, 1, 1, 3]
                kept = cell.copy()
                expected = [0, 0, 0] if code <= 2 else [code, colour, state]
                result = invisible_obstacles(cell)
                assert result.tolist() == [[[expected]]]
                assert result.dtype == np.uint8
                np.testing.assert_array_equal(cell, kept)


def test_invisible_obstacles_looks_at_each_cell_on_its_own() -> None:
    rng = np.random.default_rng(0)
    views = rng.integers(0, [11, 6, 3], (20, 7, 7, 3)).astype(np.uint8)
    result = invisible_obstacles(views)
    for cell, changed in zip(views.reshape(-1, 3), result.reshape(-1, 3), strict=True):
        assert changed.tolist() == ([0, 0, 0] if cell[0] <= 2 else cell.tolist())


@pytest.mark.parametrize(("units", "centre"), [("raw", [8, 3, 1]), ("normalized", [0.8, 0.6, 0.5])])
def test_noise_has_the_given_deviation_around_the_cell(units: str, centre: list[float]) -> None:
    views = np.full((2000, 7, 7, 3), [8, 3, 1], dtype=np.uint8)
    noisy = add_noise(views, 0.1, units, np.random.default_rng(0))  # type: ignore[arg-type]
    assert noisy.dtype == np.float32
    assert noisy.shape == views.shape
    draws = (noisy - np.array(centre)).reshape(-1, 3)
    np.testing.assert_allclose(draws.mean(axis=0), 0, atol=5 * 0.1 / np.sqrt(len(draws)))
    np.testing.assert_allclose(draws.std(axis=0), 0.1, rtol=0.02)
    # Independent over elements: neither neighbours nor channels move together.
    assert abs(np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1]) < 0.02
    assert abs(np.corrcoef(draws[:, 0], draws[:, 1])[0, 1]) < 0.02


def test_largest_codes_are_one() -> None:
    locked_grey_agent = np.array([[[[10, 5, 2]]]], dtype=np.uint8)
    exact = add_noise(locked_grey_agent, 0.0, "normalized", np.random.default_rng(0))
    assert exact.tolist() == [[[[1.0, 1.0, 1.0]]]]


def test_noise_is_the_generators() -> None:
    views = np.zeros((4, 3, 3, 3), dtype=np.uint8)
    first, again = np.random.default_rng(5), np.random.default_rng(5)
    np.testing.assert_array_equal(add_noise(views, 0.1, "raw", first), add_noise(views, 0.1, "raw", again))
    later = add_noise(views, 0.1, "raw", first)
    assert not np.array_equal(later, add_noise(views, 0.1, "raw", np.random.default_rng(5)))
