"""Encoders, normalisation and heads of Appendix A.5.

Every encoder is called with a tensor [B, *obs] (images in height-width-channel order) or with `patches.Rows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from deir import loops
from deir.errors import UserError
from deir.kernels import arrays_of, gather_norm, gather_sum, gru_update, in_pieces, placed_linear
from deir.loops import Array
from deir.patches import PatchPlan, Rows
from deir.spaces import PackedBox

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


class Encoder(nn.Module):
    """Observations -> embeddings [B, features]."""

    features: int
    piece: int | None = None  # observations that one thread embeds at a time, when they do not depend on each other

    def forward(self, observations: Tensor | Rows) -> Tensor:
        if isinstance(observations, Rows):
            embeddings, inverse = self.embed_distinct(observations)
            return embeddings if inverse is None else embeddings.index_select(0, inverse)
        return self.embed(observations)

    def embed_distinct(self, rows: Rows) -> tuple[Tensor, Tensor | None]:
        """Embeddings [u, features] and, where rows share them, which one each row has [B]."""
        return self.embed(rows.gather()), None

    def embed(self, observations: Tensor) -> Tensor:
        """`plain`, on as many threads as there are."""
        if self.piece is None or observations.device.type != "cpu" or self.couples_observations:
            return self.plain(observations)
        return in_pieces(self.plain, observations, self.piece, list(self.parameters()))

    @property
    def couples_observations(self) -> bool:
        """Whether an embedding depends on the batch it is in."""
        return self.training and any(isinstance(module, COUPLING) for module in self.modules())

    def plain(self, observations: Tensor) -> Tensor:
        raise NotImplementedError


class GridEncoder(Encoder):
    """Three 2x2 convolutions and a linear layer for MiniGrid views; views of 3x3 are padded by one cell."""

    CHANNELS = (32, 64, 64)
    piece = 256

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
        self.shares_patches = norm != "layer"  # a layer-normalised patch depends on its whole observation

    def embed_distinct(self, rows: Rows) -> tuple[Tensor, Tensor | None]:
        if not rows.table.levels:
            return super().embed_distinct(rows)
        if self.shares_patches:
            plan = rows.plan()
            return self.distinct(plan), plan.inverse
        ids, inverse = rows.ids.unique(return_inverse=True)
        return self.embed(rows.table.distinct[ids]), inverse

    def plain(self, observations: Tensor) -> Tensor:
        x = self.input_norm(observations.permute(0, 3, 1, 2).to(self.linear.weight.dtype))  # [B, C, H, W]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)))
        return F.relu(self.output_norm(self.linear(x.flatten(1))))

    def distinct(self, plan: PatchPlan) -> Tensor:
        """The same function with every layer evaluated on the batch's distinct patches only. [u, features]

        A 2x2 patch's convolution is the sum of its four corners' products, so each smaller patch is multiplied with
        the four corners of the kernel once, and a larger patch is a sum of four rows; likewise the linear layer.
        """
        dtype = self.linear.weight.dtype
        cells = Share(plan.cell_share, plan.cell_total)
        x = self._layer(
            self.input_norm, plan.cells.to(dtype), each_row(plan.cells), None, cells, relu=False
        )  # [C, channels]
        x = torch.cat([x, torch.zeros_like(x[:1])])  # padding
        for conv, norm, layer in zip(self.convs, self.norms, plan.layers, strict=True):
            assert isinstance(conv, nn.Conv2d)
            kernel = conv.weight.permute(1, 2, 3, 0).flatten(1)  # [in, 4*out]
            products = (x @ kernel).view(-1, conv.out_channels)  # [4*P_below, out]
            x = self._layer(norm, products, layer.corners, conv.bias, Share(layer.share, layer.total))  # [P, out]
        products = placed_linear(x, self.linear.weight, plan.placed)  # [slots, features]
        share = Share(plan.observation_share, len(plan.inverse))
        return self._layer(self.output_norm, products, plan.placed_of_observation, self.linear.bias, share)

    def _layer(
        self, norm: nn.Module, table: Tensor, rows: Array, bias: Tensor | None, share: Share, relu: bool = True
    ) -> Tensor:
        """bias + Σ_k table[rows[p, k]], normalised, and a ReLU. [P, C]"""
        if trains_by_batch(norm):
            return gathered_norm(norm, table, rows, bias, share, relu)
        x = gather_sum(table, torch.from_numpy(rows))
        x = x if bias is None else x + bias
        if isinstance(norm, nn.BatchNorm2d):
            x = F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps)
        else:
            x = norm(x)
        return F.relu(x) if relu else x


def grid_padding(shape: tuple[int, ...]) -> int:
    return 1 if min(shape[:2]) < 4 else 0


class ConvEncoder(Encoder):
    """The DQN network, widened: for the reward models on images."""

    LAYERS = ((32, 8, 4), (64, 4, 2), (64, 4, 1))  # channels, kernel, stride
    SIDE = 44  # of the smallest image that leaves a cell
    piece = 64

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

    def plain(self, observations: Tensor) -> Tensor:
        return self.tail(self.body(scaled_image(observations)))


class ImpalaEncoder(Encoder):
    """The residual network of IMPALA: for the policy on images."""

    CHANNELS = (16, 32, 32)
    piece = 32

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

    def plain(self, observations: Tensor) -> Tensor:
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


COUPLING = (nn.BatchNorm1d, nn.BatchNorm2d, RunningNorm)  # while training, what they give depends on the batch


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

    def plain(self, observations: Tensor) -> Tensor:
        return self.body(observations.float())


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

    def embed_distinct(self, rows: Rows) -> tuple[Tensor, Tensor | None]:
        first = self.encoders[0]
        if not rows.table.levels or not isinstance(first, GridEncoder) or not first.shares_patches:
            return super().embed_distinct(rows)
        others = [encoder(part) for encoder, part in list(self._parts(rows.gather()))[1:]]
        return self.together(torch.cat([first(rows), *others], 1)), None

    def plain(self, observations: Tensor) -> Tensor:
        return self.together(torch.cat([encoder(part) for encoder, part in self._parts(observations)], 1))

    def _parts(self, rows: Tensor) -> Iterator[tuple[nn.Module, Tensor]]:
        """Each encoder with its part [B, *part] of the rows [B, bytes]."""
        for encoder, part, place in zip(self.encoders, self.space.parts.values(), self.space.places, strict=True):
            dtype = torch.uint8 if part.dtype == np.uint8 else torch.float32
            yield encoder, rows[:, place].contiguous().view(dtype).view(-1, *part.shape)


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


class Gates(NamedTuple):
    """What a GRU takes of its inputs: W x + b, once for each distinct one."""

    distinct: Tensor  # [U, 3H]
    rows: Tensor | None  # [B] which of them each row of the batch has; None: its own

    def split(self, sizes: list[int]) -> list[Gates]:
        """Those of the parts of a batch."""
        if self.rows is None:
            return [Gates(part, None) for part in self.distinct.split(sizes)]
        return [Gates(self.distinct, part) for part in self.rows.split(sizes)]

    def rows_of(self, hidden: Tensor) -> Tensor:
        """[B] for the memories [B, H]"""
        return torch.arange(len(hidden), device=hidden.device) if self.rows is None else self.rows

    def gather(self) -> Tensor:
        """[B, 3H]"""
        return self.distinct if self.rows is None else self.distinct.index_select(0, self.rows)


def gru_gates(cell: nn.GRUCell, encoder: Encoder, observations: Rows | Tensor) -> Gates:
    if isinstance(observations, Rows):
        embeddings, rows = encoder.embed_distinct(observations)
    else:
        embeddings, rows = encoder(observations), None
    return Gates(F.linear(embeddings, cell.weight_ih, cell.bias_ih), rows)


def gru_step(cell: nn.GRUCell, gates: Gates, hidden: Tensor) -> Tensor:
    """The memory after one more input. hidden: [M, H] before it -> [B, H]; row b continues memory b mod M."""
    return gru_update(gates.distinct, F.linear(hidden, cell.weight_hh, cell.bias_hh), hidden, gates.rows)


@torch.no_grad()
def gru_scan(cell: nn.GRUCell, gates: Gates, hidden: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Runs a GRU over time. gates of T*N steps, hidden [N, H] before the first step, starts [T, N] bool.

    Gives the memory before each step (zero at episode starts) and after it, both [T, N, H].
    """
    rows = gates.rows_of(starts.flatten()).view(starts.shape)  # [T, N]
    if hidden.device.type == "cpu":
        arrays = arrays_of(gates.distinct, rows, hidden, starts, cell.weight_hh.T, cell.bias_hh)
        before, after = loops.gru_scan(*arrays)
        return torch.from_numpy(before), torch.from_numpy(after)
    befores, afters = [], []
    for row, start in zip(rows, starts, strict=True):
        befores.append(hidden * ~start[:, None])
        hidden = gru_step(cell, Gates(gates.distinct, row), befores[-1])
        afters.append(hidden)
    return torch.stack(befores), torch.stack(afters)
