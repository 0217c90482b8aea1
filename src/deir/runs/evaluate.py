"""Episodes of a trained agent in fresh environments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from deir.algorithm.policy import Policy
from deir.config import Config
from deir.envs import make_envs
from deir.envs.base import VectorEnvs
from deir.errors import UserError, invalid
from deir.fast.threads import one_thread
from deir.files import check_file
from deir.runs.training import has_large_operations
from deir.seeding import derive, torch_generator

VIDEO_SUFFIXES = (".mp4", ".gif")
VIDEO_FPS = 8


class Agent(Protocol):
    """What is evaluated: `deir.Agent`, or anything that acts like it."""

    config: Config
    policy: Policy
    generator: torch.Generator

    def act(self, observations: NDArray[Any], state: Any = None, greedy: bool = False) -> tuple[NDArray[Any], Any]: ...

    def frozen(self) -> AbstractContextManager[None]: ...


@dataclass(frozen=True)
class Evaluation:
    returns: NDArray[np.float64]  # [episodes]
    lengths: NDArray[np.int64]  # [episodes]

    def figures(self) -> dict[str, float | int]:
        count = len(self.returns)
        return {
            "episodes": count,
            "return_mean": float(self.returns.mean()),
            "return_stderr": float(self.returns.std(ddof=1) / count**0.5) if count > 1 else 0.0,
            "success_rate": float((self.returns > 0).mean()),
            "episode_length_mean": float(self.lengths.mean()),
        }


def evaluate(agent: Agent, episodes: int = 100, greedy: bool = False, seed: int = 0) -> Evaluation:
    """Every environment plays the same number of episodes, so that short ones are not over-counted."""
    n_envs = min(episodes, agent.config.env.n_envs)
    quota = np.full(n_envs, episodes // n_envs) + (np.arange(n_envs) < episodes % n_envs)
    returns: list[float] = []
    lengths: list[int] = []
    played = np.zeros(n_envs, np.int64)
    with fresh_envs(agent, n_envs, seed) as envs:
        for total, length, done in play(agent, envs, greedy, seed):
            for n in np.flatnonzero(done & (played < quota)):
                returns.append(float(total[n]))
                lengths.append(int(length[n]))
                played[n] += 1
            if (played >= quota).all():
                break
    return Evaluation(np.array(returns), np.array(lengths))


class fresh_envs:
    """Environments of the run's task with seeds training has not used.

    Meanwhile PyTorch uses one thread, unless it computes large convolutions itself: a few views or vectors at a time
    are soon computed.
    """

    def __init__(self, agent: Agent, n_envs: int, seed: int) -> None:
        config = replace(agent.config.env, n_envs=n_envs)
        self.envs = make_envs(config, derive(agent.config.seed, "evaluate", seed) % 2**31)
        self.threads = one_thread(not has_large_operations(agent.policy.ops, agent.policy))

    def __enter__(self) -> VectorEnvs:
        self.threads.__enter__()
        return self.envs

    def __exit__(self, *_: object) -> None:
        self.threads.__exit__(None, None, None)
        self.envs.close()


def play(
    agent: Agent, envs: VectorEnvs, greedy: bool, seed: int
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.bool_]]]:
    """At the start and after each step: return and length of the episode so far, and which ended, [N] each."""
    agent.generator = torch_generator(agent.config.seed, "evaluate", seed)
    observations = envs.reset()
    state: Any = agent.policy.initial_hidden(envs.n_envs)
    total, length = np.zeros(envs.n_envs), np.zeros(envs.n_envs, np.int64)
    yield total, length, np.zeros(envs.n_envs, np.bool_)
    with agent.frozen():
        while True:
            actions, state = agent.act(observations, state, greedy)
            step = envs.step(actions)
            observations = step.observations
            state[step.starts] = 0
            total += step.rewards * step.valid
            length += step.valid
            done = (step.terminated | step.truncated) & step.valid
            yield total, length, done
            total[done], length[done] = 0.0, 0


def check_video_path(path: Path) -> None:
    if path.suffix not in VIDEO_SUFFIXES:
        raise invalid("video", str(path), f"a file name that ends in {' or '.join(VIDEO_SUFFIXES)}")
    if path.exists():
        raise UserError(f"video: {path} exists already and is not overwritten")
    check_file("video", path)


def record_video(agent: Agent, path: Path, episodes: int = 3, greedy: bool = False, seed: int = 0) -> int:
    """Films whole episodes; returns the number of frames."""
    frames: list[NDArray[np.uint8]] = []
    ended = 0
    with fresh_envs(agent, 1, seed) as envs:
        for _, _, done in play(agent, envs, greedy, seed):
            ended += int(done[0])
            if ended >= episodes:
                break
            frames.append(envs.render(0))
    write_film(path, frames)
    return len(frames)


def write_film(path: Path, frames: list[NDArray[np.uint8]]) -> None:
    import imageio.v3 as iio

    film = np.stack(frames)  # [T, height, width, 3]
    if path.suffix == ".mp4":  # whose sides must be even; a larger unit would have the pictures resized
        odd = [(0, side % 2) for side in film.shape[1:3]]
        iio.imwrite(path, np.pad(film, [(0, 0), *odd, (0, 0)], "edge"), fps=VIDEO_FPS, macro_block_size=2)
    else:
        iio.imwrite(path, film, duration=1000 / VIDEO_FPS, loop=0)
