"""The ranges of configuration values that types cannot express, as data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from deir.config import Config, flatten, to_dict
from deir.errors import invalid


class Range(NamedTuple):
    expected: str
    holds: Callable[[Any], bool]
    fields: tuple[str, ...]


RANGES = (
    Range(
        "a number above 0",
        lambda value: value > 0,
        (
            "steps",
            "env.n_envs",
            "ppo.rollout_steps",
            "ppo.epochs",
            "ppo.learning_rate",
            "ppo.adam_eps",
            "ppo.max_grad_norm",
            "reward.epochs",
            "reward.deir.queue_size",
            "reward.deir.eps",
            "reward.ngu.neighbours",
            "reward.ngu.eps",
            "reward.ngu.pseudo_count",
            "reward.ngu.max_similarity",
            "network.features",
            "network.hidden",
            "network.mlp",
            "checkpoint.every",
            "checkpoint.keep",
        ),
    ),
    Range("a whole number above 0", lambda value: value >= 1, ("env.max_steps", "threads")),
    Range(
        "a whole number of at least 2 (batch normalisation needs two samples)",
        lambda value: value >= 2,
        ("ppo.minibatch_size", "reward.minibatch_size"),
    ),
    Range(
        "a whole number of at least 2",
        lambda value: value >= 2,
        ("reward.deir.features", "reward.deir.mlp", "reward.rnd.mlp"),
    ),
    Range(
        "a number from 0 to 1",
        lambda value: 0 <= value <= 1,
        (
            "ppo.gamma",
            "ppo.gae_lambda",
            "ppo.advantage_momentum",
            "ppo.adam_beta1",
            "ppo.adam_beta2",
            "reward.momentum",
            "reward.rnd.error_momentum",
            "reward.ngu.distance_momentum",
            "reward.icm.forward_weight",
        ),
    ),
    Range(
        "0 or more",
        lambda value: value >= 0,
        (
            "seed",
            "env.noise",
            "env.num_levels",
            "env.start_level",
            "reward.ngu.cluster_distance",
            "reward.noveld.alpha",
        ),
    ),
    Range("a number of at least 1", lambda value: value >= 1, ("reward.rnd.max_factor",)),
    Range(
        "an odd number of at least 3, such as 3, 5, 7 or 9",
        lambda value: value >= 3 and value % 2 == 1,
        ("env.view_size",),
    ),
)


def check(config: Config) -> None:
    """Refuses the first value out of its range; what is not given has none."""
    values = flatten(to_dict(config))
    for bounds in RANGES:
        for field in bounds.fields:
            if values[field] is not None and not bounds.holds(values[field]):
                raise invalid(field, values[field], bounds.expected)


def check_device(name: str) -> None:
    try:
        torch.empty(0, device=torch.device(name))
    except (RuntimeError, AssertionError):
        raise invalid("device", name, "a device PyTorch can use here, such as cpu") from None
