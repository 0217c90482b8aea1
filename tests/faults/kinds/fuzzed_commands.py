"""Command lines that nobody means: every command and option with values of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from deir.cli import COMMANDS

from ..base import Budget, Kind, Tally
from ..inputs import FLAGS, command, drawn, judge, texts, without_work, words, working_in

OWN = {
    "train": ("--out", "--config", "--resume", "--seeds", "--jobs", "--env", "--trust"),
    "evaluate": ("--episodes", "--seed", "--video", "--video-episodes", "--json", "--greedy"),
    "list": ("envs", "methods", "presets"),
    "sweep": ("--out", "--engine", "--jobs", "--address", "--gpus", "--retries", "--stall", "--grace", "--dry-run"),
    "tune": ("--out", "--storage", "--jobs", "--gpus", "--retries", "--stall", "--grace"),
    "report": ("--out", "--title", "--by-directory", "--resamples", "--no-figures"),
    "replay": ("--out", "--episodes", "--seed", "--env", "--checkpoint", "--greedy", "--max-steps", "--map-episodes"),
    "watch": ("--port", "--trust"),
    "probe": ("--run", "--seeds", "--jobs", "--hidden", "--probe-epochs", "--probe-rate", "--out", "--config"),
    "distances": ("--snapshots", "--pairs", "--bins", "--out", "--config"),
    "bench": ("--pairs", "--iterations", "--warm-up", "--settings", "--json", "--curves", "--whole-run"),
}
LIKE_TRAIN = ("train", "probe", "distances")
NO_ENGINE = {"--address": "--retries", "--engine": "--jobs", "--storage": "--jobs"}  # a server would be waited for


@st.composite
def lines(draw: Any) -> list[str]:
    name = draw(st.one_of(st.sampled_from(sorted(COMMANDS)), texts))
    flags = [*OWN.get(name, ()), *(FLAGS if name in LIKE_TRAIN else ())] or ["--help"]
    line = [name]
    for _ in range(draw(st.integers(0, 3))):
        flag = draw(st.sampled_from(flags))
        line += [NO_ENGINE.get(flag, flag), draw(words)] if draw(st.integers(0, 5)) else [draw(words)]
    return line


def run_kind(budget: Budget, scratch: Path, tally: Tally) -> None:
    with working_in(scratch / "here") as trace, without_work():
        drawn(budget, lines(), lambda line: judge(f"deir {line}", lambda: command(line), tally, trace))


KIND = Kind("fuzzed-commands", "fuzzed command lines", run_kind, full=1500, short=40)
