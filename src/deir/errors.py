"""Mistakes a user can make, told in one sentence: what was wrong, what was expected, what to type instead."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """Shown as one message without a traceback; the command line exits with code 2."""


def invalid(field: str, value: object, expected: str) -> UserError:
    return UserError(f"{field}: got {value!r}, expected {expected}")


def nearest(value: str, choices: Iterable[str]) -> str | None:
    lowered = {choice.lower(): choice for choice in choices}
    found = get_close_matches(value.lower(), lowered, n=1, cutoff=0.4)
    return lowered[found[0]] if found else None


def unknown(
    field: str, value: str, choices: Iterable[str], listing: str | None = None, also: str | None = None
) -> UserError:
    """An unknown name: the nearest valid one, and all of them (or the command that lists them)."""
    choices = sorted(choices)
    close = nearest(value, choices)
    hint = f" Did you mean {close!r}?" if close else ""
    known = f"`{listing}` shows what there is" if listing else f"expected one of: {', '.join(choices)}"
    more = f", or {also}" if also else ""
    return UserError(f"{field}: unknown name {value!r}.{hint} ({known}{more})")


class TrainingDiverged(RuntimeError):
    """A loss, gradient or parameter stopped being finite."""
