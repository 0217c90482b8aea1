"""A rollout of some MiniGrid environments as one compiled loop over time: it leaves Python's lock to others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from deir.compiled import Array, compiled, compiled_part
from deir.envs.minigrid.boards import Board, move, see, tell
from deir.fast.addresses import lent
from deir.fast.gru import advance_row
from deir.fast.naming import name_rows
from deir.fast.patch_cache import GridWeights, Level, add_product, add_rectified, encode_view
from deir.fast.views import encode_grids

Layer = tuple[Array, Array]  # weight [in, out], bias [out]
BY_PATCHES, WHOLE, AS_VECTORS = range(3)  # how an encoder takes a view
NO_ROOM, ENDED, DONE = range(3)  # why the loop came back
NAMES, ENCODED, FINALS = 3, 4, 5  # places in Tables.counts, after those of the three sizes of patches


class Net(NamedTuple):
    """The policy with frozen parameters; of the first three parts `encoder` says which is in use."""

    grid: GridWeights
    whole: tuple[Layer, tuple[Layer, ...], Layer, Layer]  # as `views.encode_grids` takes them
    vectors: tuple[Layer, Layer, Layer]
    memory: Layer  # of the GRU: [H, 3H], [3H]
    features: Layer  # the actor's first layer: [H, F], [F]
    last: Layer  # its last: [F, A], [A]
    encoder: int
    gemm: int


class Tables(NamedTuple):
    """What is kept of the views that have occurred; where they are not named, those of the present step alone."""

    places: Array  # as in `naming`
    stored: Array  # [capacity, K] views
    gates: Array  # [capacity, 3H] what the GRU takes of them
    levels: tuple[Level, Level, Level]
    counts: Array  # [6] patches of three sizes, views, those encoded, last observations of episodes
    named: bool  # equal views have one name


class Records(NamedTuple):
    """T steps of G environments."""

    seen: Array  # [T+1, G, *obs]; [1, G, *obs] the present ones, where they are named
    ids: Array  # [T+1, G] names
    starts: Array  # [T+1, G] bool
    before: Array  # [T+1, G, H] memory
    after: Array  # [T+1, G, H]
    outputs: Array  # [T, G, A]
    actions: Array  # [T, G]
    rewards: Array  # [T, G] float64
    terminated: Array  # [T, G] bool
    truncated: Array  # [T, G] bool
    states: Array  # [T+1, G] uint64
    positions: Array  # [T+1, G, 2]
    final_indices: Array  # [T*G] t*G+g of the steps that ended an episode
    final_seen: Array  # [T*G, *obs] their last observations; [0, *obs] where they are named
    final_ids: Array  # [T*G]
    final_after: Array  # [T*G, H] the memory after them


@compiled
def play(t: int, net: Net, tables: Tables, board: Board, records: Records, noise: Array) -> tuple[int, int]:
    """Plays from step t on, until an episode ends or all T are over; gives the step then, and which of the two.

    records.before[0] is given. Where an episode has ended, the next one is to be begun and seen before going on.
    NO_ROOM: neither; nothing was done at this step, and the levels must have more room. noise: [T, G, A] of choices
    """
    steps, envs = noise.shape[0], noise.shape[1]
    net, tables, board, records = lent(net), lent(tables), lent(board), lent(records)
    while has_room(tables, records.seen.shape, envs, net.grid.padding):
        now = records.seen[min(t, len(records.seen) - 1)]
        tell(board, records.states[t], records.positions[t])
        look_up(net, tables, now, records.ids[t])
        if t > 0:
            for g in range(envs):
                if records.starts[t, g]:
                    records.before[t, g] = 0
                else:
                    records.before[t, g] = records.after[t - 1, g]
        remember(net, tables, records.ids[t], records.before[t], records.after[t])
        if t == steps:
            return t, DONE
        for g in range(envs):
            records.actions[t, g] = choose(net, records.after[t, g], noise[t, g], records.outputs[t, g])
        move(board, records.actions[t], records.rewards[t], records.terminated[t], records.truncated[t])
        t += 1
        following = records.seen[min(t, len(records.seen) - 1)]
        see(board, following)
        ended = False
        for g in range(envs):
            records.starts[t, g] = records.terminated[t - 1, g] or records.truncated[t - 1, g]
            ended |= records.starts[t, g]
        if ended:
            conclude(t, net, tables, records, following)
            return t, ENDED
    return t, NO_ROOM


@compiled_part
def has_room(tables: Tables, shape: tuple[int, ...], envs: int, padding: int) -> bool:
    """Whether the levels hold the patches of a step's views and of as many that end episodes."""
    if tables.levels[0].products.shape[1] == 0:
        return True
    for size in range(3):
        side = 2 * padding - 1 - size
        more = 2 * envs * (shape[2] + side) * (shape[3] + side)
        if tables.counts[size] + more > len(tables.levels[size].corners):
            return False
    return True


