"""`deir replay`: episodes of trained agents as one page, with what each step earned for novelty and why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from deir.errors import UserError, invalid
from deir.files import check_file, write_whole

MOST_PLAYERS, MOST_EPISODES = 4, 100
MARK = '<meta name="generator" content="deir replay">'
HEAD = 2048  # bytes of a page in which its mark stands


@dataclass(frozen=True)
class Replay:
    """Episodes of a trained agent as one page: what it sees, expects, does and finds new, step by step."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories; several are shown side by side on the same layouts."""
    out: Path = Path("replay.html")
    """The page; an earlier replay of this name is replaced, nothing else is."""
    episodes: int = 3
    """Episodes to show, each on its own layout."""
    seed: int = 0
    """Seed of the layouts and of the sampled actions, the same for all runs."""
    env: str | None = None
    """Another task than the run's, if it looks the same to the agent."""
    checkpoint: Annotated[tuple[int, ...], tyro.conf.UseAppendAction] = ()
    """Iteration of a checkpoint that the run kept, instead of the last; several stand side by side."""
    greedy: bool = False
    """Take the likeliest action instead of sampling."""
    max_steps: int = 600
    """Longer episodes are cut here."""
    map_episodes: int = 32
    """MiniGrid: episodes behind a map, for each layout and over all of them."""
    title: str | None = None
    """Title of the page."""
    trust: bool = False
    """Import code that the runs name (module:factory, package.module:Class)."""


def run(args: Replay) -> None:
    from deir.runs.ranges import check_count

    for name, least in (("episodes", 1), ("seed", 0), ("max_steps", 1), ("map_episodes", 1)):
        check_count(name, getattr(args, name), least)
    if args.episodes > MOST_EPISODES:
        raise invalid("episodes", args.episodes, f"a whole number from 1 to {MOST_EPISODES}: they all go into the page")
    _check(args)
    from deir.agent import load
    from deir.experiments.replay.players import Choices, make_page
    from deir.experiments.report.steps import told_steps

    with told_steps() as tell:
        tell("loading")
        agents = [load(path, args.trust, iteration) for path, iteration in _players(args)]
        choices = Choices(args.episodes, args.seed, args.env, args.greedy, args.max_steps, args.map_episodes)
        page = make_page(agents, choices, args.title, tell)
        write_whole(args.out, page)
    size = len(page.encode()) / 2**20
    print(f"{args.out}   {size:.1f} MB, open it in a browser")


def _check(args: Replay) -> None:
    from deir.runs.zoo import refuse

    if not args.runs:
        raise UserError("runs: got none, expected run directories: deir replay runs/DoorKey-8x8/deir/seed0-…")
    if len(args.runs) > 1 and args.checkpoint:
        raise UserError("checkpoint: compares one run with itself; leave it out, or name one run")
    if len(args.runs) * max(1, len(args.checkpoint)) > MOST_PLAYERS:
        raise invalid("runs", len(args.runs) * max(1, len(args.checkpoint)), f"at most {MOST_PLAYERS} side by side")
    for path in args.runs:
        refuse("runs", path)
    check_file("out", args.out)
    if args.out.suffix.lower() not in (".html", ".htm"):
        raise invalid("out", str(args.out), f"a file that a browser takes for a page: {args.out}.html")
    if args.out.is_file():
        with args.out.open("rb") as file:
            ours = MARK.encode() in file.read(HEAD)
        if not ours:
            raise invalid("out", str(args.out), "a new file, or an earlier replay")


def _players(args: Replay) -> list[tuple[Path, int | None]]:
    return [(path, iteration) for path in args.runs for iteration in (args.checkpoint or (None,))]
