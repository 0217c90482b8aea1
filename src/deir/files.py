"""Files written whole or not at all, and directories that only one process writes."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from deir.errors import UserError

try:
    import fcntl
except ImportError:  # such locks are POSIX; elsewhere the user sees to it that only one process writes
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


def write_whole(path: Path, text: str) -> None:
    """A crash leaves the old file or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


@contextmanager
def only_writer(directory: Path) -> Iterator[None]:
    """Refuses a directory that another process holds. The system lets go when a process ends, however it ends."""
    if fcntl is None:
        yield
        return
    path = directory / LOCK
    with _locked(path):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def held(directory: Path) -> bool:
    """Whether a process writes there now."""
    path = directory / LOCK
    if fcntl is None or not path.is_file():
        return False
    with path.open("a+") as file:
        return not _try_lock(file, fcntl.LOCK_SH)


def _locked(path: Path) -> IO[str]:
    while True:
        file = path.open("a+")
        if not _try_lock(file, fcntl.LOCK_EX, attempts=3):
            file.seek(0)
            holder = file.read() or "another process"
            file.close()
            raise UserError(f"{path.parent}: {holder} is writing there; wait until it ends, or stop it")
        if _is(file, path):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}")
            file.flush()
            return file
        file.close()  # the last holder removed this file after we had opened it


def _try_lock(file: IO[str], kind: int, attempts: int = 1) -> bool:
    """More than one attempt where somebody may just be asking whether it is `held`, which takes a moment's lock."""
    for attempt in range(attempts):
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05 if attempt + 1 < attempts else 0)
        else:
            return True
    return False


def _is(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
