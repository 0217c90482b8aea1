"""`deir distances`: how far apart the observations of an episode are, through training (Figure A1).

The reward's derivation takes dist(e_obs_i, e_obs_{t+1}) as exponentially distributed (Appendix A.1). A DEIR agent is
trained, and at several iterations the distances its reward is made of are gathered: those of each new observation to
the earlier ones of its episode, i < t, as in Equation 4, in the embeddings of the model at that time.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deir.algorithm.episodic import episode_first_positions
from deir.algorithm.reward_model import RewardModel
from deir.algorithm.rewards.base import RewardState
from deir.algorithm.rewards.deir import EpisodicNovelty
from deir.algorithm.types import Rollout
from deir.config import Config
from deir.errors import invalid
from deir.files import make_writable
from deir.runs.options import configuration, parse
from deir.runs.ranges import check_count
from deir.runs.run import check_vacant, validate
from deir.runs.training import make_trainer
from deir.seeding import torch_generator

# "A FourRooms task with advanced settings": the caption does not say which, so all three, noise as in its figures
DEFAULTS: dict[str, Any] = {
    "env": {"id": "FourRooms", "view_size": 3, "noise": 0.1, "noise_units": "raw", "invisible_obstacles": True},
    "steps": "400k",
}
ALL = "start to middle"
COMMON = ("env.id", "steps", "seed", "snapshots", "pairs", "bins", "out", "config", "threads")

DistanceSample = NDArray[np.float64]  # [P] distances


@dataclass(frozen=True)
class Distances(Config):
    """Gather the distances between observations of an episode through training (Figure A1)."""

    snapshots: int = 8
    """Iterations at which distances are gathered, evenly spread from the first to the last."""
    pairs: int = 200_000
    """Distances kept of each such iteration, drawn at random where there are more."""
    bins: int = 80
    """Bars of a histogram."""
    out: Path = Path("runs/distances")
    """Directory of distances.csv, fits.csv and distances.png; never overwritten."""
    config: Path | None = None
    """YAML file with these options, such as experiments/mini-figure-a1.yaml."""
    trust: bool = False
    """Import code that --config names (module:factory, package.module:Class)."""


class Fit(NamedTuple):
    """The exponential distribution of greatest likelihood, and how well it fits."""

    pairs: int
    mean: float  # 1/λ
    zeros: float  # share of distances that are zero
    misfit: float  # Kolmogorov-Smirnov: the largest difference of the distribution functions


def fit_exponential(distances: DistanceSample) -> Fit:
    """λ = 1 / mean(d), and sup |F_n(d) - (1 - exp(-λ d))|."""
    ordered, count = np.sort(distances), len(distances)
    mean = float(ordered.mean())
    fitted = -np.expm1(-ordered / mean) if mean > 0 else np.ones(count)
    steps = np.arange(count + 1) / count
    misfit = max(float((steps[1:] - fitted).max()), float((fitted - steps[:-1]).max()))
    return Fit(count, mean, float((ordered == 0).mean()), misfit)


@torch.no_grad()
def episode_distances(model: EpisodicNovelty, rollout: Rollout, state: RewardState) -> Tensor:
    """dist(e_obs_i, e_obs_{t+1}) of all genuine steps t of the rollout and all i < t of their episodes. [P] double"""
    assert state.history is not None
    history, seen = state.history, model.embed(rollout, state)
    first = episode_first_positions(rollout.starts[:-1], history.lengths)  # [T, N]
    keys = history.extended("obs", seen.obs)  # [L+T, N, F]
    rows = torch.arange(len(keys), device=keys.device)
    found = []
    for n in range(first.shape[1]):
        distances = torch.cdist(  # without matrix products, so that equal observations are at distance 0
            seen.next_obs[:, n].double(), keys[:, n].double(), compute_mode="donot_use_mm_for_euclid_dist"
        )  # [T, L+T]
        inside = (rows >= first[:, n, None]) & (rows < history.depth + torch.arange(len(first))[:, None].to(rows))
        found.append(distances[inside & rollout.valid[:, n, None]])
    return torch.cat(found).cpu()


def own_config(options: Distances) -> Config:
    config = configuration(options)
    return replace(config, reward=replace(config.reward, overlap=False))


def gather(options: Distances) -> dict[int, DistanceSample]:
    """Trains the agent; frames before each snapshot -> its distances."""
    config = own_config(options)
    per_iteration = config.env.n_envs * config.ppo.rollout_steps
    wanted = snapshot_iterations(-(-config.steps // per_iteration), options.snapshots)
    generator = torch_generator(config.seed, "distances")
    samples: dict[int, DistanceSample] = {}

    def listen(rollout: Rollout, stage: RewardModel) -> None:
        if trainer.iteration not in wanted:
            return
        assert isinstance(stage.reward, EpisodicNovelty)
        distances = episode_distances(stage.reward, rollout, stage.state)
        if len(distances) > options.pairs:
            distances = distances[torch.randperm(len(distances), generator=generator)[: options.pairs]]
        samples[trainer.frames] = distances.numpy()
        print(f"{trainer.frames:>9,} frames  {describe(fit_exponential(samples[trainer.frames]))}", flush=True)

    trainer = make_trainer(config, hooks=[listen])
    try:
        while not trainer.finished and len(samples) < len(wanted):
            trainer.iterate()
    finally:
        trainer.close()
    return samples


def snapshot_iterations(iterations: int, snapshots: int) -> set[int]:
    """Numbers of the iterations, counted from 0, the first and the last among them."""
    return {int(i) for i in np.linspace(0, iterations - 1, min(snapshots, iterations)).round()}


def describe(fit: Fit) -> str:
    return f"{fit.pairs:,} pairs, mean distance {fit.mean:.3f}, zero {fit.zeros:.1%}, misfit {fit.misfit:.3f}"


def histograms(
    samples: dict[str, DistanceSample], bins: int
) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """Common edges [B+1] up to the 99th percentile of everything, and the density of each sample [B]."""
    top = float(np.percentile(np.concatenate(list(samples.values())), 99)) or 1.0
    edges = np.linspace(0, top, bins + 1)
    counts = {label: np.histogram(sample, edges)[0] for label, sample in samples.items()}
    return edges, {label: count / (len(samples[label]) * np.diff(edges)) for label, count in counts.items()}


def write_tables(samples: dict[str, DistanceSample], bins: int, out: Path) -> None:
    """distances.csv: a row for each snapshot and bar. fits.csv: a row for each snapshot."""
    edges, densities = histograms(samples, bins)
    fits = {label: fit_exponential(sample) for label, sample in samples.items()}
    with (out / "distances.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["frames", "from", "to", "density", "exponential"])
        for label, density in densities.items():
            below = np.exp(-edges / fits[label].mean) if fits[label].mean > 0 else np.zeros_like(edges)
            expected = -np.diff(below) / np.diff(edges)
            for row in zip(edges[:-1], edges[1:], density, expected, strict=True):
                writer.writerow([label, *(f"{value:.6g}" for value in row)])
    with (out / "fits.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["frames", *Fit._fields])
        for label, fit in fits.items():
            writer.writerow([label, *(f"{v:.6g}" if isinstance(v, float) else v for v in fit)])


def pooled(samples: dict[int, DistanceSample]) -> dict[str, DistanceSample]:
    """The snapshots by their frames, and before them those of the first half in one, as in Figure A1."""
    middle = max(samples) / 2
    first_half = np.concatenate([sample for frames, sample in samples.items() if frames <= middle])
    return {ALL: first_half, **{str(frames): sample for frames, sample in samples.items()}}


def check(options: Distances) -> None:
    for name in ("snapshots", "pairs", "bins"):
        check_count(name, getattr(options, name), least=2)
    if not options.method.startswith("deir"):
        raise invalid("method", options.method, "deir or one of its ablations, whose reward is made of these distances")
    validate(own_config(options))
    check_vacant(options.out)
    make_writable("out", options.out)


def main(argv: list[str]) -> None:
    options = parse(Distances, argv, "deir distances", DEFAULTS, COMMON)
    check(options)
    samples = pooled(gather(options))
    write_tables(samples, options.bins, options.out)
    from deir.experiments.paper.figures import distances_figure

    distances_figure(options.out, own_config(options))
    print(f"{ALL}: {describe(fit_exponential(samples[ALL]))}")
    print(f"{options.out}/distances.csv, fits.csv and distances.png")
