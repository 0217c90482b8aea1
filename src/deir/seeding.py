"""One run seed, many independent streams."""

from __future__ import annotations

import zlib

import numpy as np
import torch


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the stream called `names`, distinct for distinct names and reproducible."""
    words = [name if isinstance(name, int) else zlib.crc32(name.encode()) for name in names]
    state = np.random.SeedSequence([seed, *words]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


def torch_generator(seed: int, *names: str | int) -> torch.Generator:
    return torch.Generator().manual_seed(derive(seed, *names))
