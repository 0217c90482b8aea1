"""The encoder of vectors, and of views as vectors: each distinct row once, the input's normalisation in the weights."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from deir.algorithm.networks import FlatEncoder, VectorEncoder
from deir.fast.batch_norm import Share, each_row, gathered_norm, track_moments, trains_by_batch
from deir.fast.folding import folded, is_affine, scale_and_shift


def runs_on_vectors(encoder: nn.Module) -> bool:
    """Whether `embed_vectors` takes this encoder: with batch normalisation, while it trains."""
    body = _body(encoder)
    return body is not None and trains_by_batch(body[2])


def _body(encoder: nn.Module) -> nn.Sequential | None:
    """The layers of our own encoders; a class derived from them may compute something else."""
    if isinstance(encoder, (VectorEncoder, FlatEncoder)) and type(encoder) in (VectorEncoder, FlatEncoder):
        return encoder.body
    return None


def embed_vectors(encoder: VectorEncoder, vectors: Tensor, share: Share | None = None) -> Tensor:
    """[u, *obs] -> [u, features]; `share`: what part of the batch each row makes up, if not each is one of it.

    With x̃ = (x - μ)/σ the first layer is W (γ x̃ + β) + b = (W γ) x̃ + (W β + b). Batch normalisation takes off what is
    the same for all rows, so only the first part is computed, and nothing wants a gradient of the input.
    """
    normal, first, first_norm, _, second, second_norm, _ = encoder.body
    assert isinstance(first, nn.Linear) and isinstance(second, nn.Linear)
    share = share or Share.equal(vectors)
    x = vectors.flatten(1).to(first.weight.dtype)
    weight: Tensor = first.weight
    bias: Tensor = first.bias
    if isinstance(normal, nn.BatchNorm1d):
        x = standardised(normal, x, share)
        bias = bias + weight.detach() @ normal.bias
        weight = weight * normal.weight
    x = gathered_norm(first_norm, x @ weight.T, each_row(x), bias, share)
    return gathered_norm(second_norm, x @ second.weight.T, each_row(x), second.bias, share)


@torch.no_grad()
def standardised(norm: nn.BatchNorm1d, x: Tensor, share: Share) -> Tensor:
    """(x - μ)/σ by the moments of the batch, which are tracked. [u, W]"""
    parts = torch.from_numpy(share.of_rows.astype(np.float64)).to(x.dtype)
    mean = parts @ x
    away = x - mean
    variance = parts @ away.square()
    track_moments(norm, mean, variance, share.total)
    return away.mul_((variance + norm.eps).rsqrt())


class FrozenVectorEncoder:
    """The encoder in evaluation mode for few observations at a time: two products."""

    def __init__(self, encoder: VectorEncoder) -> None:
        normal, first, first_norm, _, second, second_norm, _ = encoder.body
        assert isinstance(first, nn.Linear) and isinstance(second, nn.Linear)
        weight: Tensor = first.weight.T
        bias: Tensor = first.bias
        if isinstance(normal, nn.BatchNorm1d):
            scale, shift = scale_and_shift(normal)
            weight, bias = weight * scale[:, None], bias + shift @ weight
        self.layers = [folded(weight, bias, first_norm), folded(second.weight.T, second.bias, second_norm)]

    def __call__(self, observations: Tensor) -> Tensor:
        """[B, *obs] -> [B, features]"""
        x = observations.flatten(1).to(self.layers[0][0].dtype)
        for weight, bias in self.layers:
            x = torch.addmm(bias, x, weight).relu_()
        return x

    @staticmethod
    def takes(encoder: nn.Module) -> bool:
        """Layer normalisation and running moments are not a product and a sum."""
        body = _body(encoder)
        return body is not None and all(is_affine(body[place]) for place in (0, 2, 5))
