"""Labelled trajectories of one agent: a stream to train on, and one of other episodes to validate on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from deir.agent import load
from deir.algorithm.metrics import EpisodeStatistics, Timer
from deir.algorithm.policy import Policy
from deir.algorithm.reward_model import RewardModel
from deir.algorithm.rollout import Position, collect
from deir.algorithm.types import Rollout
from deir.config import Config
from deir.envs import make_envs
from deir.envs.base import VectorEnvs
from deir.experiments.paper.state_labels import LabelledEnvs, as_envs, labelled
from deir.runs.run import target_reached
from deir.runs.training import make_trainer
from deir.seeding import derive, torch_generator


class Labelled(NamedTuple):
    rollout: Rollout
    labels: Tensor  # [T, N, 5]


class Sample(NamedTuple):
    """What one iteration of the agent gives."""

    frames: int
    return_mean: float | None
    training: Labelled
    validation: Labelled
    spaces: tuple[Any, Any]  # of observations and of actions


class Player:
    """A policy in environments of its own, from rollout to rollout."""

    def __init__(self, config: Config, purpose: str) -> None:
        self.config = config
        self.seed = derive(config.seed, "probe", purpose) % 2**31
        envs = make_envs(config.env, self.seed)
        self.envs = labelled(envs, config.env.id)
        observations = self.envs.reset()
        self.spaces = envs.observation_space, envs.action_space
        self.generator = torch_generator(config.seed, "probe", purpose, "actions")
        hidden = torch.zeros(config.env.n_envs, config.network.hidden, device=config.device)
        self.position = Position(observations, np.ones(config.env.n_envs, np.bool_), hidden)
        self.episodes = EpisodeStatistics(config.env.n_envs)

    def play(self, policy: Policy) -> Labelled:
        steps = self.config.ppo.rollout_steps
        position = replace(self.position, known=None)  # the policy may have changed
        rollout, _, self.position, played = collect(
            as_envs(self.envs), policy, position, steps, self.generator, False, Timer()
        )
        self.episodes.update(played.rewards, played.terminated | played.truncated, played.valid)
        return Labelled(rollout, torch.from_numpy(self.envs.take()))

    def close(self) -> None:
        self.envs.close()


def while_training(config: Config) -> Iterator[Sample]:
    """The rollouts an agent learns from, until its frames are spent or its return reaches the target."""
    heard: list[Rollout] = []
    recorded: list[LabelledEnvs] = []

    def listen(rollout: Rollout, stage: RewardModel) -> None:
        heard.append(rollout)

    def record(envs: VectorEnvs) -> VectorEnvs:
        recorded.append(labelled(envs, config.env.id))
        return as_envs(recorded[0])

    trainer = make_trainer(config, hooks=[listen], wrap=record)
    try:
        validation = Player(config, "validation")
        try:
            while not trainer.finished:
                unseen = validation.play(trainer.policy)  # by the same policy as the rollout it is compared with
                figures = trainer.iterate()
                training = Labelled(heard.pop(), torch.from_numpy(recorded[0].take()))
                yield Sample(trainer.frames, figures["return_mean"], training, unseen, validation.spaces)
                if target_reached(figures, config):
                    return
        finally:
            validation.close()
    finally:
        trainer.close()


def of_run(path: Path, config: Config, trust: bool) -> Iterator[Sample]:
    """Rollouts of a trained agent that learns no more, in its own task; `config` says how long, and the seed."""
    agent = load(path, trust)
    played = replace(agent.config, seed=config.seed, steps=config.steps)
    streams = [Player(played, purpose) for purpose in ("training", "validation")]
    frames = 0
    try:
        while frames < config.steps:
            training, unseen = (stream.play(agent.policy) for stream in streams)
            frames += int(training.rollout.valid.sum())
            yield Sample(frames, streams[0].episodes.summary()["return_mean"], training, unseen, streams[0].spaces)
    finally:
        for stream in streams:
            stream.close()


def samples(config: Config, run: Path | None, trust: bool = False) -> Iterator[Sample]:
    return while_training(config) if run is None else of_run(run, config, trust)
