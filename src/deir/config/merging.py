"""Nested mappings laid over a configuration, every key and type checked."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from deir.config.counts import Count, parse_count
from deir.errors import invalid, shortened, unknown

T = TypeVar("T")


def with_old_keys(tree: dict[str, Any]) -> dict[str, Any]:
    """Configuration keys with those of earlier versions translated: `tensorboard` was a switch."""
    if "tensorboard" not in tree:
        return tree
    kept = {key: value for key, value in tree.items() if key != "tensorboard"}
    return {"loggers": "csv,tensorboard" if _coerce(tree["tensorboard"], bool, "tensorboard") else "csv", **kept}


def to_dict(config: Any) -> dict[str, Any]:
    return dataclasses.asdict(config)


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"ppo": {"gamma": 0.99}} -> {"ppo.gamma": 0.99}"""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat.update(flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat


def merge(config: T, overrides: dict[str, Any], where: str = "") -> T:
    """A copy of `config` with the nested `overrides` laid over it; unknown keys and wrong types are errors."""
    names = {f.name for f in dataclasses.fields(config)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(type(config), include_extras=True)
    changes: dict[str, Any] = {}
    for key, value in overrides.items():
        path = f"{where}{key}"
        if key not in names:
            raise unknown(f"configuration key {shortened(path)}", shortened(key).strip("'"), names)
        current = getattr(config, key)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, dict):
                raise invalid(
                    path, value, f"a mapping with the keys {', '.join(f.name for f in dataclasses.fields(current))}"
                )
            changes[key] = merge(current, value, f"{path}.")
        else:
            changes[key] = _coerce(value, hints[key], path)
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def _coerce(value: Any, hint: Any, path: str) -> Any:
    """`value` as the annotated type, or an error that names the field."""
    if hint is Count and isinstance(value, (str, float)):
        return parse_count(str(value))
    if get_origin(hint) is Annotated:
        return _coerce(value, get_args(hint)[0], path)
    if get_origin(hint) in (types.UnionType, typing.Union):
        options = [h for h in get_args(hint) if h is not type(None)]
        return None if value is None else _coerce(value, options[0], path)
    if get_origin(hint) is Literal:
        if not isinstance(value, str) or value not in get_args(hint):
            text = value if isinstance(value, str) else shortened(value)
            raise unknown(path, text, map(str, get_args(hint)))
        return value
    if hint is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)  # also of a text: YAML reads 3e-4 so
        except (ValueError, OverflowError):
            pass
    if isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise invalid(path, value, {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[hint])
