"""Weights & Biases. Its own environment variables say where: WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY."""

from __future__ import annotations

import os
import uuid

from deir.config import to_dict
from deir.runs.loggers.base import LogContext, Logger, Row, scalars
from deir.runs.summary import ENDED_WELL


class Wandb(Logger):
    def __init__(self, context: LogContext) -> None:
        super().__init__(context)
        import wandb

        config = context.config
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "deir"),
            group=f"{config.env.id} {config.method}",
            name=context.title,
            id=context.kept("wandb", uuid.uuid4().hex[:8]),
            resume="allow",
            dir=str(context.directory),
            config=to_dict(config),
        )
        # a resumed run tells some rows again: against frames they lie on each other
        self.run.define_metric("frames", hidden=True)
        self.run.define_metric("*", step_metric="frames")

    def write(self, row: Row) -> None:
        self.run.log({**scalars(row), "frames": row["frames"]})

    def close(self, status: str) -> None:
        self.run.summary["status"] = status
        self.run.finish(exit_code=0 if status in ENDED_WELL else 1)
