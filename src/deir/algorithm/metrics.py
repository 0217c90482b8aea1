"""Episode statistics, exploration efficiency and phase times."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deir.algorithm.memory import EpisodicHistory, LifelongCounts
from deir.algorithm.types import Rollout
from deir.algorithm.visits import first_times, no_visits

WINDOW = 100  # episodes a mean return is taken over


class Timer:
    """Seconds spent in each phase."""

    def __init__(self, seconds: dict[str, float] | None = None) -> None:
        self.seconds: dict[str, float] = dict(seconds or {})

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - begin


class EpisodeStatistics:
    """Returns, lengths and successes of the last episodes. An episode with a positive return is a success."""

    def __init__(self, n_envs: int) -> None:
        self.running_return: NDArray[np.float64] = np.zeros(n_envs)
        self.running_length: NDArray[np.int64] = np.zeros(n_envs, np.int64)
        self.returns: deque[float] = deque(maxlen=WINDOW)
        self.lengths: deque[int] = deque(maxlen=WINDOW)
        self.episodes = 0

    def update(
        self,
        rewards: NDArray[np.float64],  # [T, N]
        dones: NDArray[np.bool_],  # [T, N]
        valid: NDArray[np.bool_],  # [T, N]
    ) -> None:
        earned, ends = rewards * valid, dones & valid
        for t in range(len(rewards)):
            self.running_return += earned[t]
            self.running_length += valid[t]
            for n in np.flatnonzero(ends[t]):
                self.returns.append(float(self.running_return[n]))
                self.lengths.append(int(self.running_length[n]))
                self.episodes += 1
                self.running_return[n], self.running_length[n] = 0.0, 0

    def summary(self) -> dict[str, float | None]:
        """None before the first episode has ended."""
        if not self.returns:
            return {"return_mean": None, "success_rate": None, "episode_length_mean": None, "episodes": 0}
        return {
            "episodes": self.episodes,
            "return_mean": float(np.mean(self.returns)),
            "success_rate": float(np.mean([r > 0 for r in self.returns])),
            "episode_length_mean": float(np.mean(self.lengths)),
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "running_return": self.running_return.copy(),
            "running_length": self.running_length.copy(),
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "episodes": self.episodes,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.running_return = np.array(state["running_return"])
        self.running_length = np.array(state["running_length"])
        self.returns = deque(state["returns"], maxlen=WINDOW)
        self.lengths = deque(state["lengths"], maxlen=WINDOW)
        self.episodes = int(state["episodes"])

    def forget_running(self) -> None:
        """Episodes under way are lost when a run resumes in environments that cannot be saved."""
        self.running_return[:] = 0
        self.running_length[:] = 0


class ExplorationStatistics:
    """Exploration efficiency (Appendix A.7): new full states a step, within the episode and over all of training.

    The states are those the agent acts in: the first one of an episode counts, what follows its last action does not.
    Memory: 12 bytes for each state ever seen (`LifelongCounts`), 8 for each step of the running episodes.
    """

    def __init__(self, n_envs: int) -> None:
        self.n_envs = n_envs
        self.history = no_visits(n_envs)
        self.lifelong = LifelongCounts()

    def update(self, rollout: Rollout) -> dict[str, float | None]:
        """The figures of one rollout; None where the environment does not tell its states."""
        if rollout.states is None:
            return {"episodic_efficiency": None, "lifelong_efficiency": None}
        states, starts, valid = rollout.states[:-1].cpu(), rollout.starts.cpu(), rollout.valid.cpu()
        new, self.history = first_times(self.history, states, starts)
        steps = max(1, int(valid.sum()))
        return {
            "episodic_efficiency": int((new & valid).sum()) / steps,
            "lifelong_efficiency": self.lifelong.add(states[valid].numpy()) / steps,
        }

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history.tensors(), "lifelong": self.lifelong.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history = EpisodicHistory.from_tensors(state["history"])
        self.lifelong.load_state_dict(state["lifelong"])

    def forget_running(self) -> None:
        self.history = no_visits(self.n_envs)
