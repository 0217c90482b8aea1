"""The policy as it stands during a rollout: parameters frozen, normalisation folded into the layers before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from deir.algorithm.networks import GridEncoder, VectorEncoder
from deir.algorithm.policy import Policy
from deir.algorithm.types import ObservationTable, Shared
from deir.envs.spaces import packed_view
from deir.fast.arrays import arrays_of
from deir.fast.blas import product
from deir.fast.folding import folded, is_affine, scale_and_shift
from deir.fast.gru import act_recurrently, gru_gates
from deir.fast.patches import tabulate
from deir.fast.vector_encoder import FrozenVectorEncoder

ENCODE_CHUNK = 2048  # bounds the memory of feature maps


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
        x = views * self.inputs[0] + self.inputs[1]
        if self.padding:
            x = F.pad(x, (0, 0, *(self.padding,) * 4))
        x = x.flatten(1, 2)  # [B, H*W, C]
        for places, weight, bias in self.layers:
            patches = x.index_select(1, places).view(-1, len(weight))  # [B*h*w, 4*C]
            x = torch.addmm(bias, patches, weight).relu_().view(len(views), -1, len(bias))
        return torch.addmm(self.linear[1], x.flatten(1), self.linear[0]).relu_()


def _folded_encoder(encoder: nn.Module) -> FrozenGridEncoder | FrozenVectorEncoder | None:
    if type(encoder) is GridEncoder and is_affine(encoder.input_norm):
        return FrozenGridEncoder(encoder)
    if isinstance(encoder, VectorEncoder) and FrozenVectorEncoder.takes(encoder):
        return FrozenVectorEncoder(encoder)
    return None


class FrozenPolicy:
    """Everything a step of the policy needs, prepared once a rollout."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy.eval()
        self.folded = _folded_encoder(policy.encoder)
        first, norm, _, last = policy.actor
        assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)
        layers = (
            (policy.gru.weight_hh.T, policy.gru.bias_hh),
            folded(first.weight.T, first.bias, norm),
            (last.weight.T, last.bias),
        )
        self.arrays = [arrays_of(*layer) for layer in layers]
        self.gemm = product(policy.gru.weight_hh.dtype)

    def gates(self, observations: Tensor) -> Tensor:
        """[B, *obs] -> [B, 3H]"""
        if self.folded is not None:
            embedded = self.folded(observations)
        else:
            embedded = self.policy.ops.embed(self.policy.encoder, observations).gather()
        return gru_gates(self.policy.gru, Shared(embedded)).values

    def step(self, gates: Tensor, rows: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Gates [U, 3H], which of them each has [N], memory before the step [N, H] -> outputs, memory after it"""
        outputs, after = map(
            torch.from_numpy, act_recurrently(self.gemm, *arrays_of(gates, rows, hidden), *self.arrays)
        )
        return self.policy.complete(outputs), after


class ActingOnAnything:
    """Where nothing is taken to repeat."""

    known = None

    def __init__(self, policy: Policy) -> None:
        self.frozen = FrozenPolicy(policy)
        self.seen: list[Tensor] = []

    def step(self, observations: NDArray[Any], hidden: Tensor) -> tuple[Tensor, Tensor]:
        self.seen.append(torch.from_numpy(observations))
        rows = torch.arange(len(hidden), device="cpu")
        return self.frozen.step(self.frozen.gates(self.seen[-1]), rows, hidden)

    def table(self, last: NDArray[Any], finals: NDArray[Any]) -> tuple[ObservationTable, Tensor, Tensor]:
        everything = torch.cat([*self.seen, torch.from_numpy(np.ascontiguousarray(last)), torch.from_numpy(finals)])
        names = torch.arange(len(everything), device="cpu")
        ids, final_ids = names.split([len(names) - len(finals), len(finals)])
        return ObservationTable(everything), ids.view(len(self.seen) + 1, -1), final_ids


class ActingOnRepeats:
    """Names each distinct observation by an integer and, while parameters are frozen, encodes it once."""

    def __init__(self, policy: Policy, known: ObservationTable | None) -> None:
        self.frozen = FrozenPolicy(policy)
        self.seen: list[Tensor] = []  # names
        self.observations: list[NDArray[Any]] = []
        self.names: dict[bytes, int] = {}
        self.known = known
        self.gates = torch.zeros(4096, policy.gru.weight_ih.shape[0], device="cpu")  # [capacity, 3H]
        if known is not None:
            self._adopt(known)

    def step(self, observations: NDArray[Any], hidden: Tensor) -> tuple[Tensor, Tensor]:
        self.seen.append(self.lookup(observations))
        return self.frozen.step(self.gates, self.seen[-1], hidden)

    def table(self, last: NDArray[Any], finals: NDArray[Any]) -> tuple[ObservationTable, Tensor, Tensor]:
        ids = torch.stack([*self.seen, self.lookup(last)])
        final_ids = self.lookup(finals) if len(finals) else ids.new_zeros(0)
        used, names = torch.cat([ids.flatten(), final_ids]).unique(return_inverse=True)
        distinct = torch.from_numpy(np.stack(self.observations))[used]
        self.known, renamed = tabulate(distinct, packed_view(self.frozen.policy.observation_space))
        found, final_ids = renamed[names].split([ids.numel(), len(finals)])
        return self.known, found.view(ids.shape), final_ids

    def _adopt(self, known: ObservationTable) -> None:
        """Starts from the observations of the last rollout: most of them come again."""
        self.observations = list(known.distinct.numpy())
        self.names = {observation.tobytes(): name for name, observation in enumerate(self.observations)}
        policy = self.frozen.policy
        for part in torch.arange(len(known.distinct), device="cpu").split(ENCODE_CHUNK):
            embedded = policy.ops.embed(policy.encoder, known.rows(part))
            self._store(int(part[0]), gru_gates(policy.gru, embedded).gather())

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
            self._store(known, self.frozen.gates(torch.from_numpy(new)))
        return torch.tensor(names, device="cpu")
