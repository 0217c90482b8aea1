"""The background process that prepares layouts, and how the training process talks to it."""

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
from collections.abc import Iterator

from deir.envs.minigrid.catalogue import TaskSpec
from deir.envs.minigrid.layout_maker import Layout, LayoutMaker, pack, unpack
from deir.imports import python, search_path

_REQUEST = struct.Struct("<?I")  # wanted (or no longer), seed
_REPLY = struct.Struct("<II")  # seed, bytes of the layout
_WRITE = 512  # bytes; POSIX: a pipe takes so many whole or not at all
_BATCH = 16 * _REQUEST.size  # requests are far ahead of need: to wake the worker for each would only cost time
_ORPHAN_CHECK = 2.0  # seconds
_LOGGER = logging.getLogger("deir")


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
        layout = unpack(bytes(inbox[_REPLY.size : end]))
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


def _reply(replies: int, seed: int, layout: Layout) -> None:
    packed = pack(layout)
    message = _REPLY.pack(seed, len(packed)) + packed
    while message:
        try:
            message = message[os.write(replies, message) :]
        except BrokenPipeError:
            sys.exit()
