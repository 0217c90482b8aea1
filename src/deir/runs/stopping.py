"""How a program ends that is stopped from outside, by Ctrl-C, SIGTERM, a closed terminal or pipe, or by the system."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from deir.errors import UserError

_GONE = (errno.EPIPE, errno.EIO)  # of a pipe nobody reads, of a terminal that was closed


def stop_signals() -> tuple[int, ...]:
    """The signals that ask a program to stop. A hang-up that `nohup` has it ignore stays ignored."""
    signals = [signal.SIGINT, signal.SIGTERM]
    hang_up = getattr(signal, "SIGHUP", None)
    if hang_up is not None and signal.getsignal(hang_up) is not signal.SIG_IGN:
        signals.append(hang_up)
    return tuple(signals)


def is_gone(error: OSError) -> bool:
    """Whether a write failed because nobody can read it any more."""
    return error.errno in _GONE


def quieten() -> None:
    """Output goes nowhere from now on, so that the interpreter's last flush does not fail too."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # a stream may be closed, or no file at all
            stream.flush()
            continue
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def output_failed(error: OSError) -> None:
    """Output cannot be read any more: asks this process to stop as SIGTERM does, if it is ready for that."""
    if not is_gone(error) or signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        raise error
    quieten()
    signal.raise_signal(signal.SIGTERM)


def say(text: str) -> None:
    """Prints a line; where nobody reads it, training stops with a checkpoint instead of a crash."""
    try:
        print(text, flush=True)
    except OSError as error:
        output_failed(error)


def run_command(command: Callable[[], None]) -> None:
    """Runs a command. A mistake, a failure of the system or Ctrl-C is told in one message, never in a traceback."""
    try:
        command()
    except UserError as mistake:
        _end(2, f"error: {mistake}")
    except KeyboardInterrupt:
        _end(130, "interrupted")
    except OSError as failure:
        if is_gone(failure):
            quieten()
        if failure.errno == errno.EPIPE:
            raise SystemExit(141) from None
        _end(2, f"error: {_told(failure)}")  # EIO may be of a disk: of a terminal, nobody hears this
    except MemoryError as failure:
        _end(2, f"error: not enough memory {failure}; smaller counts or widths need less")
    except RuntimeError as failure:
        if "allocate memory" not in str(failure) and "out of memory" not in str(failure):
            raise
        _end(2, f"error: not enough memory ({str(failure).splitlines()[0]}); smaller counts or widths need less")


def _end(code: int, message: str) -> None:
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        quieten()
    raise SystemExit(code) from None


def _told(failure: OSError) -> str:
    """A failure of the system in words: which file, what happened, what to do."""
    remedies = {
        errno.ENOSPC: "make room, or write elsewhere",
        errno.EDQUOT: "make room, or write elsewhere",
        errno.EROFS: "expected a place that can be written",
        errno.EACCES: "expected a place you may use",
        errno.EPERM: "expected a place you may use",
    }
    places = [str(name) for name in (failure.filename, failure.filename2) if name is not None]
    told = f"{' -> '.join(places)}: {failure.strerror}" if places else str(failure)
    remedy = remedies.get(failure.errno or 0)
    return f"{told}; {remedy}" if remedy else told


class Interrupted(Exception):
    """Ctrl-C, SIGTERM, or a closed terminal or pipe."""


@contextmanager
def signals_noted() -> Iterator[list[int]]:
    """The first signal is noted, so that the iteration ends well; the second one is obeyed at once."""
    noted: list[int] = []
    previous: dict[int, Any] = {}

    def note(number: int, frame: Any) -> None:
        noted.append(number)
        signal.signal(number, previous[number])

    for number in stop_signals():
        with suppress(ValueError):  # not the main thread: the caller handles signals
            previous[number] = signal.signal(number, note)
    try:
        yield noted
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
