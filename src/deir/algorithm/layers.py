"""Normalisation and heads of Appendix A.5."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NormKind = Literal["batch", "layer", "none"]


def norm_image(kind: NormKind, shape: tuple[int, int, int]) -> nn.Module:
    """Normalisation of feature maps [B, C, H, W]; layer normalisation is over the whole map of one observation."""
    return {"batch": lambda: nn.BatchNorm2d(shape[0]), "layer": lambda: MapNorm(shape), "none": nn.Identity}[kind]()


class MapNorm(nn.LayerNorm):
    """Layer normalisation over whole feature maps [B, C, H, W] that leaves them in channels-last order if they are.

    PyTorch's own would copy them into the other order, in which pooling is slower.
    """

    def forward(self, maps: Tensor) -> Tensor:
        if maps.is_contiguous() or not maps.is_contiguous(memory_format=torch.channels_last):
            return super().forward(maps)
        channels, height, width = self.normalized_shape
        rows = maps.permute(0, 2, 3, 1).flatten(1)  # [B, H*W*C], not a copy
        gain, bias = (p.permute(1, 2, 0).flatten() for p in (self.weight, self.bias))
        return (
            F.layer_norm(rows, rows.shape[1:], gain, bias, self.eps)
            .view(-1, height, width, channels)
            .permute(0, 3, 1, 2)
        )


def norm_vector(kind: NormKind, width: int) -> nn.Module:
    return {"batch": lambda: nn.BatchNorm1d(width), "layer": lambda: nn.LayerNorm(width), "none": nn.Identity}[kind]()


class Head(nn.Sequential):
    """Fully connected layers, each but the last with normalisation and a ReLU.   [B, F] -> [B, outputs]"""


def head(kind: NormKind, widths: list[int]) -> Head:
    """Heads have batch normalisation or none (Appendix A.4)."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in zip(widths[:-2], widths[1:-1], strict=True):
        layers += [nn.Linear(fan_in, fan_out), norm_vector(kind if kind == "batch" else "none", fan_out), nn.ReLU()]
    return Head(*layers, nn.Linear(widths[-2], widths[-1]))
