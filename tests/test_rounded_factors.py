"""`--precision bf16` equals the plain encoders with the factors of their products rounded: outputs and all gradients.

Against the exact encoder a single gradient can be far off where it is a small sum of large terms, such as that of the
input's gain before a layer whose outputs are normalised. That is what rounding does to it, so rounding is the oracle.
"""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from deir.algorithm.networks import ConvEncoder, GridEncoder, ImpalaEncoder
from deir.fast.pieces import embed_whole


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16).to(x.dtype)


class RoundedProduct(torch.autograd.Function):
    """multiply(x, weight) of rounded factors, in which the gradient's products have rounded factors too."""

    @staticmethod
    def forward(ctx, multiply, exact_input, x, weight):
        ctx.multiply, ctx.exact_input = multiply, exact_input
        ctx.save_for_backward(x, weight)
        return multiply(rounded(x), rounded(weight))

    @staticmethod
    def backward(ctx, grad):
        exact = ctx.saved_tensors
        with torch.enable_grad():
            x, weight = (rounded(factor).requires_grad_() for factor in exact)
            by_x, by_weight = torch.autograd.grad(ctx.multiply(x, weight), (x, weight), rounded(grad))
            if ctx.exact_input:
                x, weight = (factor.detach().requires_grad_() for factor in exact)
                (by_x,) = torch.autograd.grad(ctx.multiply(x, weight), x, grad)
        return None, None, by_x, by_weight


def convolve(conv: nn.Conv2d, exact_input: bool, x: torch.Tensor) -> torch.Tensor:
    multiply = partial(F.conv2d, stride=conv.stride, padding=conv.padding)
    return RoundedProduct.apply(multiply, exact_input, x, conv.weight) + conv.bias[:, None, None]


def convolve_folded(conv: nn.Conv2d, norm: nn.BatchNorm2d, x: torch.Tensor) -> torch.Tensor:
    """With the input's gain and shift in the kernel, the shift as that of a channel of ones."""
    kernel = conv.weight * norm.weight[:, None, None], (conv.weight * norm.bias[:, None, None]).sum(1, keepdim=True)
    cells, multiply = torch.cat([x, torch.ones_like(x[:, :1])], 1), partial(F.conv2d, padding=conv.padding)
    return RoundedProduct.apply(multiply, False, cells, torch.cat(kernel, 1)) + conv.bias[:, None, None]


def multiply_rows(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return RoundedProduct.apply(F.linear, False, x, linear.weight) + linear.bias


def with_rounded_factors(encoder: nn.Module) -> nn.Module:
    """The plain encoder, in which convolutions round their factors, and the linear layer of views too."""
    encoder = copy.deepcopy(encoder)
    convs = [module for module in encoder.modules() if isinstance(module, nn.Conv2d)]
    for conv in convs:
        conv.forward = partial(convolve, conv, conv is convs[0] and isinstance(encoder, ImpalaEncoder))
    if isinstance(encoder, GridEncoder):
        encoder.linear.forward = partial(multiply_rows, encoder.linear)
        if isinstance(encoder.input_norm, nn.BatchNorm2d):
            convs[0].forward = partial(convolve_folded, convs[0], encoder.input_norm)
            encoder.input_norm.forward = lambda x: F.batch_norm(x, None, None, training=True)
    return encoder


@pytest.mark.parametrize(
    ("cls", "shape", "norm"),
    [
        (GridEncoder, (7, 7, 3), "batch"),
        (GridEncoder, (7, 7, 3), "layer"),
        (GridEncoder, (3, 3, 3), "batch"),
        (ConvEncoder, (64, 64, 3), "layer"),
        (ConvEncoder, (45, 50, 1), "none"),
        (ImpalaEncoder, (32, 24, 3), "layer"),
        (ImpalaEncoder, (16, 16, 1), "none"),
    ],
)
def test_outputs_and_gradients_of_all_parameters_are_those_of_rounded_factors(cls, shape, norm):
    torch.manual_seed(0)
    fast = cls(shape, 32, norm).train()
    for parameter in fast.parameters():
        parameter.data += 0.1 * torch.rand_like(parameter)
    plain = with_rounded_factors(fast)
    images = torch.randint(0, 256, (67, *shape), dtype=torch.uint8)
    seen = images / 30 + 0.1 * torch.randn(images.shape) if cls is GridEncoder else images
    exact, expected, actual = copy.deepcopy(fast)(seen), plain(seen), embed_whole(fast, seen, "bf16")
    assert (actual - expected).norm() < 0.3 * (exact - expected).norm()
    slope = torch.randn_like(expected)
    (expected * slope).sum().backward()
    (actual * slope).sum().backward()
    whole = torch.cat([parameter.grad.flatten() for parameter in plain.parameters()]).norm()
    # a shift before batch normalisation changes nothing: what is found of its gradient is what rounding leaves
    nothing = (2e-5 if norm == "batch" else 1e-7) * whole
    for (name, a), b in zip(fast.named_parameters(), plain.parameters(), strict=True):
        # sums in another order move a few numbers to the next one that 16 bits hold
        assert (a.grad - b.grad).norm() < 0.03 * b.grad.norm() + nothing, name
