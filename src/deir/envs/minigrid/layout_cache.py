"""Layouts that took long to make, kept on disk for the runs to come: a seed names its layout for ever.

MultiRoom-N30 rejects most of what it draws and takes a third of a second a layout. Runs with the same seed, such as
those of other methods, find theirs here. The file is in $DEIR_CACHE, or else in the user's cache directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import struct
import zlib
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from deir.envs.minigrid.catalogue import TaskSpec

SLOW = 0.03  # seconds a layout must have taken to be worth a place
_CHECKSUM = struct.Struct("<I")


def cache_directory() -> Path:
    given = os.environ.get("DEIR_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "deir"


class DiskStock:
    """Seed -> bytes. A disk that cannot be read or written costs time and nothing else."""

    def __init__(self, spec: TaskSpec) -> None:
        task = json.dumps([spec.entry_point, dict(spec.kwargs), version("minigrid")], sort_keys=True)
        name = f"{spec.name.replace('/', '-')}-{hashlib.sha256(task.encode()).hexdigest()[:12]}.sqlite"
        self.path = cache_directory() / "layouts" / name
        self._database: sqlite3.Connection | None = None
        if self.path.exists():
            self._open()

    def _open(self) -> None:
        with suppress(sqlite3.Error, OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(self.path, timeout=5, isolation_level=None, check_same_thread=False)
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=OFF")  # what a crash loses is made again
            database.execute("CREATE TABLE IF NOT EXISTS layouts (seed INTEGER PRIMARY KEY, layout BLOB)")
            self._database = database

    def get(self, seed: int) -> bytes | None:
        if self._database is None:
            return None
        with suppress(sqlite3.Error):
            row = self._database.execute("SELECT layout FROM layouts WHERE seed = ?", (seed,)).fetchone()
            if row is not None and isinstance(row[0], bytes):
                return _checked(seed, row[0])
        return None

    def put(self, seed: int, layout: bytes) -> None:
        if self._database is None:
            self._open()
        with suppress(sqlite3.Error):
            if self._database is not None:
                self._database.execute("INSERT OR REPLACE INTO layouts VALUES (?, ?)", (seed, _sealed(seed, layout)))

    def close(self) -> None:
        """Now, not when the interpreter gets to it: a process that trains again and again would run out of files."""
        if self._database is not None:
            self._database.close()
            self._database = None


def _sealed(seed: int, layout: bytes) -> bytes:
    """With a checksum of what it is and whose it is: a wrong layout would be another task, and nobody would know."""
    return _CHECKSUM.pack(zlib.crc32(layout, seed)) + layout


def _checked(seed: int, kept: bytes) -> bytes | None:
    """None if it is not what was kept, as those of earlier versions are not."""
    layout = kept[_CHECKSUM.size :]
    return layout if _sealed(seed, layout) == kept else None
