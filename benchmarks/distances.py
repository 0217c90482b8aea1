"""The distances of Equation 4 on real rollouts: what differences, leaving out repeats, threads and kept memory give.

python benchmarks/distances.py [LENGTH …]

DoorKey-16x16 with episodes of each length, 16 environments, a rollout of 512 steps right before the episodes end.
Milliseconds, the best of several. "batch" is the plain way: all environments in one batch, every query against every
key of its episode.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import deir.fast.threads
from deir.fast.allocator import M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, keep_freed_memory
from deir.fast.ops import FastOps
from deir.fast.tiles import _as_keys, _as_queries, min_ratio
from deir.runs.run import configure
from deir.runs.training import make_trainer

LENGTHS = (100, 500, 1000, 5000)
DEFAULT_BYTES = 128 * 1024  # glibc's thresholds


def rollout_of(length: int) -> tuple[Any, ...]:
    """The arguments of `min_ratio` in the last rollout before episodes of this length end."""
    settings = {"env": {"id": "DoorKey-16x16", "max_steps": length}, "threads": 1, "reward": {"overlap": False}}
    trainer, seen = make_trainer(configure(settings)), []
    FastOps.min_ratio = staticmethod(lambda *arguments: seen.append(arguments) or min_ratio(*arguments))
    for _ in range(max(2, length // 512)):
        trainer.iterate()
    FastOps.min_ratio = staticmethod(min_ratio)
    trainer.close()
    return seen[-1]


def batch(
    query_obs: Tensor, query_traj: Tensor, key_obs: list[Tensor], key_traj: list[Tensor], first: Tensor, last: Tensor,
    eps: float,
) -> Tensor:  # fmt: skip
    """All environments at once, 64 steps at a time, each against every key since the earliest episode's start."""
    rewards = torch.zeros_like(query_obs[..., 0])
    obs, traj = ((_as_queries(q.transpose(0, 1)), _as_keys(torch.cat(k).transpose(0, 1)).transpose(1, 2))
                 for q, k in ((query_obs, key_obs), (query_traj, key_traj)))  # fmt: skip
    for begin in range(0, len(first), 64):
        steps = slice(begin, begin + 64)
        rows = torch.arange(int(first[steps].min()), int(last[steps].max()) + 1)
        if not len(rows):
            continue
        keys = slice(int(rows[0]), int(rows[-1]) + 1)
        ratios = torch.bmm(obs[0][:, steps], obs[1][:, :, keys])
        ratios /= torch.bmm(traj[0][:, steps], traj[1][:, :, keys]).clamp_(min=0).sqrt_().add_(eps)
        outside = (rows < first[steps].T[:, :, None]) | (rows > last[steps, None])
        nearest = ratios.masked_fill_(outside, torch.inf).amin(-1).clamp_(min=0)
        rewards[steps] = torch.where(nearest.isinf(), 0.0, nearest).T.to(rewards.dtype)
    return rewards


def milliseconds(job: Callable[[], Tensor], threads: int, repeats: int = 7) -> float:
    torch.set_num_threads(threads)
    deir.fast.threads.use_threads(threads, large=False)
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        job()
        best = min(best, time.perf_counter() - begin)
    return 1000 * best


def forget_freed_memory() -> None:
    """The C library's defaults."""
    library = ctypes.CDLL(None)
    library.mallopt(M_MMAP_THRESHOLD, DEFAULT_BYTES)
    library.mallopt(M_TRIM_THRESHOLD, DEFAULT_BYTES)


def main(lengths: tuple[int, ...]) -> None:
    columns = ("batch, memory returned", "batch", "differences", "without repeats", "2 threads")
    print(f"{'steps':>6s} {'keys':>5s} {'repeats':>7s} " + " ".join(f"{c:>{len(c)}s}" for c in columns))
    for length in lengths:
        *arguments, repeated = rollout_of(length)
        torch.testing.assert_close(batch(*arguments), min_ratio(*arguments, repeated), rtol=1e-4, atol=1e-6)
        forget_freed_memory()
        figures = [milliseconds(lambda a=arguments: batch(*a), 1)]
        keep_freed_memory()
        figures.append(milliseconds(lambda a=arguments: batch(*a), 1))
        figures.append(milliseconds(lambda a=arguments: min_ratio(*a), 1))
        figures.append(milliseconds(lambda a=arguments, r=repeated: min_ratio(*a, r), 1))
        figures.append(milliseconds(lambda a=arguments, r=repeated: min_ratio(*a, r), 2))
        values = " ".join(f"{figure:{len(c)}.0f}" for figure, c in zip(figures, columns, strict=True))
        print(f"{length:6d} {len(arguments[2]):5d} {100 * float(repeated.float().mean()):6.0f}% {values}", flush=True)


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or LENGTHS)
