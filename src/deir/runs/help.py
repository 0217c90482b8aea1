"""What options mean, in words: the short `--help`, and the tables of docs/configuration.md."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import shutil
import textwrap
import types
import typing
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from deir.config import Count

_TYPES = {int: "integer", float: "number", str: "text", bool: "switch"}
_VALUES = {int: "N", float: "X", str: "TEXT"}
_WIDTH, _INDENT = 100, 26


def meanings(cls: type) -> dict[str, str]:
    """Field -> the docstring under it."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for node, following in zip(body.body, body.body[1:], strict=False):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                match following:
                    case ast.Expr(ast.Constant(str(text))):
                        found[node.target.id] = inspect.cleandoc(text).replace("\n", " ")
    return found


def type_name(hint: Any) -> str:
    if hint is Count:
        return "number of frames"
    if get_origin(hint) is Annotated:
        return type_name(get_args(hint)[0])
    if get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join("none" if option is type(None) else type_name(option) for option in get_args(hint))
    if get_origin(hint) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(hint))
    return _TYPES.get(hint, getattr(hint, "__name__", str(hint)).lower())


def flags(name: str, path: str, hint: Any) -> list[str]:
    """The words that set an option, shortest first: --env, --env.id."""
    aliases = [alias for extra in get_args(hint)[1:] for alias in getattr(extra, "aliases", None) or ()]
    words = [*(aliases if get_origin(hint) is Annotated else []), f"--{path}{name}".replace("_", "-")]
    if hint is bool:
        words.append(f"--{path}no-{name}".replace("_", "-"))
    return words


def shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "on", False: "off"}[value]
    return str(value)


def count_options(cls: Any) -> int:
    """Options of a command, those of its groups included."""
    hints = [typing.get_type_hints(cls)[field.name] for field in dataclasses.fields(cls)]
    return sum(int(count_options(hint)) if dataclasses.is_dataclass(hint) else 1 for hint in hints)


def short_help(command: type, prog: str, common: Sequence[str]) -> str:
    """The options most people need (dotted names); the rest by --help-all."""
    width = min(_WIDTH, shutil.get_terminal_size().columns)
    doc = textwrap.fill(" ".join((inspect.getdoc(command) or "").split()), width)
    lines = [f"usage: {prog} [options]", "", doc, ""]
    for dotted in common:
        *path, name = dotted.split(".")
        owner: Any = command
        for part in path:
            owner = typing.get_type_hints(owner)[part]
        hint = typing.get_type_hints(owner, include_extras=True)[name]
        default = next(f.default for f in dataclasses.fields(owner) if f.name == name)
        flag = flags(name, "".join(f"{part}." for part in path), hint)[0]
        word = flag if hint is bool else f"{flag} {_metavar(hint)}"
        tail = "" if default is None or default is False else f" ({shown(default)})"
        text = textwrap.wrap(meanings(owner)[name] + tail, max(20, width - _INDENT))
        first = f"  {word:<{_INDENT - 3}} " if len(word) < _INDENT - 2 else f"  {word}\n{' ' * _INDENT}"
        lines.append(first + f"\n{' ' * _INDENT}".join(text))
    more = count_options(command) - len(common)
    lines += ["", f"{more} more options: {prog} --help-all, or docs/configuration.md"]
    return "\n".join(lines)


def _metavar(hint: Any) -> str:
    if hint is Count:
        return "FRAMES"
    if get_origin(hint) is Annotated:
        return _metavar(get_args(hint)[0])
    if get_origin(hint) in (types.UnionType, typing.Union):
        return _metavar(next(option for option in get_args(hint) if option is not type(None)))
    if get_origin(hint) is Literal:
        return "|".join(map(str, get_args(hint)))
    return _VALUES.get(hint, "PATH")
