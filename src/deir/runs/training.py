"""A trainer and its parts, made of a configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from gymnasium import Space
from torch import nn

from deir.algorithm.actions import actions_of
from deir.algorithm.networks import (
    ConvEncoder,
    Encoder,
    FlatEncoder,
    GridEncoder,
    ImpalaEncoder,
    PartsEncoder,
    VectorEncoder,
    encoder_kind,
)
from deir.algorithm.ops import Ops, PlainOps
from deir.algorithm.overlap import InTurn
from deir.algorithm.policy import Policy
from deir.algorithm.reward_model import RewardModel
from deir.algorithm.trainer import Hook, Trainer
from deir.config import Config
from deir.envs import make_envs
from deir.envs.base import VectorEnvs
from deir.envs.spaces import PackedBox
from deir.errors import invalid
from deir.fast.allocator import keep_freed_memory
from deir.fast.bf16 import HAS_BF16
from deir.fast.grid_encoder import shares_patches
from deir.fast.ops import FastOps
from deir.fast.overlap import Beside
from deir.fast.threads import available_threads, use_threads
from deir.fast.whole_images import runs_on_images
from deir.seeding import derive

_LOGGER = logging.getLogger("deir")


def make_ops(config: Config) -> Ops:
    """How a run is computed: as --ops says, and without it the fast way on a CPU."""
    on_cpu = torch.device(config.device).type == "cpu"
    if config.ops == "fast" and not on_cpu:
        raise invalid("ops", config.ops, f"'plain' on {config.device}: the fast code is for a CPU")
    fast = (config.ops or ("fast" if on_cpu else "plain")) == "fast"
    if config.precision == "bf16" and not fast:
        raise invalid(
            "precision", "bf16", f"'fp32' with plain PyTorch on {config.device} (bf16 needs --ops fast on a CPU)"
        )
    return FastOps(config.precision) if fast else PlainOps()


def make_trainer(
    config: Config,
    generation: int = 0,
    hooks: Sequence[Hook] = (),
    wrap: Callable[[VectorEnvs], VectorEnvs] = lambda envs: envs,
) -> Trainer:
    """`generation`: how often environments that cannot be saved have begun anew; `wrap`: put around them."""
    keep_freed_memory()
    ops, threads = make_ops(config), available_threads(config.threads)
    envs = make_envs(config.env, config.seed, generation)
    spaces = envs.observation_space, envs.action_space
    model = RewardModel(config, *spaces, ops)
    overlaps = threads > 1 and isinstance(ops, FastOps) and model.reward.learns and works_beside(config, spaces[0])
    torch.manual_seed(derive(config.seed, "init", "policy"))
    policy = Policy(*spaces, config.network, ops).to(config.device)
    use_threads(threads, has_large_operations(ops, policy, model.reward))
    _LOGGER.info(networks_of(config, *spaces))
    if config.precision == "bf16" and not HAS_BF16:
        _LOGGER.warning(
            "precision: this CPU has no products of bf16 numbers (avx512_bf16): they are made in fp32 from rounded "
            "factors, which is no faster than --precision fp32"
        )
    if config.precision == "bf16" and not rounds_products(envs.repeats, policy, model.reward):
        _LOGGER.warning(
            "precision: bf16 changes nothing here: it is for what does not repeat (noise, layer "
            "normalisation on grids, images); these observations repeat or are vectors"
        )
    return Trainer(config, wrap(envs), policy, model, Beside() if overlaps else InTurn(), hooks)


def has_large_operations(ops: Ops, *networks: nn.Module) -> bool:
    """Whether PyTorch computes their encoders in large operations, as it does convolutions and classes not ours.

    The fast encoders of grids and of images are compiled code in jobs of their own.
    """
    small: set[type] = {VectorEncoder, FlatEncoder, PartsEncoder}
    small |= {GridEncoder} if isinstance(ops, FastOps) else set()
    encoders = [m for network in networks for m in network.modules() if isinstance(m, Encoder) and type(m) not in small]
    return not all(isinstance(ops, FastOps) and runs_on_images(encoder) for encoder in encoders)


def rounds_products(repeats: bool, *networks: nn.Module) -> bool:
    """Whether --precision makes a difference to any of their encoders. repeats: the observations do"""
    encoders = [m for network in networks for m in network.modules() if isinstance(m, Encoder)]
    whole = [m for m in encoders if type(m) is GridEncoder and not (repeats and shares_patches(m))]
    return bool(whole) or any(isinstance(m, (ConvEncoder, ImpalaEncoder)) for m in encoders)


def works_beside(config: Config, observations: Space[Any]) -> bool:
    """Whether the model is better off in a thread of its own: the grid encoder is compiled code, which needs Python's
    lock seldom and uses the threads that the other party leaves.

    PyTorch's convolutions keep every thread busy by themselves. On vectors operations are so small that two threads of
    Python would only take turns.
    """
    kinds = encoder_kind(config.network.encoder, observations, images="impala").split("+")
    return "grid" in kinds and config.reward.overlap


def networks_of(config: Config, observations: Space[Any], actions: Space[Any]) -> str:
    """What was chosen from the spaces, in words."""
    policy = encoder_kind(config.network.encoder, observations, images="impala")
    model = encoder_kind(config.reward.encoder, observations, images="dqn")
    parts = observations.parts.values() if isinstance(observations, PackedBox) else [observations]
    shapes = "+".join("x".join(map(str, part.shape or ())) for part in parts)
    kind = type(actions_of(actions)).__name__.removesuffix("Actions")
    return f"observations {shapes}: encoder {policy} of the policy, {model} of the reward model; {kind} actions"
