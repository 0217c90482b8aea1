"""Files written whole or not at all, and directories that only one process writes."""

from __future__ import annotations

import errno
import os
import platform
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout

from deir.errors import UserError, invalid

LOCK = ".lock"
HOLDER = ".writer"  # who holds the lock: a locked file itself cannot be read everywhere
TRIAL = ".writable.tmp"
_MOMENT = 0.1  # seconds
BUFFER = 1 << 20
_SEAL = "# crc32 {:08x} of the lines below; remove this line if you change them\n"
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """A write that fails says of which file; the system does not."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new content for the file. A crash leaves the old one or the new one, and a power cut after this the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with naming(path), temporary.open("wb", buffering=BUFFER) as file:
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
            f"{path} has been changed since it was written: if you meant that, delete its first line, which begins "
            "with '# crc32'; if not, put the old file back"
        )


@contextmanager
def only_writer(directory: Path) -> Iterator[None]:
    """Refuses a directory that another process holds. The system lets go when a process ends, however it ends."""
    lock, holder = FileLock(directory / LOCK), directory / HOLDER
    try:
        lock.acquire(timeout=2 * _MOMENT)  # somebody may just be asking whether it is `held`
    except Timeout:
        told = _read(holder) or "another process"
        raise UserError(f"{directory}: {told} is writing there; wait until it ends, or stop it") from None
    try:
        holder.write_text(f"process {os.getpid()} on {platform.node()}")
        remove_temporaries(directory)
        yield
    finally:
        holder.unlink(missing_ok=True)
        _let_go(lock)
        with suppress(OSError):  # a lock that comes back after a power cut has no holder
            sync_directory(directory)


def held(directory: Path) -> bool:
    """Whether a process writes there now."""
    if not (directory / LOCK).is_file():
        return False
    lock = FileLock(directory / LOCK)
    try:
        lock.acquire(timeout=_MOMENT)
    except Timeout:
        return True
    lock.release()
    return False


def abandoned(directory: Path) -> bool:
    """Whether its writer has ended or is gone, for those who only look: nothing is opened for writing."""
    found = re.fullmatch(r"process (\d+) on (.*)", _read(directory / HOLDER))
    if not found:
        return True
    if found[2] != platform.node() or os.name != "posix":
        return False  # who could tell
    try:
        os.kill(int(found[1]), 0)  # asks, and does nothing
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:  # a process of another user
        pass
    return False


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time: waits until the others are done with the file."""
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    lock.acquire()
    try:
        yield
    finally:
        _let_go(lock)


def _let_go(lock: FileLock) -> None:
    """The file goes first: whoever has opened it meanwhile sees that it has no name any more, and tries again."""
    if os.name == "posix":
        Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def as_cell(text: str) -> str:
    """A text as a cell of a CSV file: spreadsheets take one that begins so for a formula, and would compute it."""
    return f"'{text}" if text.lstrip("'").startswith(_FORMULA) else text


def from_cell(text: str) -> str:
    """What `as_cell` was given."""
    return text[1:] if text.startswith("'") and text.lstrip("'").startswith(_FORMULA) else text
