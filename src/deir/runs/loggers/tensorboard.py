"""TensorBoard event files, in `tensorboard/` of the run's directory."""

from __future__ import annotations

from deir.runs.loggers.base import LogContext, Logger, Row, scalars


class TensorBoard(Logger):
    def __init__(self, context: LogContext) -> None:
        super().__init__(context)
        from torch.utils.tensorboard import SummaryWriter

        purge = None if context.resumed_at is None else context.resumed_at + 1  # rows after it come again
        place = str(context.directory / "tensorboard")
        self.writer = SummaryWriter(place, purge_step=purge)  # type: ignore[no-untyped-call]

    def write(self, row: Row) -> None:
        for name, value in scalars(row).items():
            self.writer.add_scalar(name, value, row["frames"])  # type: ignore[no-untyped-call]

    def close(self, status: str) -> None:
        self.writer.close()  # type: ignore[no-untyped-call]
