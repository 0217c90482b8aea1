"""`deir probe`: what the trajectory embeddings of three models know about the state behind them (Figure 7).

One agent collects. A discriminator, an inverse and a forward model, which begin with the same encoder and memory, learn
from its rollouts in the same order and the same mini-batches. After each rollout five small probes a model learn to
read key, door and three distances from its trajectory embeddings; their losses on other episodes are what is compared.
"""

from __future__ import annotations

import csv
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from deir.algorithm.functional import minibatches, moments
from deir.algorithm.layers import head
from deir.algorithm.reward_model import RewardModel
from deir.algorithm.rewards.base import RewardState
from deir.algorithm.rewards.shared import TrajectoryModel
from deir.config import Config, flatten, to_dict
from deir.errors import invalid
from deir.experiments.paper.state_labels import BINARY, LABELS, check_task
from deir.experiments.paper.trajectories import Labelled, samples
from deir.experiments.sweep.jobs import parse_seeds
from deir.files import locked, make_writable
from deir.runs.options import configuration, parse
from deir.runs.ranges import check_count
from deir.runs.run import check_vacant, configure, load_config, validate
from deir.runs.training import make_ops
from deir.seeding import derive, torch_generator

MODELS = {"discriminator": "deir", "inverse": "deir-inverse", "forward": "deir-forward"}
UNTRAINED = "untrained"  # the same network as it begins
CONSTANT = "constant"  # the mean of the labels, whatever the embedding
COLUMNS = ("seed", "model", "frames", "agent_return", *LABELS)
TABLE = "probe.csv"
OF_A_RUN = ("steps", "seed", "threads", "loggers")  # what can be said beside --run
LAST = 5  # iterations that the printed table is a mean of

Row = dict[str, Any]
DEFAULTS: dict[str, Any] = {"method": "none"}
COMMON = ("env.id", "method", "steps", "run", "seeds", "jobs", "out", "config", "hidden", "probe_epochs", "threads")


@dataclass(frozen=True)
class Probe(Config):
    """Probe the embeddings of three models of the same trajectories (Figure 7)."""

    method: str = "none"
    """Intrinsic reward of the agent that collects; none is PPO alone, as in the paper."""
    run: Path | None = None
    """Collect with the trained agent of this run directory, which learns no more, instead of training one."""
    seeds: str | None = None
    """Several seeds, such as 0-2 or 1,5,7; each has an agent, models and probes of its own. --seed when not given."""
    jobs: int = 1
    """Seeds at the same time, one thread each."""
    hidden: int = 64
    """Width of a probe's hidden layer; 0 makes it linear."""
    probe_epochs: int = 4
    """Passes of the probes over a rollout."""
    probe_rate: float = 1e-3
    """Learning rate of the probes."""
    out: Path = Path("runs/probe")
    """Directory of probe.csv and probe.png; never overwritten."""
    config: Path | None = None
    """YAML file with these options, such as experiments/mini-figure-7.yaml."""
    trust: bool = False
    """Import code that --config or --run names (module:factory, package.module:Class)."""


class Probes(nn.Module):
    """One small network for each label. Inputs are standardised, so that an embedding's scale does not count."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.standardize = nn.BatchNorm1d(width, affine=False)
        widths = [width, hidden, 1] if hidden else [width, 1]
        self.readers = nn.ModuleList(head("batch", widths) for _ in LABELS)

    def forward(self, embeddings: Tensor) -> Tensor:
        """[B, H] -> logits and distances [B, 5]"""
        inputs = self.standardize(embeddings)
        return torch.cat([reader(inputs) for reader in self.readers], 1)


def losses(predicted: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of the binary labels, squared error of the distances. [B, 5], [B, 5] -> [5]"""
    entropy = F.binary_cross_entropy_with_logits(predicted[:, :BINARY], labels[:, :BINARY], reduction="none")
    squares = (predicted[:, BINARY:] - labels[:, BINARY:]).square()
    return torch.cat([entropy, squares], 1).mean(0)


def constant_losses(training: Tensor, validation: Tensor) -> Tensor:
    """Losses of always answering the mean of the training labels. [B, 5], [V, 5] -> [5]"""
    means = training.mean(0)
    shares = means[:BINARY].clamp(1e-3, 1 - 1e-3)  # a label never seen must not cost infinitely much
    return losses(torch.cat([shares.logit(), means[BINARY:]]).expand_as(validation), validation)


