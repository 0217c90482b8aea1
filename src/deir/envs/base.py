"""The contract every environment backend keeps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from deir.config import EnvConfig
from deir.errors import UserError

GRID_OPTIONS = (
    "view_size", "full_view", "fixed_layout", "noise", "invisible_obstacles", "time_penalty", "direction", "mission"
)  # fmt: skip
PROCGEN_OPTIONS = ("distribution_mode", "num_levels", "start_level")


GRID_ACTIONS = ("turn left", "turn right", "forward", "pick up", "drop", "toggle", "done")


class EnvStep(NamedTuple):
    """One step of all N environments.

    `observations` is what the policy sees next. Where an episode has just ended and the backend resets within the
    step, that is the first observation of the new episode, and the true last one stands in `final_observations`.
    A backend that resets one step later (NEXT_STEP) gives the true last observation in `observations`, and marks the
    step that performs the reset, whose action is ignored, with `valid` = False.
    """

    observations: NDArray[Any]  # [N, *obs]
    rewards: NDArray[np.float64]  # [N]
    terminated: NDArray[np.bool_]  # [N]
    truncated: NDArray[np.bool_]  # [N]
    valid: NDArray[np.bool_]  # [N] False: a dummy transition, to be masked out everywhere
    starts: NDArray[np.bool_]  # [N] observations[n] is the first of an episode
    final_indices: NDArray[np.int64]  # [K] environments whose true last observation is not in `observations`
    final_observations: NDArray[Any]  # [K, *obs]


class VectorEnvs(Protocol):
    """N environments stepped together; observations are [N, *obs] arrays, images in height-width-channel order."""

    n_envs: int
    observation_space: Space[Any]  # of one environment
    action_space: Space[Any]  # of one environment
    repeats: bool  # observations are small integer codes that repeat (MiniGrid without noise)
    action_names: tuple[str, ...]  # of Discrete actions, for people; empty where they have none

    def reset(self) -> NDArray[Any]: ...

    def step(self, actions: NDArray[np.int64]) -> EnvStep: ...

    def state_hashes(self) -> NDArray[np.uint64] | None:
        """[N] one number for each full state, the same for equal states; None where the state cannot be read."""

    def positions(self) -> NDArray[np.int64] | None:
        """[N, 2] the agent's column and row on its grid; None where there is none."""

    def state_dict(self) -> dict[str, Any] | None:
        """Arrays and numbers from which `load_state_dict` goes on exactly; None where that cannot be had."""

    def load_state_dict(self, state: dict[str, Any]) -> NDArray[Any]:
        """Restores the state and returns the observations [N, *obs] the policy sees next."""

    def render(self, index: int) -> NDArray[np.uint8]:
        """An RGB picture [height, width, 3] of environment `index`."""

    def close(self) -> None: ...


class Backend(VectorEnvs):
    """Base of a backend, which is found by the prefix it is registered with or as package.module:Class.

    It sets `n_envs` and the two spaces, and defines `reset` and `step`; the rest is for backends that can do more.
    """

    options: tuple[str, ...] = ()  # of GRID_OPTIONS, PROCGEN_OPTIONS and max_steps, those it heeds
    repeats = False
    action_names: tuple[str, ...] = ()

    def __init__(self, config: EnvConfig, seed: int = 0, generation: int = 0) -> None:
        raise NotImplementedError

    @classmethod
    def check(cls, config: EnvConfig) -> None:
        """Refuses unknown names and options that would have no effect; makes nothing."""
        others = [name for name in (*GRID_OPTIONS, *PROCGEN_OPTIONS, "max_steps") if name not in cls.options]
        reject_options(config, others, f"{config.id} does not heed it")

    @classmethod
    def names(cls) -> list[str]:
        """Its tasks, without the prefix: a mistyped one is answered with the nearest."""
        return []

    def state_hashes(self) -> NDArray[np.uint64] | None:
        return None

    def positions(self) -> NDArray[np.int64] | None:
        return None

    def state_dict(self) -> dict[str, Any] | None:
        return None

    def load_state_dict(self, state: dict[str, Any]) -> NDArray[Any]:
        raise NotImplementedError("such environments cannot be restored; make them with another generation instead")

    def render(self, index: int) -> NDArray[np.uint8]:
        raise UserError(f"env: {type(self).__name__} cannot be drawn: it has no render method")

    def close(self) -> None:
        """Nothing to give back."""


def reject_options(config: EnvConfig, fields: Iterable[str], reason: str) -> None:
    """An option that would have no effect is a mistake, not something to pass over."""
    default = EnvConfig()
    for field in fields:
        if getattr(config, field) != getattr(default, field):
            raise UserError(f"env.{field}: got {getattr(config, field)!r}, but {reason}; leave it out")
