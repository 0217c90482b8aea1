"""The command line."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import tyro

from deir.cli.usage import USAGE
from deir.config import Config, flatten, to_dict
from deir.errors import UserError, invalid, unknown
from deir.imports import code_named
from deir.runs.options import configuration, parse, read
from deir.runs.stopping import run_command


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
    watch: bool = False
    """Follow the run on a page of this machine, whose address is printed: its curves and its newest episode."""
    trust: bool = False
    """Import code that --config or the resumed run names (module:factory, package.module:Class)."""


@dataclass(frozen=True)
class Evaluate:
    """Play episodes of a trained agent in fresh environments."""

    run: tyro.conf.Positional[Path]
    """Run directory, or a trained policy that comes with deir: zoo:DoorKey-8x8 (`deir list zoo`)."""
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
    overlay: bool = False
    """Draw step, reward and novelty into the film."""
    json: bool = False
    """Print the figures as JSON."""
    trust: bool = False
    """Import code that the run names (module:factory, package.module:Class)."""


@dataclass(frozen=True)
class List:
    """Show what there is."""

    what: tyro.conf.Positional[Literal["envs", "methods", "presets", "loggers", "zoo"]]
    """Which table."""


RESUMABLE = {"steps", "target_return", "threads", "ops", "precision", "device", "loggers", "checkpoint"}
COMMON = (
    "env.id", "method", "steps", "seed", "seeds", "jobs", "target_return", "preset", "config", "resume", "out",
    "loggers", "watch", "threads", "device",
)  # fmt: skip
"""The options of `deir train` that --help shows."""


def _parse_train(argv: list[str]) -> Train:
    if argv and not argv[0].startswith("-"):
        raise UserError(f"train: got {argv[0]!r}, expected options; for a task type: deir train --env {argv[0]}")
    return parse(Train, argv, "deir train", {}, COMMON)


def train(argv: list[str]) -> None:
    args = _parse_train(argv)
    config = configuration(args)
    from deir.experiments.watch.command import watching
    from deir.runs import run
    from deir.runs.display import Display

    if args.seeds:
        from deir.experiments.sweep.seeds import train_seeds

        if args.watch:
            raise UserError("watch: follows one run; `deir watch runs` beside it follows several")
        if args.resume:
            raise UserError("seeds: --resume goes on with one run; leave --seeds out")
        train_seeds(config, args.seeds, args.jobs, args.out)
        return
    title = f"{config.method} on {config.env.id}, seed {config.seed}"
    if args.resume:
        trust = args.trust or [name for _, name in code_named(config)]  # those it was parsed with
        changes = _changes(run.load_config(args.resume, "resume", trust), config)
        with watching(args.resume, args.watch, bool(args.trust)), Display(title) as display:
            done = run.frames_done(args.resume)
            path, row = _guarded(lambda: run.resume(args.resume, changes, display, trust), args.resume)  # type: ignore[arg-type]
        _finish(config, path, row, done)
    else:
        run.validate(config)
        print(f"{title}, preset {config.preset}, {config.steps:,} frames")
        out = args.out or run.default_directory(config)
        with watching(out, args.watch, True), Display(title) as display:  # code named here was typed here
            path, row = _guarded(lambda: run.start(config, out, display), out)
        _finish(config, path, row)


def _guarded(job: Any, path: Path) -> Any:
    from deir.runs.directory import RunDirectory
    from deir.runs.stopping import Interrupted

    try:
        return job()
    except (Interrupted, KeyboardInterrupt):
        begun = RunDirectory(path).config.is_file()
        told = f"go on with: deir train --resume {shlex.quote(str(path))}" if begun else "the run had not begun"
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
        count = min(100, int(row["episodes"]))
        reached = f"mean return {float(mean):.3f} over the last {'episode' if count == 1 else f'{count} episodes'}"
    print(f"{int(row['frames']):,} frames in {float(row['seconds']):.0f} s: {reached}")
    if row["frames"] >= config.steps and resumed_at == row["frames"]:
        print(f"the run had its {config.steps:,} frames already; --steps lengthens it")
    print(f"  {path}/learning_curve.png   the curve;  progress.csv the numbers")
    print(f"  deir evaluate {shlex.quote(str(path))} --video film.mp4")
    print(f"  deir replay {shlex.quote(str(path))}   every step, on a page")
    if "tensorboard" in config.loggers:
        print(f"  tensorboard --logdir {shlex.quote(str(path))}")


def evaluate(argv: list[str]) -> None:
    args = read(Evaluate, argv, "deir evaluate")
    from deir.api import load
    from deir.envs import has_success
    from deir.runs.ranges import check_count

    for name, least in (("episodes", 1), ("video_episodes", 1), ("seed", 0)):
        check_count(name, getattr(args, name), least)
    from deir.runs.evaluate import check_video_path, record_video
    from deir.runs.evaluate import evaluate as play_episodes
    from deir.runs.zoo import refuse

    if args.overlay and not args.video:
        raise UserError("overlay: draws into a film, expected --video FILE.mp4 too")
    if args.overlay:
        refuse("overlay", args.run)
    if args.video:
        check_video_path(args.video)
    agent = load(args.run, args.trust)
    figures = play_episodes(agent, args.episodes, args.greedy, args.seed).figures()
    if args.json:
        print(json.dumps({"run": str(args.run), "env": agent.config.env.id, "greedy": args.greedy, **figures}))
    else:
        success = f"success {figures['success_rate']:.0%}, " if has_success(agent.config.env.id) else ""
        print(
            f"{agent.config.env.id}, {figures['episodes']} episodes, {'greedy' if args.greedy else 'sampled'} actions: "
            f"return {figures['return_mean']:.3f} ± {figures['return_stderr']:.3f} (standard error), "
            f"{success}length {figures['episode_length_mean']:.1f}"
        )
    if args.video:
        if args.overlay:
            from deir.experiments.replay.film import record_video as record
        else:
            record = record_video
        frames = record(agent, args.video, args.video_episodes, args.greedy, args.seed)
        print(f"{frames} frames in {args.video}", file=sys.stderr)


def show_list(argv: list[str]) -> None:
    args = read(List, argv, "deir list")
    from deir.runs import listing

    {
        "envs": listing.print_envs,
        "methods": listing.print_methods,
        "presets": listing.print_presets,
        "loggers": listing.print_loggers,
        "zoo": listing.print_zoo,
    }[args.what]()


def sweep(argv: list[str]) -> None:
    from deir.experiments.sweep.command import Sweep
    from deir.experiments.sweep.command import sweep as run_sweep

    raise SystemExit(run_sweep(read(Sweep, argv, "deir sweep")))


def tune(argv: list[str]) -> None:
    from deir.experiments.tune.command import Tune
    from deir.experiments.tune.command import tune as run_study

    raise SystemExit(run_study(read(Tune, argv, "deir tune")))


def _runs(name: str) -> Callable[[list[str]], None]:
    """Of a package of `experiments` the command, which is imported when it is called."""

    def command(argv: list[str]) -> None:
        module = import_module(f"deir.experiments.{name}.command")
        module.run(read(getattr(module, name.capitalize()), argv, f"deir {name}"))

    return command


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
    "report": _runs("report"),
    "replay": _runs("replay"),
    "watch": _runs("watch"),
    "probe": probe,
    "distances": distances,
    "bench": _runs("bench"),
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
        import deir

        print(f"deir {deir.__version__}")
        return
    run_command(lambda: _find(argv[0])(argv[1:]))
