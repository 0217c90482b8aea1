"""Agents that explore: DEIR and its baselines on a recurrent PPO."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deir.algorithm.rewards import register_reward
    from deir.api import Agent, load, load_reward, train
    from deir.envs import make_envs
    from deir.plugin.reward import Reward, make_reward

__all__ = ["Agent", "Reward", "load", "load_reward", "make_envs", "make_reward", "register_reward", "train"]
_HOMES = {
    **dict.fromkeys(("Agent", "load", "load_reward", "train"), "deir.api"),
    **dict.fromkeys(("Reward", "make_reward"), "deir.plugin.reward"),
    "make_envs": "deir.envs",
    "register_reward": "deir.algorithm.rewards",
}


def __getattr__(name: str) -> Any:
    """Imported when asked for, so that light parts of the package need not wait for PyTorch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'deir' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
