"""Frames to a return, from curves made by hand."""

from pathlib import Path

import numpy as np

from deir.experiments.report.curves import COLUMNS, Curve, read_all
from deir.experiments.report.learning_speed import draw, frames_to, grouped, table


def curve(returns, episodes=None, env="Task", method="deir", seed=0, every=100):
    columns = {name: np.full(len(returns), np.nan) for name in COLUMNS}
    columns["frames"] = every * np.arange(1.0, len(returns) + 1)
    columns["return_mean"] = np.array(returns, float)
    if episodes is not None:
        columns["episodes"] = np.array(episodes, float)
    return Curve(env, method, seed, columns, Path("made"))


def test_a_threshold_counts_only_over_a_full_window_of_episodes():
    assert frames_to(curve([0.95, 0.2, 0.6, 0.9], [1, 50, 100, 200]), 0.5) == 300
    assert frames_to(curve([0.95, 0.2, 0.6, 0.9], [1, 50, 100, 200]), 0.9) == 400
    assert frames_to(curve([0.95, 0.2]), 0.9) == 100  # a curve that names no episodes
    assert frames_to(curve([np.nan, 0.89], [0, 100]), 0.9) == float("inf")


def test_the_table_gives_the_median_and_the_range():
    full = [100, 200, 300]
    runs = [
        curve([0.1, 0.6, 0.95], full, seed=0),
        curve([0.6, 0.7, 0.8], full, seed=1),
        curve([0, 0, 0.5], full, seed=2),
    ]
    row = table(grouped(runs), (0.5, 0.9)).splitlines()[-1]
    assert row == "| Task | deir | 3 | 300 | 200 [100, 300], 3 of 3 | – [300, –], 1 of 3 | 0.800 |"


def test_runs_of_different_lengths_are_drawn_and_the_published_curves_can_be_read(tmp_path):
    published = Path(__file__).parent.parent / "docs" / "results" / "published" / "curves.csv"
    curves, _ = read_all([published])
    ours = [curve([0.1, 0.6, 0.9], [30, 130, 230], env="DoorKey-8x8", every=40_000)]
    draw(grouped(curves + ours), tmp_path / "curves.png", 3)
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert {frames_to(c, 0.9) for c in curves if c.env == "DoorKey-8x8"} == {122_880, 131_072, 139_264}
