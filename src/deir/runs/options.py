"""Command-line options over a file over the preset, for every command whose options are those of a run."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any, TypeVar

import tyro

from deir.config import Config, load_yaml, merge
from deir.imports import check_trusted

Command = TypeVar("Command", bound=Config)
PEEKED = (("--env", "--env.id"), ("--method",), ("--preset",), ("--config",), ("--resume",))
PATHS = ("out", "run")  # options of commands that are paths


def peek(argv: list[str]) -> argparse.Namespace:
    """The options that the preset depends on."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flags in PEEKED:
        parser.add_argument(*flags, dest=flags[0].lstrip("-"), nargs="?")
    parser.add_argument("--trust", action=argparse.BooleanOptionalAction, default=False)
    return parser.parse_known_args(argv)[0]


def trusted(found: argparse.Namespace) -> bool | list[str]:
    """The names of code that may be imported: those on the command line, or with --trust all."""
    return found.trust or [name for name in (found.env, found.method) if name]


def named_over(overrides: dict[str, Any], found: argparse.Namespace) -> dict[str, Any]:
    """`overrides` with the task, method and preset named on the command line laid over them."""
    laid = dict(overrides)
    if found.env:
        env = laid.get("env", {})
        laid["env"] = {**(env if isinstance(env, dict) else {}), "id": found.env}
    laid.update({name: getattr(found, name) for name in ("method", "preset") if getattr(found, name)})
    return laid


def without(argv: list[str], flag: str) -> list[str]:
    """The words without a flag and its value."""
    kept, skip = [], False
    for word in argv:
        if not skip and word != flag and not word.startswith(f"{flag}="):
            kept.append(word)
        skip = word == flag
    return kept


def parse(command: type[Command], argv: list[str], prog: str, defaults: dict[str, Any]) -> Command:
    """The command with its own `defaults`, then --config, then the words; below them the preset of task and method."""
    from deir.runs.run import configure

    found = peek(argv)
    tree = {**defaults, **(load_yaml(Path(found.config)) if found.config else {})}
    keys = {f.name for f in dataclasses.fields(Config)}
    own_names = {f.name for f in dataclasses.fields(command)} - keys
    config = configure(named_over({k: v for k, v in tree.items() if k not in own_names}, found))
    check_trusted(config.env.id, config.method, found.config or prog, trusted(found))
    own = merge(command(), {k: v for k, v in tree.items() if k in own_names and k not in PATHS})
    known: dict[str, Any] = {k: getattr(config, k) for k in keys}
    known.update({k: Path(v) for k, v in tree.items() if k in own_names and k in PATHS})
    default = dataclasses.replace(own, **known)
    return tyro.cli(command, args=without(argv, "--preset"), default=default, prog=prog)
