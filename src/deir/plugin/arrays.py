"""A user's arrays, checked and as tensors: numbers, flags, actions and names of states, in NumPy or PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from deir.errors import UserError


def as_tensor(field: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.clone() if value.is_inference() else value.detach()  # the former cannot be learned from
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise UserError(f"{field}: got {type(value).__name__} of {array.dtype}, expected an array or tensor of numbers")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)  # as other machines write it
    if array.dtype.itemsize > 8:
        raise UserError(f"{field}: got {array.dtype}, expected numbers of at most 64 bits")
    array = array.view(np.int64) if array.dtype == np.uint64 else array
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def check_shape(field: str, tensor: Tensor, expected: tuple[int | str, ...], why: str = "") -> None:
    """Named sizes may be anything above 0."""
    shape = tuple(tensor.shape)
    fits = [size > 0 if isinstance(want, str) else size == want for size, want in zip(shape, expected, strict=False)]
    if len(shape) != len(expected) or not all(fits):
        raise UserError(f"{field}: got shape {shape}, expected ({', '.join(map(str, expected))}){why}")


def as_finite(field: str, tensor: Tensor) -> Tensor:
    if tensor.is_floating_point() and not tensor.isfinite().all():
        bad = (~tensor.isfinite()).nonzero()
        where = f"the first at index {tuple(bad[0].tolist())}"
        raise UserError(f"{field}: got {len(bad)} values that are not finite (NaN or infinite), {where}")
    return tensor


def as_float(field: str, tensor: Tensor) -> Tensor:
    """float32, as the networks compute; what is beyond its range is refused rather than made infinite."""
    numbers = as_finite(field, tensor).float()
    if not numbers.isfinite().all():
        index = tuple((~numbers.isfinite()).nonzero()[0].tolist())
        raise UserError(
            f"{field}: got {tensor[index].item():g} at index {index}, expected numbers within float32's range (3.4e38)"
        )
    return numbers


def as_whole(field: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The same numbers as integers; loops that keep everything in float buffers are welcome."""
    if tensor.dtype == dtype:
        return tensor
    whole = as_finite(field, tensor).to(dtype)
    if not torch.equal(whole.to(tensor.dtype), tensor):
        raise UserError(
            f"{field}: got {tensor.dtype} with values that {dtype} cannot hold, expected whole numbers of that type "
            "(of scaled or normalised observations, give the Box they come from as observation_space)"
        )
    return whole


def read_flags(field: str, value: Any, shape: tuple[int, int]) -> Tensor:
    """[T, N] bool, or numbers 0 and 1"""
    tensor = as_tensor(field, value)
    check_shape(field, tensor, shape, " as (T, N)")
    if tensor.dtype != torch.bool and not ((tensor == 0) | (tensor == 1)).all():
        raise UserError(f"{field}: got {tensor.dtype} with values other than 0 and 1, expected booleans (T, N)")
    return tensor.to(device="cpu", dtype=torch.bool, copy=True)


def read_actions(value: Any, shape: tuple[int, int], space: spaces.Space[Any]) -> Tensor:
    """[T, N] for Discrete; [T, N, *action] otherwise. What is counted is counted from 0."""
    tensor = as_tensor("actions", value)
    why = " as (T, N, *action), one step fewer than observations (T+1, N, *obs)"
    check_shape("actions", tensor, (*shape, *(space.shape or ())), why)
    counts: Any = {spaces.Discrete: "n", spaces.MultiDiscrete: "nvec"}.get(type(space))
    if counts is None and not isinstance(space, spaces.MultiBinary):
        return as_float("actions", tensor) if tensor.is_floating_point() else tensor.long()
    sizes = torch.as_tensor(getattr(space, counts) if counts else 2, device=tensor.device)
    first = torch.as_tensor(getattr(space, "start", 0), device=tensor.device)
    actions = as_whole("actions", tensor, torch.int64) - first
    if bool(((actions < 0) | (actions >= sizes)).any()):
        raise UserError(f"actions: got values from {tensor.min()} to {tensor.max()}, expected those of {space}")
    return actions


def read_states(value: Any, shape: tuple[int, int]) -> Tensor:
    """[T+1, N] int64: names of the full states behind the observations"""
    tensor = as_tensor("states", value)
    check_shape("states", tensor, (shape[0] + 1, shape[1]), " as (T+1, N)")
    return as_whole("states", tensor, torch.int64)
