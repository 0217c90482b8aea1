"""Seed -> layout, prepared ahead.

The k-th episode of environment i is the Farama task after `reset(seed=layout_seed(run_seed, i, k))`. A seed names its
layout, so it does not matter who makes it: one background process works ahead, and whatever it has not finished when
it is needed is made on the spot. Losing the process costs time and nothing else.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import deir.envs.minigrid.cells as cells
from deir.envs.minigrid.catalogue import TaskSpec, ending_of, target_of
from deir.envs.minigrid.layout_cache import SLOW, DiskStock
from deir.envs.minigrid.random_integers import Draws, UnknownDraw
from deir.imports import python, search_path

LAYOUT_STREAM, NOISE_STREAM = 0, 1  # spawn keys under the run's seed
AHEAD = 8  # episodes prepared for each environment
_REQUEST = struct.Struct("<?I")  # wanted (or no longer), seed
_REPLY = struct.Struct("<II")  # seed, bytes of the layout
_HEAD = struct.Struct("<HHB")  # x, y, direction
_WRITE = 512  # bytes; POSIX: a pipe takes so many whole or not at all
_BATCH = 16 * _REQUEST.size  # requests are far ahead of need: to wake the worker for each would only cost time
_ORPHAN_CHECK = 2.0  # seconds
_LOGGER = logging.getLogger("deir")


class Layout(NamedTuple):
    """The first state of an episode."""

    cells: NDArray[np.uint16]  # [H * W], row by row
    x: int
    y: int
    direction: int


def layout_seed(run_seed: int, env: int, episode: int) -> int:
    """32 bits that name the layout of this episode."""
    sequence = np.random.SeedSequence(run_seed, spawn_key=(LAYOUT_STREAM, env, episode))
    return int(sequence.generate_state(1)[0])


class LayoutMaker:
    """Farama's generator of one task, as a function from seed to layout."""

    def __init__(self, spec: TaskSpec) -> None:
        self.env: Any = spec.build()
        ending = ending_of(self.env)
        if ending is None:
            raise ValueError(f"{spec.name} is not a task the batched engine covers")
        self.ending = ending
        self.env.gen_obs = dict  # type: ignore[method-assign]  # the engine makes the observations
        self._draws: Draws | None = Draws()
        self._disk = DiskStock(spec)

    def make(self, seed: int) -> Layout:
        """From the disk if it has been slow to make before, or else made and, if slow, kept there."""
        kept = self._disk.get(seed)
        if kept is not None:
            return _unpack(kept)
        begin = time.perf_counter()
        layout = self._generate(seed)
        if time.perf_counter() - begin > SLOW:
            self._disk.put(seed, _pack(layout))
        return layout

    def _generate(self, seed: int) -> Layout:
        self._reset(seed)
        env = self.env
        is_target = target_of(env, self.ending)
        codes = [cells.EMPTY if obj is None else cells.encode(obj, is_target) for obj in env.grid.grid]
        x, y = env.agent_pos
        return Layout(np.array(codes, dtype=np.uint16), int(x), int(y), int(env.agent_dir))

    def _reset(self, seed: int) -> None:
        """`env.reset(seed=seed)`; the same random numbers come faster where the task draws nothing but integers."""
        if self._draws is not None:
            self._draws.seed(seed)
            self.env._np_random = self._draws
            self.env._rand_int = self._draws.between
            try:
                self.env.reset()
                return
            except UnknownDraw:
                self._draws = None
                del self.env._rand_int
        self.env.reset(seed=seed)


class LayoutStock:
    """The coming layouts of N environments."""

    def __init__(self, spec: TaskSpec, run_seed: int, n_envs: int, *, worker: bool = True) -> None:
        self.maker = LayoutMaker(spec)
        self._n_envs = n_envs
        self._worker = Worker.start(spec) if worker else None
        self.restart(run_seed, np.zeros(n_envs, dtype=np.int64))

    def restart(self, run_seed: int, episodes: Iterable[int]) -> None:
        """Prepares for environment i the episodes from `episodes[i]` on."""
        self._run_seed = run_seed
        nexts = [int(episode) for episode in episodes]
        if self._worker is None:
            return
        self._worker.forget()
        # The first of all environments are about to be taken in order: the worker begins at the other end, so that
        # two processes share them.
        for env in reversed(range(self._n_envs)):
            self._worker.request(layout_seed(run_seed, env, nexts[env]))
        for further in range(1, AHEAD):
            for env in range(self._n_envs):
                self._worker.request(layout_seed(run_seed, env, nexts[env] + further))
        self._worker.send()

    def take(self, env: int, episode: int) -> Layout:
        """The layout of this episode: from stock, or else made here and now."""
        seed = layout_seed(self._run_seed, env, episode)
        if self._worker is None:
            return self.maker.make(seed)
        self._worker.request(layout_seed(self._run_seed, env, episode + AHEAD))
        layout = self._worker.take(seed)
        return self.maker.make(seed) if layout is None else layout

    def close(self) -> None:
        if self._worker is not None:
            self._worker.stop()
            self._worker = None


