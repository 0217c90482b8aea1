"""The file of a sweep: tasks x methods x seeds, checked whole before anything starts."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deir.config import Config, EnvConfig, load_yaml, parse_count, with_old_keys
from deir.errors import UserError, invalid, shortened, unknown
from deir.experiments.sweep.jobs import Job, parse_seeds
from deir.imports import check_trusted
from deir.runs.ranges import LARGEST_WHOLE
from deir.runs.run import configure, validate

REQUIRED = ("envs", "methods", "seeds", "steps")
KEYS = ("name", *REQUIRED, "overrides", "cells")
CONFIG_KEYS = tuple(f.name for f in dataclasses.fields(Config) if f.name != "seed")
ENV_KEYS = tuple(f.name for f in dataclasses.fields(EnvConfig))
LONGEST_NAME = 200  # bytes; file systems allow 255
Tree = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One task with one method: its runs differ only in their seeds."""

    env: str
    method: str
    configs: tuple[Config, ...]


@dataclass(frozen=True)
class Grid:
    name: str
    cells: tuple[Cell, ...]

    def jobs(self, out: Path) -> list[Job]:
        return [
            Job(config, out / folder(cell.env) / folder(cell.method) / f"seed{config.seed}")
            for cell in self.cells
            for config in cell.configs
        ]


def read_grid(path: Path, check_device: bool = True, trust: bool = False) -> Grid:
    """`check_device` False: the runs will be on other machines, which may have what this one lacks.

    `trust`: whether code that the file names may be imported.
    """
    tree = load_yaml(path)
    try:
        return make_grid(tree, path.stem, check_device, trust)
    except UserError as mistake:
        raise UserError(f"{path}: {mistake}") from None


def make_grid(tree: Tree, default_name: str, check_device: bool = True, trust: bool = False) -> Grid:
    known_keys(tree, KEYS, "sweep key")
    for key in REQUIRED:
        if key not in tree:
            raise UserError(f"{key}: missing; a sweep needs {', '.join(REQUIRED)}")
    name = name_of(tree.get("name", default_name))
    overrides = with_old_keys(mapping(tree.get("overrides"), "overrides"))
    known_keys(overrides, CONFIG_KEYS, "key of overrides")
    envs = {label: {"env": _env_entry(label, keys)} for label, keys in _entries(tree["envs"], "envs").items()}
    methods = {label: _method_entry(label, keys) for label, keys in _entries(tree["methods"], "methods").items()}
    exceptions = [_exception(cell, envs, methods) for cell in _list(tree.get("cells") or [], "cells")]
    cells = []
    for env, env_changes in envs.items():
        for method, method_changes in methods.items():
            chosen: Tree = {"steps": tree["steps"], "seeds": tree["seeds"]}
            for layer in (overrides, env_changes, method_changes):
                chosen = merged(chosen, layer)
            for exception in exceptions:
                if env in exception.envs and method in exception.methods:
                    chosen = merged(chosen, exception.changes)
            cells.append(Cell(env, method, _configs(chosen, f"{env}, {method}", check_device, trust)))
    return Grid(name, tuple(cells))


def _configs(chosen: Tree, where: str, check_device: bool, trust: bool) -> tuple[Config, ...]:
    seeds = seed_list(chosen.pop("seeds"))
    steps = parse_count(chosen.pop("steps"))
    try:
        config = configure({**chosen, "steps": steps, "seed": seeds[0]})
        check_trusted(config, "the file", trust)
        config = replace(config, threads=config.threads or 1)
        validate(config if check_device else replace(config, device="cpu"))
    except UserError as mistake:
        raise UserError(f"{where}: {mistake}") from None
    return tuple(replace(config, seed=seed) for seed in seeds)


@dataclass(frozen=True)
class _Exception:
    envs: tuple[str, ...]
    methods: tuple[str, ...]
    changes: Tree


def _exception(cell: Any, envs: Tree, methods: Tree) -> _Exception:
    cell = with_old_keys(mapping(cell, "cells"))
    known_keys(cell, (*CONFIG_KEYS, "seeds"), "key of cells")
    if not {"env", "method"} & cell.keys():
        raise invalid("cells", cell, "an env or a method that says which cells (what holds for all is in overrides)")
    changes = {key: value for key, value in cell.items() if key not in ("env", "method")}
    if not changes:
        raise invalid("cells", cell, "what to change there, such as steps")
    return _Exception(
        _selected(cell.get("env"), envs, "cells.env"), _selected(cell.get("method"), methods, "cells.method"), changes
    )


def _selected(wanted: Any, labels: Tree, field: str) -> tuple[str, ...]:
    """A label, several, or all when none is named."""
    if wanted is None:
        return tuple(labels)
    chosen = tuple(wanted) if isinstance(wanted, list) else (wanted,)
    for label in chosen:
        if not isinstance(label, str) or label not in labels:
            raise unknown(field, shortened(label).strip("'"), labels)
    return chosen


def _env_entry(label: str, keys: Tree) -> Tree:
    known_keys(keys, ENV_KEYS, f"key of envs.{label}")
    return {"id": label, **keys}


def _method_entry(label: str, keys: Tree) -> Tree:
    keys = with_old_keys(keys)
    known_keys(keys, CONFIG_KEYS, f"key of methods.{label}")
    return {"method": label, **keys}


def _entries(given: Any, field: str) -> dict[str, Tree]:
    """Label -> keys, of a list of names and of mappings with one label each."""
    entries: dict[str, Tree] = {}
    for item in _list(given, field):
        if isinstance(item, dict) and len(item) != 1:
            raise invalid(field, item, "a name, or one label with its keys: {label: {key: value}}")
        label, keys = next(iter(item.items())) if isinstance(item, dict) else (item, {})
        label = _label(label, field)
        if folder(label) in map(folder, entries):
            raise invalid(field, label, "labels that differ: two of them would share a directory")
        entries[label] = mapping(keys, f"{field}.{label}")
    return entries


def _label(text: Any, field: str) -> str:
    odd = not isinstance(text, str) or not text.strip() or text.startswith(".") or "\\" in text
    if odd or not text.isprintable() or len(os.fsencode(text)) > LONGEST_NAME:
        raise invalid(field, text, f"a text that can name a directory, at most {LONGEST_NAME} bytes long")
    return text


def name_of(given: Any) -> str:
    return folder(_label(given, "name"))


def folder(label: str) -> str:
    return label.replace(":", "-").replace("/", "-")


def seed_list(given: Any) -> list[int]:
    """0-2, "1,5,7", 3, or a list of numbers."""
    if isinstance(given, str):
        return parse_seeds(given)
    seeds = given if isinstance(given, list) else [given]
    if not seeds or not all(type(seed) is int and 0 <= seed <= LARGEST_WHOLE for seed in seeds):
        raise invalid("seeds", given, "whole numbers such as 0-3 or 1,5,7")
    return parse_seeds(",".join(map(str, seeds)))


def known_keys(tree: Tree, choices: tuple[str, ...], field: str) -> None:
    for key in tree:
        if key not in choices:
            raise unknown(field, shortened(key).strip("'"), choices)


def _list(given: Any, field: str) -> list[Any]:
    if not isinstance(given, list) or (field != "cells" and not given):
        raise invalid(field, given, "a list")
    return given


def mapping(given: Any, field: str) -> Tree:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise invalid(field, given, "a mapping of keys to values")
    return given


def merged(base: Tree, changes: Tree) -> Tree:
    """`changes` laid over `base`, level by level."""
    result = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result
