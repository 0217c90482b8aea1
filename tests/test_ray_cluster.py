"""A sweep on a Ray of two nodes, one of which dies."""

import os
from dataclasses import replace

import pytest
import ray
from ray.cluster_utils import Cluster

from deir.experiments.sweep.engines import RAY_SETTINGS, RayEngine
from deir.experiments.sweep.jobs import Job
from deir.experiments.sweep.scheduler import Board, Run, run_all
from test_sweep import endless, has_checkpoint, iterations, status, writer_of

FRAMES = 3 * 256 * 24


@pytest.fixture
def two_nodes():
    ray.shutdown()
    os.environ.update(RAY_SETTINGS)
    small = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    try:
        other = cluster.add_node(**small)
        yield cluster, other
    finally:
        ray.shutdown()
        cluster.shutdown()


class Killer(Board):
    """Kills the second node once both nodes have a run with a checkpoint."""

    def __init__(self, cluster: Cluster, node: object, jobs: list[Job]) -> None:
        self.cluster, self.node, self.jobs = cluster, node, jobs
        self.told: list[str] = []

    def tell(self, run: Run, event: str) -> None:
        self.told.append(event)

    def show(self, runs) -> None:
        if self.node is not None and all(writer_of(job.out) and has_checkpoint(job.out) for job in self.jobs):
            self.cluster.remove_node(self.node, allow_graceful=False)
            self.node = None


def test_a_sweep_finishes_although_a_node_dies(two_nodes, tmp_path):
    cluster, other = two_nodes
    jobs = [Job(replace(endless(every=1), steps=FRAMES, seed=seed), tmp_path / f"seed{seed}") for seed in (0, 1)]
    engine = RayEngine(None, cluster.address, None)
    board = Killer(cluster, other, jobs)
    try:
        runs = run_all(jobs, engine, 2, board)
    finally:
        engine.close()
    assert board.node is None, "both runs ended before a node could be killed"
    assert [run.status for run in runs] == ["finished", "finished"], board.told
    assert "ended with code 1, tried again" in board.told
    for job in jobs:
        assert status(job.out) == "finished"
        assert iterations(job.out) == list(range(1, FRAMES // 256 + 1))  # nothing lost, nothing twice
