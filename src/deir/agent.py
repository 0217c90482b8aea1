"""A trained agent, from a run directory: it acts, and has the reward model of its run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from torch import Tensor

from deir.algorithm.ops import Act
from deir.algorithm.policy import Policy
from deir.config import Config
from deir.envs import make_envs
from deir.envs.spaces import PackedBox, from_description
from deir.errors import UserError
from deir.plugin.reward import Embeddings, Reward
from deir.runs import checkpoint as checkpoints
from deir.runs import run, zoo
from deir.runs.directory import RunDirectory
from deir.runs.training import make_ops
from deir.seeding import torch_generator

Spaces = tuple[Space[Any], Space[Any]]


class Progress(NamedTuple):
    """How far an agent was trained."""

    iteration: int
    frames: int


class Agent:
    """A trained policy. It keeps nothing between calls: the caller holds its memory."""

    def __init__(
        self,
        policy: Policy,
        config: Config,
        reward: Callable[[], Reward] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """`reward` makes the reward model that was trained beside the policy, when it is asked for."""
        self.progress = progress
        self.policy = policy.eval()
        self.config = config
        self.generator = torch_generator(config.seed, "act")
        self._frozen: Act | None = None
        self._make_reward = reward

    @cached_property
    def reward(self) -> Reward:
        if self._make_reward is None:
            raise UserError("reward: this agent has none; deir.load gives one with the reward model of its run")
        return self._make_reward()

    @torch.no_grad()
    def act(
        self, observations: NDArray[Any] | Mapping[str, Any], state: Tensor | None = None, greedy: bool = False
    ) -> tuple[NDArray[Any], Tensor]:
        """Actions for one observation [*obs] or for several [N, *obs], and the memory to pass in next time.

        Observations are those of `make_envs`; of several parts, also a mapping with an array for each part.
        Begin an episode with `state=None`; of several environments, zero the rows of those that begin one.
        """
        seen = self._array(observations)
        single = seen.ndim == len(self.policy.observation_space.shape or ())
        batch = torch.as_tensor(seen[None] if single else seen)
        hidden = self.policy.initial_hidden(len(batch)) if state is None else state
        outputs, hidden = (self._frozen or self.policy.act)(batch, hidden)
        kind = self.policy.actions
        actions = kind.taken(kind.mode(outputs) if greedy else kind.sample(outputs, self.generator))
        return (actions[0] if single else actions).numpy(), hidden

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Nobody changes the policy meanwhile: what `act` makes of its parameters is made once, not at every step."""
        with torch.no_grad():
            self._frozen = self.policy.ops.frozen(self.policy)
        try:
            yield
        finally:
            self._frozen = None

    def embed(self, observations: Any, starts: Any = None) -> Embeddings:
        """Observation embeddings [T, N, F] and trajectory embeddings [T, N, H] of the reward model.

        observations: [T, N, *obs]; starts: [T, N] where episodes begin, if not only at the first step.
        """
        return self.reward.embed(observations, starts)

    def _array(self, observations: NDArray[Any] | Mapping[str, Any]) -> NDArray[Any]:
        space = self.policy.observation_space
        if isinstance(space, PackedBox) and isinstance(observations, Mapping):
            return space.pack_any(observations)
        return np.asarray(observations)


def load(path: str | Path, trust: bool = False, checkpoint: int | None = None) -> Agent:
    """The agent of a run directory, at its last whole checkpoint or at that of an iteration.

    Or one of the zoo, as zoo:DoorKey-8x8, which is its policy alone.
    `trust`: whether code that the run names, as module:factory or package.module:Class, may be imported.
    """
    if zoo.is_name(path):
        specimen = zoo.read(str(path))
        policy, _ = _untrained(specimen.config)
        policy.load_state_dict(specimen.policy)
        return Agent(policy, specimen.config)
    return _load(path, AutoresetMode.SAME_STEP, None, trust, checkpoint)


def _untrained(config: Config, described: dict[str, Any] | None = None) -> tuple[Policy, Spaces]:
    """The policy of a configuration before training, and its spaces: as a checkpoint has them, or where it is too old
    for that, those of the environments themselves."""
    if described and None not in described.values():
        observations, actions = (from_description(described[name]) for name in ("observation", "action"))
    else:
        envs = make_envs(config.env, config.seed)
        observations, actions = envs.observation_space, envs.action_space
        envs.close()
    ops = make_ops(replace(config, device="cpu", ops=None, precision="fp32"))
    return Policy(observations, actions, config.network, ops), (observations, actions)


def _load(
    path: str | Path, mode: AutoresetMode | str, n_envs: int | None, trust: bool, iteration: int | None = None
) -> Agent:
    directory = RunDirectory.existing(Path(path), "run")
    config = run.load_config(directory.path, trust=trust)
    run.validate(
        replace(config, device="cpu", precision="fp32", loggers="csv")
    )  # an agent acts here, and nobody listens
    accepted: list[tuple[Policy, Spaces]] = []

    def accept(found: checkpoints.Found) -> None:
        policy, spaces = _untrained(config, found.state.get("spaces"))
        try:
            policy.load_state_dict(found.state["policy"])
        except Exception as error:  # a state of another network can fail in any way
            raise checkpoints.UnfitCheckpoint(f"{found.path} does not fit the run's configuration: {error}") from None
        accepted.append((policy, spaces))

    if iteration is None:
        state, source, complaints = checkpoints.load_latest(directory.checkpoints, accept)
        checkpoints.tell(complaints, source)
    else:
        state, source = checkpoints.load_iteration(directory.checkpoints, iteration, accept)
    policy, spaces = accepted[0]

    def reward() -> Reward:
        env = replace(config.env, n_envs=n_envs or config.env.n_envs)
        made = Reward(
            replace(config, device="cpu", precision="fp32", env=env),
            *spaces,
            mode,
            channels_first=False,
            encoder=policy.encoder,
        )
        made.load_learned(state["stage"], state["reward_moments"])
        return made

    return Agent(policy, config, reward, Progress(int(state["iteration"]), int(state["frames"])))


def load_reward(
    path: str | Path,
    n_envs: int | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
    trust: bool = False,
) -> Reward:
    """The reward of a run directory, trained as far as its last whole checkpoint, to go on with in another loop.

    `n_envs`: of that loop; as many as the run had when not given. `trust`: as of `load`.
    """
    return _load(path, autoreset_mode, n_envs, trust).reward
