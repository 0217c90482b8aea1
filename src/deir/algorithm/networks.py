"""Encoders of Appendix A.5, and the registry of encoders."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from deir.algorithm.layers import NormKind, norm_image, norm_vector
from deir.envs.spaces import PackedBox
from deir.errors import UserError, invalid
from deir.registry import Entry, Registry


class Encoder(nn.Module):
    """Observations [B, *obs] -> embeddings [B, features]; images are in height-width-channel order.

    A class of your own is made as `cls(shape, features, norm)`, with the shape of one observation and network.norm.
    """

    dimensions = 3  # of the observations it takes: 3 for images, 1 for vectors
    features: int

    @classmethod
    def made_for(cls, space: spaces.Box, features: int, norm: NormKind) -> Encoder:
        return cls(space.shape, features, norm)  # type: ignore[call-arg]


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
            layers += [norm_image(norm, (channels, height, width)), nn.ReLU(inplace=True)]
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
            nn.ReLU(inplace=True), nn.Conv2d(channels, channels, 3, padding=1), norm_image(norm, shape),
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
            self.follow(x)
        return ((x - self.mean) / (self.variance + 1e-8).sqrt()).clamp(-10, 10)

    @torch.no_grad()
    def follow(self, x: Tensor) -> None:
        """Takes in the vectors [B, F]."""
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

    dimensions = 1

    def __init__(self, width: int, features: int, norm: NormKind, one_hot: bool = False) -> None:
        super().__init__()
        self.features = features
        self.body = nn.Sequential(
            nn.Identity() if one_hot else norm_input(norm, width),
            nn.Linear(width, features), norm_vector(norm, features), nn.ReLU(),
            nn.Linear(features, features), norm_vector(norm, features), nn.ReLU(),
        )  # fmt: skip

    @classmethod
    def made_for(cls, space: spaces.Box, features: int, norm: NormKind) -> Encoder:
        if len(space.shape) > 1:
            return FlatEncoder(space.shape, features, norm)
        return cls(space.shape[0], features, norm, one_hot=space.dtype == np.uint8)

    def forward(self, observations: Tensor) -> Tensor:
        return self.body(observations.to(next(self.body.parameters()).dtype))


class FlatEncoder(VectorEncoder):
    """Views as one long vector each, for small networks: no neighbourhoods, and a fiftieth of the arithmetic."""

    def __init__(self, shape: tuple[int, ...], features: int, norm: NormKind) -> None:
        super().__init__(math.prod(shape), features, norm)

    def forward(self, observations: Tensor) -> Tensor:
        return super().forward(observations.flatten(1))


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


ENCODERS: Registry[Encoder] = Registry(
    "encoder",
    "deir.algorithm.networks:Encoder",
    "auto, package.module:Class of your own, or deir.register_encoder",
    {
        "grid": Entry(__name__, "GridEncoder", "three 2x2 convolutions, for MiniGrid's views and other small images"),
        "impala": Entry(__name__, "ImpalaEncoder", "IMPALA's residual network, for the policy on images"),
        "dqn": Entry(__name__, "ConvEncoder", "the DQN network, widened, for the reward models on images"),
        "mlp": Entry(__name__, "VectorEncoder", "two fully connected layers, for vectors and flattened views"),
    },
)


def register_encoder(name: str, cls: type[Encoder], description: str = "") -> None:
    """Makes a user's class an encoder: `--network.encoder NAME`, `--reward.encoder NAME`. For this program."""
    if name == "auto" or "+" in name:  # a plus joins the kinds of several parts
        raise invalid("name", name, "a name without a plus, other than 'auto'")
    ENCODERS.register(name, cls, description)


def check_encoder(field: str, name: str) -> None:
    if name != "auto":
        ENCODERS.find(name, field)


def encoder_kind(wanted: str, space: spaces.Space[Any], images: str, field: str = "network.encoder") -> str:
    """The encoder for an observation space; `images` is what auto takes for large images. Of parts: joined by +."""
    assert isinstance(space, spaces.Box)
    dimensions = None if wanted == "auto" else ENCODERS.find(wanted, field).dimensions
    if isinstance(space, PackedBox):
        fits = [wanted if dimensions == len(part.shape) else "auto" for part in space.parts.values()]
        return "+".join(encoder_kind(*pair, images) for pair in zip(fits, space.parts.values(), strict=True))
    if len(space.shape) == 1:
        fitting = "mlp"
    else:
        small, narrow = max(space.shape[:2]) < 36, min(space.shape[:2]) < ConvEncoder.SIDE
        fitting = "grid" if small else "impala" if narrow else images
    if dimensions is not None and dimensions != len(space.shape) and wanted != "mlp":
        raise UserError(f"{field}: {wanted!r} cannot take observations of shape {space.shape}; use {fitting!r}")
    return fitting if wanted == "auto" else wanted


def make_encoder(kind: str, space: spaces.Space[Any], features: int, norm: NormKind) -> Encoder:
    if isinstance(space, PackedBox):
        return PartsEncoder(space, kind.split("+"), features, norm)
    assert isinstance(space, spaces.Box)
    cls = ENCODERS.find(kind)
    encoder = cls.made_for(space, features, norm)
    if cls.__module__ != __name__:
        encoder.features = features
        _check_embeddings(encoder, kind, space)
    return encoder


@torch.no_grad()
def _check_embeddings(encoder: Encoder, kind: str, space: spaces.Box) -> None:
    """Of a class that is not ours, before anything is trained with it."""
    dtype = torch.uint8 if space.dtype == np.uint8 else torch.float32
    given = encoder.eval()(torch.zeros(2, *space.shape, dtype=dtype, device="cpu"))
    encoder.train()
    shape = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
    if shape != (2, encoder.features):
        raise invalid(f"encoder {kind}: embeddings", shape, f"(2, {encoder.features}) of two observations")
