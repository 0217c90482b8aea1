"""Hand-written gradients against autograd in double precision."""

import torch
from torch.autograd import gradcheck
from torch.nn import functional as F

from deir.kernels import gather_sum, gru_update, weighted_norm_relu


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
