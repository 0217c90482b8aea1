"""Distances within episodes against a naive loop, and their exponential fit against SciPy."""

import csv
import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from builders import ACTIONS, SPACE, random_episodes
from deir.algorithm.rewards.base import Context
from deir.algorithm.rewards.deir import Deir
from deir.config import Config
from deir.errors import UserError
from deir.experiments.paper.distances import (
    ALL,
    Distances,
    check,
    episode_distances,
    fit_exponential,
    histograms,
    main,
    own_config,
    pooled,
    snapshot_iterations,
)
from deir.fast.ops import FastOps
from deir.runs.options import parse


def naive_distances(model, rollouts, envs):
    """One step of one environment at a time: distances of o_{t+1} to o_i, i < t, of the running episode."""
    history = [[] for _ in range(envs)]
    for rollout in rollouts:
        found = []
        views, next_ids = rollout.table.distinct, rollout.next_ids
        for t in range(rollout.shape[0]):
            for n in range(envs):
                if rollout.starts[t, n]:
                    history[n] = []
                with torch.no_grad():
                    now = model.encoder(views[rollout.ids[t, n]][None])[0]
                    then = model.encoder(views[next_ids[t, n]][None])[0]
                if rollout.valid[t, n]:
                    found += [float((past - then).norm()) for past in history[n]]
                history[n].append(now)
        yield sorted(found)


@pytest.mark.parametrize("late_resets", [False, True])
@pytest.mark.parametrize("done_rate", [0.0, 0.2])
def test_distances_equal_a_naive_loop_across_rollouts(done_rate, late_resets):
    torch.manual_seed(3)
    model = Deir(Context(SPACE, ACTIONS, Config(), FastOps())).eval()
    rollouts = list(itertools.islice(random_episodes(6, 3, done_rate, seed=5, late_resets=late_resets), 3))
    state = model.initial_state(3)
    for rollout, expected in zip(rollouts, naive_distances(model, rollouts, 3), strict=True):
        found = episode_distances(model, rollout, state)
        np.testing.assert_allclose(np.sort(found.numpy()), expected, atol=1e-5)
        _, state = model.compute(rollout, state)


@pytest.mark.parametrize("law", ["exponential", "uniform", "gamma"])
def test_fit_agrees_with_scipy(law):
    rng = np.random.default_rng(0)
    sample = {
        "exponential": rng.exponential(2.5, 5000), "uniform": rng.uniform(0, 3, 5000), "gamma": rng.gamma(5, 1, 5000)
    }[law]  # fmt: skip
    fit = fit_exponential(sample)
    location, scale = stats.expon.fit(sample, floc=0)
    assert location == 0
    assert fit.mean == pytest.approx(scale)
    assert fit.misfit == pytest.approx(stats.kstest(sample, stats.expon(scale=scale).cdf).statistic)
    assert (fit.misfit < 0.03) == (law == "exponential")


def test_fit_counts_zeros_and_survives_nothing_but_zeros():
    assert fit_exponential(np.array([0.0, 0.0, 1.0, 3.0])).zeros == 0.5
    assert fit_exponential(np.zeros(4)).mean == 0


def test_densities_integrate_to_what_lies_under_the_last_edge():
    rng = np.random.default_rng(1)
    samples = {"a": rng.exponential(1, 4000), "b": rng.exponential(3, 4000)}
    edges, densities = histograms(samples, 50)
    for label, density in densities.items():
        assert (density * np.diff(edges)).sum() == pytest.approx((samples[label] <= edges[-1]).mean())


def test_snapshots_are_spread_from_the_first_to_the_last():
    assert snapshot_iterations(25, 5) == {0, 6, 12, 18, 24}
    assert snapshot_iterations(3, 8) == {0, 1, 2}


def test_the_first_half_is_pooled_as_in_the_figure():
    samples = pooled({0: np.array([1.0]), 100: np.array([2.0]), 200: np.array([3.0])})
    assert list(samples) == [ALL, "0", "100", "200"]
    assert samples[ALL].tolist() == [1.0, 2.0]


TINY = [
    "--env.n-envs", "4", "--ppo.rollout-steps", "32", "--ppo.minibatch-size", "64", "--reward.minibatch-size", "64",
    "--steps", "384", "--env.noise", "0", "--env.no-invisible-obstacles", "--threads", "1", "--env.no-layout-worker",
]  # fmt: skip


def test_command_writes_tables_and_picture_and_repeats_itself(tmp_path, capsys):
    for name in ("a", "b"):
        main([*TINY, "--snapshots", "3", "--pairs", "500", "--out", str(tmp_path / name)])
    assert "start to middle" in capsys.readouterr().out
    with (tmp_path / "a" / "fits.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["frames"] for row in rows] == [ALL, "0", "128", "256"]
    assert all(float(row["mean"]) > 0 and int(row["pairs"]) >= 500 for row in rows)
    assert (tmp_path / "a" / "distances.png").read_bytes()[:4] == b"\x89PNG"
    for table in ("distances.csv", "fits.csv"):
        assert (tmp_path / "a" / table).read_bytes() == (tmp_path / "b" / table).read_bytes()


def test_options_come_from_the_file_then_from_the_words(tmp_path):
    (tmp_path / "a.yaml").write_text("env: {id: DoorKey-5x5, view_size: 5}\nsteps: 50k\nbins: 30\nout: somewhere\n")
    options = parse(Distances, ["--config", str(tmp_path / "a.yaml"), "--bins", "20"], "deir distances", {})
    assert own_config(options).env.id == "DoorKey-5x5" and options.env.view_size == 5
    assert (options.steps, options.bins, str(options.out)) == (50_000, 20, "somewhere")
    assert not own_config(options).reward.overlap


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "icm"], "deir or one of its ablations"),
        (["--snapshots", "1"], "snapshots"),
        (["--env", "FourRoms"], "FourRooms"),
    ],
)
def test_mistakes_are_told(words, message, tmp_path):
    with pytest.raises(UserError, match=message):
        check(parse(Distances, [*words, "--out", str(tmp_path / "x")], "deir distances", {}))
