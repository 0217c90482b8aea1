"""Agents that explore: DEIR and its baselines on a recurrent PPO."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deir.api import Agent, load, train
    from deir.envs import make_envs

__all__ = ["Agent", "load", "make_envs", "train"]
_HOMES = {"Agent": "deir.api", "load": "deir.api", "train": "deir.api", "make_envs": "deir.envs"}


def __getattr__(name: str) -> Any:
    """Imported when asked for, so that light parts of the package need not wait for PyTorch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'deir' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
