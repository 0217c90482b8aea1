"""Table A1 of the paper, typed from its text, against the configuration that a preset gives."""

from dataclasses import replace
from pathlib import Path

import pytest

from deir.algorithm.rewards import METHODS
from deir.config import Config, merge, to_dict
from deir.experiments.report.curves import read_all
from deir.experiments.report.statistics import area
from deir.runs.presets import (
    BEYOND_THE_PAPER,
    CANDIDATES,
    OURS,
    SEEDS,
    SUITES,
    TABLE,
    nested,
    part_of,
    resolve,
    source,
    suite_of,
)
from deir.runs.ranges import check
from deir.runs.run import configure

SUITE_NAMES = ("minigrid", "omfull", "procgen")


def resolved(suite, method="deir", env="DoorKey-8x8"):
    config = Config()
    return resolve(replace(config, env=replace(config.env, id=env), preset=suite, method=method))


def field(config, path):
    tree = to_dict(config)
    for name in path.split("."):
        tree = tree[name]
    return tree


# field, MiniGrid, OMFull, ProcGen
SHARED = [
    ("ppo.gamma", 0.99, 0.99, 0.99),
    ("ppo.gae_lambda", 0.95, 0.95, 0.95),
    ("ppo.rollout_steps", 512, 256, 256),
    ("env.n_envs", 16, 64, 64),
    ("ppo.clip_range", 0.2, 0.2, 0.2),
    ("ppo.epochs", 4, 3, 3),
    ("reward.epochs", 4, 3, 3),
    ("ppo.minibatch_size", 512, 2048, 2048),
    ("reward.minibatch_size", 512, 2048, 2048),
    ("ppo.entropy_coef", 1e-2, 5e-4, 1e-2),
    ("ppo.advantage_norm", "ema", "none", "none"),
    ("ppo.learning_rate", 3e-4, 1e-4, 1e-4),
    ("ppo.adam_eps", 1e-5, 1e-5, 1e-5),
    ("ppo.adam_beta1", 0.9, 0.9, 0.9),
    ("ppo.adam_beta2", 0.999, 0.999, 0.999),
    ("network.norm", "batch", "layer", "layer"),
    ("reward.extrinsic_coef", 1.0, 10.0, 1.0),
    # Appendix A.5
    ("network.features", 64, 64, 256),
    ("network.hidden", 64, 64, 256),
    ("network.mlp", 128, 128, 256),
]

# method, field, MiniGrid, OMFull, ProcGen; "-" where the paper has none, None for "total avg"
OWN = [
    ("deir", "reward.beta", 1e-2, 1e-3, 5e-2),
    ("deir", "reward.normalize", True, True, True),
    ("deir", "reward.momentum", 0.9, 0.9, 0.9),
    ("deir", "reward.deir.queue_size", 100_000, 100_000, 100_000),
    ("noveld", "reward.beta", 3e-2, 3e-3, 3e-2),
    ("noveld", "reward.normalize", True, True, True),
    ("noveld", "reward.momentum", 0.9, 0.9, 0.9),
    ("noveld", "reward.rnd.normalize_error", False, False, False),
    ("noveld", "reward.rnd.error_momentum", None, None, None),
    ("ngu", "reward.beta", 1e-3, "-", 3e-4),
    ("ngu", "reward.normalize", True, "-", True),
    ("ngu", "reward.momentum", 0.0, "-", 0.0),
    ("ngu", "reward.ngu.lifelong", True, "-", True),
    ("ngu", "reward.rnd.normalize_error", True, "-", True),
    ("ngu", "reward.rnd.error_momentum", None, "-", None),
    ("ngu", "reward.ngu.distance_momentum", 0.997, "-", 0.997),
    ("rnd", "reward.beta", 3e-3, "-", 1e-2),
    ("rnd", "reward.normalize", True, "-", True),
    ("rnd", "reward.momentum", 0.9, "-", 0.9),
    ("rnd", "reward.rnd.normalize_error", False, "-", False),
    ("rnd", "reward.rnd.error_momentum", None, "-", None),
    ("icm", "reward.beta", 1e-2, "-", 1e-4),
    ("icm", "reward.normalize", True, "-", True),
    ("icm", "reward.momentum", 0.9, "-", 0.9),
    ("icm", "reward.icm.forward_weight", 0.2, "-", 0.2),
    # not in the paper
    ("etd", "reward.beta", 1e-2, "-", "-"),
    ("e3b", "reward.beta", 1e-2, "-", "-"),
    ("ride", "reward.beta", 1e-2, "-", "-"),
    ("re3", "reward.beta", 1e-2, "-", "-"),
    ("disagreement", "reward.beta", 3e-3, "-", "-"),
    ("pseudo-counts", "reward.beta", 3e-3, "-", "-"),
    ("deir+visits", "reward.beta", 1e-2, "-", "-"),
    ("deir+visits", "reward.momentum", 0.0, "-", "-"),
]

