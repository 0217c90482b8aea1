"""Checkpoints: one safetensors file each, written whole or not at all, and never a pickle.

Tensors and arrays are the file's tensors; the rest of the state is JSON in its header. A checksum covers all of it:
names, types, shapes, values, the JSON.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from deir.errors import UserError, invalid
from deir.files import make_directory, remove_temporaries, replacing

SUFFIX = ".safetensors"
ASIDE = ".aside"  # added to the name of a file that was passed over
FORMAT = 2  # 1: the checksum left out names, types and shapes
TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
Arrays = dict[str, NDArray[Any]]


class DamagedCheckpoint(Exception):
    """The file cannot be what was written."""


class UnfitCheckpoint(Exception):
    """The file is whole, but the run cannot go on from it."""


class Found(NamedTuple):
    """A checkpoint that was read."""

    path: Path
    state: dict[str, Any]
    log: str  # what the run noted about its progress.csv


def save(state: dict[str, Any], path: Path, log: str = "") -> None:
    """A crash leaves no file or a whole one."""
    make_directory(path.parent)
    arrays: Arrays = {}
    text = json.dumps(_pack(state, "", arrays))
    checksum = _checksum(FORMAT, text, log, arrays)
    with replacing(path) as file:
        _write(file, arrays, {"format": str(FORMAT), "state": text, "log": log, "checksum": str(checksum)})


def _write(file: IO[bytes], arrays: Arrays, metadata: dict[str, str]) -> None:
    """The safetensors format. The library's own writer leaves randomly named files that only their owner may read."""
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))  # so that all of them are aligned
    header: dict[str, Any] = {"__metadata__": metadata}
    begin = 0
    for name in names:
        array = arrays[name]
        header[name] = {
            "dtype": TYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [begin, begin + array.nbytes],
        }
        begin += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for name in names:
        file.write(_bytes(arrays[name]))


def load(path: Path) -> dict[str, Any]:
    return read(path).state


def read(path: Path) -> Found:
    if not path.is_file():  # a named pipe would be waited for
        raise DamagedCheckpoint(f"{path}: not a file")
    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if metadata.get("format") not in ("1", str(FORMAT)):
            raise DamagedCheckpoint(f"{path}: format {metadata.get('format')}, expected {FORMAT}")
        text, log = metadata["state"], metadata.get("log", "")
        if metadata["checksum"] != str(_checksum(int(metadata["format"]), text, log, arrays)):
            raise DamagedCheckpoint(f"{path}: the checksum does not match")
        state = _unpack(json.loads(text), arrays)
    except DamagedCheckpoint:
        raise
    except Exception as error:  # a damaged file can fail in any way
        raise DamagedCheckpoint(f"{path}: {error}") from None
    if not isinstance(state, dict):
        raise DamagedCheckpoint(f"{path}: no state of a run")
    return Found(path, state, log)


def _pack(value: Any, path: str, arrays: Arrays) -> Any:
    if isinstance(value, dict):
        return {"dict": {key: _pack(item, f"{path}/{key}", arrays) for key, item in value.items()}}
    if isinstance(value, Tensor):
        arrays[path] = np.asarray(value.detach().cpu().numpy(), order="C")
        return {"tensor": path}
    if isinstance(value, np.ndarray):
        arrays[path] = np.asarray(value, order="C")
        return {"array": path}
    if isinstance(value, np.generic):
        value = value.item()
    return {"plain": value}


def _unpack(packed: dict[str, Any], arrays: Arrays) -> Any:
    (kind, value), *_ = packed.items()
    if kind == "dict":
        return {key: _unpack(item, arrays) for key, item in value.items()}
    if kind == "tensor":
        return torch.from_numpy(arrays[value])
    return arrays[value] if kind == "array" else value