class Worker:
    """The background process, seen from the training process. Nothing here ever waits for it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self._requests, self._replies = process.stdin.fileno(), process.stdout.fileno()
        os.set_blocking(self._requests, False)
        os.set_blocking(self._replies, False)
        self._outbox = bytearray()
        self._inbox = bytearray()
        self._wanted: set[int] = set()
        self._ready: dict[int, Layout] = {}
        self._alive = True
        self.stop = weakref.finalize(self, _end, process, os.getpid())  # at the latest when the interpreter ends

    @classmethod
    def start(cls, spec: TaskSpec) -> Worker | None:
        """None where there can be no worker: all layouts are then made on the spot."""
        if os.name != "posix":  # non-blocking pipes
            return None
        try:
            task = json.dumps({"name": spec.name, "entry_point": spec.entry_point, "kwargs": dict(spec.kwargs)})
            process = subprocess.Popen(
                [*python(__name__, serve.__name__, search_path()), task],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                process_group=0,  # a terminal's Ctrl-C is the parent's to handle
            )
        except (TypeError, OSError) as error:  # keyword arguments JSON cannot carry; no room for another process
            _LOGGER.warning("layouts are made without a background process: %s", error)
            return None
        return cls(process)

    def request(self, seed: int) -> None:
        self._wanted.add(seed)
        self._outbox += _REQUEST.pack(True, seed)
        if len(self._outbox) >= _BATCH:
            self.send()

    def forget(self) -> None:
        """Takes back every request."""
        self._outbox[:] = b"".join(_REQUEST.pack(False, seed) for seed in self._wanted)
        self._wanted.clear()
        self._ready.clear()

    def take(self, seed: int) -> Layout | None:
        """The layout if it is there; if not, it is no longer asked for."""
        if seed not in self._ready:
            self._receive()
        self._wanted.discard(seed)
        layout = self._ready.pop(seed, None)
        if layout is None:
            self._outbox += _REQUEST.pack(False, seed)
            self.send()
        return layout

    def send(self) -> None:
        """Hands over the requests, as far as the worker can take them now."""
        while self._outbox and self._alive:
            try:
                written = os.write(self._requests, self._outbox[:_WRITE])
            except BlockingIOError:
                return
            except OSError:
                self._lost()
                return
            del self._outbox[:written]

    def _receive(self) -> None:
        while self._alive:
            try:
                chunk = os.read(self._replies, 1 << 16)
            except BlockingIOError:
                break
            except OSError:
                chunk = b""
            if not chunk:
                self._lost()
                break
            self._inbox += chunk
        for seed, layout in _parse_replies(self._inbox):
            if seed in self._wanted:
                self._ready[seed] = layout

    def _lost(self) -> None:
        self._alive = False
        self._outbox.clear()
        _LOGGER.warning("the process that prepares layouts has ended; from now on they are made when they are needed")


def _parse_replies(inbox: bytearray) -> Iterator[tuple[int, Layout]]:
    """Takes the complete replies off the front of `inbox`."""
    while len(inbox) >= _REPLY.size:
        seed, length = _REPLY.unpack_from(inbox)
        end = _REPLY.size + length
        if len(inbox) < end:
            return
        layout = _unpack(bytes(inbox[_REPLY.size : end]))
        del inbox[:end]
        yield seed, layout


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a fork of the owner must not take its worker away
        return
    process.kill()  # it holds nothing that could be lost
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def serve() -> None:
    """The background process: layouts for seeds, in the order asked, until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, replies = 0, os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not come between the replies
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    maker = LayoutMaker(TaskSpec(**json.loads(sys.argv[1])))
    queue: dict[int, None] = {}  # seeds in the order asked
    unread = bytearray()
    while True:
        # Everything that has come in is read before the next layout is begun: some may no longer be wanted.
        while select.select([requests], [], [], 0 if queue else None)[0]:
            received = os.read(requests, 1 << 16)
            if not received:
                return
            unread += received
            whole = len(unread) // _REQUEST.size * _REQUEST.size
            for wanted, seed in _REQUEST.iter_unpack(bytes(unread[:whole])):
                if wanted:
                    queue[seed] = None
                else:
                    queue.pop(seed, None)
            del unread[:whole]
        if queue:
            seed = next(iter(queue))
            del queue[seed]
            _reply(replies, seed, maker.make(seed))


def _end_with_parent(parent: int) -> None:
    """Also while a layout takes for ever: nothing is lost with this process."""
    while os.getppid() == parent:
        time.sleep(_ORPHAN_CHECK)
    os.kill(os.getpid(), signal.SIGKILL)


def _pack(layout: Layout) -> bytes:
    """Compressed, so that a pipe holds hundreds of them."""
    head = _HEAD.pack(layout.x, layout.y, layout.direction)
    return head + zlib.compress(layout.cells.astype("<u2").tobytes(), 1)


def _unpack(packed: bytes) -> Layout:
    x, y, direction = _HEAD.unpack_from(packed)
    codes = np.frombuffer(zlib.decompress(packed[_HEAD.size :]), "<u2").astype(np.uint16)
    return Layout(codes, x, y, direction)


def _reply(replies: int, seed: int, layout: Layout) -> None:
    packed = _pack(layout)
    message = _REPLY.pack(seed, len(packed)) + packed
    while message:
        try:
            message = message[os.write(replies, message) :]
        except BrokenPipeError:
            sys.exit()
