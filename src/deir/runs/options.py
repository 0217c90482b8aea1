"""The option parser of every command, and what the options of a run are laid over: a file, the preset, a saved run."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any, TypeVar

import tyro

from deir.config import Config, load_yaml, merge
from deir.errors import UserError
from deir.imports import check_trusted
from deir.runs.help import short_help
from deir.runs.mistakes import told_in_a_line

Options = TypeVar("Options")
Command = TypeVar("Command", bound=Config)
PEEKED = (("--env", "--env.id"), ("--method",), ("--loggers",), ("--preset",), ("--config",), ("--resume",))
ENCODERS = ("--network.encoder", "--reward.encoder")
PATHS = ("out", "run")  # options of commands that are paths
TYPED_ONLY = ("config", "resume", "trust")  # a file cannot ask to be trusted
_OLD_WORDS = {
    "--tensorboard": ["--loggers", "csv,tensorboard"],
    "--no-tensorboard": ["--loggers", "csv"],
}


def read(
    command: type[Options], argv: list[str], prog: str, default: Options | None = None, common: tuple[str, ...] = ()
) -> Options:
    """The options of a command. With `common`, --help shows only those; --help-all shows all."""
    words = ["--help" if word == "--help-all" else word for word in argv]
    if common and wants_short_help(argv):
        print(short_help(command, prog, common))
        raise SystemExit(0)
    given: dict[str, Any] = {} if default is None else {"default": default}
    return told_in_a_line(lambda: tyro.cli(command, args=words, prog=prog, **given), command, prog)


def wants_short_help(argv: list[str]) -> bool:
    return "--help-all" not in argv and any(word in ("-h", "--help") for word in argv)


def peek(argv: list[str]) -> argparse.Namespace:
    """The options that the preset depends on, and those that name code."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flags in PEEKED:
        parser.add_argument(*flags, dest=flags[0].lstrip("-"), nargs="?")
    for flag in ENCODERS:
        parser.add_argument(flag, dest="encoders", nargs="?", action="append", default=[])
    parser.add_argument("--trust", action=argparse.BooleanOptionalAction, default=False)
    return parser.parse_known_args(argv)[0]


def trusted(found: argparse.Namespace) -> bool | list[str]:
    """The names of code that may be imported: those on the command line, or with --trust all."""
    names = [found.env, found.method, *found.encoders, *(found.loggers or "").split(",")]
    return found.trust or [name.strip() for name in names if name]


def named_over(overrides: dict[str, Any], found: argparse.Namespace) -> dict[str, Any]:
    """`overrides` with the task, method, loggers and preset named on the command line laid over them."""
    laid = dict(overrides)
    if found.env:
        env = laid.get("env", {})
        laid["env"] = {**(env if isinstance(env, dict) else {}), "id": found.env}
    laid.update({name: value for name in ("method", "preset", "loggers") if (value := getattr(found, name))})
    return laid


def without(argv: list[str], flag: str) -> list[str]:
    """The words without a flag and its value."""
    kept, skip = [], False
    for word in argv:
        if not skip and word != flag and not word.startswith(f"{flag}="):
            kept.append(word)
        skip = word == flag
    return kept


def parse(
    command: type[Command], argv: list[str], prog: str, defaults: dict[str, Any], common: tuple[str, ...] = ()
) -> Command:
    """A command whose options are those of a run. Below its words, from above: --config, the command's own `defaults`,
    the preset of task and method; or, with --resume, the saved run alone."""
    if common and wants_short_help(argv):
        return read(command, argv, prog, None, common)
    argv = [new for word in argv for new in _OLD_WORDS.get(word, [word])]
    found = peek(argv)
    default = _resumed(command, found) if found.resume else _configured(command, found, prog, defaults)
    return read(command, argv if found.resume else without(argv, "--preset"), prog, default)


def _resumed(command: type[Command], found: argparse.Namespace) -> Command:
    from deir.runs.run import load_config

    return _filled(command(), load_config(Path(found.resume), "resume", trusted(found)))


def _configured(command: type[Command], found: argparse.Namespace, prog: str, defaults: dict[str, Any]) -> Command:
    """`--preset auto` is resolved in it, and must not come back from the command line."""
    from deir.runs.run import configure

    tree = {**defaults, **(load_yaml(Path(found.config)) if found.config else {})}
    own_names = {f.name for f in dataclasses.fields(command)} - {f.name for f in dataclasses.fields(Config)}
    for name in TYPED_ONLY:
        if name in tree and name in own_names:
            raise UserError(f"{name}: {found.config} asks for it, expected it on the command line only (--{name})")
    config = configure(named_over({k: v for k, v in tree.items() if k not in own_names}, found))
    check_trusted(config, found.config or prog, trusted(found))
    own = merge(command(), {k: v for k, v in tree.items() if k in own_names and k not in PATHS})
    paths: dict[str, Any] = {k: Path(v) for k, v in tree.items() if k in own_names and k in PATHS}
    return dataclasses.replace(_filled(own, config), **paths)


def _filled(command: Command, config: Config) -> Command:
    known: dict[str, Any] = {f.name: getattr(config, f.name) for f in dataclasses.fields(Config)}
    return dataclasses.replace(command, **known)


def configuration(options: Config) -> Config:
    """Of a command's options those that are a run's."""
    return Config(**{f.name: getattr(options, f.name) for f in dataclasses.fields(Config)})
