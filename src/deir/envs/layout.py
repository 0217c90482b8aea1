"""Spaces of any kind as the package sees them: an observation is one array, an action a number or a vector.

Numbers are laid out as `deir.envs.box_layout` says. What is counted (Discrete and its kin) becomes one-hot vectors, and
several parts, such as the entries of a dictionary, are packed into one row of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from deir.envs.box_layout import BoxLayout
from deir.envs.spaces import PackedBox, SeenBox
from deir.errors import UserError

OBSERVATIONS = (
    "images (Box of 2 or 3 dimensions, with frames stacked 4), vectors (Box of 1 dimension), Discrete, MultiDiscrete, "
    "MultiBinary, and a dictionary or tuple of such parts"
)
ACTIONS = "Discrete, MultiDiscrete, MultiBinary and Box"
LARGEST_COUNT = 4096  # numbers a one-hot vector may have
LARGEST_FLOAT = float(np.finfo(np.float32).max)  # networks compute with such numbers

Path = tuple[Any, ...]  # keys that lead to a part of a nested observation
Convert = Callable[[NDArray[Any]], NDArray[Any]]  # raw values [N, …] -> [N, *part]


class _Part(NamedTuple):
    path: Path
    space: spaces.Box  # as the package sees it
    convert: Convert


class ObservationLayout:
    """How the raw observations of a space become [N, *obs] arrays of `space`."""

    def __init__(self, parts: list[_Part], name: str) -> None:
        self._parts, self.name = parts, name
        self.names = [".".join(map(str, part.path)) for part in parts]
        self.parts = {name: part.space for name, part in zip(self.names, parts, strict=True)}
        self.space: spaces.Box = parts[0].space if len(parts) == 1 else PackedBox(self.parts)

    @classmethod
    def of(
        cls,
        space: spaces.Space[Any],
        name: str,
        only: Sequence[str] | None = None,
        texts: Mapping[str, tuple[spaces.Box, Convert]] | None = None,
    ) -> ObservationLayout:
        """`only`: the entries of a dictionary to see, in this order. `texts`: how entries of text are read.

        A text that nobody says how to read is not seen.
        """
        leaves = dict(_leaves(space))
        if only is not None and isinstance(space, spaces.Dict):
            leaves = {path: leaf for key in only for path, leaf in leaves.items() if path[0] == key}
        parts = []
        for path, leaf in leaves.items():
            if leaf.dtype is None or leaf.dtype.kind != "U":
                parts.append(_Part(path, *_converted(leaf, name)))
            elif texts and path and path[0] in texts:
                parts.append(_Part(path, *texts[path[0]]))
        if not parts:
            raise _unseen(space, name)
        return cls(parts, name)

    def with_change(self, space: spaces.Box, change: Convert) -> ObservationLayout:
        """The same with a `change` of the first part, which is then of `space`."""
        first, *rest = self._parts

        def convert(raw: NDArray[Any]) -> NDArray[Any]:
            return change(first.convert(raw))

        return ObservationLayout([_Part(first.path, space, convert), *rest], self.name)

    def batch(self, raw: Any) -> NDArray[Any]:
        """Raw observations of all environments -> a new array [N, *obs], since the raw ones may be overwritten."""
        return self._join([self._converted(part, np.asarray(_at(raw, part.path))) for part in self._parts])

    def rows(self, raw: Any, indices: NDArray[np.int64]) -> NDArray[Any]:
        """[K, *obs] of chosen environments; `raw` is one batch or an object array of single observations."""
        if not len(indices):
            return np.empty((0, *self.space.shape), self.space.dtype)
        if isinstance(raw, np.ndarray) and raw.dtype == object:
            values = [[_at(raw[i], part.path) for i in indices] for part in self._parts]
        else:
            values = [[_at(raw, part.path)[i] for i in indices] for part in self._parts]
        return self._join(
            [self._converted(part, np.stack(rows)) for part, rows in zip(self._parts, values, strict=True)]
        )

    def _converted(self, part: _Part, raw: NDArray[Any]) -> NDArray[Any]:
        """Refuses NaN and infinity here, where they come from: later they would only be a loss that is not finite."""
        if raw.dtype.kind == "f" and not fits_float32(raw).all():
            index = tuple(int(i) for i in np.argwhere(~fits_float32(raw))[0])
            where = f" {'.'.join(map(str, part.path))!r}" if part.path else ""
            raise UserError(
                f"env: {self.name} gave an observation{where} that is not finite: {raw[index]} at {index[1:]}, "
                f"expected numbers of at most {LARGEST_FLOAT:.3g}"
            )
        return part.convert(raw)

    def _join(self, parts: list[NDArray[Any]]) -> NDArray[Any]:
        if not isinstance(self.space, PackedBox):
            return parts[0]
        return self.space.pack(dict(zip(self.names, parts, strict=True)))


def fits_float32(numbers: NDArray[Any]) -> NDArray[np.bool_]:
    """Which of these are finite, and still are in float32."""
    finite: NDArray[np.bool_] = np.isfinite(numbers)
    return finite & (np.abs(numbers) <= LARGEST_FLOAT) if numbers.dtype.itemsize > 4 else finite


def _leaves(space: spaces.Space[Any], path: Path = ()) -> Iterator[tuple[Path, spaces.Space[Any]]]:
    entries: Any = space.spaces.items() if isinstance(space, spaces.Dict) else ()
    if isinstance(space, spaces.Tuple):
        entries = enumerate(space.spaces)
    elif not isinstance(space, spaces.Dict):
        yield path, space
    for key, entry in entries:
        yield from _leaves(entry, (*path, key))


def _at(tree: Any, path: Path) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _unseen(space: spaces.Space[Any], name: str) -> UserError:
    return UserError(f"env: the observation space of {name} is {space}; supported are {OBSERVATIONS}")


def _converted(space: spaces.Space[Any], name: str) -> tuple[spaces.Box, Convert]:
    if isinstance(space, spaces.Box):
        return _numbers(space, name)
    sizes = _counts(space)
    if not sizes or sum(sizes) > LARGEST_COUNT:
        raise _unseen(space, name)
    starts = np.reshape(getattr(space, "start", 0), -1)
    return SeenBox(0, 1, (sum(sizes),), np.uint8), lambda raw: _one_hots(raw.reshape(len(raw), -1) - starts, sizes)


def _counts(space: spaces.Space[Any]) -> list[int]:
    """The sizes of the one-hot vectors that stand for a space of counted things."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(n) for n in space.nvec.reshape(-1)]
    return [2] * prod(space.shape) if isinstance(space, spaces.MultiBinary) else []


