"""The distinct-patch encoder against the plain one: forward and backward on real DEIR mini-batches, one thread.

python benchmarks/encoder.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from deir.algorithm.metrics import Timer
from deir.algorithm.types import concatenate
from deir.runs.run import configure
from deir.runs.training import make_trainer

TASKS = {
    "DoorKey-8x8": {},
    "DoorKey-8x8, 3x3 view": {"view_size": 3},
    "KeyCorridorS6R3": {"id": "KeyCorridorS6R3"},
    "ObstructedMaze-Full": {"id": "ObstructedMaze-Full"},
}


def milliseconds(job: Callable[[], torch.Tensor], repeats: int = 15) -> float:
    """Forward and backward, the best of several."""
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        job().sum().backward()
        best = min(best, time.perf_counter() - begin)
    return 1000 * best


def main() -> None:
    print(f"{'task':26s} {'rows':>6s} {'distinct':>9s} {'plain ms':>9s} {'fast ms':>8s} {'ratio':>6s}")
    for name, env in TASKS.items():
        trainer = make_trainer(configure({"env": env, "threads": 1, "preset": "minigrid"}))
        for _ in range(2):
            trainer.iterate()
        collected = trainer._collect(Timer())
        stage = trainer.model
        stage.compute(collected.rollout, 0.0, trainer.policy.encoder)  # fills the queue and the state
        stage.reward.train()
        batch = next(iter(stage.reward.batches(collected.rollout, stage.state, 1, 512, stage.generator)))
        rows = concatenate([batch.observations, batch.next_observations, batch.fakes])
        plain = milliseconds(lambda r=rows, e=stage.reward.encoder: e(r.gather()))
        fast = milliseconds(lambda r=rows, e=stage.reward.encoder, o=stage.ops: o.embed(e, r).gather())
        distinct = len(rows.ids.unique())
        print(f"{name:26s} {len(rows):6d} {distinct:9d} {plain:9.1f} {fast:8.1f} {plain / fast:6.1f}")
        trainer.close()


if __name__ == "__main__":
    main()
