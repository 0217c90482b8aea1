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
    "noveld": Method(
        "deir.rewards.noveld", "Noveld", "NovelD: rise of RND's novelty, at the first visit in the episode"
    ),
    "ngu": Method("deir.rewards.ngu", "Ngu", "NGU: unlike the episode's memory, times RND's lifelong factor"),
    "rnd": Method("deir.rewards.rnd", "Rnd", "RND: error of predicting a fixed random network"),
    "icm": Method("deir.rewards.icm", "Icm", "ICM: error of a forward model on an inverse model's embeddings"),
    "none": Method("deir.rewards.none", "NoReward", "PPO alone, without an intrinsic reward"),
    "deir-no-mi": Method(
        "deir.rewards.ablations", "DeirNoMi", "Figure 6 (b): DEIR without the mutual information term"
    ),
    "deir-no-rnn-no-mi": Method(
        "deir.rewards.ablations", "DeirNoRnnNoMi", "Figure 6 (c): the discriminator only, without that term and the RNN"
    ),
    "deir-inverse": Method("deir.rewards.ablations", "DeirInverse", "Figure 6 (d): an inverse model's embeddings"),
    "deir-forward": Method("deir.rewards.ablations", "DeirForward", "Figure 6 (e): a forward model's embeddings"),
    "deir+rnd": Method("deir.rewards.deir_rnd", "DeirRnd", "beyond the paper: DEIR times RND's lifelong factor"),
    "count": Method("deir.rewards.count", "StateCount", "oracle: counts of the full states, where the task tells them"),
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
