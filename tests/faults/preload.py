"""The preloaded library of preload.c, seen from Python: counts, kills, failures and records of file operations."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from .base import Unavailable

SOURCE = Path(__file__).with_name("preload.c")
LIBRARY = "DEIR_FAULTS_LIBRARY"
_HEAD = struct.Struct("<iiiiqq")


class Op(IntEnum):
    OPEN = 1
    WRITE = 2
    SYNC = 3
    RENAME = 4
    UNLINK = 5
    MKDIR = 6
    TRUNCATE = 7
    MARK = 8
    READ = 9


class Action(IntEnum):
    NOTHING = 0
    BEFORE = 1
    MIDDLE = 2
    AFTER = 3
    FAIL = 4


@dataclass(frozen=True)
class Operation:
    op: Op
    done: bool  # whether it succeeded
    path: str
    target: str  # of a rename
    offset: int  # of a write; the flags of an open; the length of a truncation; the number of a mark
    data: bytes


def start_again_with_library() -> None:
    """Replaces this process by one that has the library, where it can be built; returns in one that has it."""
    if LIBRARY in os.environ:
        shutil.rmtree(os.environ.pop(LIBRARY))
        del os.environ["LD_PRELOAD"]  # processes that this one starts need no library
        return
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not sys.platform.startswith("linux"):
        return
    directory = Path(tempfile.mkdtemp(prefix="deir-faults-library-"))
    file = directory / "preload.so"
    made = subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(file), str(SOURCE), "-ldl"])
    if made.returncode:
        shutil.rmtree(directory)
        return
    environment = {**os.environ, LIBRARY: str(directory), "LD_PRELOAD": str(file)}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def library() -> ctypes.CDLL:
    loaded = ctypes.CDLL(None)
    if not hasattr(loaded, "faults_arm"):
        raise Unavailable("needs Linux and a C compiler (cc)")
    return loaded


def arm(
    directory: Path,
    number: int = -1,
    action: Action = Action.NOTHING,
    error: int = 0,
    for_good: bool = False,
    reads: bool = False,
    trace: int = -1,
) -> None:
    """The `number`-th operation below `directory` meets the action. `for_good`: so do all after it."""
    name = os.fsencode(directory.resolve())
    library().faults_arm(name, ctypes.c_long(number), int(action), error, int(for_good), int(reads), trace)


def disarm() -> None:
    library().faults_disarm()


def mark(number: int) -> None:
    """What the program says, at its place in the record."""
    library().faults_mark(ctypes.c_int64(number))


def read_trace(file: Path) -> Iterator[Operation]:
    content, position = file.read_bytes(), 0
    while position < len(content):
        op, done, one, two, offset, count = _HEAD.unpack_from(content, position)
        position += _HEAD.size
        parts = []
        for length in (one, two, count):
            parts.append(content[position : position + length])
            position += length
        yield Operation(Op(op), bool(done), os.fsdecode(parts[0]), os.fsdecode(parts[1]), offset, parts[2])
