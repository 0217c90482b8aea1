"""The command line."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from deir.config import Config, flatten, load_yaml, to_dict
from deir.errors import UserError, invalid, unknown
from deir.runs.display import Display, error
from deir.runs.options import named_over, peek, without

USAGE = """deir: train agents that explore.

  deir train                      train DEIR on DoorKey-8x8 (--help shows every option)
  deir train --resume RUN         go on from the last checkpoint
  deir evaluate RUN               episodes of a trained agent, with --video FILE.mp4 a film of them
  deir list envs|methods|presets  what there is
  deir sweep FILE.yaml            tasks x methods x seeds, on this machine or on a Ray cluster
  deir tune FILE.yaml             search for good values of any option
  deir report RUNS... --out DIR   curves and statistics of many runs: a page, figures, tables
  deir probe                      what the embeddings of three models know about the state (Figure 7)
  deir distances                  how far apart observations of an episode are, through training (Figure A1)
  deir bench                      speed, memory and efficiency on this machine
"""


@dataclass(frozen=True)
class Train(Config):
    """Train an agent. Options given here win over --config, which wins over the preset of the task and method."""

    out: Path | None = None
    """Run directory; runs/<env>/<method>/seed<S>-<time> when not given. An existing run is never overwritten."""
    config: Path | None = None
    """YAML file with configuration keys, such as the config.yaml of a run."""
    resume: Path | None = None
    """Run directory to go on with from its last checkpoint; --steps may lengthen it."""
    seeds: str | None = None
    """Several runs, one for each seed: 0-3, or 1,5,7."""
    jobs: int = 1
    """With --seeds: runs at the same time, one thread each."""


@dataclass(frozen=True)
class Evaluate:
    """Play episodes of a trained agent in fresh environments."""

    run: tyro.conf.Positional[Path]
    """Run directory."""
    episodes: int = 100
    """Episodes to play."""
    greedy: bool = False
    """Take the likeliest action instead of sampling."""
    seed: int = 0
    """Seed of the fresh environments and of the sampled actions."""
    video: Path | None = None
    """Film episodes into this .mp4 or .gif."""
    video_episodes: int = 3
    """Episodes on the film."""
    json: bool = False
    """Print the figures as JSON."""


@dataclass(frozen=True)
class List:
    """Show what there is."""

    what: tyro.conf.Positional[Literal["envs", "methods", "presets"]]
    """Which table."""


RESUMABLE = {"steps", "target_return", "threads", "device", "tensorboard", "checkpoint"}


def _config_only(args: Train) -> Config:
    return Config(**{f.name: getattr(args, f.name) for f in dataclasses.fields(Config)})


def _parse_train(argv: list[str]) -> Train:
    """The preset depends on a few options, so those are looked at first; the rest is laid over it."""
    from deir.runs.run import configure, load_config

    if argv and not argv[0].startswith("-"):
        raise UserError(f"train: got {argv[0]!r}, expected options; for a task type: deir train --env {argv[0]}")
    found = peek(argv)
    if found.resume:
        base = load_config(Path(found.resume), "resume")
    else:
        overrides: dict[str, Any] = load_yaml(Path(found.config)) if found.config else {}
        base = configure(named_over(overrides, found))
        argv = without(argv, "--preset")  # resolved: `auto` on the command line must not come back
    default = Train(**{f.name: getattr(base, f.name) for f in dataclasses.fields(Config)})
    return tyro.cli(Train, args=argv, default=default, prog="deir train")


def train(argv: list[str]) -> None:
    args = _parse_train(argv)
    config = _config_only(args)
    from deir.runs import run

    if args.seeds:
        _train_seeds(args, config)
        return
    if args.resume:
        changes = _changes(run.load_config(args.resume, "resume"), config)
        with Display(f"{config.method} on {config.env.id}, seed {config.seed}") as display:
            done = run.frames_done(args.resume)
            path, row = _guarded(lambda: run.resume(args.resume, changes, display), args.resume)  # type: ignore[arg-type]
        _finish(config, path, row, done)
    else:
        run.validate(config)
        print(
            f"{config.method} on {config.env.id}, seed {config.seed}, preset {config.preset}, {config.steps:,} frames"
        )
        out = args.out or run.default_directory(config)
        with Display(f"{config.method} on {config.env.id}, seed {config.seed}") as display:
            path, row = _guarded(lambda: run.start(config, out, display), out)
        _finish(config, path, row)


def _train_seeds(args: Train, config: Config) -> None:
    """Single-thread runs side by side waste nothing on balance between threads."""
    from deir.experiments.sweep.engines import LocalEngine
    from deir.experiments.sweep.jobs import Job, parse_seeds
    from deir.experiments.sweep.live_table import SweepBoard
    from deir.experiments.sweep.scheduler import run_all
    from deir.runs import run

    if args.resume:
        raise UserError("seeds: --resume goes on with one run; leave --seeds out")
    engine = LocalEngine(args.jobs)
    run.validate(config)
    config = dataclasses.replace(config, threads=config.threads or 1)
    wanted = [dataclasses.replace(config, seed=seed) for seed in parse_seeds(args.seeds or "")]
    places = [args.out / f"seed{c.seed}" if args.out else run.default_directory(c) for c in wanted]
    for place in places:
        run.check_vacant(place)
    begin = time.perf_counter()
    jobs = [Job(c, place) for c, place in zip(wanted, places, strict=True)]
    with SweepBoard(Path.cwd()) as board:
        runs = run_all(jobs, engine, board=board)
    frames = sum(run.frames_done(job.out) or 0 for job in jobs)
    seconds = time.perf_counter() - begin
    print(f"{frames:,} frames in {seconds:.0f} s: {frames / seconds:,.0f} frames/s in total")
    failed = [r.job for r in runs if r.status == "failed"]
    if failed:
        raise UserError(f"{len(failed)} runs failed: {', '.join(str(job.log) for job in failed)} tells why")
    if any(r.status == "stopped" for r in runs):
        print("interrupted; each run goes on with: deir train --resume RUN", file=sys.stderr)
        raise SystemExit(130)


def _guarded(job: Any, path: Path) -> Any:
    from deir.runs.run import Interrupted

    try:
        return job()
    except (Interrupted, KeyboardInterrupt):
        print(f"\ninterrupted; go on with: deir train --resume {path}", file=sys.stderr)
        raise SystemExit(130) from None


def _changes(stored: Config, wanted: Config) -> dict[str, Any]:
    """What --resume is asked to change; a changed task or method would be another run."""
    old, new = flatten(to_dict(stored)), flatten(to_dict(wanted))
    changed = {name: value for name, value in new.items() if value != old[name]}
    for name, value in changed.items():
        if name.split(".")[0] not in RESUMABLE:
            allowed = ", ".join(sorted(RESUMABLE))
            raise invalid(name, value, f"the run's own {old[name]!r}; --resume can change only {allowed}")
    return {name.split(".")[0]: to_dict(wanted)[name.split(".")[0]] for name in changed}


def _finish(config: Config, path: Path, row: dict[str, Any], resumed_at: int | None = None) -> None:
    from deir.api import draw_curve

    draw_curve(path, config)
    mean = row.get("return_mean")
    reached = "no episode has ended yet"
    if mean is not None:
        reached = f"mean return {float(mean):.3f} over the last {min(100, int(row['episodes']))} episodes"
    print(f"{int(row['frames']):,} frames in {float(row['seconds']):.0f} s: {reached}")
    if row["frames"] >= config.steps and resumed_at == row["frames"]:
        print(f"the run had its {config.steps:,} frames already; --steps lengthens it")
    print(f"  {path}/learning_curve.png   the curve;  progress.csv the numbers")
    print(f"  deir evaluate {path} --video film.mp4")
    if config.tensorboard:
        print(f"  tensorboard --logdir {path}")


def evaluate(argv: list[str]) -> None:
    args = tyro.cli(Evaluate, args=argv, prog="deir evaluate")
    if args.episodes < 1:
        raise invalid("episodes", args.episodes, "a whole number above 0")
    from deir.api import load
    from deir.runs.evaluate import check_video_path, record_video
    from deir.runs.evaluate import evaluate as play_episodes

    if args.video:
        check_video_path(args.video)
    agent = load(args.run)
    figures = play_episodes(agent, args.episodes, args.greedy, args.seed).figures()
    if args.json:
        print(json.dumps({"run": str(args.run), "env": agent.config.env.id, "greedy": args.greedy, **figures}))
    else:
        print(
            f"{agent.config.env.id}, {figures['episodes']} episodes, {'greedy' if args.greedy else 'sampled'} actions: "
            f"return {figures['return_mean']:.3f} ± {figures['return_stderr']:.3f} (standard error), "
            f"success {figures['success_rate']:.0%}, length {figures['episode_length_mean']:.1f}"
        )
    if args.video:
        frames = record_video(agent, args.video, args.video_episodes, args.greedy, args.seed)
        print(f"{frames} frames in {args.video}", file=sys.stderr)


def show_list(argv: list[str]) -> None:
    args = tyro.cli(List, args=argv, prog="deir list")
    from deir.runs.listing import print_envs, print_methods, print_presets

    {"envs": print_envs, "methods": print_methods, "presets": print_presets}[args.what]()


def bench(argv: list[str]) -> None:
    from deir.experiments.bench.command import Bench, run

    run(tyro.cli(Bench, args=argv, prog="deir bench"))


def sweep(argv: list[str]) -> None:
    from deir.experiments.sweep.command import Sweep
    from deir.experiments.sweep.command import sweep as run_sweep

    raise SystemExit(run_sweep(tyro.cli(Sweep, args=argv, prog="deir sweep")))


def tune(argv: list[str]) -> None:
    from deir.experiments.tune.command import Tune
    from deir.experiments.tune.command import tune as run_study

    raise SystemExit(run_study(tyro.cli(Tune, args=argv, prog="deir tune")))


def report(argv: list[str]) -> None:
    from deir.experiments.report.command import Report, run

    run(tyro.cli(Report, args=argv, prog="deir report"))


def probe(argv: list[str]) -> None:
    from deir.experiments.paper.probe import main

    main(argv)


def distances(argv: list[str]) -> None:
    from deir.experiments.paper.distances import main

    main(argv)


COMMANDS = {
    "train": train,
    "evaluate": evaluate,
    "list": show_list,
    "sweep": sweep,
    "tune": tune,
    "report": report,
    "probe": probe,
    "distances": distances,
    "bench": bench,
}


def main() -> None:
    argv = sys.argv[1:]
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE, end="")
        return
    if argv[0] == "--version":
        from importlib.metadata import version

        print(f"deir {version('deir')}")
        return
    try:
        if argv[0] not in COMMANDS:
            raise unknown("command", argv[0], COMMANDS)
        COMMANDS[argv[0]](argv[1:])
    except UserError as mistake:
        error(str(mistake))
        raise SystemExit(2) from None
    except BrokenPipeError:
        raise SystemExit(141) from None
