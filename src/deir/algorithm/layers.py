"""Normalisation and heads of Appendix A.5, on batches of which rows may stand for several."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deir.compiled import Array
from deir.fast import loops
from deir.fast.kernels import arrays_of, gather_norm

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


class Share(NamedTuple):
    """How a batch is made of rows."""

    of_rows: Array  # [P] what part of the batch each row makes up
    total: int  # rows in the batch, repeated ones counted

    @classmethod
    def equal(cls, rows: Tensor | Array) -> Share:
        """Each row is one of the batch."""
        return cls(np.full(len(rows), 1 / len(rows)), len(rows))


class Head(nn.Sequential):
    """Fully connected layers, each but the last with normalisation and a ReLU."""

    def forward(self, x: Tensor, share: Share | None = None) -> Tensor:
        """[B, F] -> [B, outputs]; `share`: how the rows make up the batch, where not each is one of it."""
        *layers, last = self
        for linear, norm in zip(layers[::3], layers[1::3], strict=True):
            if isinstance(linear, nn.Linear) and fuses(norm, x):
                x = gathered_norm(norm, x @ linear.weight.T, each_row(x), linear.bias, share or Share.equal(x))
            else:
                x = linear(x)
                x = F.relu(norm(x) if share is None else weighted_norm(norm, x, share))
        return last(x)

    def joined(self, parts: Sequence[Part]) -> Tensor:
        """The head on rows that are made of parts. What rows share is multiplied once, and the products are summed."""
        linear, norm = self[0], self[1]
        if not (isinstance(linear, nn.Linear) and fuses(norm, parts[0].x)):
            return self(torch.cat([part.x[part.rows] for part in parts], 1))
        weights = linear.weight.split([part.x.shape[1] for part in parts], 1)
        products = torch.cat([part.x @ weight.T for part, weight in zip(parts, weights, strict=True)])
        begins = accumulate((len(part.x) for part in parts), initial=0)
        rows = np.stack(
            [part.rows.numpy() + begin for part, begin in zip(parts, begins, strict=False)], 1
        )  # [B, parts]
        x = gathered_norm(norm, products, rows, linear.bias, Share.equal(rows))
        return Head(*list(self)[3:])(x)


class Part(NamedTuple):
    """Some columns of a batch."""

    x: Tensor  # [M, F]
    rows: Tensor  # [B] which row of x each row of the batch has


def head(kind: NormKind, widths: list[int]) -> Head:
    """Heads have batch normalisation or none (Appendix A.4)."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in zip(widths[:-2], widths[1:-1], strict=True):
        layers += [nn.Linear(fan_in, fan_out), norm_vector(kind if kind == "batch" else "none", fan_out), nn.ReLU()]
    return Head(*layers, nn.Linear(widths[-2], widths[-1]))


def each_row(x: Tensor) -> Array:
    """The rows of x one by one, as `gathered_norm` takes them. [B, 1]"""
    return np.arange(len(x))[:, None]


def trains_by_batch(norm: nn.Module) -> bool:
    return isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d)) and norm.training


def fuses(norm: nn.Module, x: Tensor) -> bool:
    """Whether `gathered_norm` can take the place of a normalisation layer."""
    return trains_by_batch(norm) and x.device.type == "cpu"


def gathered_norm(
    norm: nn.Module, table: Tensor, rows: Array, bias: Tensor | None, share: Share, relu: bool = True
) -> Tensor:
    """Batch normalisation of bias + Σ_k table[rows[p, k]], where row p occurs in the batch as `share` says, and a ReLU.

    table: [M, C], rows: [P, K] -> [P, C]
    """
    assert isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d)) and norm.momentum is not None
    assert norm.running_mean is not None and norm.running_var is not None and norm.num_batches_tracked is not None
    # the bias moves only the mean, which is subtracted: it has no gradient
    out, mean, variance = gather_norm(table, rows, share.of_rows, norm.weight, norm.bias, norm.eps, relu)
    mean = mean if bias is None else mean + bias.detach()
    norm.num_batches_tracked += 1
    running = arrays_of(norm.running_mean, norm.running_var, mean, variance)
    loops.track_moments(*running, norm.momentum, share.total / (share.total - 1))
    return out


def weighted_norm(norm: nn.Module, x: Tensor, share: Share) -> Tensor:
    """The same of rows x [P, C] on any device, for any kind of normalisation."""
    if not trains_by_batch(norm):
        return norm(x)
    assert isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d)) and norm.momentum is not None
    assert norm.running_mean is not None and norm.running_var is not None and norm.num_batches_tracked is not None
    part = torch.from_numpy(share.of_rows).to(x)
    mean = part @ x
    centred = x - mean
    variance = part @ centred.square()
    with torch.no_grad():  # running statistics as PyTorch keeps them, with the unbiased variance
        norm.num_batches_tracked += 1
        norm.running_mean.lerp_(mean, norm.momentum)
        norm.running_var.mul_(1 - norm.momentum)
        norm.running_var.add_(variance, alpha=norm.momentum * share.total / (share.total - 1))
    return torch.addcmul(norm.bias, centred, norm.weight * (variance + norm.eps).rsqrt())
