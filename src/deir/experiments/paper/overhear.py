"""Listening to a training run without changing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deir.algorithm.networks import Encoder
from deir.algorithm.reward_model import LocalStage
from deir.algorithm.trainer import Trainer
from deir.algorithm.types import Rollout
from deir.config import Config


class Overheard:
    """A reward stage that tells a listener of each rollout before it computes its reward."""

    def __init__(self, stage: LocalStage, listener: Callable[[Rollout, LocalStage], None]) -> None:
        self.stage, self.listener = stage, listener

    def begin_compute(self, rollout: Rollout, average: float, encoder: Encoder) -> None:
        self.listener(rollout, self.stage)
        self.stage.begin_compute(rollout, average, encoder)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stage, name)


def overhear(config: Config, listener: Callable[[Rollout, LocalStage], None]) -> Trainer:
    """A trainer whose rollouts and reward model the listener sees."""
    trainer = Trainer(config)
    trainer.stage = Overheard(trainer.stage, listener)  # type: ignore[assignment]
    return trainer
