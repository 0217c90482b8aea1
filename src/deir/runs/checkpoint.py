"""Checkpoints: one safetensors file each, written whole or not at all, and never a pickle.

Tensors and arrays are the file's tensors; the rest of the state is JSON in its header, with a checksum over both.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from deir.errors import UserError

SUFFIX = ".safetensors"
FORMAT = 1


class DamagedCheckpoint(Exception):
    """The file cannot be what was written."""


def save(state: dict[str, Any], path: Path) -> None:
    """Writes to a temporary name, syncs, then renames: a crash leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, NDArray[Any]] = {}
    text = json.dumps(_pack(state, "", arrays))
    metadata = {"format": str(FORMAT), "state": text, "checksum": str(_checksum(text, arrays))}
    temporary = path.with_name(f".{path.name}.tmp")
    save_file(arrays, temporary, metadata)
    _sync(temporary)
    os.replace(temporary, path)
    _sync(path.parent)


def load(path: Path) -> dict[str, Any]:
    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise DamagedCheckpoint(f"{path}: {error}") from None
    if metadata.get("format") != str(FORMAT):
        raise DamagedCheckpoint(f"{path}: format {metadata.get('format')}, expected {FORMAT}")
    if metadata.get("checksum") != str(_checksum(metadata["state"], arrays)):
        raise DamagedCheckpoint(f"{path}: the checksum does not match")
    state = _unpack(json.loads(metadata["state"]), arrays)
    assert isinstance(state, dict)
    return state


def _pack(value: Any, path: str, arrays: dict[str, NDArray[Any]]) -> Any:
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


def _unpack(packed: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Any:
    (kind, value), *_ = packed.items()
    if kind == "dict":
        return {key: _unpack(item, arrays) for key, item in value.items()}
    if kind == "tensor":
        return torch.from_numpy(arrays[value])
    return arrays[value] if kind == "array" else value


def _checksum(text: str, arrays: dict[str, NDArray[Any]]) -> int:
    total = zlib.crc32(text.encode())
    for name in sorted(arrays):
        total = zlib.crc32(arrays[name].reshape(-1).view(np.uint8).data, total)
    return total


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def path_of(directory: Path, iteration: int) -> Path:
    return directory / f"{iteration:07d}{SUFFIX}"


def prune(directory: Path, keep: int) -> None:
    for old in _newest_first(directory)[keep:]:
        old.unlink()


def _newest_first(directory: Path) -> list[Path]:
    return sorted((p for p in directory.glob(f"*{SUFFIX}") if p.stem.isdigit()), reverse=True)


def exists(directory: Path) -> bool:
    return bool(_newest_first(directory))


def load_latest(directory: Path) -> tuple[dict[str, Any], Path, list[str]]:
    """The newest checkpoint that is whole, its path, and a message for each damaged one that was passed over."""
    candidates = _newest_first(directory)
    if not candidates:
        raise UserError(f"no checkpoint in {directory}: the run has not written one yet")
    complaints: list[str] = []
    for path in candidates:
        try:
            return load(path), path, complaints
        except DamagedCheckpoint as error:
            complaints.append(f"damaged checkpoint left aside: {error}")
    raise UserError("\n".join([*complaints, f"no whole checkpoint is left in {directory}"]))