def _one_hots(numbers: NDArray[Any], sizes: list[int]) -> NDArray[np.uint8]:
    """[N, K] -> [N, sum(sizes)]"""
    places = numbers.astype(np.int64) + np.cumsum([0, *sizes[:-1]])
    rows = np.zeros((len(numbers), sum(sizes)), np.uint8)
    np.put_along_axis(rows, places, 1, axis=1)
    return rows


def _numbers(box: spaces.Box, name: str) -> tuple[spaces.Box, Convert]:
    try:
        layout = BoxLayout(box)
    except ValueError:
        raise _unseen(box, name) from None

    def convert(raw: NDArray[Any]) -> NDArray[Any]:
        return np.array(layout.arrange(raw), dtype=layout.space.dtype, order="C")

    return layout.space, convert


class ActionLayout:
    """How actions of `space`, a number from zero or a vector, become those of an environment's own space."""

    def __init__(self, own: spaces.Space[Any], name: str) -> None:
        self._own = own
        self.space: spaces.Space[Any]
        if isinstance(own, spaces.Discrete):
            self.space = spaces.Discrete(int(own.n))
        elif isinstance(own, (spaces.MultiDiscrete, spaces.MultiBinary)):
            self.space = spaces.MultiDiscrete(_counts(own))
        elif isinstance(own, spaces.Box):
            self.space = spaces.Box(own.low.reshape(-1).astype(np.float32), own.high.reshape(-1).astype(np.float32))
        else:
            raise UserError(f"env: the action space of {name} is {own}; supported action spaces are {ACTIONS}")

    def native(self, actions: NDArray[Any]) -> NDArray[Any]:
        """[N, …] -> [N, *own shape]"""
        own = self._own
        if isinstance(own, spaces.Discrete):
            return actions + int(own.start)
        shaped = actions.reshape(len(actions), *own.shape)  # type: ignore[misc]
        if isinstance(own, spaces.Box):
            shaped = np.rint(shaped) if np.issubdtype(own.dtype, np.integer) else shaped
            return np.clip(shaped.astype(own.dtype), own.low, own.high)
        return np.asarray(shaped + getattr(own, "start", 0), own.dtype)
