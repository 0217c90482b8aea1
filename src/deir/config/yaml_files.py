"""YAML files as plain data, within bounds: whatever is wrong with one is one message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from deir.errors import UserError, invalid, shortened

YAML_CHARACTERS, YAML_ENTRIES, YAML_DEPTH = 2_000_000, 100_000, 32


def load_yaml(path: Path) -> dict[str, Any]:
    if path.is_fifo() and not path.is_relative_to("/dev/fd"):  # a shell's <(…) has a writer, others may wait for ever
        raise invalid("config", str(path), "a YAML file, not a named pipe")
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(YAML_CHARACTERS + 1)
    except FileNotFoundError:
        raise invalid("config", str(path), "an existing YAML file") from None
    except (UnicodeDecodeError, IsADirectoryError) as error:
        raise UserError(f"config: {path} is not a YAML file: {error}") from None
    if len(text) > YAML_CHARACTERS:
        raise UserError(f"config: {path} is too long, expected a YAML file of at most {YAML_CHARACTERS:,} characters")
    tree = parse_yaml(text, f"config: {path}")
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise invalid("config", str(path), "a YAML mapping of configuration keys")
    return tree


def parse_yaml(text: str, where: str) -> Any:
    """Plain data of a YAML text; whatever is wrong with it is one message."""
    try:
        tree = yaml.safe_load(text)
        if _entries(tree, YAML_DEPTH) > YAML_ENTRIES:
            raise UserError(f"{where}: too large, expected at most {YAML_ENTRIES:,} entries, those of aliases included")
    except RecursionError:
        raise UserError(f"{where}: nested too deeply, expected at most {YAML_DEPTH} levels") from None
    except UserError:
        raise
    except Exception as error:  # its constructors let Python's own errors through, such as those of a wrong date
        raise UserError(f"{where} is not a YAML file: {shortened(str(error))[1:-1]}") from None
    return tree


def _entries(tree: Any, depth: int) -> int:
    """How many values a tree has once its aliases are written out; stops counting where it is too many."""
    if not isinstance(tree, (dict, list, set, tuple)):
        return 1
    if depth == 0:
        raise RecursionError
    total = 1
    for entry in tree.values() if isinstance(tree, dict) else tree:
        total += _entries(entry, depth - 1)
        if total > YAML_ENTRIES:
            break
    return total
