"""Mistakes a user can make, told in one sentence: what was wrong, what was expected, what to type instead."""

import reprlib
from collections.abc import Iterable
from difflib import get_close_matches

LONGEST = 200  # characters of a value that a message repeats
MOST = 40  # names that a message lists


class UserError(ValueError):
    """Shown as one message without a traceback; the command line exits with code 2."""


class _Shortened(reprlib.Repr):
    """Looks at a few entries and levels only: a value may be larger than memory once it is written out."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 4, LONGEST, LONGEST
        self.maxlist = self.maxdict = self.maxtuple = self.maxset = 12

    def repr_int(self, x: int, level: int) -> str:
        """Python refuses to write out integers of thousands of digits."""
        return repr(x) if abs(x) < 10**40 else f"{'-' if x < 0 else ''}a whole number of {x.bit_length()} bits"


def shortened(value: object) -> str:
    """`repr(value)`, but never long."""
    text = _Shortened().repr(value)
    return text if len(text) <= 2 * LONGEST else f"{text[:LONGEST]} … {text[-LONGEST // 2 :]}"


def invalid(field: str, value: object, expected: str) -> UserError:
    return UserError(f"{field}: got {shortened(value)}, expected {expected}")


def nearest(value: str, choices: Iterable[str]) -> str | None:
    value = value[:LONGEST]  # the search takes time with the square of its length
    lowered = {choice.lower(): choice for choice in choices}
    found = get_close_matches(value.lower(), lowered, n=1, cutoff=0.4)
    return lowered[found[0]] if found else None


def unknown(
    field: str, value: str, choices: Iterable[str], listing: str | None = None, also: str | None = None
) -> UserError:
    """An unknown name: the nearest valid one, and all of them unless they are many (or the command that lists them)."""
    choices = sorted(choices)
    close = nearest(value, choices)
    hint = f" Did you mean {close!r}?" if close else ""
    rest = f" and {len(choices) - MOST:,} more" if len(choices) > MOST else ""
    known = f"`{listing}` shows what there is" if listing else f"expected one of: {', '.join(choices[:MOST])}{rest}"
    more = f", or {also}" if also else ""
    return UserError(f"{field}: unknown name {shortened(value)}.{hint} ({known}{more})")


class TrainingDiverged(RuntimeError):
    """A loss, gradient or parameter stopped being finite."""