def teach(
    probes: Probes, optimizer: torch.optim.Optimizer, inputs: Tensor, labels: Tensor, size: int, order: torch.Generator
) -> None:
    """One pass over the examples [V, H], [V, 5]; each probe has its own parameters, so the sum teaches each alone."""
    probes.train()
    for chosen in minibatches(torch.arange(len(inputs)), size, order):
        optimizer.zero_grad()
        losses(probes(inputs[chosen]), labels[chosen]).sum().backward()
        optimizer.step()


class Student:
    """One model and its probes."""

    def __init__(self, model: str, config: Config, spaces: tuple[Any, Any], options: Probe) -> None:
        self.config, self.options = config, options
        method = MODELS.get(model, MODELS["discriminator"])
        self.stage = RewardModel(replace(config, method=method), *spaces, make_ops(config))
        if model == UNTRAINED:
            self.stage.optimizer = None
        assert isinstance(self.stage.reward, TrajectoryModel)
        self.model: TrajectoryModel = self.stage.reward
        self.moments = moments(config.reward.momentum)
        self.unseen_state = self.model.initial_state(config.env.n_envs)
        torch.manual_seed(derive(config.seed, "probe", "init"))
        self.probes = Probes(self.model.width, options.hidden)
        self.optimizer = torch.optim.Adam(self.probes.parameters(), options.probe_rate)

    def study(self, training: Labelled, validation: Labelled, lesson: int) -> list[float]:
        """Learns from a rollout, model first and probes then; the probes' losses on the other one. [5]"""
        before = self.stage.state
        raw = self.stage.compute(training.rollout, self.moments.mean, self.stage.encoder)
        self.moments.update(raw[training.rollout.valid])
        self.stage.generator = torch_generator(self.config.seed, "probe", "shuffles", lesson)  # the same for all
        self.stage.update()
        inputs, labels = examples(self.embeddings(training, before), training)
        order = torch_generator(self.config.seed, "probe", "examples", lesson)
        for _ in range(self.options.probe_epochs):
            teach(self.probes, self.optimizer, inputs, labels, self.config.reward.minibatch_size, order)
        unseen = self.embeddings(validation, self.unseen_state)
        self.unseen_state = RewardState(unseen[-1])
        inputs, labels = examples(unseen, validation)
        with torch.no_grad():
            found: list[float] = losses(self.probes.eval()(inputs), labels).tolist()
        return found

    @torch.no_grad()
    def embeddings(self, data: Labelled, state: RewardState) -> Tensor:
        """e_traj_t with the model as it is now. [T, N, H]"""
        return self.model.embed(data.rollout, state).after


def examples(embeddings: Tensor, data: Labelled) -> tuple[Tensor, Tensor]:
    """Of the genuine steps: embeddings [V, H] and labels [V, 5]."""
    valid = data.rollout.valid
    return embeddings[valid].cpu(), data.labels[valid.cpu()]


def agent_config(options: Probe, seed: int) -> Config:
    """The configuration of the agent that collects, and of the models: that of --run if there is one."""
    own = configuration(options)
    base = load_config(options.run, trust=options.trust) if options.run else own
    threads = 1 if options.jobs > 1 else own.threads
    reward = replace(base.reward, overlap=False)
    return replace(base, seed=seed, steps=own.steps, threads=threads, reward=reward, loggers="csv")


def probe_seed(options: Probe, seed: int, keep: Callable[[list[Row]], None] = lambda rows: None) -> list[Row]:
    """One agent, three models and the untrained one; a row for each of them and each iteration.

    `keep` is handed the rows of an iteration as they come.
    """
    config = agent_config(options, seed)
    students: dict[str, Student] = {}
    rows: list[Row] = []
    for lesson, sample in enumerate(samples(config, options.run, options.trust)):
        students = students or {model: Student(model, config, sample.spaces, options) for model in (*MODELS, UNTRAINED)}
        found = {
            model: student.study(sample.training, sample.validation, lesson) for model, student in students.items()
        }
        found[CONSTANT] = constant_losses(
            *(examples(d.labels, d)[1] for d in (sample.training, sample.validation))
        ).tolist()
        known = {"seed": seed, "frames": sample.frames, "agent_return": sample.return_mean}
        new = [{**known, "model": model, **dict(zip(LABELS, values, strict=True))} for model, values in found.items()]
        keep(new)
        rows += new
        print(progress_line(seed, sample.frames, sample.return_mean, found), flush=True)
    return rows


