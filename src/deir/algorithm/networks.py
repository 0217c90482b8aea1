"""Encoders of Appendix A.5."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from deir.algorithm.layers import NormKind, norm_image, norm_vector
from deir.envs.spaces import PackedBox
from deir.errors import UserError


class Encoder(nn.Module):
    """Observations [B, *obs] -> embeddings [B, features]; images are in height-width-channel order."""

    features: int


class GridEncoder(Encoder):
    """Three 2x2 convolutions and a linear layer for MiniGrid views; views of 3x3 are padded by one cell."""

    CHANNELS = (32, 64, 64)

    def __init__(self, shape: tuple[int, int, int], features: int, norm: NormKind) -> None:
        super().__init__()
        height, width, channels = self.shape = shape
        self.padding = grid_padding(shape)
        self.features = features
        self.input_norm = norm_image(norm, (channels, height, width))
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        height, width = height + 2 * self.padding, width + 2 * self.padding
        for index, out in enumerate(self.CHANNELS):
            self.convs.append(nn.Conv2d(channels, out, 2, padding=self.padding if index == 0 else 0))
            height, width, channels = height - 1, width - 1, out
            self.norms.append(norm_image(norm, (channels, height, width)))
        self.linear = nn.Linear(channels * height * width, features)
        self.output_norm = norm_vector(norm, features)

    def forward(self, observations: Tensor) -> Tensor:
        x = self.input_norm(observations.permute(0, 3, 1, 2).to(self.linear.weight.dtype))  # [B, C, H, W]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)))
        return F.relu(self.output_norm(self.linear(x.flatten(1))))


def grid_padding(shape: tuple[int, ...]) -> int:
    return 1 if min(shape[:2]) < 4 else 0


class ConvEncoder(Encoder):
    """The DQN network, widened: for the reward models on images."""

    LAYERS = ((32, 8, 4), (64, 4, 2), (64, 4, 1))  # channels, kernel, stride
    SIDE = 44  # of the smallest image that leaves a cell

    def __init__(self, shape: tuple[int, int, int], features: int, norm: NormKind) -> None:
        super().__init__()
        height, width, channels = shape
        self.features = features
        layers = [norm_image(norm, (channels, height, width))]
        for out, kernel, stride in self.LAYERS:
            layers.append(nn.Conv2d(channels, out, kernel, stride))
            channels, height, width = out, (height - kernel) // stride + 1, (width - kernel) // stride + 1
            if min(height, width) < 1:
                side = f"{self.SIDE}x{self.SIDE}"
                raise UserError(f"network.encoder: dqn needs images of at least {side}, got {shape[0]}x{shape[1]}")
            layers += [norm_image(norm, (channels, height, width)), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Flatten())
        self.tail = nn.Sequential(
            nn.Linear(channels * height * width, features), norm_vector(norm, features), nn.ReLU()
        )

    def forward(self, observations: Tensor) -> Tensor:
        return self.tail(self.body(scaled_image(observations)))


class ImpalaEncoder(Encoder):
    """The residual network of IMPALA: for the policy on images."""

    CHANNELS = (16, 32, 32)

    def __init__(self, shape: tuple[int, int, int], features: int, norm: NormKind) -> None:
        super().__init__()
        height, width, channels = shape
        self.features = features
        layers = [norm_image(norm, (channels, height, width))]
        for out in self.CHANNELS:
            layers += [nn.Conv2d(channels, out, 3, padding=1), norm_image(norm, (out, height, width))]
            channels, height, width = out, (height + 1) // 2, (width + 1) // 2
            layers += [nn.MaxPool2d(3, 2, 1)] + [ResidualBlock((channels, height, width), norm) for _ in range(2)]
        self.body = nn.Sequential(*layers, nn.ReLU(), nn.Flatten())
        self.tail = nn.Sequential(
            nn.Linear(channels * height * width, features), norm_vector(norm, features), nn.ReLU()
        )

    def forward(self, observations: Tensor) -> Tensor:
        return self.tail(self.body(scaled_image(observations)))


class ResidualBlock(nn.Module):
    def __init__(self, shape: tuple[int, int, int], norm: NormKind) -> None:
        super().__init__()
        channels = shape[0]
        self.body = nn.Sequential(
            nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1), norm_image(norm, shape),
            nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1), norm_image(norm, shape),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def scaled_image(observations: Tensor) -> Tensor:
    """[B, H, W, C] uint8 or float -> [B, C, H, W] float"""
    image = observations.permute(0, 3, 1, 2).float()
    return image / 255 if observations.dtype == torch.uint8 else image


class RunningNorm(nn.Module):
    """(x - μ)/σ by the moments of all vectors trained on so far, cut at ±10; the same while collecting and updating."""

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self._follow(x)
        return ((x - self.mean) / (self.variance + 1e-8).sqrt()).clamp(-10, 10)

    @torch.no_grad()
    def _follow(self, x: Tensor) -> None:
        self.count += len(x)
        share = (len(x) / self.count).to(x.dtype)
        variance, mean = torch.var_mean(x, 0, correction=0)
        change = mean - self.mean
        self.variance.lerp_(variance, share).add_(share * (1 - share) * change.square())
        self.mean.lerp_(mean, share)


def norm_input(kind: NormKind, width: int) -> nn.Module:
    """Of vectors: layer normalisation would lose how large they are, and without any their range would matter."""
    return nn.BatchNorm1d(width) if kind == "batch" else RunningNorm(width)


class VectorEncoder(Encoder):
    """Two fully connected layers for vector observations; one-hot vectors are taken as they are."""

    def __init__(self, width: int, features: int, norm: NormKind, one_hot: bool = False) -> None:
        super().__init__()
        self.features = features
        self.body = nn.Sequential(
            nn.Identity() if one_hot else norm_input(norm, width),
            nn.Linear(width, features), norm_vector(norm, features), nn.ReLU(),
            nn.Linear(features, features), norm_vector(norm, features), nn.ReLU(),
        )  # fmt: skip

    def forward(self, observations: Tensor) -> Tensor:
        return self.body(observations.to(next(self.body.parameters()).dtype))


class PartsEncoder(Encoder):
    """An encoder for each part of a packed observation, and a layer that brings their embeddings together."""

    def __init__(self, space: PackedBox, kinds: list[str], features: int, norm: NormKind) -> None:
        super().__init__()
        self.features = features
        self.space = space
        parts = space.parts.values()
        self.encoders = nn.ModuleList(
            make_encoder(kind, part, features, norm) for kind, part in zip(kinds, parts, strict=True)
        )
        self.together = nn.Sequential(
            nn.Linear(len(kinds) * features, features), norm_vector(norm, features), nn.ReLU()
        )

    def forward(self, observations: Tensor) -> Tensor:
        return self.together(torch.cat([encoder(part) for encoder, part in self.parts_of(observations)], 1))

    def parts_of(self, rows: Tensor) -> Iterator[tuple[nn.Module, Tensor]]:
        """Each encoder with its part [B, *part] of the rows [B, bytes]."""
        for encoder, part, place in zip(self.encoders, self.space.parts.values(), self.space.places, strict=True):
            dtype = torch.uint8 if part.dtype == np.uint8 else torch.float32
            # a slice of a single row counts as contiguous and would keep strides that are no multiple of a float
            own = rows[:, place].clone(memory_format=torch.contiguous_format)
            yield encoder, own.view(dtype).view(-1, *part.shape)


def encoder_kind(wanted: str, space: spaces.Space[Any], images: str) -> str:
    """The encoder for an observation space; `images` is what auto takes for large images. Of parts: joined by +."""
    assert isinstance(space, spaces.Box)
    if isinstance(space, PackedBox):
        fits = [wanted if (wanted == "mlp") == (len(part.shape) == 1) else "auto" for part in space.parts.values()]
        return "+".join(encoder_kind(*pair, images) for pair in zip(fits, space.parts.values(), strict=True))
    if len(space.shape) == 1:
        fitting = "mlp"
    else:
        small, narrow = max(space.shape[:2]) < 36, min(space.shape[:2]) < ConvEncoder.SIDE
        fitting = "grid" if small else "impala" if narrow else images
    if wanted == "auto" or wanted == fitting:
        return fitting
    if (wanted == "mlp") != (len(space.shape) == 1):
        raise UserError(f"network.encoder: {wanted!r} cannot take observations of shape {space.shape}; use {fitting!r}")
    return wanted


def make_encoder(kind: str, space: spaces.Space[Any], features: int, norm: NormKind) -> Encoder:
    if isinstance(space, PackedBox):
        return PartsEncoder(space, kind.split("+"), features, norm)
    shape = space.shape
    assert shape is not None
    if kind == "mlp":
        return VectorEncoder(shape[0], features, norm, one_hot=space.dtype == np.uint8)
    image = (shape[0], shape[1], shape[2])
    return {"grid": GridEncoder, "dqn": ConvEncoder, "impala": ImpalaEncoder}[kind](image, features, norm)
