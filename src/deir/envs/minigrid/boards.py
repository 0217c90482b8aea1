"""Some of the engine's environments as arrays, for compiled loops that play many steps without Python."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from deir.compiled import Array, compiled_part
from deir.envs.minigrid.rules import act, look, state_hashes, survey


class Board(NamedTuple):
    """G neighbouring environments of one engine, and their task; the arrays are parts of the engine's own."""

    cells: Array  # [..] uint16: the grids of all environments, as in `rules.act`
    grids: Array  # [G, H, W] uint16
    origins: Array  # [G]
    positions: Array  # [G]
    directions: Array  # [G]
    carrying: Array  # [G] uint16
    hashes: Array  # [G] uint64
    steps: Array  # [G] of the running episodes
    numbers: Array  # these four as in `rules`
    ahead: Array
    window: Array
    channels: Array
    largest: Array  # [3] float32: what noisy views are divided by
    stride: int
    max_steps: int
    noise: float
    full_view: bool
    see_through: bool
    any_pickup_ends: bool
    time_penalty: bool


@compiled_part
def reward(success: bool, steps: int, max_steps: int, time_penalty: bool) -> float:
    """1 - 0.9 t / T on success, or 1 without the time penalty."""
    if not success:
        return 0.0
    return 1 - 0.9 * (steps / max_steps) if time_penalty else 1.0


@compiled_part
def move(board: Board, actions: Array, rewards: Array, terminated: Array, truncated: Array) -> None:
    """One step of all G: `MiniGridEnvs.step` up to what is seen then."""
    for n in range(len(actions)):
        board.steps[n] += 1
    success, ended = act(
        actions, board.cells, board.origins, board.numbers, board.ahead, board.positions, board.directions,
        board.carrying, board.hashes, board.any_pickup_ends,
    )  # fmt: skip
    for n in range(len(actions)):
        rewards[n] = reward(success[n], board.steps[n], board.max_steps, board.time_penalty)
        terminated[n] = ended[n]
        truncated[n] = board.steps[n] >= board.max_steps


@compiled_part
def see(board: Board, seen: Array) -> None:
    """What the G agents see, [G, *obs]; with noise it is added to what `seen` holds, standard normal draws."""
    everyone = np.arange(len(board.steps))
    if board.full_view:
        rows, columns = coordinates(board)
        views = survey(everyone, board.grids, columns, rows, board.directions, board.channels)
    else:
        views = look(
            everyone, board.cells, board.positions, board.directions, board.carrying, board.window, board.channels,
            board.see_through,
        )  # fmt: skip
    if board.noise == 0:
        seen[:] = views
        return
    sigma, count = np.float32(board.noise), views.shape
    for n in range(count[0]):
        for i in range(count[1]):
            for j in range(count[2]):
                for c in range(count[3]):
                    seen[n, i, j, c] = seen[n, i, j, c] * sigma + np.float32(views[n, i, j, c]) / board.largest[c]


@compiled_part
def coordinates(board: Board) -> tuple[Array, Array]:
    """The rows and columns of the agents. [G] each"""
    away = board.positions - board.origins
    return away // board.stride, away % board.stride


@compiled_part
def tell(board: Board, states: Array, positions: Array) -> None:
    """The hashes of the full states [G] uint64, and where the agents stand [G, 2]."""
    states[:] = state_hashes(
        board.hashes, board.origins, board.numbers, board.positions, board.directions, board.carrying
    )
    positions[:, 1], positions[:, 0] = coordinates(board)
