"""The policy as it stands during a rollout: parameters frozen, normalisation folded into the layers before it."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from deir.algorithm.networks import GridEncoder
from deir.algorithm.policy import Policy
from deir.algorithm.recurrent import Gates, gru_gates, gru_step
from deir.fast import loops
from deir.fast.kernels import arrays_of
from deir.fast.patches import ObservationTable

ENCODE_CHUNK = 2048  # bounds the memory of feature maps


def scale_and_shift(norm: nn.Module) -> tuple[Tensor, Tensor] | None:
    """Batch normalisation in evaluation mode is x * scale + shift; None for any other layer but the identity."""
    if isinstance(norm, nn.Identity):
        return torch.ones((), device="cpu"), torch.zeros((), device="cpu")  # joins a tensor on any device
    if not isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d)):
        return None
    assert norm.running_mean is not None and norm.running_var is not None
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    return scale, norm.bias - norm.running_mean * scale


def folded(weight: Tensor, bias: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """weight [in, out] and bias [out] of a layer with the batch normalisation after it folded in."""
    scaled = scale_and_shift(norm)
    assert scaled is not None
    return weight * scaled[0], bias * scaled[0] + scaled[1]


def corners(height: int, width: int) -> Tensor:
    """The four cells of every 2x2 patch of a grid, counted row by row. [(height-1)*(width-1)*4]"""
    cells = torch.arange(height * width, device="cpu").view(height, width)
    return torch.stack([cells[:-1, :-1], cells[:-1, 1:], cells[1:, :-1], cells[1:, 1:]], -1).flatten()


class FrozenGridEncoder:
    """A grid encoder for few views at a time: its 2x2 convolutions are matrix products on channels-last data."""

    def __init__(self, encoder: GridEncoder) -> None:
        self.padding = encoder.padding
        self.inputs = scale_and_shift(encoder.input_norm)
        self.layers = []  # corners of each patch, weight, bias
        height, width = (side + 2 * self.padding for side in encoder.shape[:2])
        for conv, norm in zip(encoder.convs, encoder.norms, strict=True):
            assert isinstance(conv, nn.Conv2d) and conv.bias is not None
            kernel = conv.weight.permute(2, 3, 1, 0).reshape(-1, conv.out_channels)  # [4*in, out]
            self.layers.append((corners(height, width).to(kernel.device), *folded(kernel, conv.bias, norm)))
            height, width = height - 1, width - 1
        channels = encoder.CHANNELS[-1]
        linear = encoder.linear.weight.view(encoder.features, channels, -1).permute(2, 1, 0)  # [positions, C, features]
        self.linear = folded(linear.reshape(-1, encoder.features), encoder.linear.bias, encoder.output_norm)

    def __call__(self, views: Tensor) -> Tensor:
        """[B, H, W, C] -> [B, features]"""
        assert self.inputs is not None
        x = views * self.inputs[0] + self.inputs[1]
        if self.padding:
            x = F.pad(x, (0, 0, *(self.padding,) * 4))
        x = x.flatten(1, 2)  # [B, H*W, C]
        for places, weight, bias in self.layers:
            patches = x.index_select(1, places).view(-1, len(weight))  # [B*h*w, 4*C]
            x = torch.addmm(bias, patches, weight).relu_().view(len(views), -1, len(bias))
        return torch.addmm(self.linear[1], x.flatten(1), self.linear[0]).relu_()


class FrozenPolicy:
    """Everything a step of the policy needs, prepared once a rollout."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy.eval()
        foldable = isinstance(policy.encoder, GridEncoder) and scale_and_shift(policy.encoder.input_norm) is not None
        self.encode = FrozenGridEncoder(policy.encoder) if foldable else policy.encoder  # type: ignore[arg-type]
        first, norm, _, last = policy.actor
        assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)
        self.features = folded(first.weight.T, first.bias, norm)
        self.last = last.weight.T, last.bias
        layers = (policy.gru.weight_hh.T, policy.gru.bias_hh), self.features, self.last
        self.loops = policy.gru.weight_hh.device.type == "cpu"
        self.arrays = [arrays_of(*layer) for layer in layers] if self.loops else []

    def gates(self, observations: Tensor) -> Gates:
        """[B, *obs]"""
        return Gates(F.linear(self.encode(observations), self.policy.gru.weight_ih, self.policy.gru.bias_ih), None)

    def step(self, gates: Gates, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Gates and memory before the step [N, H] -> outputs [N, A], memory after it [N, H]"""
        if self.loops:
            arrays = arrays_of(gates.distinct, gates.rows_of(hidden), hidden)
            outputs, hidden = map(torch.from_numpy, loops.act_recurrently(*arrays, *self.arrays))
        else:
            hidden = gru_step(self.policy.gru, gates, hidden)
            features = torch.addmm(self.features[1], hidden, self.features[0]).relu_()
            outputs = torch.addmm(self.last[1], features, self.last[0])
        return self.policy.complete(outputs), hidden


class ObservationCache:
    """Names each distinct observation by an integer and, while parameters are frozen, encodes it once."""

    def __init__(self, frozen: FrozenPolicy, known: ObservationTable | None) -> None:
        self.frozen = frozen
        self.observations: list[NDArray[Any]] = []
        self.names: dict[bytes, int] = {}
        width = frozen.policy.gru.weight_ih.shape[0]
        self.gates = torch.zeros(4096, width, device=frozen.policy.gru.weight_ih.device)  # [capacity, 3H]
        if known is not None:
            self._adopt(known)

    def _adopt(self, known: ObservationTable) -> None:
        """Starts from the observations of the last rollout: most of them come again."""
        self.observations = list(known.distinct.cpu().numpy())
        self.names = {observation.tobytes(): name for name, observation in enumerate(self.observations)}
        for part in torch.arange(len(known.distinct), device=self.gates.device).split(ENCODE_CHUNK):
            policy = self.frozen.policy
            self._store(int(part[0]), gru_gates(policy.gru, policy.encoder, known.rows(part)).gather())

    def _store(self, begin: int, gates: Tensor) -> None:
        while begin + len(gates) > len(self.gates):
            self.gates = torch.cat([self.gates, torch.zeros_like(self.gates)])
        self.gates[begin : begin + len(gates)] = gates

    def lookup(self, observations: NDArray[Any]) -> Tensor:
        """[N, *obs] -> names [N]"""
        known = len(self.observations)
        names: list[int] = []
        fresh: list[int] = []  # rows never seen before
        for row, observation in enumerate(observations):
            name = self.names.setdefault(observation.tobytes(), known + len(fresh))
            if name == known + len(fresh):
                fresh.append(row)
            names.append(name)
        if fresh:
            new = observations[fresh]
            self.observations.extend(new)
            self._store(known, self.frozen.gates(torch.from_numpy(new).to(self.gates.device)).distinct)
        return torch.tensor(names, device=self.gates.device)
