"""The tables of `deir list`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deir.algorithm.rewards import METHODS
from deir.runs.presets import (
    BEYOND,
    BEYOND_THE_PAPER,
    COMMON,
    DESCRIPTIONS,
    LIKE_DEIR,
    OURS,
    SUITE_NAMES,
    TABLE,
    TASKS,
    Row,
    source,
)

WHOLE = ("name", "option", "method")  # columns of words to be typed: never broken


def _print(title: str, columns: list[str], rows: list[list[str]], note: str = "") -> None:
    table = Table(title=escape(title), title_justify="left", header_style="bold", show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in WHOLE)
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    if note:
        console.print(note, markup=False, highlight=False)


def print_envs() -> None:
    from deir.envs.minigrid.catalogue import PAPER_TASKS, tasks
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
    _print(
        "Methods",
        ["name", "what it is"],
        [[name, method.description] for name, method in METHODS.items()],
        "A method of your own: package.module:Class, or deir.register_reward (docs/extending.md).",
    )


def print_loggers() -> None:
    from deir.runs.loggers import LOGGERS

    rows = [[name, entry.description, _installed(name, entry.package)] for name, entry in LOGGERS.items()]
    note = "A logger of your own: package.module:Class (docs/extending.md). Several are separated by commas."
    _print("Loggers (--loggers)", ["name", "where it writes", "state"], rows, note)


def _installed(name: str, package: str) -> str:
    return "ready" if not package or find_spec(package) else f"pip install 'deir[{name}]'"


def print_presets() -> None:
    """Table A1 as the configuration has it: what all methods share, then each method's own."""
    suites = list(SUITE_NAMES)
    _print("Presets", ["name", "for"], [[suite, DESCRIPTIONS[suite]] for suite in (*suites, *OURS)])
    shared = [[*_words(row), *(_cell(row.value(suite)) for suite in suites)] for row in COMMON]
    shared += [[f"--{name}".replace("_", "-"), "", "", "", _cell(value)] for name, value in BEYOND["procgen"].items()]
    _print("Table A1: all methods", ["option", "", *suites], shared)
    ours = [["changes", *(suite.base for suite in OURS.values())]]
    for name in dict.fromkeys(name for suite in OURS.values() for name in suite.changes):
        cells = (_cell(suite.changes.get(name, "")) for suite in OURS.values())
        ours.append([f"--{name}".replace("_", "-"), *cells])
    found = dict.fromkeys((part, key) for suite in OURS.values() for part in suite.own for key in suite.own[part])
    for part, key in found:
        cells = (_cell(suite.own.get(part, {}).get(key, "")) for suite in OURS.values())
        ours.append([f"--{key}\n  with {part}".replace("_", "-"), *cells])
    own = []
    for method, rows in TABLE.items():
        for row in rows:
            cells = (_cell(row.value(source(suite, method)), suite != source(suite, method)) for suite in suites)
            own.append([method, _words(row)[0], *cells])
    exceptions = "; ".join(f"{env} with {method}: {changes}" for (env, method), changes in TASKS.items())
    _print(
        "Table A1: each method's own",
        ["method", "option", *suites],
        own,
        f"*: not in the paper, which did not run the method there; MiniGrid's value. Exceptions: {exceptions}.\n"
        f"{', '.join(LIKE_DEIR)}: as deir; deir+rnd normalises the RND error as ngu does.\n"
        f"{', '.join(BEYOND_THE_PAPER)}: not in the paper; the values are ours.",
    )
    _print("Presets that are not in the paper: what they change in a column of it", ["option", *OURS], ours)


def print_zoo() -> None:
    from deir.runs import zoo

    rows, commands = [], []
    if not zoo.names():
        print(zoo.EMPTY)
        return
    for name in zoo.names():
        found = zoo.read(name)
        sampled, greedy = (found.figures[kind] for kind in ("sampled", "greedy"))
        returns = [f"{f['return_mean']:.3f} ± {f['return_stderr']:.3f}" for f in (sampled, greedy)]
        rows.append(
            [zoo.PREFIX + name, found.config.method, f"{found.frames:,}", *returns, f"{sampled['episodes']:.0f}"]
        )
        commands.append(f"  {name}: {found.command}")
    _print(
        "Zoo: trained policies that come with deir (deir evaluate zoo:NAME)",
        ["name", "method", "frames", "return, sampled actions", "return, greedy actions", "episodes"],
        rows,
        "\n".join(["Return: mean ± standard error. Each was trained by:", *commands]),
    )


def _words(row: Row) -> list[str]:
    return ["\n".join(f"--{field}".replace("_", "-") for field in row.fields), row.name]


def _cell(value: Any, borrowed: bool = False) -> str:
    names = {True: "yes", False: "no", None: "total average"}
    text = names[value] if isinstance(value, bool) or value is None else str(value)
    return f"{text} *" if borrowed else text
