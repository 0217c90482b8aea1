"""The registry of loggers: who is told each iteration's figures."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from deir.config import Config
from deir.errors import UserError, invalid, unknown
from deir.imports import import_named
from deir.runs.loggers.base import LogContext, Logger, Row

__all__ = ["LOGGERS", "LogContext", "Logger", "Loggers", "check_loggers"]


class LoggerEntry(NamedTuple):
    module: str  # imported when asked for; nothing for the run's own log
    cls: str
    package: str  # what it needs
    description: str


LOGGERS: dict[str, LoggerEntry] = {
    "csv": LoggerEntry("", "", "", "progress.csv, written in any case: resuming and reports read it"),
    "tensorboard": LoggerEntry(
        "deir.runs.loggers.tensorboard", "TensorBoard", "tensorboard", "event files in tensorboard/ of the run"
    ),
    "wandb": LoggerEntry(
        "deir.runs.loggers.wandb", "Wandb", "wandb", "Weights & Biases; WANDB_MODE=offline needs no account"
    ),
    "trackio": LoggerEntry("deir.runs.loggers.trackio", "Trackio", "trackio", "Trackio, a local dashboard"),
    "mlflow": LoggerEntry("deir.runs.loggers.mlflow", "Mlflow", "mlflow", "MLflow, at MLFLOW_TRACKING_URI"),
}
_OPTION = "loggers"


def named(text: str) -> list[str]:
    """The names of `csv,tensorboard`, each once."""
    return list(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))


def check_loggers(text: str) -> None:
    """Refuses names that do not exist, and packages that are not installed, before anything is created."""
    if not named(text):
        raise invalid(_OPTION, text, "names such as csv,tensorboard (`deir list loggers` shows what there is)")
    for name in named(text):
        logger_class(name)


def logger_class(name: str) -> type[Logger] | None:
    """The class behind a name of the registry or package.module:Class; None for the run's own log."""
    if ":" in name:
        module, _, cls = name.partition(":")
        return _class_in(import_named(_OPTION, name, "package.module:Class"), module, cls)
    if name not in LOGGERS:
        raise unknown(_OPTION, name, LOGGERS, also="package.module:Class of your own")
    entry = LOGGERS[name]
    if not entry.module:
        return None
    if find_spec(entry.package) is None:
        raise UserError(f"{_OPTION}: {name} needs a package that is not installed; type: pip install 'deir[{name}]'")
    return _class_in(import_module(entry.module), entry.module, entry.cls)


def _class_in(module: object, module_name: str, name: str) -> type[Logger]:
    cls = getattr(module, name, None)
    if not (isinstance(cls, type) and issubclass(cls, Logger)):
        found = [k for k, v in vars(module).items() if isinstance(v, type) and issubclass(v, Logger)]
        raise unknown(f"{_OPTION}: logger class in module {module_name!r}", name, found)
    return cls


class Loggers:
    """The loggers of one run, beside its progress.csv. One that fails does not stop the training."""

    def __init__(self, config: Config, directory: Path, resumed_at: int | None = None) -> None:
        self.active: dict[str, Logger] = {}
        context = LogContext(directory, config, resumed_at)
        for name in named(config.loggers):
            cls = logger_class(name)
            if cls is None:
                continue
            try:
                self.active[name] = cls(context)
            except Exception as error:
                self.close("failed")
                raise UserError(f"{_OPTION}: {name} cannot begin: {type(error).__name__}: {error}") from error

    def write(self, row: Row) -> None:
        for name, logger in list(self.active.items()):
            try:
                logger.write(row)
            except Exception as error:
                self._leave_out(name, error)

    def close(self, status: str) -> None:
        for name, logger in list(self.active.items()):
            try:
                logger.close(status)
            except Exception as error:
                self._leave_out(name, error)
        self.active.clear()

    def _leave_out(self, name: str, error: Exception) -> None:
        self.active.pop(name, None)
        told = f"{type(error).__name__}: {error}"
        print(f"warning: logger {name} failed ({told}); the run goes on without it", file=sys.stderr, flush=True)
