"""The policy as it stands during a rollout: parameters frozen, normalisation folded into the layers before it."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deir.algorithm.networks import GridEncoder, VectorEncoder
from deir.algorithm.policy import Policy
from deir.algorithm.types import ObservationTable, Shared
from deir.config import Precision
from deir.envs.spaces import packed_view
from deir.fast.arrays import arrays_of
from deir.fast.blas import product
from deir.fast.folding import folded, is_affine, scale_and_shift
from deir.fast.gru import act_recurrently, gru_gates
from deir.fast.naming import free_places, name_rows
from deir.fast.patches import tabulate
from deir.fast.planning import occurring_rows
from deir.fast.threads import share_out
from deir.fast.vector_encoder import FrozenVectorEncoder
from deir.fast.views import encode_grids
from deir.fast.whole_grid import kernels_of, runs_whole
from deir.fast.whole_images import LaidOut, laid_out, runs_on_images
from deir.fast.whole_maps import FrozenMapEncoder

VIEWS = 8  # of a job
CAPACITY = 4096  # observations, at first
ENCODE_CHUNK = 2048  # bounds the memory of feature maps
Layer = tuple[Tensor, Tensor]  # weight [in, out], bias [out]


class FrozenGridEncoder:
    """A grid encoder and the GRU's product of inputs, for few views at a time: one compiled loop."""

    def __init__(self, encoder: GridEncoder, inputs: Layer, gemm: int) -> None:
        self.padding, self.gemm = encoder.padding, gemm
        self.inputs = arrays_of(*(part.expand(encoder.shape[2]) for part in scale_and_shift(encoder.input_norm)))
        convolutions = []
        for conv, norm in zip(encoder.convs, encoder.norms, strict=True):
            assert isinstance(conv, nn.Conv2d) and conv.bias is not None
            kernel = conv.weight.permute(2, 3, 1, 0).reshape(-1, conv.out_channels)  # [4*in, out]
            convolutions.append(arrays_of(*folded(kernel, conv.bias, norm)))
        channels = encoder.CHANNELS[-1]
        linear = encoder.linear.weight.view(encoder.features, channels, -1).permute(2, 1, 0)  # [positions, C, features]
        last = folded(linear.reshape(-1, encoder.features), encoder.linear.bias, encoder.output_norm)
        self.layers = tuple(convolutions), arrays_of(*last), arrays_of(*inputs)

    def __call__(self, views: NDArray[Any]) -> Tensor:
        """[B, H, W, C] -> [B, 3H]"""
        out = np.empty((len(views), len(self.layers[-1][1])), self.inputs[0].dtype)

        def encode(job: int) -> None:
            part = slice(VIEWS * job, VIEWS * (job + 1))
            encode_grids(self.gemm, views[part], self.padding, *self.inputs, *self.layers, out[part])

        share_out(encode, -(-len(views) // VIEWS))
        return torch.from_numpy(out)


class FrozenPolicy:
    """Everything a step of the policy needs, prepared once a rollout."""

    def __init__(self, policy: Policy, precision: Precision = "fp32") -> None:
        """precision: of the factors of an encoder's products, where it is not folded"""
        self.policy, self.precision = policy.eval(), precision
        gemm, encoder, cell = product(policy.gru.weight_hh.dtype), policy.encoder, policy.gru
        assert gemm is not None
        self.gemm = gemm
        self.grids: FrozenGridEncoder | None = None
        self.vectors: FrozenVectorEncoder | None = None
        self.maps: FrozenMapEncoder | None = None
        self.images: LaidOut | None = None
        if type(encoder) is GridEncoder and is_affine(encoder.input_norm):
            self.grids = FrozenGridEncoder(encoder, (cell.weight_ih.T, cell.bias_ih), gemm)
        elif isinstance(encoder, GridEncoder) and runs_whole(encoder):
            self.maps = FrozenMapEncoder(encoder, kernels_of(encoder), precision)
        elif isinstance(encoder, VectorEncoder) and FrozenVectorEncoder.takes(encoder):
            self.vectors = FrozenVectorEncoder(encoder)
        elif runs_on_images(encoder):
            self.images = laid_out(encoder)
        first, norm, _, last = policy.actor
        assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)
        layers = (
            (cell.weight_hh.T, cell.bias_hh),
            folded(first.weight.T, first.bias, norm),
            (last.weight.T, last.bias),
        )
        self.arrays = [arrays_of(*layer) for layer in layers]

    def gates(self, observations: NDArray[Any]) -> Tensor:
        """[B, *obs] -> [B, 3H]"""
        if self.grids is not None:
            return self.grids(observations)
        given = torch.from_numpy(observations)
        if self.vectors is not None:
            embedded = self.vectors(given)
        elif self.maps is not None:
            embedded = self.maps(observations)
        elif self.images is not None:
            embedded = self.images.embed(given, self.precision)
        else:
            embedded = self.policy.ops.embed(self.policy.encoder, given).gather()
        return gru_gates(self.policy.gru, Shared(embedded)).values

    def step(self, gates: Tensor, rows: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Gates [U, 3H], which of them each has [N], memory before the step [N, H] -> outputs, memory after it"""
        outputs, after = map(
            torch.from_numpy, act_recurrently(self.gemm, *arrays_of(gates, rows, hidden), *self.arrays)
        )
        return self.policy.complete(outputs), after

    def act(self, observations: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """`Policy.act`"""
        return self.step(self.gates(observations.numpy()), torch.arange(len(hidden), device="cpu"), hidden)


class ActingOnAnything:
    """Where nothing is taken to repeat."""

    known = None

    def __init__(self, policy: Policy, precision: Precision = "fp32") -> None:
        self.frozen = FrozenPolicy(policy, precision)
        self.seen: list[Tensor] = []

    def step(self, observations: NDArray[Any], hidden: Tensor) -> tuple[Tensor, Tensor]:
        self.seen.append(torch.from_numpy(observations))
        rows = torch.arange(len(hidden), device="cpu")
        return self.frozen.step(self.frozen.gates(observations), rows, hidden)

    def table(self, last: NDArray[Any], finals: NDArray[Any]) -> tuple[ObservationTable, Tensor, Tensor]:
        everything = torch.cat([*self.seen, torch.from_numpy(np.ascontiguousarray(last)), torch.from_numpy(finals)])
        names = torch.arange(len(everything), device="cpu")
        ids, final_ids = names.split([len(names) - len(finals), len(finals)])
        return ObservationTable(everything), ids.view(len(self.seen) + 1, -1), final_ids


class ActingOnRepeats:
    """Names each distinct observation by an integer and, while parameters are frozen, encodes it once."""

    def __init__(self, policy: Policy, known: ObservationTable | None, precision: Precision = "fp32") -> None:
        self.frozen = FrozenPolicy(policy, precision)
        self.seen: list[NDArray[np.int64]] = []  # names
        self.known = known
        self.shape = policy.observation_space.shape or ()
        self.count, rows = 0, CAPACITY if known is None else max(CAPACITY, 2 * len(known.distinct))
        self.observations = np.empty((rows, prod(self.shape)), np.uint8)  # [capacity, bytes]
        self.gates = torch.zeros(rows, policy.gru.weight_ih.shape[0], device="cpu")  # [capacity, 3H]
        self.places = free_places(rows)
        if known is not None:
            self._adopt(known)

    def step(self, observations: NDArray[Any], hidden: Tensor) -> tuple[Tensor, Tensor]:
        self.seen.append(self.lookup(observations))
        return self.frozen.step(self.gates, torch.from_numpy(self.seen[-1]), hidden)

    def table(self, last: NDArray[Any], finals: NDArray[Any]) -> tuple[ObservationTable, Tensor, Tensor]:
        ids = np.stack([*self.seen, self.lookup(last)])
        names = np.concatenate([ids.ravel(), self.lookup(finals)])
        used, _, places = occurring_rows(names, self.count)
        distinct = torch.from_numpy(self.observations[used].reshape(-1, *self.shape))
        self.known, renamed = tabulate(distinct, packed_view(self.frozen.policy.observation_space))
        found, final_ids = renamed[torch.from_numpy(places)].split([ids.size, len(finals)])
        return self.known, found.view(ids.shape), final_ids

    def _adopt(self, known: ObservationTable) -> None:
        """Starts from the observations of the last rollout: most of them come again."""
        self._name(known.distinct.numpy())
        policy = self.frozen.policy
        for part in torch.arange(len(known.distinct), device="cpu").split(ENCODE_CHUNK):
            embedded = policy.ops.embed(policy.encoder, known.rows(part))
            self.gates[part] = gru_gates(policy.gru, embedded).gather()

    def _name(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        rows = np.ascontiguousarray(observations).reshape(len(observations), self.observations.shape[1])
        names, self.count = name_rows(self.places, self.observations, self.count, rows)
        return names

    def _make_room(self, more: int) -> None:
        if self.count + more <= len(self.observations):
            return
        before = self.observations[: self.count]
        rows, self.count = 2 * (self.count + more), 0
        self.observations, self.places = np.empty((rows, before.shape[1]), np.uint8), free_places(rows)
        self.gates = torch.cat([self.gates, self.gates.new_zeros(rows - len(self.gates), self.gates.shape[1])])
        self._name(before)  # the names stay: they count the rows

    def lookup(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """[N, *obs] -> names [N]"""
        self._make_room(len(observations))
        known = self.count
        names = self._name(observations)
        if self.count > known:
            fresh = self.observations[known : self.count].reshape(-1, *self.shape)
            self.gates[known : self.count] = self.frozen.gates(fresh)
        return names
