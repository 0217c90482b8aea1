"""The flat optimiser takes the steps of PyTorch's own."""

import copy
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from deir.config import PPOConfig
from deir.errors import TrainingDiverged
from deir.fast.flat_adam import FlatAdam


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).double()


def losses(module: nn.Module, count: int):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield module(torch.randn(16, 4, generator=generator, dtype=torch.float64)).square().sum() * 5


@pytest.mark.parametrize("max_norm", [0.5, 1e9])
def test_same_steps_as_adam_with_clipping(max_norm):
    ours, theirs = network(), network()
    config = replace(PPOConfig(), max_grad_norm=max_norm, learning_rate=1e-2)
    flat = FlatAdam(ours, config, "policy")
    adam = torch.optim.Adam(theirs.parameters(), 1e-2, eps=1e-5)
    for mine, reference in zip(losses(ours, 10), losses(theirs, 10), strict=True):
        flat.step(mine)
        adam.zero_grad()
        reference.backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)
        adam.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_state_round_trip_goes_on_the_same():
    ours = network()
    first = FlatAdam(ours, PPOConfig(), "policy")
    for loss in losses(ours, 3):
        first.step(loss)
    other = network()
    second = FlatAdam(other, PPOConfig(), "policy")
    other.load_state_dict(copy.deepcopy(ours.state_dict()))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for a, b in zip(losses(ours, 3), losses(other, 3), strict=True):
        first.step(a)
        second.step(b)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), other.parameters(), strict=True))


def test_a_loss_that_is_not_finite_stops_before_the_parameters_change():
    layer = nn.Linear(2, 1)
    optimizer = FlatAdam(layer, PPOConfig(), "policy")
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
