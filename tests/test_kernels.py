"""Hand-written gradients against autograd in double precision."""

import torch
from torch.autograd import gradcheck
from torch.nn import functional as F

import deir.threads
from deir.kernels import gather_sum, gru_update, in_pieces, weighted_norm_relu
from deir.networks import GridEncoder


def double(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_gather_sum():
    torch.manual_seed(0)
    table, indices = double(7, 3), torch.randint(0, 7, (5, 4))
    torch.testing.assert_close(gather_sum(table, indices), table[indices].sum(1))
    assert gradcheck(lambda x: gather_sum(x, indices), table)


def test_weighted_norm_relu_equals_batch_norm_of_the_repeated_rows():
    torch.manual_seed(0)
    x, weight, bias = double(5, 3), double(3), double(3)
    counts = torch.tensor([3, 1, 2, 1, 4])
    share = counts.double() / counts.sum()
    names = torch.repeat_interleave(torch.arange(5), counts)
    expected = F.relu(F.batch_norm(x[names], None, None, weight, bias, training=True, eps=1e-5))
    actual, mean, variance = weighted_norm_relu(x, share, weight, bias, 1e-5)
    torch.testing.assert_close(actual[names], expected)
    torch.testing.assert_close(mean, x[names].mean(0))
    torch.testing.assert_close(variance, x[names].var(0, unbiased=False))
    assert gradcheck(lambda x, w, b: weighted_norm_relu(x, share, w, b, 1e-5)[0], (x, weight, bias))


def test_gru_update_equals_a_gru_cell():
    torch.manual_seed(0)
    cell = torch.nn.GRUCell(3, 4).double()
    x, h = double(5, 3), double(5, 4)
    gates = F.linear(x, cell.weight_ih, cell.bias_ih), F.linear(h, cell.weight_hh, cell.bias_hh)
    torch.testing.assert_close(gru_update(*gates, h), cell(x, h))
    assert gradcheck(gru_update, (double(5, 12), double(5, 12), double(5, 4)))


def make_encoder() -> GridEncoder:
    torch.manual_seed(0)
    return GridEncoder((7, 7, 3), 8, "layer")


def test_a_network_in_pieces_gives_its_outputs_and_gradients():
    encoder = make_encoder().double()
    views, weights = torch.randint(0, 9, (11, 7, 7, 3)), torch.randn(11, 8, dtype=torch.float64)
    found = []
    for embed in (encoder.plain, lambda x: in_pieces(encoder.plain, x, 4, list(encoder.parameters()))):
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
        monkeypatch.setattr(deir.threads, "_shared", threads)
        monkeypatch.setattr(deir.threads, "_other_idle", lambda: True)
        encoder.zero_grad()
        outputs = in_pieces(encoder.plain, views, 32, list(encoder.parameters()))
        outputs.square().sum().backward()
        found.append(torch.cat([outputs.detach().flatten(), *(p.grad.flatten() for p in encoder.parameters())]))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_pieces_of_a_network_that_is_not_trained_need_no_gradients():
    encoder = make_encoder().requires_grad_(False)
    views = torch.randint(0, 9, (11, 7, 7, 3))
    outputs = in_pieces(encoder.plain, views, 4, list(encoder.parameters()))
    assert not outputs.requires_grad
    torch.testing.assert_close(outputs, encoder.plain(views))


def test_batch_normalisation_couples_observations_only_while_training():
    assert not make_encoder().couples_observations
    encoder = GridEncoder((7, 7, 3), 8, "batch")
    assert encoder.couples_observations and not encoder.eval().couples_observations
