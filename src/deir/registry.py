"""Names of classes: those of the package, those a program registers, and package.module:Class."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Generic, NamedTuple, TypeVar

from deir.errors import invalid, unknown
from deir.imports import import_named

Base = TypeVar("Base")


class Entry(NamedTuple):
    module: str  # imported when asked for
    cls: str
    description: str
    given: type[Any] | None = None  # a class registered by the program that runs


class Registry(dict[str, Entry], Generic[Base]):
    """Name -> entry. `what` is the option that takes such names; `base` (module:Class) is what a class derives from."""

    def __init__(self, what: str, base: str, also: str, entries: dict[str, Entry]) -> None:
        super().__init__(entries)
        self.what, self.base, self.also = what, base, also

    def register(self, name: str, cls: type[Base], description: str = "") -> None:
        """For this program; another one needs it again, unless the class is named package.module:Class."""
        if not name or ":" in name:
            raise invalid("name", name, "a name without a colon, such as 'mine'")
        if name in self and self[name].given is None:
            raise invalid("name", name, f"a name that no {self.what} of the package has")
        if not self._fits(cls):
            raise invalid("cls", cls, f"a class derived from {self.base.replace(':', '.')}")
        text = description or (cls.__doc__ or "").strip().partition("\n")[0]
        self[name] = Entry(cls.__module__, cls.__qualname__, text or f"{cls.__module__}:{cls.__qualname__}", cls)

    def find(self, name: str, field: str | None = None) -> type[Base]:
        """The class of a name; `field`: the option that it is the value of."""
        field = field or self.what
        if name not in self and ":" not in name:
            raise unknown(field, name, self, also=self.also)
        module_name, _, own = name.partition(":")
        entry = self.get(name) or Entry(module_name, own, name)
        if entry.given is not None:
            return entry.given
        module = import_module(entry.module) if name in self else import_named(field, name, "package.module:Class")
        cls: Any = getattr(module, entry.cls, None)
        if not self._fits(cls):
            found = [key for key, value in vars(module).items() if self._fits(value)]
            raise unknown(f"{field}: {self.what} class in module {entry.module!r}", entry.cls, found)
        return cls  # type: ignore[no-any-return]

    def _fits(self, cls: Any) -> bool:
        module, _, name = self.base.partition(":")
        return isinstance(cls, type) and getattr(import_module(module), name) in cls.__mro__
