"""The ranges of configuration values that types cannot express, as data."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

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
            "reward.re3.neighbours",
            "reward.e3b.ridge",
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
        ("reward.deir.features", "reward.deir.mlp", "reward.rnd.mlp", "reward.disagreement.models"),
    ),
    Range(
        "a number from 0 to 1",
        lambda value: 0 <= value <= 1,
        (
            "ppo.gamma",
            "ppo.gae_lambda",
            "ppo.advantage_momentum",
            "reward.momentum",
            "reward.rnd.error_momentum",
            "reward.ngu.distance_momentum",
            "reward.icm.forward_weight",
            "reward.ride.forward_weight",
        ),
    ),
    Range("a number above 0 and below 1", lambda value: 0 < value < 1, ("reward.etd.gamma",)),
    Range("0 or more and below 1", lambda value: 0 <= value < 1, ("ppo.adam_beta1", "ppo.adam_beta2")),
    Range(
        "0 or more",
        lambda value: value >= 0,
        (
            "seed",
            "checkpoint.max_queue_mb",
            "env.noise",
            "env.fixed_layout",
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


LARGEST_WHOLE = 2**63 - 1  # of every whole number: what files and generators of random numbers hold
LARGEST: dict[str, int] = {
    "steps": 10**13,
    "threads": 1_024,
    "env.n_envs": 65_536,
    "env.view_size": 99,
    "env.fixed_layout": 2**32 - 1,
    "env.max_steps": 10**9,
    "ppo.rollout_steps": 10**6,
    "ppo.epochs": 1_000,
    "ppo.minibatch_size": 2**26,
    "reward.epochs": 1_000,
    "reward.minibatch_size": 2**26,
    "reward.deir.queue_size": 10**8,
    "reward.ngu.neighbours": 10_000,
    "reward.re3.neighbours": 10_000,
    "reward.disagreement.models": 1_000,
    **dict.fromkeys(("network.features", "network.hidden", "network.mlp"), 8_192),
    **dict.fromkeys(("reward.deir.features", "reward.deir.mlp", "reward.rnd.mlp"), 8_192),
    "checkpoint.max_queue_mb": 2**31,
}
"""What is larger is a mistake of typing, and would take all memory before it is noticed."""
LARGEST_ROLLOUT = 2**26  # env.n_envs x ppo.rollout_steps
LARGEST_OF_COMMANDS: dict[str, int] = {
    "seeds": 10_000,
    "episodes": 10**6,
    "video_episodes": 1_000,
    "resamples": 10**6,
    "iterations": 10**6,
    "warm_up": 10**6,
    "snapshots": 10_000,
    "pairs": 10**8,
    "bins": 100_000,
    "hidden": 8_192,
    "probe_epochs": 1_000,
    "n_trials": 10**6,
    "jobs": 1_024,
    "retries": 10**6,
    "max_steps": 5_000,
    "map_episodes": 1_024,
    "port": 65_535,
    "seed": LARGEST_WHOLE,
}
"""The same for options of commands that are no part of a configuration."""
DEVICES = ("cpu", "cuda", "mps", "xpu")


def check(config: Config) -> None:
    """Refuses the first value out of its range; what is not given has none."""
    values = flatten(to_dict(config))
    for field, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise invalid(field, value, "a finite number")
        most = LARGEST.get(field, LARGEST_WHOLE)
        if isinstance(value, int) and value > most:
            raise invalid(field, value, f"at most {most:,}")
    if config.env.n_envs * config.ppo.rollout_steps > LARGEST_ROLLOUT:
        steps = f"at most {LARGEST_ROLLOUT:,} steps of all {config.env.n_envs:,} environments together"
        raise invalid("ppo.rollout_steps", config.ppo.rollout_steps, steps)
    for bounds in RANGES:
        for field in bounds.fields:
            if values[field] is not None and not bounds.holds(values[field]):
                raise invalid(field, values[field], bounds.expected)


def check_count(field: str, value: int, least: int = 1) -> None:
    """An option of a command that counts something."""
    most = LARGEST_OF_COMMANDS[field]
    if not least <= value <= most:
        raise invalid(field, value, f"a whole number from {least} to {most:,}")


def check_device(name: str) -> None:
    import torch  # here: commands that only check a count need not wait for it

    expected = f"a device PyTorch can use here, such as cpu ({', '.join(DEVICES)})"
    try:
        device = torch.device(name)
        if device.type not in DEVICES:
            raise invalid("device", name, expected)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, OverflowError):
        raise invalid("device", name, expected) from None
