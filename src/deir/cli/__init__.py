"""The command line."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from deir.config import Config, flatten, load_yaml, to_dict
from deir.errors import UserError, invalid, unknown
from deir.imports import check_trusted
from deir.runs.display import Display
from deir.runs.options import named_over, peek, trusted, without
from deir.runs.stopping import run_command

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
    trust: bool = False
    """Import code that --config or the resumed run names (module:factory, package.module:Class)."""


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
    trust: bool = False
    """Import code that the run names (module:factory, package.module:Class)."""


@dataclass(frozen=True)
class List:
    """Show what there is."""

    what: tyro.conf.Positional[Literal["envs", "methods", "presets"]]
    """Which table."""


RESUMABLE = {"steps", "target_return", "threads", "ops", "device", "tensorboard", "checkpoint"}


def _config_only(args: Train) -> Config:
    return Config(**{f.name: getattr(args, f.name) for f in dataclasses.fields(Config)})


def _parse_train(argv: list[str]) -> Train:
    """The preset depends on a few options, so those are looked at first; the rest is laid over it."""
    from deir.runs.run import configure, load_config

    if argv and not argv[0].startswith("-"):
        raise UserError(f"train: got {argv[0]!r}, expected options; for a task type: deir train --env {argv[0]}")
    found = peek(argv)
    if found.resume:
        base = load_config(Path(found.resume), "resume", trusted(found))
    else:
        overrides: dict[str, Any] = load_yaml(Path(found.config)) if found.config else {}
        base = configure(named_over(overrides, found))
        check_trusted(base.env.id, base.method, found.config, trusted(found))
        argv = without(argv, "--preset")  # resolved: `auto` on the command line must not come back
    default = Train(**{f.name: getattr(base, f.name) for f in dataclasses.fields(Config)})
    return tyro.cli(Train, args=argv, default=default, prog="deir train")


def train(argv: list[str]) -> None:
    args = _parse_train(argv)
    config = _config_only(args)
    from deir.runs import run

    if args.seeds:
        from deir.experiments.sweep.seeds import train_seeds

        if args.resume:
            raise UserError("seeds: --resume goes on with one run; leave --seeds out")
        train_seeds(config, args.seeds, args.jobs, args.out)
        return
    if args.resume:
        trust = args.trust or (config.env.id, config.method)  # those it was parsed with
        changes = _changes(run.load_config(args.resume, "resume", trust), config)
        with Display(f"{config.method} on {config.env.id}, seed {config.seed}") as display:
            done = run.frames_done(args.resume)
            path, row = _guarded(lambda: run.resume(args.resume, changes, display, trust), args.resume)  # type: ignore[arg-type]
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


def _guarded(job: Any, path: Path) -> Any:
    from deir.runs.directory import RunDirectory
    from deir.runs.run import Interrupted

    try:
        return job()
    except (Interrupted, KeyboardInterrupt):
        begun = RunDirectory(path).config.is_file()
        told = f"go on with: deir train --resume {path}" if begun else "the run had not begun"
        print(f"\ninterrupted; {told}", file=sys.stderr)
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
    from deir.api import load
    from deir.runs.ranges import check_count

    for name, least in (("episodes", 1), ("video_episodes", 1), ("seed", 0)):
        check_count(name, getattr(args, name), least)
    from deir.runs.evaluate import check_video_path, record_video
    from deir.runs.evaluate import evaluate as play_episodes

    if args.video:
        check_video_path(args.video)
    agent = load(args.run, args.trust)
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


def _find(command: str) -> Callable[[list[str]], None]:
    if command not in COMMANDS:
        raise unknown("command", command, COMMANDS)
    return COMMANDS[command]


def main() -> None:
    argv = sys.argv[1:]
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE, end="")
        return
    if argv[0] == "--version":
        from importlib.metadata import version

        print(f"deir {version('deir')}")
        return
    run_command(lambda: _find(argv[0])(argv[1:]))
