"""The configuration reference, made from the configuration itself.

python -m deir.cli.reference > docs/configuration.md
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Iterable, Iterator
from typing import Any

from deir.cli import Evaluate, Train
from deir.config import Config, to_dict
from deir.runs import help, presets
from deir.runs.help import flags, meanings, type_name

COMMAND = "python -m deir.cli.reference > docs/configuration.md"

HEAD = f"""\
# Configuration

This page is generated. After a change to the configuration, type `{COMMAND}`.

Every option is a flag of `deir train` and a key of `config.yaml`. The key is the flag without its dashes, with
underscores and one level for each dot: `--ppo.rollout-steps 128` is `ppo: {{rollout_steps: 128}}`. From Python,
`deir.train` takes the top-level keys as keyword arguments: `deir.train(ppo={{"rollout_steps": 128}})`; the task is
`env`, a name or a mapping: `deir.train({{"id": "DoorKey-8x8", "view_size": 3}})`.

Later ones win: the defaults below, then the preset of the task and method, then `--config FILE`, then flags. The
`config.yaml` of a run holds the values that were used, all of them.

A switch has two flags: `--env.time-penalty` turns it on, `--env.no-time-penalty` off. In YAML it is `true` or `false`.
An option that may be "none" is `None` on the command line and `null` in YAML.
"""


def reference() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_sections(Config(), ""), *_commands(), *_presets()]).rstrip() + "\n"


def table(header: list[str], rows: Iterable[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines) + "\n"


def _flags(name: str, path: str, hint: Any) -> str:
    return ", ".join(f"`{word}`" for word in flags(name, path, hint))


def shown(value: Any) -> str:
    plain = help.shown(value)
    return plain if value is None or isinstance(value, bool) else f"`{plain}`"


def _fields(cls: type, names: Iterable[str], path: str) -> str:
    """One table: flag, type, default, meaning."""
    hints, texts = typing.get_type_hints(cls, include_extras=True), meanings(cls)
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    rows = [
        [_flags(name, path, hints[name]), type_name(hints[name]), shown(defaults[name]), _escaped(texts[name])]
        for name in names
    ]
    return table(["flag", "type", "default", "meaning"], rows)


def _escaped(text: str) -> str:
    return text.replace("<", "\\<")


def _sections(config: Any, path: str) -> Iterator[str]:
    """This level's options, then one section for each level below."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    nested = {name: value for name, value in values.items() if dataclasses.is_dataclass(value)}
    plain = [name for name in values if name not in nested]
    title = path.removesuffix(".") or "The run"
    yield f"## {title}\n\n{inspect.getdoc(type(config))}\n"
    if plain:
        yield _fields(type(config), plain, path)
    for name, below in nested.items():
        yield from _sections(below, f"{path}{name}.")


def _commands() -> Iterator[str]:
    own = {field.name for field in dataclasses.fields(Config)}
    yield "## Only on the command line\n\nOf `deir train`:\n"
    yield _fields(Train, [f.name for f in dataclasses.fields(Train) if f.name not in own], "")
    yield "Of `deir evaluate RUN`:\n"
    yield _fields(Evaluate, [f.name for f in dataclasses.fields(Evaluate) if f.name != "run"], "")


def _flat(tree: dict[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat.update(_flat(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value})
    return flat


def _presets() -> Iterator[str]:
    suites = list(presets.SUITES)
    default = _flat(to_dict(Config()))
    yield "## What the presets change\n"
    yield "`--preset auto` takes the preset by the task's name. What is not shown is the default in all of them.\n"
    yield table(["preset", "for"], [[f"`{name}`", presets.DESCRIPTIONS[name]] for name in suites])
    yield "For all methods:\n"
    yield table(["key", "default", *suites], _changed(default, {name: presets.SUITES[name] for name in suites}))
    yield "For one method, on top of that:\n"
    rows = []
    for method in dict.fromkeys(method for _, method in presets.METHODS):
        layers = {name: presets.METHODS.get((name, method), {}) for name in suites}
        stars = ["", "", *(" *" if presets.source(name, method) != name else "" for name in suites)]
        for row in _changed(default, layers):
            rows.append([f"`{method}`", *(cell + star for cell, star in zip(row, stars, strict=True))])
    yield table(["method", "key", "default", *suites], rows)
    yield "\\* neither the paper nor we tried the method there: the value of the column it stands on.\n"
    yield "For one task and method:\n"
    yield table(
        ["task", "method", "key", "value"],
        [
            [f"`{task}`", f"`{method}`", f"`{key}`", shown(value)]
            for (task, part), changes in presets.TASKS.items()
            for method in dict.fromkeys(method for _, method in presets.METHODS if presets.part_of(method) == part)
            for key, value in _flat(changes).items()
        ],
    )


def _changed(default: dict[str, Any], layers: dict[str, presets.Overrides]) -> list[list[str]]:
    """Key, default and the value in each preset, of the keys that some preset changes."""
    values = {name: {**default, **_flat(layer)} for name, layer in layers.items()}
    return [
        [f"`{key}`", shown(default[key]), *(shown(preset[key]) for preset in values.values())]
        for key in default
        if any(preset[key] != default[key] for preset in values.values())
    ]


if __name__ == "__main__":
    print(reference(), end="")
