"""The reward model with all that belongs to it, here or in a process of its own.

The policy's and the model's updates do not depend on each other, and Python threads cannot run them side by side: each
is thousands of small operations. So on a machine with two cores or more the model lives in a second process. The
trainer hands it a rollout, waits for the rewards, and goes on while the model learns from the same rollout.
"""

from __future__ import annotations

import copy
import io
import os
import pickle
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, Protocol

import torch
from gymnasium import spaces
from torch import Tensor

from deir.allocator import keep_freed_memory
from deir.config import Config, RewardConfig
from deir.errors import TrainingDiverged, UserError
from deir.functional import moments
from deir.networks import Encoder, encoder_kind, make_encoder
from deir.optim import FlatAdam
from deir.ppo import MeanMetrics
from deir.rewards import find_method, make_reward
from deir.rewards.base import between_rollouts
from deir.seeding import derive, torch_generator
from deir.threads import borrow_threads, share_threads
from deir.types import Metrics, Rollout

State = dict[str, Any]


class RewardScale:
    """What the policy is paid for raw rewards: β (r - μ)/(σ + 1e-5), by the moving moments over rollouts."""

    def __init__(self, config: RewardConfig) -> None:
        self.beta, self.normalize = config.beta, config.normalize
        self.moments = moments(config.momentum)

    @property
    def average(self) -> float:
        """The running mean of raw rewards so far."""
        return self.moments.mean

    def __call__(self, raw: Tensor, valid: Tensor) -> Tensor:
        """raw, valid: [T, N] -> [T, N], zero on dummy steps"""
        self.moments.update(raw[valid])
        return self.beta * (self.moments.normalize(raw) if self.normalize else raw) * valid


class Stage(Protocol):
    def begin_compute(self, rollout: Rollout, average: float, encoder: Encoder) -> None:
        """Asks for rewards; `average` is the running mean of earlier ones, `encoder` the policy's."""

    def finish_compute(self) -> Tensor:
        """Raw rewards [T, N] of the rollout asked for."""

    def begin_update(self) -> None:
        """Lets the model learn from the rollout just computed."""

    def finish_update(self) -> Metrics: ...

    def keep(self) -> None:
        """Remembers the present state as the last good one."""

    def kept(self) -> State: ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...

    def check(self, states_known: bool) -> None: ...

    def close(self) -> None: ...


class LocalStage:
    """The reward model in this process."""

    def __init__(
        self,
        config: Config,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        encoder: Encoder | None = None,
    ) -> None:
        """`encoder`: for the methods that read a policy's embeddings; without it a copy that `compute` refreshes."""
        self.config = config
        self.device = torch.device(config.device)
        torch.manual_seed(derive(config.seed, "init", "reward"))
        kind = encoder_kind(config.network.encoder, observation_space, images="impala")
        own = make_encoder(kind, observation_space, config.network.features, config.network.norm)
        self.encoder = (encoder or own).to(self.device)
        self.reward = make_reward(config, observation_space, action_space, self.encoder).to(self.device)
        self.optimizer = FlatAdam(self.reward, config.ppo, "reward model") if self.reward.learns else None
        self.generator = torch_generator(config.seed, "model")
        self.carry = self.reward.initial_carry(config.env.n_envs)
        self.rollout: Rollout | None = None
        self.good: State = {}

    @property
    def reads_policy(self) -> bool:
        return any(getattr(module, "policy_encoder", ()) for module in self.reward.modules())

    def check(self, states_known: bool) -> None:
        self.reward.check(states_known)

    def begin_compute(self, rollout: Rollout, average: float, encoder: Encoder) -> None:
        self.raw = self.compute(rollout, average, encoder)

    def finish_compute(self) -> Tensor:
        return self.raw

    def compute(self, rollout: Rollout, average: float, encoder: Encoder | None = None) -> Tensor:
        if self.reads_policy and encoder is not None:
            self.encoder.load_state_dict(encoder.state_dict())
        raw, self.carry = self.reward.compute(rollout, self.carry)
        self.reward.remember(rollout, raw, average)
        self.rollout = rollout
        return raw

    def begin_update(self) -> None:
        """Nothing to do ahead: `finish_update` does the work."""

    def finish_update(self) -> Metrics:
        config, collected, rollout = self.config.reward, MeanMetrics(), self.rollout
        enough = rollout is not None and len(rollout.valid_indices()) > 1  # batch normalisation needs two
        if self.optimizer is not None and rollout is not None and enough:
            self.reward.train()
            for batch in self.reward.batches(rollout, self.carry, config.epochs, config.minibatch_size, self.generator):
                loss, metrics = self.reward.loss(batch)
                self.optimizer.step(loss)
                collected.add({"model_loss": loss, **metrics})
            check_finite(self.reward, "reward model")
        self.carry, self.rollout = between_rollouts(self.carry), None
        return collected.mean()

    def keep(self) -> None:
        self.good = copy.deepcopy(self.state_dict())

    def kept(self) -> State:
        return self.good

    def state_dict(self) -> State:
        return {
            "reward": self.reward.state_dict(),
            "extra": self.reward.extra_state(),
            "optimizer": self.optimizer.state_dict() if self.optimizer else None,
            "generator": self.generator.get_state(),
            "carry": dict(self.carry),
        }

    def load_state_dict(self, state: State) -> None:
        """A carry of None stands for fresh episodes."""
        self.reward.load_state_dict(state["reward"])
        self.reward.load_extra_state(state["extra"])
        if self.optimizer:
            self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        if state["carry"] is not None:
            self.carry = {name: tensor.to(self.device) for name, tensor in state["carry"].items()}

    def close(self) -> None:
        """Nothing to release."""


