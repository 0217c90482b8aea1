"""Files written whole or not at all, and directories that only one process writes."""

from __future__ import annotations

import errno
import os
import platform
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from deir.errors import UserError, invalid

try:
    import fcntl
except ImportError:  # such locks are POSIX; elsewhere the user sees to it that only one process writes
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
TRIAL = ".writable.tmp"
BUFFER = 1 << 20
_SEAL = "# crc32 {:08x} of the lines below; remove this line if you change them\n"
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new content for the file. A crash leaves the old one or the new one, and a power cut after this the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb", buffering=BUFFER) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # before the name: a name may reach the disk before what it names
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_whole(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode())


def sync_directory(path: Path) -> None:
    """Names given, changed and removed in it are on disk after this."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that has no such thing
            raise
    finally:
        os.close(handle)


def sync_tree(path: Path) -> None:
    """Every file and name below it is on disk after this."""
    for place, _, names in os.walk(path):
        for name in names:
            with (Path(place) / name).open("rb") as file:
                os.fsync(file.fileno())
        sync_directory(Path(place))


def make_directory(path: Path) -> None:
    """With all that is missing above it. What is made is on disk, or else all that is written there could be lost."""
    missing = [place for place in (path, *path.parents) if not place.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_directory(made.parent)


def make_writable(field: str, directory: Path) -> None:
    """Makes a directory and tries to write there: a place that cannot be used is told before any work is done."""
    trial = directory / TRIAL
    try:
        make_directory(directory)
        try:
            trial.write_bytes(bytes(4096))
        finally:
            trial.unlink(missing_ok=True)
    except OSError as error:
        raise invalid(field, str(directory), f"a directory that can be written ({error.strerror})") from None


def check_file(field: str, path: Path) -> None:
    """Refuses a file that cannot be written, before any work is done."""
    if path.is_dir() or not path.name:
        raise invalid(field, str(path), "the name of a file")
    if not path.resolve().parent.is_dir():
        raise invalid(field, str(path), "a file in an existing directory")
    make_writable(field, path.resolve().parent)


def remove_temporaries(directory: Path) -> None:
    """What a killed writer left. Only for the one process that writes there."""
    for left in directory.glob(".*.tmp"):
        left.unlink(missing_ok=True)


def sealed(text: str) -> str:
    """YAML with a checksum in its first line: a changed digit would be another configuration, and nobody would know."""
    return _SEAL.format(zlib.crc32(text.encode())) + text


def check_seal(path: Path) -> None:
    """Files without a checksum pass: those of earlier versions, and those changed on purpose."""
    if not path.is_file():
        return
    first, _, rest = path.read_bytes().partition(b"\n")
    words = first.split()
    if words[:2] == [b"#", b"crc32"] and first + b"\n" != _SEAL.format(zlib.crc32(rest)).encode():
        raise UserError(
            f"{path} is not what was written: it is damaged, or was changed by hand. Put the old file back, or remove "
            "its first line if the change was meant"
        )


@contextmanager
def only_writer(directory: Path) -> Iterator[None]:
    """Refuses a directory that another process holds. The system lets go when a process ends, however it ends."""
    if fcntl is None:
        remove_temporaries(directory)
        yield
        return
    path = directory / LOCK
    with _locked(path):
        remove_temporaries(directory)
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


def as_cell(text: str) -> str:
    """A text as a cell of a CSV file: spreadsheets take one that begins so for a formula, and would compute it."""
    return f"'{text}" if text.lstrip("'").startswith(_FORMULA) else text


def from_cell(text: str) -> str:
    """What `as_cell` was given."""
    return text[1:] if text.startswith("'") and text.lstrip("'").startswith(_FORMULA) else text
