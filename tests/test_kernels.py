"""Hand-written gradients against autograd in double precision."""

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck
from torch.nn import functional as F

import deir.fast.threads
from deir.algorithm.networks import GridEncoder
from deir.fast.batch_norm import gather_norm
from deir.fast.grid_encoder import gather_sum, placed_linear
from deir.fast.gru import gru_update
from deir.fast.patches import Placed
from deir.fast.pieces import couples_observations, in_pieces
from deir.fast.ppo_loss import ppo_of_categories


def double(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_gather_sum():
    torch.manual_seed(0)
    table, indices = double(7, 3), torch.randint(0, 7, (5, 4))
    torch.testing.assert_close(gather_sum(table, indices), table[indices].sum(1))
    assert gradcheck(lambda x: gather_sum(x, indices), table)


@pytest.mark.parametrize("relu", [True, False])
def test_gather_norm_equals_batch_norm_of_the_repeated_sums(relu):
    torch.manual_seed(0)
    table, weight, bias = double(7, 3), double(3), double(3)
    rows, counts = torch.randint(0, 7, (5, 4)), torch.tensor([3, 1, 2, 1, 4])
    share = (counts.double() / counts.sum()).numpy()
    names = torch.repeat_interleave(torch.arange(5), counts)
    sums = table[rows].sum(1)[names]
    expected = F.batch_norm(sums, None, None, weight, bias, training=True, eps=1e-5)
    actual, mean, variance = gather_norm(table, rows.numpy(), share, weight, bias, 1e-5, relu)
    torch.testing.assert_close(actual[names], F.relu(expected) if relu else expected)
    torch.testing.assert_close(mean, sums.mean(0))
    torch.testing.assert_close(variance, sums.var(0, unbiased=False))
    arguments = (table, weight, bias)
    assert gradcheck(lambda x, w, b: gather_norm(x, rows.numpy(), share, w, b, 1e-5, relu)[0], arguments)


def test_gather_norm_passes_on_what_is_not_a_number():
    table = torch.full((3, 2), torch.nan)
    out, *_ = gather_norm(table, np.arange(3)[:, None], np.full(3, 1 / 3), torch.ones(2), torch.zeros(2), 1e-5, True)
    assert out.isnan().all()


@pytest.mark.parametrize("times", [1, 2])
def test_gru_update_equals_a_gru_cell(times):
    """Rows share inputs, and with `times` 2 also memories."""
    torch.manual_seed(0)
    cell = torch.nn.GRUCell(3, 4).double()
    x, h, rows = double(5, 3), double(6, 4), torch.randint(0, 5, (6 * times,))
    gates = F.linear(x, cell.weight_ih, cell.bias_ih), F.linear(h, cell.weight_hh, cell.bias_hh)
    torch.testing.assert_close(gru_update(*gates, h, rows), cell(x[rows], h.repeat(times, 1)))
    assert gradcheck(lambda i, m, h: gru_update(i, m, h, rows), (double(5, 12), double(6, 12), double(6, 4)))
    torch.testing.assert_close(gru_update(gates[0], gates[1][:5], h[:5]), cell(x, h[:5]))


def test_placed_linear_equals_a_linear_layer_on_each_patch_at_its_position():
    torch.manual_seed(0)
    positions, width, features = 6, 3, 4
    patches, weight = double(5, width), double(features, width * positions)
    order, heights = torch.randperm(positions), np.array([2, 3])
    slots = np.random.default_rng(0).integers(0, 5, 4 * 2 + 2 * 3)
    placed = Placed(order.numpy(), heights, slots)
    kernels = weight.view(features, width, positions)
    places = [*(place for place in order[:4] for _ in range(2)), *(place for place in order[4:] for _ in range(3))]
    expected = torch.stack([patches[s] @ kernels[:, :, p].T for s, p in zip(slots.tolist(), places, strict=True)])
    torch.testing.assert_close(placed_linear(patches, weight, placed), expected)
    assert gradcheck(lambda x, w: placed_linear(x, w, placed), (patches, weight))


@pytest.mark.parametrize("clip_value", [math.inf, 0.3])
def test_ppo_of_categories_has_the_gradients_of_its_loss(clip_value):
    torch.manual_seed(0)
    logits, values = double(20, 5), double(20)
    batch = (
        torch.randint(0, 5, (20,)),
        *(torch.randn(4, 20, dtype=torch.float64) - torch.tensor([[1.5], [0], [0], [0]])),
    )
    assert gradcheck(lambda z, v: ppo_of_categories(z, v, batch, 0.2, clip_value, 0.5, 0.01)[0], (logits, values))


def make_encoder() -> GridEncoder:
    torch.manual_seed(0)
    return GridEncoder((7, 7, 3), 8, "layer")


def test_a_network_in_pieces_gives_its_outputs_and_gradients():
    encoder = make_encoder().double()
    views, weights = torch.randint(0, 9, (11, 7, 7, 3)), torch.randn(11, 8, dtype=torch.float64)
    found = []
    for embed in (encoder, lambda x: in_pieces(encoder, x, 4, list(encoder.parameters()))):
        encoder.zero_grad()
        outputs = embed(views)
        (outputs * weights).sum().backward()
        found.append([outputs.detach(), *(p.grad.clone() for p in encoder.parameters())])
    for expected, actual in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected)


def test_pieces_give_the_same_bits_on_any_number_of_threads(monkeypatch):
    encoder = make_encoder()
    views, found = torch.randint(0, 9, (300, 7, 7, 3), dtype=torch.uint8), []
    for threads in (1, 2, 4):
        monkeypatch.setattr(deir.fast.threads, "_threads", threads)
        encoder.zero_grad()
        outputs = in_pieces(encoder, views, 32, list(encoder.parameters()))
        outputs.square().sum().backward()
        found.append(torch.cat([outputs.detach().flatten(), *(p.grad.flatten() for p in encoder.parameters())]))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_pieces_of_a_network_that_is_not_trained_need_no_gradients():
    encoder = make_encoder().requires_grad_(False)
    views = torch.randint(0, 9, (11, 7, 7, 3))
    outputs = in_pieces(encoder, views, 4, list(encoder.parameters()))
    assert not outputs.requires_grad
    torch.testing.assert_close(outputs, encoder(views))


def test_batch_normalisation_couples_observations_only_while_training():
    assert not couples_observations(make_encoder())
    encoder = GridEncoder((7, 7, 3), 8, "batch")
    assert couples_observations(encoder) and not couples_observations(encoder.eval())