@compiled_part
def look_up(net: Net, tables: Tables, views: Array, ids: Array) -> None:
    """Names of views [G, *obs], [G]; what the GRU takes of them is there afterwards."""
    count, counts = len(views), tables.counts
    if tables.named:
        rows = views.reshape((count, views.size // count))
        names, counts[NAMES] = name_rows(tables.places, tables.stored, counts[NAMES], rows)
        ids[:] = names
        first, last = counts[ENCODED], counts[NAMES]
        fresh = tables.stored[first:last].reshape((last - first, *views.shape[1:]))
        encode(net, tables, fresh, tables.gates[first:last])
        counts[ENCODED] = counts[NAMES]
    else:
        ids[:] = np.arange(count)
        encode(net, tables, views, tables.gates[:count])


@compiled_part
def encode(net: Net, tables: Tables, views: Array, out: Array) -> None:
    """What a GRU takes of views [B, H, W, C]. [B, 3H]"""
    if net.encoder == WHOLE:
        (scale, shift), convolutions, linear, inputs = net.whole
        encode_grids(net.gemm, views, net.grid.padding, scale, shift, convolutions, linear, inputs, out)
        return
    for b in range(len(views)):
        if net.encoder == BY_PATCHES:
            encode_view(views[b], net.grid, tables.levels, tables.counts, out[b])
        else:
            (first, bias_1), (second, bias_2), (third, bias_3) = net.vectors
            x, y = bias_1.copy(), bias_2.copy()
            add_product(views[b].ravel().astype(x.dtype), first, x)
            add_rectified(x, second, y)
            out[b] = bias_3
            add_rectified(y, third, out[b])


@compiled_part
def remember(net: Net, tables: Tables, ids: Array, before: Array, after: Array) -> None:
    """The GRU's memory after each of the views. before, after: [G, H]"""
    weight, bias = net.memory
    for g in range(len(ids)):
        memory = bias.copy()
        add_product(before[g], weight, memory)
        advance_row(tables.gates[ids[g]], before[g], memory, after[g])


@compiled_part
def choose(net: Net, memory: Array, noise: Array, outputs: Array) -> int:
    """`DiscreteActions.choose` of the actor's outputs. memory: [H], noise, outputs: [A]"""
    features = net.features[1].copy()
    add_product(memory, net.features[0], features)
    outputs[:] = net.last[1]
    add_rectified(features, net.last[0], outputs)
    chosen = 0
    for a in range(1, len(outputs)):
        if outputs[a] + noise[a] > outputs[chosen] + noise[chosen]:
            chosen = a
    return chosen


@compiled_part
def conclude(t: int, net: Net, tables: Tables, records: Records, views: Array) -> None:
    """Records what is seen last of the episodes that end with step t-1. views: [G, *obs]"""
    ended, begin, envs = np.flatnonzero(records.starts[t]), tables.counts[FINALS], len(views)
    end = begin + len(ended)
    finals = views[ended]
    records.final_indices[begin:end] = (t - 1) * envs + ended
    if not tables.named:
        records.final_seen[begin:end] = finals
    look_up(net, tables, finals, records.final_ids[begin:end])
    memories = records.after[t - 1][ended]
    remember(net, tables, records.final_ids[begin:end], memories, records.final_after[begin:end])
    tables.counts[FINALS] = end
