"""MLflow. MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say where; without them it is MLflow's own default."""

from __future__ import annotations

import os
import time

from deir.config import flatten, to_dict
from deir.runs.loggers.base import LogContext, Logger, Row, scalars
from deir.runs.summary import ENDED_WELL


class Mlflow(Logger):
    def __init__(self, context: LogContext) -> None:
        super().__init__(context)
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self.client, self.metric = MlflowClient(), Metric
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "deir")
        found = self.client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self.client.create_experiment(name)
        file = context.directory / "mlflow" / "id"
        if file.is_file():
            self.run = context.kept("mlflow", "")
            self.client.update_run(self.run, status="RUNNING")
            return
        made = self.client.create_run(experiment, run_name=context.title)
        self.run = context.kept("mlflow", made.info.run_id)
        options = flatten(to_dict(context.config))
        self.client.log_batch(self.run, params=[Param(key, str(value)) for key, value in options.items()])

    def write(self, row: Row) -> None:
        now, step = int(1000 * time.time()), int(row["frames"])
        metrics = [self.metric(name, float(value), now, step) for name, value in scalars(row).items()]
        self.client.log_batch(self.run, metrics=metrics)

    def close(self, status: str) -> None:
        self.client.set_tag(self.run, "status", status)
        self.client.set_terminated(self.run, "FINISHED" if status in ENDED_WELL else "FAILED")