def check_finite(network: torch.nn.Module, owner: str) -> None:
    for name, parameter in network.named_parameters():
        if not parameter.isfinite().all():
            raise TrainingDiverged(f"the {owner}'s parameter {name} is not finite")


class _Pickler(pickle.Pickler):
    """Tensors travel as NumPy arrays: PyTorch's own ways are slower for many small ones."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, Tensor):
            return torch.from_numpy, (thing.detach().numpy(),)
        return NotImplemented


def send(connection: Connection, message: Any) -> None:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(message)
    connection.send_bytes(buffer.getbuffer())


class RemoteStage:
    """The same in a process of its own: calls go over a socket, one answer for each."""

    def __init__(
        self, config: Config, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], threads: int
    ) -> None:
        """`threads`: of the whole run, trainer and model together."""
        ours, theirs = socket.socketpair()
        command = f"from deir.stage import serve; serve({theirs.fileno()}, {threads})"
        path = os.pathsep.join(entry for entry in sys.path if entry)  # where a user's own method may live
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": path}
        self.process = subprocess.Popen(
            [sys.executable, "-c", command], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment
        )
        theirs.close()
        self.connection = Connection(ours.detach())
        self.updating = False
        method = find_method(config.method)
        if method.given is not None:  # that process has not registered it
            config = replace(config, method=f"{method.module}:{method.cls}")
        self._send("start", config, observation_space, action_space)
        self.reads_policy = bool(self._receive())
        borrow_threads(threads, self.idle)

    def _send(self, call: str, *arguments: Any) -> None:
        try:
            send(self.connection, (call, arguments))
        except (BrokenPipeError, ConnectionResetError):
            raise self._ended() from None

    def _receive(self) -> Any:
        try:
            answer = pickle.loads(self.connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            raise self._ended() from None
        if isinstance(answer, (TrainingDiverged, UserError)):
            raise answer
        return answer

    def _ended(self) -> UserError:
        return UserError(
            "the reward model's process has ended; go on with `deir train --resume`, "
            "with `--reward.no-process` to keep the model in the main process"
        )

    def _ask(self, call: str, *arguments: Any) -> Any:
        self._begin(call, *arguments)
        return self._receive()

    def _begin(self, call: str, *arguments: Any) -> None:
        if self.updating:  # its answer comes first; nobody wants it any more
            with suppress(TrainingDiverged):
                self.finish_update()
        self._send(call, *arguments)

    def check(self, states_known: bool) -> None:
        self._ask("check", states_known)

    def begin_compute(self, rollout: Rollout, average: float, encoder: Encoder) -> None:
        self._begin("compute", rollout, average, encoder.state_dict() if self.reads_policy else None)

    def finish_compute(self) -> Tensor:
        return self._receive()

    def begin_update(self) -> None:
        self._send("update")
        self.updating = True

    def finish_update(self) -> Metrics:
        self.updating = False
        self._send("waiting")  # our threads are free
        return self._receive()

    def idle(self) -> bool:
        """Whether the model's process has nothing to do, or has done it."""
        return not self.updating or self.connection.poll()

    def keep(self) -> None:
        self._ask("keep")

    def kept(self) -> State:
        return self._ask("kept")

    def state_dict(self) -> State:
        return self._ask("state_dict")

    def load_state_dict(self, state: State) -> None:
        self._ask("load_state_dict", state)

    def close(self) -> None:
        borrow_threads(0, bool)
        self.connection.close()  # the process ends when its end of the socket does
        self.process.wait()


def serve(descriptor: int, threads: int) -> None:
    """The model's process: answers until the trainer is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to handle
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    keep_freed_memory()
    torch.set_num_threads(share_threads(threads))
    connection, learning = Connection(descriptor), False
    borrow_threads(threads, lambda: not learning or connection.poll())  # while learning, a message says it waits
    stage: LocalStage | None = None
    while True:
        try:
            call, arguments = pickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            return
        if call == "waiting":
            continue
        learning = call == "update"
        try:
            if stage is None:
                stage = LocalStage(*arguments)
                answer: Any = stage.reads_policy
            else:
                answer = _answer(stage, call, arguments)
        except (TrainingDiverged, UserError) as problem:
            answer = problem
        try:
            send(connection, answer)
        except (BrokenPipeError, ConnectionResetError):
            return


def _answer(stage: LocalStage, call: str, arguments: tuple[Any, ...]) -> Any:
    if call == "compute":
        rollout, average, encoder_state = arguments
        if encoder_state is not None:
            stage.encoder.load_state_dict(encoder_state)
        return stage.compute(rollout, average)
    if call == "update":
        return stage.finish_update()
    return getattr(stage, call)(*arguments)


def make_stage(
    config: Config, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], threads: int
) -> Stage:
    """A process of its own where it pays: a method that learns, on the CPU, with a thread to spare."""
    apart = config.reward.process and config.method != "none" and config.device == "cpu" and threads > 1
    if not apart or os.name != "posix" or not find_method(config.method).importable:
        return LocalStage(config, observation_space, action_space)
    return RemoteStage(config, observation_space, action_space, threads)
