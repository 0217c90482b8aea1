"""Where runs are run: processes of this machine, or tasks of a Ray cluster. Both start the same worker."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
from contextlib import suppress
from typing import Any, Literal, Protocol

from deir.config import to_dict
from deir.errors import UserError, invalid
from deir.experiments.sweep.jobs import Job
from deir.experiments.sweep.launch import GRACE, Order, launch, run_task
from deir.runs.ranges import check_count

EngineName = Literal["local", "ray"]
INTERRUPTED = 130
RAY_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
"""Ray tells nobody of its use; and its processes, hence our runs, do not yield to every other process."""


def order_of(job: Job, grace: float = GRACE) -> Order:
    paths = {"out": str(job.out.resolve()), "log": str(job.log.resolve())}
    return {**paths, "config": to_dict(job.config), "grace": grace}


class Handle(Protocol):
    def poll(self) -> int | None:
        """The exit code, or None while the run goes on."""

    def stop(self) -> None:
        """Asks the run to write a checkpoint and end."""

    def kill(self) -> None: ...


class Engine(Protocol):
    grace: float  # seconds from `stop` to `kill`

    def start(self, job: Job) -> Handle: ...

    def has_room(self, running: int) -> bool: ...

    @property
    def capacity(self) -> int:
        """Runs that fit at the same time."""

    def close(self) -> None: ...


class LocalHandle:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def poll(self) -> int | None:
        code = self.process.poll()
        if code is not None and self.process.stdin:
            self.process.stdin.close()
        return code

    def stop(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        """With all that its environment has started: it leads a session of its own."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class LocalEngine:
    """Processes of this machine, `jobs` at a time."""

    def __init__(self, jobs: int | None = None, grace: float = GRACE) -> None:
        self.jobs, self.grace = jobs or cores(), grace

    def start(self, job: Job) -> Handle:
        return LocalHandle(launch(order_of(job, self.grace)))

    def has_room(self, running: int) -> bool:
        return running < self.jobs

    @property
    def capacity(self) -> int:
        return self.jobs

    def close(self) -> None:
        """Nothing to release."""


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_engine(
    name: EngineName, jobs: int | None, address: str | None, gpus: float | None, grace: float = GRACE
) -> None:
    """Refuses options that no engine can be made with, before anything is."""
    if jobs is not None:
        check_count("jobs", jobs)
    if not 0 <= grace < float("inf"):
        raise invalid("grace", grace, "a number of seconds, 0 or more")
    if gpus is not None and not 0 <= gpus < 1000:
        raise invalid("gpus", gpus, "a number of GPUs, 0 or more")
    if name == "local" and (address is not None or gpus is not None):
        option = "address" if address is not None else "gpus"
        raise invalid(option, address if address is not None else gpus, "--engine ray with it")


def make_engine(
    name: EngineName, jobs: int | None, address: str | None, gpus: float | None, grace: float = GRACE
) -> Engine:
    check_engine(name, jobs, address, gpus, grace)
    return RayEngine(jobs, address, gpus, grace) if name == "ray" else LocalEngine(jobs, grace)


class RayHandle:
    def __init__(self, ray: Any, reference: Any) -> None:
        self.ray = ray
        self.reference = reference
        self.stopping = False

    def poll(self) -> int | None:
        ready, _ = self.ray.wait([self.reference], timeout=0)
        if not ready:
            return None
        try:
            return int(self.ray.get(self.reference))
        except (self.ray.exceptions.RayError, KeyboardInterrupt):
            return INTERRUPTED if self.stopping else 1

    def stop(self) -> None:
        """Ray interrupts the task, and the task asks its process to stop."""
        self.stopping = True
        self.ray.cancel(self.reference)

    def kill(self) -> None:
        self.stopping = True
        self.ray.cancel(self.reference, force=True)


class RayEngine:
    """Tasks of Ray, which decides when and where they run. Paths must be the same on all machines."""

    def __init__(self, jobs: int | None, address: str | None, gpus: float | None, grace: float = GRACE) -> None:
        self.jobs, self.gpus, self.grace = jobs, gpus, grace
        self.ray = _connected(address)
        # the pool counts attempts; Ray would start a crashed task again without telling
        self.task = self.ray.remote(max_retries=0)(run_task)

    def start(self, job: Job) -> Handle:
        gpus = self.gpus if self.gpus is not None else float(job.config.device.startswith("cuda"))
        task = self.task.options(num_cpus=job.config.threads or 1, num_gpus=gpus, name=str(job.out))
        return RayHandle(self.ray, task.remote(order_of(job, self.grace)))

    def has_room(self, running: int) -> bool:
        """Without a limit Ray gets them all, and starts them as its machines have room."""
        return self.jobs is None or running < self.jobs

    @property
    def capacity(self) -> int:
        return self.jobs or int(self.ray.cluster_resources().get("CPU", 1))

    def close(self) -> None:
        self.ray.shutdown()


def _connected(address: str | None) -> Any:
    os.environ.update(RAY_SETTINGS)
    try:
        import ray
    except ImportError:
        raise UserError("engine: ray is not installed; type: pip install 'deir[ray]'") from None
    if ray.is_initialized():
        return ray
    _check_reachable(address)
    try:
        if address is None:
            ray.init(
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
                object_store_memory=100 * 2**20,
            )
        else:
            ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise invalid("address", address, f"a running Ray cluster ({error})") from None
    return ray


def _check_reachable(address: str | None) -> None:
    """Ray itself would try for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise invalid("address", address, f"auto, or host:port of a running Ray cluster ({error})") from None
