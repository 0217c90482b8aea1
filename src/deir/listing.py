"""The tables of `deir list`."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from deir.config import Config, merge
from deir.presets import DESCRIPTIONS, SUITES, TASKS, resolve
from deir.rewards import METHODS


def _print(title: str, columns: list[str], rows: list[list[str]], note: str = "") -> None:
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    if note:
        console.print(note, markup=False, highlight=False)


def print_envs() -> None:
    from deir.envs.catalogue import PAPER_TASKS, tasks
    from deir.envs.procgen import GAMES, PREFIX

    paper = [[task.name, "yes", task.description] for task in tasks() if task.name in PAPER_TASKS]
    other = [[task.name, "", task.description] for task in tasks() if task.name not in PAPER_TASKS]
    _print("MiniGrid", ["name", "in the paper", "what it is"], paper + other)
    games = [
        [PREFIX + game.name, "yes" if game.in_paper else "", game.description, ", ".join(game.modes)]
        for game in GAMES.values()
    ]
    _print("ProcGen (pip install 'deir[procgen]')", ["name", "in the paper", "what it is", "distribution mode"], games)
    Console().print(
        "Any other Gymnasium id (CartPole-v1, BabyAI-GoToObj-v0, …) and module:factory work too.", markup=False
    )


def print_methods() -> None:
    _print("Methods", ["name", "what it is"], [[name, method.description] for name, method in METHODS.items()])


def print_presets() -> None:
    """Every preset against the others; the values come from the resolved configurations."""
    names = list(SUITES)
    resolved = [_flat(resolve(merge(Config(), {"preset": name}))) for name in names]
    shown = [key for key in resolved[0] if len({str(values[key]) for values in resolved}) > 1 and key != "preset"]
    rows = [["for", *(DESCRIPTIONS[name] for name in names)]]
    rows += [[key, *(str(values[key]) for values in resolved)] for key in shown]
    exceptions = "; ".join(f"{env} with {method}: {changes}" for (env, method), changes in TASKS.items())
    _print(
        "Presets (Table A1) for --method deir; what is not shown is the same in all",
        ["", *names],
        rows,
        f"Exceptions: {exceptions}",
    )


def _flat(config: Config) -> dict[str, Any]:
    import dataclasses

    def walk(tree: dict[str, Any], prefix: str) -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for key, value in tree.items():
            flat.update(walk(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
        return flat

    return walk(dataclasses.asdict(config), "")
