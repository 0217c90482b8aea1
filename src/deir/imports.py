"""Things named as module:attribute, such as a user's environment or reward."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

from deir.errors import UserError


def import_named(field: str, name: str, expected: str) -> ModuleType:
    """The module of `module:attribute`, also from the directory the program was started in."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())  # a console script does not look there
    module = name.partition(":")[0]
    try:
        return importlib.import_module(module)
    except (ImportError, TypeError, ValueError) as error:
        raise UserError(
            f"{field}: module {module!r} of {name!r} cannot be imported ({error}); expected {expected}"
        ) from None
