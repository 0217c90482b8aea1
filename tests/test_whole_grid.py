"""The grid encoder on whole views equals the plain one: outputs, gradients, running statistics."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from deir.algorithm.networks import GridEncoder, make_encoder
from deir.algorithm.policy import Policy
from deir.algorithm.types import Shared
from deir.config import NetworkConfig
from deir.fast import blas, threads, whole_maps
from deir.fast import convolution as products
from deir.fast.acting import FrozenPolicy
from deir.fast.gru import gru_gates
from deir.fast.ops import FastOps
from deir.fast.pieces import embed_whole
from deir.fast.whole_grid import embed_views, runs_whole
from test_networks import packed_views


def an_encoder(size: int, norm: str, dtype: torch.dtype = torch.float64, features: int = 64) -> GridEncoder:
    """With every parameter and running statistic away from where it starts."""
    torch.manual_seed(0)
    encoder = GridEncoder((size, size, 3), features, norm).to(dtype)
    for tensor in (*encoder.parameters(), *encoder.buffers()):
        if tensor.is_floating_point():
            tensor.data += 0.1 * torch.rand_like(tensor)
    return encoder


def noisy_views(count: int, size: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return (torch.randint(0, 9, (count, size, size, 3)) + 0.1 * torch.randn(count, size, size, 3)).to(dtype)


@pytest.mark.parametrize("norm", ["batch", "none", "layer"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("size", "count"), [(7, 300), (3, 70), (4, 33), (5, 3), (11, 20)])
def test_outputs_gradients_and_running_statistics_are_those_of_the_plain_encoder(size, count, norm, training):
    plain = an_encoder(size, norm).train(training)
    fast, views = copy.deepcopy(plain), noisy_views(count, size)
    expected, actual = plain(views), embed_views(fast, views)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    slope = torch.randn_like(expected)
    (expected * slope).sum().backward()
    (actual * slope).sum().backward()
    for (name, a), b in zip(fast.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-8, atol=1e-8, msg=name)
    for (name, a), b in zip(fast.named_buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10, msg=name)


def test_bytes_and_single_precision_too():
    plain = an_encoder(7, "batch", torch.float32).train()
    views = torch.randint(0, 9, (100, 7, 7, 3), dtype=torch.uint8)
    for seen in (views, views.float(), views.transpose(1, 2)):
        torch.testing.assert_close(
            embed_views(copy.deepcopy(plain), seen), copy.deepcopy(plain)(seen), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("count", [40, 513])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_bits_do_not_depend_on_the_number_of_threads(count, norm, precision, monkeypatch):
    encoder, views = an_encoder(7, norm, torch.float32).train(), noisy_views(count, 7, torch.float32)
    found = []
    for number in (1, 2, 3):
        monkeypatch.setattr(threads, "_threads", number)
        copied = copy.deepcopy(encoder)
        out = embed_views(copied, views, precision)
        out.square().sum().backward()
        found.append([out.detach(), *(p.grad for p in copied.parameters()), *copied.buffers()])
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_a_frozen_encoder_is_laid_out_once_and_gives_the_same_bits_for_any_number_of_views(
    precision, kind, monkeypatch
):
    policy = Policy(spaces.Box(0, 255, (7, 7, 3), np.uint8), spaces.Discrete(4), NetworkConfig(norm="layer"))
    policy.encoder = encoder = an_encoder(7, "layer", torch.float32)
    views = noisy_views(40, 7, torch.float32).clamp(0).to(kind)
    with torch.no_grad():
        embedded = embed_views(encoder, views, precision)
        expected = gru_gates(policy.gru, Shared(embedded)).values
    frozen = FrozenPolicy(policy, precision)
    monkeypatch.setattr(whole_maps, "_laid_out", None)
    for number in (1, 2):
        monkeypatch.setattr(threads, "_threads", number)
        for count in (1, 9, 40):
            gates = frozen.gates(views[:count].numpy())
            torch.testing.assert_close(gates, expected[:count], rtol=1e-6, atol=1e-6)
            assert torch.equal(frozen.maps(views[:count].numpy()), embedded[:count])


def as_bf16(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16).to(x.dtype)


@pytest.mark.parametrize("like", [np.float64, np.float32, np.uint16])
@pytest.mark.parametrize(("side", "channels", "columns"), [(4, 64, 64), (7, 32, 16), (1, 4, 112)])
@pytest.mark.parametrize("count", [1, 5])
def test_convolutions_and_linear_layers_without_patches(side, channels, columns, count, like):
    """Of factors that bf16 holds exactly, so that only the order of sums differs."""
    like, dtype = np.empty(0, like), torch.float64 if like is np.float64 else torch.float32
    torch.manual_seed(0)
    maps = as_bf16(torch.randn(count, side + 1, side + 1, channels, dtype=dtype)).requires_grad_()
    kernel = as_bf16(torch.randn(4 * channels, columns, dtype=dtype)).requires_grad_()
    weight = kernel.view(2, 2, channels, columns).permute(3, 2, 0, 1)
    expected = torch.conv2d(maps.permute(0, 3, 1, 2), weight).permute(0, 2, 3, 1).reshape(count, -1, columns)
    grad = as_bf16(torch.randn_like(expected))
    by_maps, by_kernel = torch.autograd.grad(expected, (maps, kernel), grad)
    factors = products.as_factors(maps.detach().reshape(count, -1, channels).numpy(), like)
    by_factors = products.as_factors(grad.numpy(), like)
    out, added = np.empty(expected.shape, expected.detach().numpy().dtype), by_kernel.numpy().copy()
    products.convolve(factors, side, side, products.kernel_words(kernel.detach().numpy(), like), out)
    products.join_kernel(factors, by_factors, side, side, added)
    close = {"rtol": 1e-4, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(torch.from_numpy(out), expected.detach(), **close)
    torch.testing.assert_close(torch.from_numpy(added), 2 * by_kernel, **close)
    if channels >= 16:
        turned = products.turned_words(kernel.detach().numpy(), channels, like)
        back = np.empty((count, (side + 1) ** 2, channels), out.dtype)
        products.convolve_back(by_factors, side, side, turned, back)
        torch.testing.assert_close(torch.from_numpy(back).view_as(by_maps), by_maps, **close)


@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize(("size", "count", "features"), [(7, 300, 64), (3, 71, 20)])
def test_products_of_bf16_are_close_to_the_plain_encoder(size, count, features, norm):
    """Outputs within 2% of their spread; gradients of kernels within 15% of their length, since some ReLUs turn."""
    plain = an_encoder(size, norm, torch.float32, features).train()
    fast, views = copy.deepcopy(plain), noisy_views(count, size, torch.float32)
    expected, actual = plain(views), embed_whole(fast, views, "bf16")
    assert (actual - expected).std() < 0.02 * expected.std() and not torch.equal(actual, expected)
    slope = torch.randn_like(expected)
    (expected * slope).sum().backward()
    (actual * slope).sum().backward()
    for a, b in zip((*fast.convs, fast.linear), (*plain.convs, plain.linear), strict=True):
        assert (a.weight.grad - b.weight.grad).norm() < 0.15 * b.weight.grad.norm()
    for (name, a), b in zip(fast.named_buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02, msg=name)


def test_policy_and_model_ask_for_products_of_bf16():
    encoder, views = an_encoder(7, "batch", torch.float32).train(), noisy_views(40, 7, torch.float32)
    rounded = FastOps("bf16").embed(copy.deepcopy(encoder), views).values
    assert torch.equal(rounded, embed_views(copy.deepcopy(encoder), views, "bf16"))
    assert not torch.equal(rounded, FastOps().embed(copy.deepcopy(encoder), views).values)


def test_what_is_not_a_number_is_passed_on():
    encoder, views = an_encoder(7, "batch").train(), noisy_views(50, 7)
    views[3, 2, 2, 1] = torch.nan
    assert embed_views(encoder, views).isnan().any()


def test_a_mistake_in_a_job_reaches_the_caller(monkeypatch):
    def fail(number: int) -> None:
        raise ArithmeticError(number)

    monkeypatch.setattr(threads, "_threads", 2)
    with pytest.raises(ArithmeticError):
        threads.share_out(fail, 4)


def test_every_job_is_done_once(monkeypatch):
    for number in (1, 2, 5):
        monkeypatch.setattr(threads, "_threads", number)
        done: list[int] = []
        threads.share_out(done.append, 9)
        assert sorted(done) == list(range(9))


def test_who_takes_the_whole_encoder():
    assert runs_whole(an_encoder(7, "batch", torch.float32)) and runs_whole(an_encoder(7, "layer"))
    assert not runs_whole(nn.Linear(3, 3)) and not runs_whole(an_encoder(7, "batch", torch.bfloat16))


@pytest.mark.parametrize("flip_a", [False, True])
@pytest.mark.parametrize("flip_b", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_in_compiled_code(flip_a, flip_b, dtype):
    a, b, c = torch.randn(7, 5, dtype=dtype), torch.randn(5, 3, dtype=dtype), torch.randn(7, 3, dtype=dtype)
    left, right = (x.T.contiguous() if flip else x for x, flip in ((a, flip_a), (b, flip_b)))
    for beta in (0.0, 1.0):
        out = c.clone().numpy()
        blas.multiply(blas.product(dtype), left.numpy(), flip_a, right.numpy(), flip_b, out, beta)
        torch.testing.assert_close(torch.from_numpy(out), beta * c + a @ b)
    assert blas.product(torch.bfloat16) is None


def test_an_observation_of_parts_takes_the_whole_encoder_for_its_view():
    space, rows = packed_views(60)
    encoder = make_encoder("grid+mlp+mlp", space, 16, "batch")
    torch.testing.assert_close(
        embed_whole(copy.deepcopy(encoder), rows), copy.deepcopy(encoder)(rows), rtol=1e-4, atol=1e-4
    )
