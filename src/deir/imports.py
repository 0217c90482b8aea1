"""Code that is named as module:attribute, such as a user's environment or reward: what is imported, and from where."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from deir.errors import UserError, shortened

if TYPE_CHECKING:
    from deir.config import Config

BACKEND_PREFIXES = {"procgen:"}
"""Names of environments that begin so are names of a registered backend's tasks, not of modules."""


def import_named(field: str, name: str, expected: str) -> ModuleType:
    """The module of `module:attribute`, also from the directory the program was started in."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())  # a console script does not look there
    module = name.partition(":")[0]
    try:
        return importlib.import_module(module)
    except (ImportError, TypeError, ValueError, SyntaxError) as error:
        raise UserError(
            f"{field}: module {module!r} of {name!r} cannot be imported ({error}); expected {expected}"
        ) from None


def names_code(field: str, name: str) -> bool:
    """Whether a task (`field` env), method, encoder or logger of this name is imported from a module not ours."""
    return ":" in name and not (field == "env" and name.startswith(tuple(BACKEND_PREFIXES)))


def code_named(config: Config) -> list[tuple[str, str]]:
    """The options of a configuration that name code which is not ours, with the names."""
    encoders = [("network.encoder", config.network.encoder), ("reward.encoder", config.reward.encoder)]
    loggers = [("loggers", name) for name in config.loggers.split(",")]
    named = [("env", config.env.id), ("method", config.method), *encoders, *loggers]
    return [(field, name.strip()) for field, name in named if names_code(field, name)]


def check_trusted(config: Config, source: Path | str, trust: bool | Collection[str] = ()) -> None:
    """Refuses a configuration out of a file that names code, which would be run, unless the user names it too.

    `trust`: True, or the names that the user gave.
    """
    for field, name in code_named(config):
        if trust is True or (trust and name in trust):
            continue
        raise UserError(
            f"{field}: {source} names code, {shortened(name)}, which is not run unless you ask for it: expected the "
            f"same name on the command line (--{field}), or --trust (from Python trust=True) if you trust the file"
        )


def search_path() -> list[str]:
    """Where this process looks for modules, but in the working directory last: what lies there shadows nothing."""
    here = os.getcwd()
    places = [place or here for place in sys.path]
    return [*(place for place in places if place != here), *([here] if here in places else [])]


def python(module: str, function: str, path: list[str] | None = None) -> list[str]:
    """The command of a Python that calls `module.function`. Words after it are sys.argv[1:] there.

    `path`: where to look for modules; what a Python looks at by itself, and where this package is, when not given. The
    working directory is never first (-P): a zlib.py that lies there must not be run in place of Python's own.
    """
    home = str(Path(__file__).parent.parent)
    set_path = f"sys.path.append({home!r})" if path is None else f"sys.path[:] = {path!r}"
    return [sys.executable, "-P", "-c", f"import sys; {set_path}; from {module} import {function}; {function}()"]
