"""An episode as the page reads it: numbers, and bytes in base64."""

from __future__ import annotations

import math
from base64 import b64encode
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from deir.agent import Agent
from deir.algorithm.explanation import Compared
from deir.envs.observations import LARGEST_CODES
from deir.envs.spaces import PackedBox
from deir.experiments.replay.cameras import FrameCamera, GridCamera
from deir.experiments.replay.recording import Recording, explained, paid

DIGITS = 5
MOST_NUMBERS = 24  # of a vector, that are shown
LOSSY_QUALITY = 90  # of pictures, where they are not exact
CODE_STEPS, CODE_OFFSET = 16, 2  # a noisy code c is the byte 16 (c + 2)


def episode(agent: Agent, recording: Recording, env: int) -> dict[str, Any]:
    """The first episode of one environment."""
    length = int(recording.lengths[env])
    rollout, raw = recording.rollout, recording.raw[:length, env]
    probabilities = recording.probabilities
    actions, album = rollout.actions[:length, env], Album()
    return {
        "steps": length,
        "return": number(float(recording.returns()[env])),
        "end": _ending(recording, env, length),
        "scene": _scene(recording, env, length, album),
        "view": _views(agent, recording, env, length, album),
        "pictures": album.files,
        "action": actions.tolist() if actions.dim() == 1 else [[number(x) for x in row] for row in actions.tolist()],
        "probabilities": None if probabilities is None else numbers(probabilities[:length, env], 3),
        "value": numbers(recording.values[:length, env]),
        "extrinsic": numbers(rollout.rewards[:length, env]),
        "intrinsic": numbers(raw),
        "paid": numbers(paid(agent, raw)),
        "why": _why(agent, recording, env, length),
    }


def _ending(recording: Recording, env: int, length: int) -> str:
    if not recording.ended[env]:
        return "cut"
    return "terminated" if recording.rollout.terminated[length - 1, env] else "truncated"


def _scene(recording: Recording, env: int, length: int, album: Album) -> dict[str, Any]:
    """The grid at the beginning and what changed, or pictures."""
    camera = recording.camera
    if isinstance(camera, FrameCamera):
        begun = bool(recording.rollout.starts[length, env])
        return {"frames": [album.add(frame) for frame in camera.pictures(env, 0, length, begun)]}
    assert isinstance(camera, GridCamera)
    states = camera.states(env, length)
    cells = states.cells.reshape(len(states.cells), -1)  # [L+1, H*W]
    when, where = np.nonzero(cells[1:] != cells[:-1])
    return {
        "width": states.cells.shape[2],
        "height": states.cells.shape[1],
        "cells": cells[0].tolist(),
        "changes": [[int(t) + 1, int(i), int(cells[t + 1, i])] for t, i in zip(when, where, strict=True)],
        "x": states.x.tolist(),
        "y": states.y.tolist(),
        "direction": states.directions.tolist(),
        "carrying": states.carrying.tolist(),
    }


def _views(agent: Agent, recording: Recording, env: int, length: int, album: Album) -> dict[str, Any]:
    """What the agent saw at 0 … L, each distinct observation once."""
    rollout = recording.rollout
    ids = torch.cat([rollout.ids[:length, env], rollout.next_ids[length - 1 : length, env]])
    distinct, names = ids.unique(return_inverse=True)
    seen, space = rollout.table.distinct[distinct].numpy(), agent.policy.observation_space
    if isinstance(space, PackedBox):
        name, part = next(iter(space.parts.items()))
        seen, space = space.unpack(seen)[name], part
    assert isinstance(space, spaces.Box)
    found: dict[str, Any] = {"ids": names.tolist()}
    if isinstance(recording.camera, GridCamera):
        noisy = agent.config.env.noise > 0
        if noisy and agent.config.env.noise_units == "normalized":
            seen = seen * LARGEST_CODES
        codes = np.clip(np.rint((seen + CODE_OFFSET) * CODE_STEPS), 0, 255) if noisy else seen
        return {**found, "size": seen.shape[1], "noisy": noisy, "codes": packed(codes.astype(np.uint8))}
    if space.dtype == np.uint8 and len(space.shape) == 3 and space.shape[0] >= 16:
        kept = [album.add(image[..., -3:]) for image in seen]
        return {"ids": [kept[name] for name in found["ids"]], "pictures": True}
    return {**found, "vectors": [[number(x) for x in row.ravel()[:MOST_NUMBERS].tolist()] for row in seen]}


def _why(agent: Agent, recording: Recording, env: int, length: int) -> dict[str, Any]:
    """Figures of every step, the nearest earlier steps, and the rows of distances."""
    told = explained(agent, recording.rollout, env)
    figures = [
        {
            "name": name,
            "values": values[:length].tolist() if values.dtype == torch.bool else numbers(values[:length], DIGITS + 1),
        }
        for name, values in told.figures.items()
    ]
    why: dict[str, Any] = {"equation": told.equation, "figures": figures}
    if told.compared is not None:
        why["nearest"] = [[i for i in row if i >= 0] for row in told.compared.nearest[:length].tolist()]
        if told.compared.distances:
            why |= _rows(told.compared, length)
    return why


def _rows(compared: Compared, length: int) -> dict[str, Any]:
    """Row t holds the columns begin[t] … end[t]-1; all rows of one kind stand one behind the other."""
    there = compared.scores[:length, :length].isfinite()  # [L, L], a run of columns in each row
    counts = there.sum(1)
    begin = torch.where(counts > 0, there.int().argmax(1), 0)
    kinds = {**compared.distances, "score": compared.scores}
    return {
        "begin": begin.tolist(),
        "end": (begin + counts).tolist(),
        "rows": [
            {"name": name, "values": packed(shortened(values[:length, :length][there]))}
            for name, values in kinds.items()
        ],
    }


def shortened(values: Tensor) -> NDArray[np.uint16]:
    """Numbers that are not negative in 16 bits: a float's exponent and the first eight bits after it (±0.2%)."""
    bits = values.float().numpy().view(np.uint32).astype(np.uint64)
    return ((bits + (1 << 14)) >> 15).astype(np.uint16)


class Album:
    """The pictures of an episode, each distinct one once: what is shown is often what the agent sees."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self._numbers: dict[bytes, int] = {}

    def add(self, image: NDArray[Any]) -> int:
        """Its number."""
        key = repr(image.shape).encode() + image.tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self.files)
            self.files.append(picture(image))
        return self._numbers[key]


def picture(image: NDArray[Any]) -> str:
    """A data URI of a small file, exact unless that takes more than twice as much."""
    import imageio.v3 as iio

    colours = np.repeat(image, 3, -1) if image.shape[-1] == 1 else image
    exact = iio.imwrite("<bytes>", colours, extension=".webp", lossless=True)
    near = iio.imwrite("<bytes>", colours, extension=".webp", quality=LOSSY_QUALITY)
    return f"data:image/webp;base64,{b64encode(near if 2 * len(near) < len(exact) else exact).decode()}"


def packed(array: NDArray[Any]) -> str:
    return b64encode(np.ascontiguousarray(array).tobytes()).decode()


def numbers(values: Tensor, digits: int = DIGITS) -> list[Any]:
    flat = values.double().tolist()
    return [[number(x, digits) for x in row] if isinstance(row, list) else number(row, digits) for row in flat]


def number(value: float, digits: int = DIGITS) -> float | int | None:
    """Few digits; null for what JSON has no word for."""
    if not math.isfinite(value):
        return None
    return int(value) if float(value).is_integer() else float(f"{value:.{digits}g}")
