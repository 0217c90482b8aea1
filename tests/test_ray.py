"""The same sweeps on a real Ray: runs side by side, a killed process survived, an interrupt that leaves checkpoints."""

import os
import signal
from pathlib import Path

import pytest
import ray

from deir.experiments.sweep.engines import RAY_SETTINGS, RayEngine
from deir.experiments.sweep.jobs import Job
from deir.experiments.sweep.scheduler import Board, Run, run_all
from test_sweep import endless, has_checkpoint, held, iterations, status, sweep, writer_of, written


@pytest.fixture(scope="module")
def cluster():
    os.environ.update(RAY_SETTINGS)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
    yield
    ray.shutdown()


def ray_worker_of(process: int) -> int:
    """The process of Ray above a run's."""
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])


class Disturber(Board):
    """Kills the Ray process of the first run once both run, and interrupts once the second attempt is under way."""

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs = jobs
        self.told: list[str] = []
        self.orphan: int | None = None

    def tell(self, run: Run, event: str) -> None:
        self.told.append(event)

    def show(self, runs) -> None:
        first, second = self.jobs
        if self.orphan is None and all(writer_of(j.out) and has_checkpoint(j.out) for j in self.jobs):
            self.orphan = writer_of(first.out)
            os.kill(ray_worker_of(self.orphan), signal.SIGKILL)
        elif self.orphan and writer_of(first.out) not in (None, self.orphan) and held(second.out):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("cluster")
def test_two_runs_at_once_a_killed_worker_of_ray_and_an_interrupt(tmp_path):
    """The killed one's run stops by itself with a checkpoint, and another task goes on with it."""
    jobs = [Job(endless(every=2), tmp_path / name) for name in ("a", "b")]
    board = Disturber(jobs)
    runs = run_all(jobs, RayEngine(None, None, None), 1, board)
    assert board.told == ["started", "started", "ended with code 1, tried again", "started"]
    assert [run.status for run in runs] == ["stopped", "stopped"]
    for job in jobs:
        assert status(job.out) == "interrupted"
        assert iterations(job.out) == list(range(1, len(iterations(job.out)) + 1))
        assert not held(job.out)
        assert job.log.read_text().count(" 256 / ") == 1
    assert "the parent process is gone" in jobs[0].log.read_text()


@pytest.mark.usefixtures("cluster")
def test_the_same_file_as_without_ray(tmp_path, capsys, monkeypatch):
    (tmp_path / "broken.py").write_text("def make(**_):\n    raise RuntimeError('out of order')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(RayEngine, "close", lambda self: None)  # the fixture's Ray serves the other tests too
    file = written(tmp_path / "file.yaml", envs=["Empty-5x5", {"broken": {"id": "broken:make"}}], seeds=[0])
    assert sweep(str(file), "--engine", "ray", "--out", str(tmp_path / "out"), "--retries", "0", "--trust") == 1
    told = capsys.readouterr().out
    assert "finished  Empty-5x5/none/seed0  512 / 512 frames" in told
    assert "FAILED    broken/none/seed0" in told
    assert status(tmp_path / "out" / "Empty-5x5" / "none" / "seed0") == "finished"


def test_no_cluster_at_the_address_is_told(tmp_path, capsys):
    ray.shutdown()
    file = written(tmp_path / "file.yaml")
    assert sweep(str(file), "--engine", "ray", "--address", "127.0.0.1:1", "--out", str(tmp_path / "out")) == 2
    assert "address" in capsys.readouterr().err
