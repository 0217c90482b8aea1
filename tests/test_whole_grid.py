"""The grid encoder on whole views equals the plain one: outputs, gradients, running statistics."""

import copy

import pytest
import torch
from torch import nn

from deir.algorithm.networks import GridEncoder, make_encoder
from deir.fast import threads
from deir.fast.pieces import embed_whole
from deir.fast.whole_grid import embed_views, runs_whole
from test_networks import packed_views


def an_encoder(size: int, norm: str, dtype: torch.dtype = torch.float64) -> GridEncoder:
    """With every parameter and running statistic away from where it starts."""
    torch.manual_seed(0)
    encoder = GridEncoder((size, size, 3), 64, norm).to(dtype)
    for tensor in (*encoder.parameters(), *encoder.buffers()):
        if tensor.is_floating_point():
            tensor.data += 0.1 * torch.rand_like(tensor)
    return encoder


def noisy_views(count: int, size: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return (torch.randint(0, 9, (count, size, size, 3)) + 0.1 * torch.randn(count, size, size, 3)).to(dtype)


@pytest.mark.parametrize("norm", ["batch", "none", "layer"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("size", "count"), [(7, 300), (3, 70), (4, 33), (5, 3)])
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
def test_the_bits_do_not_depend_on_the_number_of_threads(count, norm, monkeypatch):
    encoder, views = an_encoder(7, norm, torch.float32).train(), noisy_views(count, 7, torch.float32)
    found = []
    for number in (1, 2, 3):
        monkeypatch.setattr(threads, "_threads", number)
        copied = copy.deepcopy(encoder)
        out = embed_views(copied, views)
        out.square().sum().backward()
        found.append([out.detach(), *(p.grad for p in copied.parameters()), *copied.buffers()])
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


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


def test_an_observation_of_parts_takes_the_whole_encoder_for_its_view():
    space, rows = packed_views(60)
    encoder = make_encoder("grid+mlp+mlp", space, 16, "batch")
    torch.testing.assert_close(
        embed_whole(copy.deepcopy(encoder), rows), copy.deepcopy(encoder)(rows), rtol=1e-4, atol=1e-4
    )
