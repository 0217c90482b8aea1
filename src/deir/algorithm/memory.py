"""What outlives a rollout: the episodic history, the queue of recent observations, counts over all of training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PART = 256  # rows from which on a part of the history is left as it is


@dataclass(frozen=True)
class EpisodicHistory:
    """The steps of each running episode that lie before the rollout, right-aligned: the last row is the newest.

    Rows [L, N, F] hold whatever the method compares with; environment n uses its last lengths[n]. They stand in parts,
    about one for each rollout, which nobody writes to: what is kept of an episode is never copied as it grows.
    """

    rows: dict[str, tuple[Tensor, ...]]  # parts of each name, at least one
    lengths: Tensor  # [N] int64

    @classmethod
    def empty(cls, n_envs: int, widths: dict[str, int], device: torch.device | str = "cpu") -> EpisodicHistory:
        rows: dict[str, tuple[Tensor, ...]] = {
            name: (torch.zeros(0, n_envs, width, device=device),) for name, width in widths.items()
        }
        return cls(rows, torch.zeros(n_envs, dtype=torch.int64, device=device))

    @property
    def depth(self) -> int:
        return sum(map(len, next(iter(self.rows.values()))))

    def extended(self, name: str, new: Tensor) -> Tensor:
        """[L, N, F] history followed by [T, N, F] new rows."""
        return torch.cat(self.parts(name, new))

    def parts(self, name: str, new: Tensor) -> list[Tensor]:
        """The same, without a copy."""
        return [*self.rows[name], new]

    def advanced(self, new: dict[str, Tensor], first: Tensor, starts_next: Tensor) -> EpisodicHistory:
        """The history after a rollout that adds new rows [T, N, F].

        first: [N] the row where the last step's episode begins, counted in the rows that `extended` gives
        """
        total = self.depth + len(next(iter(new.values())))
        lengths = torch.where(starts_next, 0, total - first)
        depth = int(lengths.max())
        return EpisodicHistory(
            {name: _newest(_with_more(self.rows[name], rows), depth) for name, rows in new.items()}, lengths
        )

    def to(self, device: torch.device) -> EpisodicHistory:
        rows = {name: tuple(part.to(device) for part in parts) for name, parts in self.rows.items()}
        return EpisodicHistory(rows, self.lengths.to(device))

    def tensors(self) -> dict[str, Tensor]:
        parts = {f"history.{name}.{i}": part for name, parts in self.rows.items() for i, part in enumerate(parts)}
        return {"history.lengths": self.lengths, **parts}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> EpisodicHistory:
        """Also of older checkpoints, where rows stood in one part."""
        parts: dict[str, dict[int, Tensor]] = {}
        for label, tensor in tensors.items():
            prefix, _, name = label.partition(".")
            name, _, number = name.partition(".")
            if prefix == "history" and name != "lengths":
                parts.setdefault(name, {})[int(number or 0)] = tensor
        rows = {name: tuple(part[i] for i in sorted(part)) for name, part in parts.items()}
        return cls(rows, tensors["history.lengths"])


def _with_more(parts: tuple[Tensor, ...], new: Tensor) -> tuple[Tensor, ...]:
    """A short part takes the new rows in: many parts would take long to go through. They are copied, since whoever
    made them may write to them."""
    *before, last = parts
    return (*parts, new.clone()) if len(last) >= PART else (*before, torch.cat([last, new]))


def _newest(parts: tuple[Tensor, ...], count: int) -> tuple[Tensor, ...]:
    """The last `count` rows, in at least one part."""
    kept: list[Tensor] = []
    for part in reversed(parts):
        rows = part[max(0, len(part) - count) :]
        few = 2 * len(rows) < len(part)  # a copy of few rows lets the others go
        kept.append(rows.clone() if few else rows)
        count -= len(rows)
        if count == 0:
            break
    return tuple(reversed(kept))


class ObservationQueue:
    """First-in-first-out queue of observations, kept in their own type (uint8 for images and grids)."""

    def __init__(self, capacity: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.capacity = capacity
        self.storage = torch.zeros(0, *shape, dtype=dtype, device="cpu")  # grows by doubling up to the capacity
        self.count = 0  # observations held
        self.head = 0  # where the next one goes

    def __len__(self) -> int:
        return self.count

    def push(self, observations: Tensor) -> None:
        """[K, *obs] in order of age, the oldest first."""
        new = observations[-self.capacity :].to(self.storage.device)
        self._grow(min(self.capacity, self.count + len(new)))
        slots = (self.head + torch.arange(len(new), device="cpu")) % self.capacity
        self.storage[slots] = new
        self.head = (self.head + len(new)) % self.capacity
        self.count = min(self.capacity, self.count + len(new))

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """[count, *obs] with replacement."""
        return self.storage[torch.randint(self.count, (count,), generator=generator, device="cpu")]

    @property
    def nbytes(self) -> int:
        return self.capacity * self.storage[0:1].nelement() * self.storage.element_size() if self.count else 0

    def _grow(self, needed: int) -> None:
        if needed <= len(self.storage):
            return
        size = min(self.capacity, max(needed, 2 * len(self.storage), 1024))
        storage = torch.zeros(size, *self.storage.shape[1:], dtype=self.storage.dtype, device="cpu")
        storage[: self.count] = self.storage[: self.count]
        self.storage = storage

    def state_dict(self) -> dict[str, Any]:
        return {"observations": self.storage[: self.count], "count": self.count, "head": self.head}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.head = 0, int(state["head"])
        self._grow(int(state["count"]))
        self.count = int(state["count"])
        self.storage[: self.count] = state["observations"]


class LifelongCounts:
    """How often each key has come in all of training. 12 bytes a key, twice that for a moment while arrays merge.

    Keys stand in two sorted arrays: new ones go to the small one, which joins the large one when it has grown to a
    share of it, so that an iteration need not copy everything it knows.
    """

    SMALL = 2**16
    SHARE = 8

    def __init__(self) -> None:
        self.tables = [_SortedCounts.empty(), _SortedCounts.empty()]  # large, small

    def __len__(self) -> int:
        return sum(len(table.keys) for table in self.tables)

    def of(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """[K] -> counts [K]"""
        return np.sum([table.of(keys) for table in self.tables], axis=0, dtype=np.int64)

    def add(self, keys: NDArray[np.int64]) -> int:
        """Counts [K] keys, of which some may be equal; gives the number of those never counted before."""
        distinct, counts = np.unique(keys, return_counts=True)
        new = np.ones(len(distinct), bool)
        for table in self.tables:
            new &= ~table.increase(distinct, counts)
        large, small = self.tables
        small = small.merged(distinct[new], counts[new])
        if len(small.keys) > max(self.SMALL, len(large.keys) // self.SHARE):
            large, small = large.merged(small.keys, small.counts), _SortedCounts.empty()
        self.tables = [large, small]
        return int(new.sum())

    def state_dict(self) -> dict[str, Any]:
        large, small = self.tables
        return {
            "keys": large.keys, "counts": large.counts, "new_keys": small.keys, "new_counts": small.counts
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tables = [
            _SortedCounts(np.array(state["keys"]), np.array(state["counts"])),
            _SortedCounts(np.array(state["new_keys"]), np.array(state["new_counts"])),
        ]


@dataclass
class _SortedCounts:
    keys: NDArray[np.int64]  # ascending
    counts: NDArray[np.int32]

    @classmethod
    def empty(cls) -> _SortedCounts:
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int32))

    def find(self, keys: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Places of the keys, and which of them are there."""
        if not len(self.keys):
            return np.zeros(len(keys), np.intp), np.zeros(len(keys), bool)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return places, self.keys[places] == keys

    def of(self, keys: NDArray[np.int64]) -> NDArray[np.int32]:
        places, there = self.find(keys)
        counts = np.zeros(len(keys), np.int32)
        counts[there] = self.counts[places[there]]
        return counts

    def increase(self, keys: NDArray[np.int64], by: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Adds to those of the distinct keys that are there; which ones."""
        places, there = self.find(keys)
        self.counts[places[there]] += by[there].astype(np.int32)
        return there

    def merged(self, keys: NDArray[np.int64], counts: NDArray[Any]) -> _SortedCounts:
        all_keys = np.concatenate([self.keys, keys])
        order = np.argsort(all_keys, kind="stable")
        return _SortedCounts(all_keys[order], np.concatenate([self.counts, counts.astype(np.int32)])[order])