TRIED = [
    ("ppo", "ppo.gamma", (0.99, 0.997, 0.999)),
    ("ppo", "ppo.gae_lambda", (0.0, 0.8, 0.9, 0.95, 0.99, 0.997)),
    ("ppo", "ppo.rollout_steps", (128, 256, 512, 1024, 2048, 4096)),
    ("ppo", "env.n_envs", (16, 32, 64, 128)),
    ("ppo", "ppo.clip_range", (0.1, 0.2, 0.3)),
    ("ppo", "ppo.epochs", (2, 3, 4)),
    ("ppo", "reward.epochs", (1, 3, 4)),
    ("ppo", "ppo.minibatch_size", (512, 1024, 2048)),
    ("ppo", "ppo.entropy_coef", (5e-4, 1e-3, 1e-2, 1e-1)),
    ("ppo", "ppo.advantage_norm", ("ema", "none")),
    ("ppo", "ppo.advantage_momentum", (0.0, 0.9, 0.95, 0.99, 0.999)),
    ("ppo", "ppo.learning_rate", (3e-5, 1e-4, 3e-4, 1e-3)),
    ("ppo", "ppo.adam_eps", (1e-2, 1e-4, 1e-5, 1e-8)),
    ("ppo", "ppo.adam_beta1", (0.9, 0.95, 0.99)),
    ("ppo", "ppo.adam_beta2", (0.999, 0.9999)),
    ("ppo", "network.norm", ("batch", "layer", "none")),
    ("deir", "reward.beta", (1e-3, 3e-3, 5e-3, 1e-2, 3e-2, 5e-2, 1e-1)),
    ("deir", "reward.normalize", (True, False)),
    ("deir", "reward.momentum", (0.0, 0.9, 0.95, 0.99, None)),
    ("deir", "reward.deir.queue_size", (10_000, 100_000, 1_000_000)),
    ("noveld", "reward.beta", (1e-4, 1e-3, 3e-3, 5e-3, 1e-2, 3e-2, 5e-2, 1e-1)),
    ("noveld", "reward.normalize", (True,)),
    ("noveld", "reward.momentum", (0.9,)),
    ("noveld", "reward.rnd.normalize_error", (True, False)),
    ("noveld", "reward.rnd.error_momentum", (0.997, None)),
    ("ngu", "reward.beta", (1e-4, 3e-4, 1e-3, 3e-3, 5e-3, 1e-2, 3e-2, 1e-1)),
    ("ngu", "reward.normalize", (True, False)),
    ("ngu", "reward.momentum", (0.0, 0.2, 0.5, 0.9)),
    ("ngu", "reward.ngu.lifelong", (True, False)),
    ("ngu", "reward.rnd.normalize_error", (True, False)),
    ("ngu", "reward.rnd.error_momentum", (0.997, None)),
    ("ngu", "reward.ngu.distance_momentum", (0.99, 0.997, 0.999, 0.9999, None)),
    ("rnd", "reward.beta", (1e-5, 1e-4, 1e-3, 3e-3, 5e-3, 1e-2, 3e-2)),
    ("rnd", "reward.normalize", (True, False)),
    ("rnd", "reward.momentum", (0.0, 0.9)),
    ("rnd", "reward.rnd.normalize_error", (True, False)),
    ("rnd", "reward.rnd.error_momentum", (0.997, None)),
    ("icm", "reward.beta", (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 5e-3, 1e-2, 3e-2)),
    ("icm", "reward.normalize", (True,)),
    ("icm", "reward.momentum", (0.9,)),
    ("icm", "reward.icm.forward_weight", (0.2,)),
    ("etd", "reward.beta", (3e-3, 1e-2, 3e-2, 1e-1)),
    ("e3b", "reward.beta", (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)),
    ("ride", "reward.beta", (3e-3, 1e-2, 3e-2, 1e-1)),
    ("re3", "reward.beta", (1e-3, 3e-3, 1e-2, 3e-2)),
    ("disagreement", "reward.beta", (1e-3, 3e-3, 1e-2, 3e-2)),
    ("pseudo-counts", "reward.beta", (1e-3, 3e-3, 1e-2, 3e-2)),
    ("deir+visits", "reward.beta", (3e-3, 1e-2, 3e-2, 1e-1)),
    ("deir+visits", "reward.momentum", (0.0, 0.9)),
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("row", SHARED, ids=lambda row: row[0])
def test_shared_cells(row, method):
    path, *cells = row
    for suite, expected in zip(SUITE_NAMES, cells, strict=True):
        assert field(resolved(suite, method), path) == expected, suite


@pytest.mark.parametrize("row", OWN, ids=lambda row: f"{row[0]}-{row[1]}")
def test_each_methods_own_cells(row):
    method, path, *cells = row
    for suite, expected in zip(SUITE_NAMES, cells, strict=True):
        assert (source(suite, method) == "minigrid") == (suite == "minigrid" or expected == "-")
        # what the paper did not run in ObstructedMaze-Full keeps MiniGrid's value
        assert field(resolved(suite, method), path) == (cells[0] if expected == "-" else expected), suite


def test_advantage_momentum_seeds_and_the_footnote_of_caveflyer():
    assert resolved("minigrid").ppo.advantage_momentum == 0.9
    assert SEEDS == {"minigrid": 20, "omfull": 12, "procgen": 3}
    assert configure({"env": {"id": "procgen:caveflyer"}}).reward.beta == 5e-3
    assert configure({"env": {"id": "procgen:caveflyer"}, "method": "deir-inverse"}).reward.beta == 5e-3
    assert configure({"env": {"id": "procgen:caveflyer"}, "method": "noveld"}).reward.beta == 3e-2


@pytest.mark.parametrize("row", TRIED, ids=lambda row: f"{row[0]}-{row[1]}")
def test_candidate_values(row):
    part, path, values = row
    assert CANDIDATES[part][path] == values


def test_there_are_no_other_candidates_and_each_is_a_valid_configuration():
    assert {(part, path) for part, rows in CANDIDATES.items() for path in rows} == {(p, f) for p, f, _ in TRIED}
    for part, path, values in TRIED:
        for value in values:
            check(merge(resolved("minigrid", "deir" if part == "ppo" else part), nested({path: value})))


@pytest.mark.parametrize("suite", SUITE_NAMES)
@pytest.mark.parametrize("method", ["deir-no-mi", "deir-no-rnn-no-mi", "deir-inverse", "deir-forward", "count"])
def test_ablations_use_the_values_of_deir(suite, method):
    assert replace(resolved(suite, method), method="deir") == resolved(suite, "deir")


def test_deir_rnd_is_deir_with_a_normalised_error():
    expected = merge(resolved("minigrid"), {"method": "deir+rnd", "reward": {"rnd": {"normalize_error": True}}})
    assert resolved("minigrid", "deir+rnd") == expected


@pytest.mark.parametrize(
    ("task", "suite"),
    [
        ("MountainCar-v0", "control"),
        ("CartPole-v1", "control"),
        ("MountainCarContinuous-v0", "continuous"),
        ("Pendulum-v1", "continuous"),
        ("FrozenLake-v1", "minigrid"),
        ("MiniGrid-DoorKey-8x8-v0", "swift"),
        ("DoorKey-8x8", "swift"),
        ("MultiRoom-N30", "swift"),
        ("ObstructedMaze-1Q", "swift"),
        ("ObstructedMaze-Full-v1", "omfull"),
        ("procgen:ninja", "procgen"),
        ("no-such-task", "minigrid"),
    ],
)
def test_the_preset_of_a_task(task, suite):
    assert suite_of(task) == suite


def test_our_suites_are_a_column_of_the_table_with_what_they_say_they_change():
    for suite, (base, changes, own) in OURS.items():
        for method in METHODS:
            expected = merge(
                resolved(base, method), nested({"preset": suite, **changes, **own.get(part_of(method), {})})
            )
            assert resolved(suite, method) == expected
    assert source("control", "deir-no-mi") == "control" and source("control", "rnd") == "minigrid"


@pytest.mark.parametrize("method", ["noveld", "ngu", "icm", "rnd", *BEYOND_THE_PAPER])
def test_the_weights_of_swift_are_those_with_the_largest_area_in_the_committed_curves(method):
    """The rule of experiments/betas*.yaml: the mean over seeds, for NovelD and deir+visits over both tasks."""
    tuning = Path(__file__).parent.parent / "docs" / "results" / "tuning"
    areas: dict[float, list[float]] = {}
    for name in ("betas", "betas-noveld", "betas-field", "betas-visits"):
        curves, _ = read_all([tuning / f"{name}.csv"])
        for curve in curves:
            label, _, beta = curve.method.rpartition("-")
            if label == method:
                areas.setdefault(float(beta), []).append(area(curve.frames, curve.columns["return_mean"]))
    runs = 4 if method in ("noveld", "deir+visits") else 2
    assert len(areas) >= 4 and {len(found) for found in areas.values()} == {runs}
    best = max(areas, key=lambda beta: sum(areas[beta]))
    assert resolved("swift", method).reward.beta == best


def test_the_authors_own_command_for_the_full_maze():
    ours, table = resolved("omfull-author"), resolved("omfull")
    assert (ours.network.features, ours.network.mlp, ours.ppo.clip_range_value, ours.reward.momentum) == (
        256,
        256,
        0.2,
        0.99,
    )
    same = {"network": {"features": 64, "hidden": 64, "mlp": 128}, "ppo": {"clip_range_value": None}}
    assert merge(ours, {**same, "reward": {"momentum": 0.9}, "preset": "omfull"}) == table


def test_every_preset_is_a_valid_configuration_and_the_defaults_are_deir_in_minigrid():
    for method in METHODS:
        for suite in SUITES:
            check(resolved(suite, method))
    assert resolved("minigrid") == replace(Config(), preset="minigrid")
    assert set(TABLE) < set(METHODS)
