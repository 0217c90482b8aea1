"""The zoo: trained policies that come with the package, one safetensors file each (`deir evaluate zoo:DoorKey-8x8`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from deir.config import Config, merge, to_dict
from deir.errors import UserError, invalid, unknown
from deir.runs import checkpoint

PREFIX = "zoo:"
HOME = Path(__file__).parent.parent / "zoo"
EMPTY = "this copy of deir comes with no trained policies; `deir train` makes one, and its run directory serves instead"


class Specimen(NamedTuple):
    """A policy, what it was trained on, and how well it does."""

    config: Config
    policy: dict[str, Tensor]
    frames: int  # it was trained for
    command: str  # that trained it
    figures: dict[str, dict[str, float]]  # of `deir evaluate`: "sampled" and "greedy"


def is_name(path: str | Path) -> bool:
    return str(path).startswith(PREFIX)


def refuse(field: str, path: Path) -> None:
    """For what tells novelty, which needs the reward model of a run."""
    if is_name(path):
        expected = "a run directory: a policy of the zoo comes without the reward model, which says what is novel"
        raise invalid(field, str(path), f"{expected}; for a film type: deir evaluate {path} --video film.mp4")


def names(home: Path = HOME) -> list[str]:
    return sorted(path.stem for path in home.glob(f"*{checkpoint.SUFFIX}"))


def read(name: str, home: Path = HOME) -> Specimen:
    """`name`: with or without zoo: before it."""
    name = name.removeprefix(PREFIX)
    known = names(home)
    if not known:
        raise UserError(f"zoo: got {name!r}, but {EMPTY}")
    if name not in known:
        raise unknown("zoo", name, known)
    try:
        state = checkpoint.load(_path(name, home))
    except checkpoint.DamagedCheckpoint as error:
        raise UserError(f"zoo: {error}; install deir again") from None
    config = merge(Config(), state["config"])
    return Specimen(config, state["policy"], state["frames"], state["command"], state["figures"])


def write(name: str, specimen: Specimen, home: Path = HOME) -> Path:
    state: dict[str, Any] = {**specimen._asdict(), "config": to_dict(specimen.config)}
    path = _path(name, home)
    checkpoint.save(state, path)
    return path


def _path(name: str, home: Path) -> Path:
    return home / f"{name}{checkpoint.SUFFIX}"
