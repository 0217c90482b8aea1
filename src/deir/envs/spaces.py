"""The spaces that the package itself sees: an observation is one array.

Images are in height-width-channel order. Several parts, such as the entries of a dictionary, are packed into one row of
bytes (`PackedBox`), which queues, tables and checkpoints keep like any other observation. `deir.envs.layout` makes
these spaces from any others.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from deir.errors import invalid


class SeenBox(spaces.Box):
    """Laid out already: whoever is given such a space takes its arrays as they are."""


class PackedBox(SeenBox):
    """Observations of several parts, one behind the other in a row of bytes."""

    def __init__(self, parts: Mapping[str, spaces.Box]) -> None:
        self.parts = dict(parts)
        ends = np.cumsum([prod(part.shape) * part.dtype.itemsize for part in self.parts.values()]).tolist()
        self.places = [slice(begin, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
        super().__init__(0, 255, (ends[-1],), np.uint8)

    def pack(self, parts: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
        """{name: [N, *part]} -> [N, bytes]"""
        rows = [np.ascontiguousarray(parts[name], part.dtype) for name, part in self.parts.items()]
        flat = [row.reshape(-1, prod(part.shape)) for row, part in zip(rows, self.parts.values(), strict=True)]
        return np.concatenate([row.view(np.uint8) for row in flat], axis=1)

    def pack_any(self, parts: Mapping[str, Any]) -> NDArray[np.uint8]:
        """Of one observation {name: [*part]} -> [bytes], or of several {name: [N, *part]} -> [N, bytes]"""
        if set(parts) != set(self.parts):
            raise invalid("observation", sorted(parts), f"the parts {', '.join(self.parts)}")
        arrays = {name: np.asarray(part) for name, part in parts.items()}
        single = all(arrays[name].ndim == len(box.shape) for name, box in self.parts.items())
        return self.pack({name: part[None] for name, part in arrays.items()})[0] if single else self.pack(arrays)

    def unpack(self, rows: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """[N, bytes] -> {name: [N, *part]}"""
        return {
            name: np.ascontiguousarray(rows[:, place]).view(box.dtype).reshape(len(rows), *box.shape)
            for (name, box), place in zip(self.parts.items(), self.places, strict=True)
        }

    def sample(self, mask: Any = None, probability: Any = None) -> NDArray[np.uint8]:
        for part, seed in zip(self.parts.values(), self.np_random.integers(2**31, size=len(self.parts)), strict=True):
            part.seed(int(seed))
        return self.pack({name: part.sample()[None] for name, part in self.parts.items()})[0]

    def __repr__(self) -> str:
        return f"PackedBox({self.parts})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedBox) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(tuple(self.parts))


def packed_view(space: spaces.Space[Any]) -> tuple[int, ...] | None:
    """The shape of the part that a packed observation begins with; None of any other."""
    return next(iter(space.parts.values())).shape if isinstance(space, PackedBox) else None


def described(space: spaces.Space[Any]) -> dict[str, Any] | None:
    """Numbers, text and arrays from which `from_description` makes the same space; None of a kind it cannot make."""
    if isinstance(space, PackedBox):
        return {"kind": "PackedBox", "parts": {name: described(part) for name, part in space.parts.items()}}
    if isinstance(space, spaces.Box):
        bounds = {"low": space.low, "high": space.high}
        same = {name: bound.size > 0 and bool((bound == bound.flat[0]).all()) for name, bound in bounds.items()}
        values = {name: bound.reshape(-1)[0:1] if same[name] else bound for name, bound in bounds.items()}
        kind = "SeenBox" if isinstance(space, SeenBox) else "Box"
        return {"kind": kind, "shape": list(space.shape), "dtype": space.dtype.name, **values}
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "MultiDiscrete", "counts": space.nvec}
    return None


def from_description(description: Mapping[str, Any]) -> spaces.Space[Any]:
    kind = description["kind"]
    if kind == "Discrete":
        return spaces.Discrete(description["n"], start=description["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.asarray(description["counts"]))
    if kind == "PackedBox":
        parts = {name: from_description(part) for name, part in description["parts"].items()}
        return PackedBox({name: part for name, part in parts.items() if isinstance(part, spaces.Box)})
    shape, dtype = tuple(description["shape"]), np.dtype(description["dtype"]).type
    bounds = (
        np.broadcast_to(bound, shape) if bound.size == 1 else bound.reshape(shape)
        for bound in (np.asarray(description[name], dtype) for name in ("low", "high"))
    )
    return {"Box": spaces.Box, "SeenBox": SeenBox}[kind](*bounds, dtype=dtype)
