"""Trackio: a local database with a dashboard (`trackio show`). TRACKIO_DIR says where it lies."""

from __future__ import annotations

import os
import uuid

from deir.config import flatten, to_dict
from deir.runs.loggers.base import LogContext, Logger, Row, scalars


class Trackio(Logger):
    def __init__(self, context: LogContext) -> None:
        super().__init__(context)
        import trackio

        config = context.config
        self.run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", "deir"),
            name=f"{context.title} {context.kept('trackio', uuid.uuid4().hex[:8])}",  # a name is all it knows a run by
            group=f"{config.env.id} {config.method}",
            config=flatten(to_dict(config)),
            resume="allow",
            embed=False,
        )

    def write(self, row: Row) -> None:
        self.run.log(scalars(row), step=int(row["frames"]))

    def close(self, status: str) -> None:
        self.run.finish()
