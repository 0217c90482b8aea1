"""Normalisation in evaluation mode, folded into the layers before it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def is_affine(norm: nn.Module) -> bool:
    """Whether it is x * scale + shift in evaluation mode."""
    return isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d, nn.Identity))


def scale_and_shift(norm: nn.Module) -> tuple[Tensor, Tensor]:
    if isinstance(norm, nn.Identity):
        return torch.ones((), device="cpu"), torch.zeros((), device="cpu")  # joins a tensor on any device
    assert isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d))
    assert norm.running_mean is not None and norm.running_var is not None
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    return scale, norm.bias - norm.running_mean * scale


def folded(weight: Tensor, bias: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """weight [in, out] and bias [out] of a layer with the normalisation after it folded in."""
    scale, shift = scale_and_shift(norm)
    return weight * scale, bias * scale + shift