def progress_line(seed: int, frames: int, mean: float | None, found: dict[str, list[float]]) -> str:
    reached = "–" if mean is None else f"{mean:.3f}"
    sums = "  ".join(f"{model} {sum(values):.3f}" for model, values in found.items())
    return f"seed {seed}  {frames:>9,} frames  agent's return {reached}  sum of losses: {sums}"


def _probe_seed(job: tuple[Probe, int]) -> list[Row]:
    options, seed = job
    return probe_seed(options, seed, lambda rows: append(rows, options.out / TABLE))


def all_seeds(options: Probe, seeds: list[int]) -> Iterator[list[Row]]:
    """The rows of each seed, as they come."""
    work = [(options, seed) for seed in seeds]
    if options.jobs == 1:
        yield from map(_probe_seed, work)
        return
    os.environ["PYTHONSAFEPATH"] = "1"  # a pickle.py in the working directory must not be run in place of Python's own
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is this process's to handle, not theirs
    try:
        pool = multiprocessing.get_context("spawn").Pool(min(options.jobs, len(work)))
    finally:
        signal.signal(signal.SIGINT, previous)
    with pool:
        yield from pool.imap_unordered(_probe_seed, work)


def append(rows: list[Row], path: Path) -> None:
    """At once, so that the file can be looked at; several seeds may write it at the same time."""
    with locked(path), path.open("a", newline="") as file:
        new = file.tell() == 0
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)


def summary(rows: list[Row], last: int = LAST) -> str:
    """Markdown: validation losses over the last iterations of each seed, mean and standard error over the seeds."""
    seeds = sorted({row["seed"] for row in rows})
    lines = [
        "| model | " + " | ".join(name.replace("_", " ") for name in LABELS) + " |",
        "|---" * (1 + len(LABELS)) + "|",
    ]
    for model in dict.fromkeys(row["model"] for row in rows):
        ends = [[row for row in rows if row["model"] == model and row["seed"] == seed][-last:] for seed in seeds]
        means = np.array([[np.mean([row[name] for row in end]) for name in LABELS] for end in ends])  # [seeds, 5]
        lines.append(f"| {model} | " + " | ".join(_plus_minus(means[:, k]) for k in range(len(LABELS))) + " |")
    return "\n".join(lines)


def _plus_minus(values: NDArray[np.float64]) -> str:
    if len(values) == 1:
        return f"{values[0]:.4f}"
    return f"{values.mean():.4f} ± {values.std(ddof=1) / len(values) ** 0.5:.4f}"


def check(options: Probe) -> list[int]:
    """All that can be wrong before anything is trained; the seeds."""
    if options.run:
        check_unused(options)
    for name, value in {"jobs": options.jobs, "probe_epochs": options.probe_epochs}.items():
        check_count(name, value)
    check_count("hidden", options.hidden, least=0)
    if not 0 < options.probe_rate < float("inf"):
        raise invalid("probe_rate", options.probe_rate, "a number above 0")
    seeds = parse_seeds(options.seeds) if options.seeds else [options.seed]
    for seed in seeds:
        validate(agent_config(options, seed))
    check_task(agent_config(options, seeds[0]).env)
    check_vacant(options.out)
    make_writable("out", options.out)
    return seeds


def check_unused(options: Probe) -> None:
    """Refuses options that would have no effect: task, networks and learning are those of --run."""
    given, plain = (flatten(to_dict(c)) for c in (configuration(options), configure(DEFAULTS)))
    for name, value in given.items():
        if value != plain[name] and name not in OF_A_RUN:
            only = ", ".join(f"--{field}" for field in OF_A_RUN)
            raise invalid(name, value, f"nothing beside --run, whose own configuration counts; what counts is {only}")


def main(argv: list[str]) -> None:
    options = parse(Probe, argv, "deir probe", DEFAULTS, COMMON)
    seeds = check(options)
    table, task = options.out / TABLE, agent_config(options, seeds[0])
    size = task.env.n_envs * task.ppo.rollout_steps
    print(
        f"{task.env.id}, {task.steps:,} frames in iterations of {size:,}, {len(seeds)} seeds; {table} grows with each",
        flush=True,
    )
    rows = [row for found in all_seeds(options, seeds) for row in found]
    from deir.experiments.paper.figures import probe_figure

    probe_figure(table, options.out / "probe.png", task)
    print(f"validation losses, mean over the last {LAST} iterations, {len(seeds)} seeds (± standard error):")
    print(summary(rows))
    print(f"{table} and {options.out / 'probe.png'}")
