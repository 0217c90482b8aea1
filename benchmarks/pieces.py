"""Layer-normalised encoders: whole batches against pieces, and pieces on two threads.

python benchmarks/pieces.py

Milliseconds of forward and backward, the best of several.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

import deir.fast.threads
from deir.algorithm.networks import ConvEncoder, GridEncoder, ImpalaEncoder
from deir.fast.allocator import keep_freed_memory
from deir.fast.pieces import embed_whole

ENCODERS = {
    "grid, 2,048 views of 7x7": (GridEncoder((7, 7, 3), 64, "layer"), (2048, 7, 7, 3)),
    "dqn, 512 images of 64x64": (ConvEncoder((64, 64, 3), 256, "layer"), (512, 64, 64, 3)),
    "impala, 256 images of 64x64": (ImpalaEncoder((64, 64, 3), 256, "layer"), (256, 64, 64, 3)),
}


def milliseconds(embed: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor, threads: int) -> float:
    """`threads`: those of the other process are taken to be idle."""
    deir.fast.threads.use_threads(threads, large=True)
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        embed(images).square().mean().backward()
        best = min(best, time.perf_counter() - begin)
    return 1000 * best


def main() -> None:
    keep_freed_memory()
    torch.set_num_threads(1)
    print(f"{'encoder':28s} {'whole':>7s} {'pieces':>7s} {'2 threads':>10s} {'ratio':>6s}")
    for name, (encoder, shape) in ENCODERS.items():
        images = torch.randint(0, 255 if shape[1] > 7 else 10, shape, dtype=torch.uint8)
        whole = milliseconds(encoder, images, 1)
        one, two = (milliseconds(partial(embed_whole, encoder), images, threads) for threads in (1, 2))
        print(f"{name:28s} {whole:7.0f} {one:7.0f} {two:10.0f} {whole / two:6.2f}", flush=True)


if __name__ == "__main__":
    main()
