"""Puts the policy of a run into the zoo: `python -m deir.experiments.zoo RUN --name NAME`.

It plays 1,000 episodes with sampled and 1,000 with greedy actions and stores their figures with the policy, the
configuration and the command that trained it.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import tyro

from deir.agent import load
from deir.config import Config, flatten, to_dict
from deir.errors import UserError
from deir.runs import zoo
from deir.runs.evaluate import evaluate
from deir.runs.options import read
from deir.runs.run import configure, frames_done

NOT_OF_THE_POLICY = ("threads", "ops", "precision", "device", "loggers", "checkpoint", "preset")


@dataclasses.dataclass(frozen=True)
class Add:
    """Put the policy of a run into the zoo."""

    run: tyro.conf.Positional[Path]
    """Run directory."""
    name: str
    """What it is called, as in zoo:NAME."""
    episodes: int = 1000
    """Episodes behind each figure."""
    seed: int = 1000
    """Seed of the environments they are played in."""
    home: Path = zoo.HOME
    """Directory of the zoo."""


def add(args: Add) -> Path:
    agent = load(args.run)
    played = {
        kind: evaluate(agent, args.episodes, greedy, args.seed).figures()
        for kind, greedy in (("sampled", False), ("greedy", True))
    }
    frames = frames_done(args.run)
    if frames is None:
        raise UserError(f"run: {args.run} has not written a row of progress yet")
    figures = {kind: {name: float(value) for name, value in row.items()} for kind, row in played.items()}
    policy = {name: value.clone() for name, value in agent.policy.state_dict().items()}
    specimen = zoo.Specimen(agent.config, policy, frames, command_of(agent.config), figures)
    return zoo.write(args.name, specimen, args.home)


def command_of(config: Config) -> str:
    """The shortest `deir train` that gives this configuration."""
    named = {"env": {"id": config.env.id}, "method": config.method, "preset": config.preset}
    default, own = flatten(to_dict(configure(named))), flatten(to_dict(config))
    words = ["deir train", f"--env {config.env.id}", f"--method {config.method}", f"--preset {config.preset}"]
    for name, value in own.items():
        if name.split(".")[0] not in NOT_OF_THE_POLICY and value != default[name]:
            words.append(_flag(name, value))
    return " ".join(words)


def _flag(name: str, value: Any) -> str:
    *sections, last = name.replace("_", "-").split(".")
    if isinstance(value, bool):
        return "--" + ".".join([*sections, last if value else f"no-{last}"])
    return f"--{'.'.join([*sections, last])} {value}"


if __name__ == "__main__":
    print(add(read(Add, sys.argv[1:], "python -m deir.experiments.zoo")))
