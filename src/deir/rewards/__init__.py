"""The registry of reward methods."""

from __future__ import annotations

from typing import Any, NamedTuple

from gymnasium import spaces

from deir.config import Config
from deir.errors import unknown
from deir.networks import Encoder
from deir.rewards.base import IntrinsicReward


class Method(NamedTuple):
    module: str  # imported when asked for
    cls: str
    description: str


METHODS: dict[str, Method] = {
    "deir": Method("deir.rewards.deir", "Deir", "episodic reward from a discriminative model (this paper)"),
    "none": Method("deir.rewards.none", "NoReward", "PPO alone, without an intrinsic reward"),
}


def check_method(name: str) -> None:
    if name not in METHODS:
        raise unknown("method", name, METHODS)


def make_reward(
    config: Config,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    policy_encoder: Encoder | None = None,
) -> IntrinsicReward:
    """`policy_encoder` is for the methods that read the policy's embeddings; they never train it."""
    import importlib

    check_method(config.method)
    method = METHODS[config.method]
    reward = getattr(importlib.import_module(method.module), method.cls)
    return reward(observation_space, action_space, config, policy_encoder)  # type: ignore[no-any-return]
