"""Both optimisers, the plain one and the flat one, take the steps of PyTorch's own."""

import copy
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from deir.algorithm.optimizer import ClippedAdam
from deir.config import PPOConfig
from deir.errors import TrainingDiverged
from deir.fast.flat_adam import FlatAdam

BOTH = pytest.mark.parametrize("optimizer_class", [FlatAdam, ClippedAdam])


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).double()


def losses(module: nn.Module, count: int):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield module(torch.randn(16, 4, generator=generator, dtype=torch.float64)).square().sum() * 5


@BOTH
@pytest.mark.parametrize("max_norm", [0.5, 1e9])
def test_same_steps_as_adam_with_clipping(optimizer_class, max_norm):
    ours, theirs = network(), network()
    config = replace(PPOConfig(), max_grad_norm=max_norm, learning_rate=1e-2, adam_beta1=0.8, adam_beta2=0.9)
    flat = optimizer_class(ours, config, "policy")
    adam = torch.optim.Adam(theirs.parameters(), 1e-2, betas=(0.8, 0.9), eps=1e-5)
    for mine, reference in zip(losses(ours, 10), losses(theirs, 10), strict=True):
        flat.step(mine)
        adam.zero_grad()
        reference.backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)
        adam.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


@BOTH
def test_state_round_trip_goes_on_the_same(optimizer_class):
    ours = network()
    first = optimizer_class(ours, PPOConfig(), "policy")
    assert first.state_dict() == {}
    for loss in losses(ours, 3):
        first.step(loss)
    other = network()
    second = optimizer_class(other, PPOConfig(), "policy")
    other.load_state_dict(copy.deepcopy(ours.state_dict()))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for a, b in zip(losses(ours, 3), losses(other, 3), strict=True):
        first.step(a)
        second.step(b)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), other.parameters(), strict=True))
    assert float(second.state_dict()["step"]) == 6
    second.load_state_dict({})
    assert second.state_dict() == {}


@BOTH
def test_a_loaded_state_is_a_copy(optimizer_class):
    ours, other = network(), network()
    first, second = (optimizer_class(one, PPOConfig(), "policy") for one in (ours, other))
    for loss in losses(ours, 2):
        first.step(loss)
    state = copy.deepcopy(first.state_dict())
    second.load_state_dict(state)
    for loss in losses(other, 2):
        second.step(loss)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, state[name])
        assert not torch.equal(tensor, second.state_dict()[name])


@BOTH
def test_what_is_frozen_stays_and_has_no_moments(optimizer_class):
    ours = network()
    ours[0].requires_grad_(False)
    before = copy.deepcopy(ours[0].state_dict())
    optimizer = optimizer_class(ours, PPOConfig(), "policy")
    for loss in losses(ours, 2):
        optimizer.step(loss)
    assert all(torch.equal(before[name], tensor) for name, tensor in ours[0].state_dict().items())
    assert optimizer.state_dict()["exp_avg"].shape == (2 * 8 + 2 * 8 + 2,)


@BOTH
def test_what_no_loss_has_reached_has_moments_of_zero(optimizer_class):
    layers = nn.ModuleList([nn.Linear(1, 1, bias=False), nn.Linear(2, 1, bias=False)])
    optimizer = optimizer_class(layers, PPOConfig(), "policy")
    for _ in range(2):
        optimizer.step((layers[1].weight * torch.tensor([3.0, 4.0])).sum() * 0.01)
    state = optimizer.state_dict()
    assert float(state["step"]) == 2
    torch.testing.assert_close(state["exp_avg"], 0.19 * torch.tensor([0, 0.03, 0.04]))
    torch.testing.assert_close(state["exp_avg_sq"], (1 - 0.999**2) * torch.tensor([0, 0.0009, 0.0016]))
    again = optimizer_class(copy.deepcopy(layers), PPOConfig(), "policy")
    again.load_state_dict(state)
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, state[name])


@BOTH
def test_what_a_loss_no_longer_reaches_goes_on_with_its_momentum(optimizer_class):
    layers = nn.ModuleList([nn.Linear(1, 1, bias=False) for _ in range(2)])
    optimizer = optimizer_class(layers, PPOConfig(), "policy")
    optimizer.step(layers[0].weight.sum())
    before = float(layers[0].weight.detach())
    optimizer.step(layers[1].weight.sum())
    assert float(layers[0].weight.detach()) < before


@BOTH
def test_at_most_three_spoilt_gradients_are_named(optimizer_class):
    layers = nn.ModuleList([nn.Linear(1, 1, bias=False) for _ in range(5)])
    optimizer = optimizer_class(layers, PPOConfig(), "policy")
    with pytest.raises(TrainingDiverged) as caught:
        optimizer.step(layers[0].weight.sum() + sum((layer.weight * 0).sqrt().sum() for layer in layers[1:]))
    assert str(caught.value).endswith("not finite in 1.weight, 2.weight, 3.weight")


@BOTH
def test_a_loss_that_is_not_finite_stops_before_the_parameters_change(optimizer_class):
    layer = nn.Linear(2, 1)
    optimizer = optimizer_class(layer, PPOConfig(), "policy")
    before = layer.weight.clone()
    with pytest.raises(TrainingDiverged, match="policy loss is nan"):
        optimizer.step(layer(torch.tensor([[float("nan"), 0.0]])).sum())
    with pytest.raises(TrainingDiverged, match="gradient is not finite in weight"):
        optimizer.step((layer.weight * 0).sqrt().sum())
    assert torch.equal(layer.weight, before)


def test_it_does_not_load_pytorchs_compiler():
    code = (
        "import sys; from torch import nn\n"
        "from deir.config import PPOConfig; from deir.fast.flat_adam import FlatAdam\n"
        "layer = nn.Linear(2, 1); FlatAdam(layer, PPOConfig(), 'policy').step(layer.weight.sum())\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
