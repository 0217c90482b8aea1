"""Agents that explore: DEIR and its baselines on a recurrent PPO."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deir.algorithm.networks import register_encoder
    from deir.algorithm.rewards import register_reward
    from deir.api import Agent, load, load_reward, train
    from deir.envs import make_envs, register_backend
    from deir.plugin.reward import Reward, make_reward

    __version__: str

# PyTorch's threads would spin while they wait for each other: beside other work that takes many times as long as the
# work itself. This is read once, when PyTorch is loaded; a user's own choice stands.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__all__ = [
    "Agent", "Reward", "__version__", "load", "load_reward", "make_envs", "make_reward", "register_backend",
    "register_encoder", "register_reward", "train",
]  # fmt: skip
_HOMES = {
    **dict.fromkeys(("Agent", "load", "load_reward", "train"), "deir.api"),
    **dict.fromkeys(("Reward", "make_reward"), "deir.plugin.reward"),
    **dict.fromkeys(("make_envs", "register_backend"), "deir.envs"),
    "register_encoder": "deir.algorithm.networks",
    "register_reward": "deir.algorithm.rewards",
}


def __getattr__(name: str) -> Any:
    """Imported when asked for, so that light parts of the package need not wait for PyTorch."""
    if name == "__version__":
        from importlib.metadata import version

        return version("deir")
    if name not in _HOMES:
        raise AttributeError(f"module 'deir' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
