"""Run directories of a stranger: files of the wrong kind, code by name, bombs, links, numbers without end."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from deir.experiments.sweep.jobs import Job
from deir.experiments.watch.runs import Watched
from deir.runs import run
from deir.runs.progress import last_row, read_rows

from ..base import Budget, Kind, Tally
from ..inputs import Began, command, judge, without_work, working_in
from ..machine import spread
from ..runs import TINY, status

Change = Callable[[Path], None]
ENOUGH = 20  # iterations after which a run that goes on is stopped; an undisturbed one has 4
FILES = (
    "config.yaml",
    "progress.csv",
    "summary.json",
    "checkpoints",
    "checkpoint",
    ".lock",
    "learning_curve.png",
    "maps.npz",
)
CODE = ("evil:make", "evil:X", "evil:CartPole-v1", "sys:exit", "pytest:main", "http.server:test", "os:system")
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


def place_of(directory: Path, name: str) -> Path:
    return sorted((directory / "checkpoints").iterdir())[-1] if name == "checkpoint" else directory / name


def replaced(name: str, how: str) -> Change:
    """A file of the directory as something else."""

    def change(directory: Path) -> None:
        path = place_of(directory, name)
        content = path.read_bytes() if path.is_file() else b"old"
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        {
            "missing": lambda: None,
            "empty": lambda: path.write_bytes(b""),
            "a directory": lambda: path.mkdir(),
            "a pipe": lambda: os.mkfifo(path),
            "a loop of links": lambda: path.symlink_to(path),
            "a link to nothing": lambda: path.symlink_to("/nowhere/at/all"),
            "a link to zeros": lambda: path.symlink_to("/dev/zero"),
            "half": lambda: path.write_bytes(content[: len(content) // 2]),
            "twice": lambda: path.write_bytes(content * 2),
            "noise": lambda: path.write_bytes(bytes(range(256)) * 40),
            "text": lambda: path.write_text("what is this\n" * 20),
            "brackets": lambda: path.write_text("[" * 100_000),
            "zeros": lambda: path.write_bytes(bytes(100_000)),
            "a huge header": lambda: path.write_bytes((2**62).to_bytes(8, "little") + b"{}"),
            "nested JSON": lambda: path.write_text('{"status": ' + "[" * 50_000 + "]" * 50_000 + "}"),
            "numbers": lambda: path.write_text("iteration,frames\n" + "9" * 6000 + "," + "9" * 6000 + "\n"),
            "a huge field": lambda: path.write_text("iteration,frames\n1," + "9" * 200_000 + "\n"),
            "formulas": lambda: path.write_text("iteration,frames,seconds,return_mean\n=1,=2,=3,=4\n"),
        }[how]()

    return change


HOW = (
    "missing", "empty", "a directory", "a pipe", "a loop of links", "a link to nothing", "half", "twice",
    "noise", "text", "brackets", "zeros", "a huge header", "nested JSON", "numbers", "a huge field",
    "formulas",
)  # fmt: skip


def configured(**changes: Any) -> Change:
    """Keys of the saved configuration, with dots, changed."""

    def change(directory: Path) -> None:
        config = yaml.safe_load((directory / "config.yaml").read_text())
        for key, value in changes.items():
            tree, parts = config, key.split("__")
            for part in parts[:-1]:
                tree = tree[part]
            tree[parts[-1]] = value
        (directory / "config.yaml").write_text(yaml.safe_dump(config))

    return change


def written(name: str, text: str) -> Change:
    return lambda directory: place_of(directory, name).write_text(text) and None


def summarised(value: Any) -> Change:
    return written("summary.json", json.dumps(value))


def changes() -> dict[str, Change]:
    odd = (None, -1, 0, 10**9, 10**30, "x", "", [], {}, 1.5, float("nan"), True, "x" * 1000, "\x1b[31m")
    keys = (
        "env", "env__id", "env__n_envs", "env__view_size", "method", "seed", "steps", "network__hidden", "device",
        "network__features", "ppo__rollout_steps", "reward__deir__queue_size", "checkpoint__keep", "threads", "preset",
        "reward",
    )  # fmt: skip
    return {
        **{f"{name} is {how}": replaced(name, how) for name in FILES for how in HOW},
        **{f"env.id is {name}": configured(env__id=name) for name in CODE},
        **{f"method is {name}": configured(method=name) for name in CODE},
        **{f"{key} is {str(value)[:20]!r}": configured(**{key: value}) for key in keys for value in odd},
        "an alias bomb": written("config.yaml", BOMB),
        "an alias bomb as a value": written("config.yaml", BOMB + "env: *i\nmethod: deir\nseed: 0\n"),
        "a tag": written("config.yaml", "env: !!python/object/apply:os.system ['touch executed']\n"),
        "itself": written("config.yaml", "&a {env: *a, method: deir, seed: 0}"),
        **{
            f"summary is {value!r}": summarised(value)
            for value in (None, [], 1, "x", {}, {"status": 1}, {"status": []})
        },
        "summary without frames": summarised({"status": "finished", "final": {}}),
        "summary of words": summarised({"status": "finished", "final": {"frames": "many"}, "frames_per_second": "x"}),
    }


def resumed(directory: Path) -> None:
    """A resume that was accepted and trains on, perhaps for years, is stopped as a user does it."""
    iterate, done = run._iterate, 0

    def counted(*args: Any) -> Any:
        nonlocal done
        done += 1
        if done == ENOUGH:
            os.kill(os.getpid(), signal.SIGTERM)
        return iterate(*args)

    with mock.patch.object(run, "_iterate", counted):
        try:
            command(["train", "--resume", str(directory)])
        except SystemExit as end:
            if done == ENOUGH and end.code == 130 and status(directory) == "interrupted":
                raise Began from None
            raise


def watched(directory: Path) -> None:
    """What the server of `deir watch` answers with."""
    watch = Watched([directory])
    json.dumps(watch.state(), allow_nan=False)
    watch.report()
    for name in watch.runs():
        watch.replay(name)


def readers(directory: Path) -> dict[str, Callable[[], Any]]:
    config = run.configure(TINY)
    return {
        "evaluate": lambda: command(["evaluate", str(directory), "--episodes", "2"]),
        "resume": lambda: resumed(directory),
        "config": lambda: command(["train", "--config", str(directory / "config.yaml"), "--out", "new"]),
        "report": lambda: command(["report", str(directory), "--out", "report", "--no-figures", "--resamples", "100"]),
        "replay": lambda: command(["replay", str(directory), "--episodes", "1", "--map-episodes", "1"]),
        "watch": lambda: watched(directory),
        "sweep": lambda: (Job(config, directory).finished, Job(config, directory).check()),
        "live table": lambda: (last_row(directory / "progress.csv"), read_rows(directory / "progress.csv")),
        "probe": lambda: command(["probe", "--run", str(directory), "--out", "probe"]),
    }


def run_kind(budget: Budget, scratch: Path, tally: Tally) -> None:
    whole, known = scratch / "whole", changes()
    run.start(run.configure(TINY), whole)

    def try_one(case: tuple[str, str], place: Path, tally: Tally) -> None:
        what, reader = case
        with working_in(place / "here") as trace:
            directory = Path("run").absolute()
            shutil.copytree(whole, directory)
            known.get(what, lambda _: None)(directory)
            with without_work() if reader in ("config", "probe") else nullcontext():
                judge(f"{reader}: {what}", readers(directory)[reader], tally, trace)

    for reader in readers(whole):  # one that refuses every run would find nothing
        sound = Tally()
        try_one(("nothing is changed", reader), scratch / reader, sound)
        if sound.exact != 1:
            raise RuntimeError(f"{reader} does not read an undisturbed run: {sound.faults}")
    spread(budget, [(what, reader) for what in known for reader in readers(whole)], scratch, tally, try_one)


KIND = Kind("hostile-directories", "run directories of a stranger", run_kind, full=3500, short=30)
