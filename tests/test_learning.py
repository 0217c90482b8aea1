"""Agents learn: thresholds on real tasks, with room for the luck of a seed."""

import pytest

from deir.runs import run
from deir.runs.run import configure


@pytest.mark.parametrize("seed", [0])
def test_deir_solves_doorkey_5x5(tmp_path, seed):
    config = configure(
        {"env": {"id": "DoorKey-5x5"}, "steps": 80_000, "seed": seed, "target_return": 0.8, "loggers": "csv"}
    )
    _, row = run.start(config, tmp_path / "run")
    assert row["return_mean"] >= 0.8
    assert row["success_rate"] >= 0.95


def test_ppo_alone_solves_an_empty_room(tmp_path):
    config = configure(
        {"env": {"id": "Empty-6x6"}, "method": "none", "steps": 60_000, "target_return": 0.85, "loggers": "csv"}
    )
    _, row = run.start(config, tmp_path / "run")
    assert row["return_mean"] >= 0.85
