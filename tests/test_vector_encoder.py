"""Encoders of vectors and of flattened views: the fast one is the plain one, with each distinct row once."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from deir.algorithm.networks import FlatEncoder, VectorEncoder, encoder_kind, make_encoder
from deir.errors import UserError
from deir.fast.ops import FastOps
from deir.fast.patches import tabulate
from deir.fast.vector_encoder import FrozenVectorEncoder, runs_on_vectors
from test_networks import few_kinds_of_views

VIEWS = spaces.Box(0, 255, (7, 7, 3), np.uint8)


def moved(encoder: VectorEncoder) -> VectorEncoder:
    """With every parameter and running statistic away from where it starts."""
    torch.manual_seed(0)
    for tensor in (*encoder.parameters(), *encoder.buffers()):
        if tensor.is_floating_point():
            tensor.data += 0.1 * torch.rand_like(tensor)
    return encoder.double()


def same(fast: VectorEncoder, plain: VectorEncoder, actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    slope = torch.randn_like(expected)
    (expected * slope).sum().backward()
    (actual * slope).sum().backward()
    for (name, a), b in zip(fast.named_parameters(), plain.named_parameters(), strict=True):
        ours = torch.zeros_like(a) if a.grad is None else a.grad  # what batch normalisation takes off has none
        torch.testing.assert_close(ours, b[1].grad, rtol=1e-7, atol=1e-8, msg=name)
    for (name, a), b in zip(fast.named_buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("norm", ["batch", "layer", "none"])
@pytest.mark.parametrize("training", [True, False])
def test_views_as_vectors_that_repeat(norm, training):
    views = few_kinds_of_views(300, 7)
    table, names = tabulate(views)
    plain = moved(FlatEncoder((7, 7, 3), 16, norm)).train(training)
    fast, ids = copy.deepcopy(plain), torch.randint(0, 300, (500,))
    embedded = FastOps().embed(fast, table.rows(names[ids]))
    if norm == "batch" and training:
        assert len(embedded.values) == len(names[ids].unique())
    same(fast, plain, embedded.gather(), plain(views[ids]))


@pytest.mark.parametrize("one_hot", [True, False])
def test_vectors_of_which_nothing_repeats(one_hot):
    vectors = torch.randn(90, 5, dtype=torch.float64) * torch.tensor([1.0, 2, 3, 4, 5]) + 7
    plain = moved(VectorEncoder(5, 16, "batch", one_hot)).train()
    fast = copy.deepcopy(plain)
    assert runs_on_vectors(fast) and not runs_on_vectors(copy.deepcopy(fast).eval())
    same(fast, plain, FastOps().embed(fast, vectors).gather(), plain(vectors))


@pytest.mark.parametrize("norm", ["batch", "none"])
def test_frozen_it_is_the_encoder_in_evaluation_mode(norm):
    plain = moved(FlatEncoder((7, 7, 3), 16, norm)).eval()
    views = few_kinds_of_views(30, 7)
    if not FrozenVectorEncoder.takes(plain):
        assert norm == "none"  # vectors are scaled by their running moments then
        return
    torch.testing.assert_close(FrozenVectorEncoder(plain)(views), plain(views))


def test_an_mlp_takes_views_and_a_grid_no_vectors():
    assert encoder_kind("mlp", VIEWS, "impala") == "mlp"
    encoder = make_encoder("mlp", VIEWS, 64, "batch")
    assert isinstance(encoder, FlatEncoder) and encoder(torch.zeros(2, 7, 7, 3, dtype=torch.uint8)).shape == (2, 64)
    with pytest.raises(UserError, match="mlp"):
        encoder_kind("grid", spaces.Box(-1, 1, (4,), np.float32), "impala")