def _bytes(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _checksum(version: int, text: str, log: str, arrays: Arrays) -> int:
    total = zlib.crc32(text.encode())
    if version > 1:
        total = zlib.crc32(f"\n{log}".encode(), total)
    for name in sorted(arrays):
        array = arrays[name]
        if version > 1:
            total = zlib.crc32(f"\n{name} {array.dtype.name} {array.shape}\n".encode(), total)
        total = zlib.crc32(_bytes(array), total)
    return total


def path_of(directory: Path, iteration: int) -> Path:
    return directory / f"{iteration:07d}{SUFFIX}"


def prune(directory: Path, keep: int) -> None:
    for old in _newest_first(directory)[keep:]:
        old.unlink()


def tidy(directory: Path) -> None:
    """What killed writers left, those of earlier versions included. Only for the process that writes the run."""
    remove_temporaries(directory)
    for left in directory.glob(".tmp*"):
        left.unlink(missing_ok=True)


def _newest_first(directory: Path) -> list[Path]:
    numbered = (p for p in directory.glob(f"*{SUFFIX}") if p.stem.isdecimal())
    return sorted(numbered, key=lambda p: int(p.stem), reverse=True)


def exists(directory: Path) -> bool:
    return bool(_newest_first(directory))


def load_latest(
    directory: Path, accept: Callable[[Found], None] = lambda found: None
) -> tuple[dict[str, Any], Path, list[str]]:
    """The newest checkpoint that is whole, its path, and a message for each newer one that was passed over.

    `accept` raises UnfitCheckpoint for one that is whole and yet of no use.
    """
    candidates = _newest_first(directory)
    if not candidates:
        raise UserError(f"no checkpoint in {directory}: the run has not written one yet")
    complaints: list[str] = []
    for path in candidates:
        try:
            found = read(path)
            _check_counters(found)
            accept(found)
            return found.state, path, complaints
        except DamagedCheckpoint as error:
            complaints.append(f"damaged checkpoint left aside: {error}")
        except UnfitCheckpoint as error:
            complaints.append(f"checkpoint left aside: {error}")
    raise UserError("\n".join([*complaints, f"no whole checkpoint is left in {directory}"]))


def load_iteration(
    directory: Path, iteration: int, accept: Callable[[Found], None] = lambda found: None
) -> tuple[dict[str, Any], Path]:
    """The checkpoint of one iteration, and its path."""
    path = path_of(directory, iteration)
    if not path.is_file():
        kept = [int(p.stem) for p in reversed(_newest_first(directory))]
        near = min(kept, key=lambda number: abs(number - iteration), default=None)
        listed = f"one that the run kept: {_listed(kept)} (the nearest is {near})" if kept else "a run with checkpoints"
        more = "--checkpoint.keep and --checkpoint.every of `deir train` keep more"
        raise invalid("checkpoint", iteration, f"{listed}; {more}")
    try:
        found = read(path)
        _check_counters(found)
        accept(found)
    except (DamagedCheckpoint, UnfitCheckpoint) as error:
        raise UserError(f"checkpoint: {error}") from None
    return found.state, path


def _listed(numbers: list[int]) -> str:
    few = numbers if len(numbers) <= 12 else [*numbers[:6], "…", *numbers[-5:]]
    return ", ".join(map(str, few))


def _check_counters(found: Found) -> None:
    """Training goes on until `frames` reaches a number: a wrong one would let it go on for ever."""
    iteration, frames = found.state.get("iteration"), found.state.get("frames")
    if type(iteration) is not int or iteration != int(found.path.stem):
        raise DamagedCheckpoint(f"{found.path}: iteration {iteration!r}, expected the number in its name")
    if type(frames) is not int or frames < iteration:
        raise DamagedCheckpoint(f"{found.path}: frames {frames!r}, expected at least the {iteration} iterations")


def tell(complaints: Iterable[str], source: Path) -> None:
    """Says that an older checkpoint is used."""
    told = list(complaints)
    for complaint in told:
        print(f"warning: {complaint}", file=sys.stderr)
    if told:
        print(f"warning: going on from {source}", file=sys.stderr)


def set_aside(directory: Path, newest: Path) -> None:
    """What is newer than the checkpoint in use gets another name: it is never counted, and its name is free again."""
    for path in _newest_first(directory):
        if int(path.stem) > int(newest.stem):
            path.replace(path.with_name(path.name + ASIDE))
