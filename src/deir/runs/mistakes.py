"""Mistyped options in one line, as every other mistake is told; tyro draws a box."""

from __future__ import annotations

import ast
import dataclasses
import io
import re
import sys
import typing
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from typing import Any, TypeVar

from deir.errors import UserError, invalid, unknown
from deir.runs.help import flags

T = TypeVar("T")
_NUMBERS = (
    (r"invalid literal for int\(\) with base 10: '(.*)'", "a whole number"),
    (r"could not convert string to float: '(.*)'", "a number"),
)


def told_in_a_line(parser: Callable[[], T], command: type, prog: str) -> T:
    """What `parser` gives; where it ends the program with a box on stderr, a UserError that says the same."""
    told = io.StringIO()
    try:
        with redirect_stderr(told):
            return parser()
    except SystemExit as ended:
        if not ended.code:
            raise
        text, told = told.getvalue(), io.StringIO()
        raise mistake(text, command, prog) from None
    finally:
        sys.stderr.write(told.getvalue())


def mistake(box: str, command: type, prog: str) -> UserError:
    text = _first_part(box)
    if found := re.fullmatch(r"Unrecognized options: (.*)", text):
        words = found[1].split(", ")
        word = next((word for word in words if word.startswith("-")), words[0]).split("=")[0]
        if word.startswith("-"):
            return unknown("option", word, option_words(command), f"{prog} --help-all")
        return invalid("option", word, f"an option of `{prog} --help-all`")
    if found := re.fullmatch(r"invalid choice '(.*)' for argument '(.*)'\. Expected one of (\(.*\))\.", text):
        return unknown(found[2].lstrip("-"), found[1], map(str, ast.literal_eval(found[3])))
    if found := re.fullmatch(r"Error parsing -*(\S+): (.*)", text):
        name, reason = found.groups()
        for pattern, expected in _NUMBERS:
            if value := re.fullmatch(pattern, reason):
                return invalid(name, value[1], expected)
        if value := re.match(r"no type matching (\S+) could be instantiated from \['(.*?)'\]\.", reason):
            return invalid(name, value[2], value[1].replace("{None}", "none").replace("|", " or "))
        return UserError(reason if reason.startswith(f"{name}: ") else f"{name}: {reason}")
    return UserError(f"{text} (`{prog} --help` shows the options)")


def option_words(command: Any, path: str = "") -> Iterator[str]:
    """Every word that sets an option of a command, those of its groups included."""
    hints = typing.get_type_hints(command, include_extras=True)
    for field in dataclasses.fields(command):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from option_words(hint, f"{path}{field.name}.")
        else:
            yield from flags(field.name, path, hint)


def _first_part(box: str) -> str:
    """What a box says between title and first rule, as one line; rules are of hyphens where stdout is not UTF-8."""
    lines: list[str] = []
    for line in re.sub(r"\x1b\[[0-9;]*m", "", box).strip().splitlines()[1:]:
        inner = line.strip(" │")
        if inner.strip("─-╰╯"):
            lines.append(inner)
        elif lines:
            break
    return " ".join(lines)
