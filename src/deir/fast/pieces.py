"""Networks on pieces of a batch, side by side on several threads.

How many are computed at once makes no difference to the bits; the pieces do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from deir.algorithm.networks import (
    ConvEncoder,
    Encoder,
    GridEncoder,
    ImpalaEncoder,
    PartsEncoder,
    RunningNorm,
    VectorEncoder,
)
from deir.config import Precision
from deir.fast.arrays import with_gradient
from deir.fast.threads import in_parallel
from deir.fast.vector_encoder import embed_vectors, runs_on_vectors
from deir.fast.whole_grid import embed_views, runs_whole
from deir.fast.whole_images import embed_images, runs_on_images

# mypy: disable-error-code="override"

# observations that one thread embeds at a time
PIECES: dict[type[nn.Module], int] = {GridEncoder: 256, ConvEncoder: 64, ImpalaEncoder: 32}
COUPLING = (nn.BatchNorm1d, nn.BatchNorm2d, RunningNorm)  # while training, what they give depends on the batch


class _InPieces(Function):
    @staticmethod
    def forward(ctx: Any, network: Callable[[Tensor], Tensor], size: int, x: Tensor, *parameters: Tensor) -> Tensor:
        def embed(piece: Tensor) -> Tensor:
            with torch.enable_grad():
                return network(piece)

        ctx.outputs = in_parallel(embed, x.split(size))
        ctx.parameters = parameters
        return torch.cat([output.detach() for output in ctx.outputs])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        outputs, ctx.outputs = ctx.outputs, ()
        grads = grad.split([len(output) for output in outputs])
        pairs = list(zip(outputs, grads, strict=True))
        parts = in_parallel(lambda pair: torch.autograd.grad(with_gradient(*pair), ctx.parameters), pairs)
        return None, None, None, *(sum_in_order(part) for part in zip(*parts, strict=True))


def sum_in_order(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return total


def in_pieces(network: Callable[[Tensor], Tensor], x: Tensor, size: int, parameters: Sequence[nn.Parameter]) -> Tensor:
    """network(x), where the rows of x [B, …] do not depend on each other: pieces of `size` rows, side by side.

    How many are computed at once makes no difference to the bits; the pieces do not depend on it.
    """
    if len(x) <= size:
        return network(x)
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if trained and torch.is_grad_enabled():
        return _InPieces.apply(network, size, x, *trained)
    return torch.cat(in_parallel(network, x.split(size)))


def couples_observations(encoder: nn.Module) -> bool:
    """Whether an embedding depends on the batch it is in."""
    return encoder.training and any(isinstance(module, COUPLING) for module in encoder.modules())


def embed_whole(encoder: nn.Module, observations: Tensor, precision: Precision = "fp32") -> Tensor:
    """The encoder on observations [B, *obs] that are not taken to repeat. precision: of its products' factors"""
    if isinstance(encoder, PartsEncoder):
        parts = [embed_whole(one, part, precision) for one, part in encoder.parts_of(observations)]
        return encoder.together(torch.cat(parts, 1))
    if type(encoder) is GridEncoder and runs_whole(encoder):
        return embed_views(encoder, observations, precision)
    if isinstance(encoder, Encoder) and runs_on_images(encoder):
        return embed_images(encoder, observations, precision)
    if isinstance(encoder, VectorEncoder) and runs_on_vectors(encoder):
        return embed_vectors(encoder, observations)
    piece = PIECES.get(type(encoder))
    if piece is None or couples_observations(encoder):
        return encoder(observations)
    return in_pieces(encoder, observations, piece, list(encoder.parameters()))
