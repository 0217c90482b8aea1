"""Tensors as arrays for compiled loops."""

from __future__ import annotations

from torch import Tensor

from deir.compiled import Array


def arrays_of(*tensors: Tensor) -> tuple[Array, ...]:
    return tuple(tensor.detach().contiguous().numpy() for tensor in tensors)
