"""What a power cut may leave: a model of a disk on which only what was synced is sure to be."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .preload import Op, Operation


@dataclass
class File:
    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""


@dataclass
class Folder:
    names: dict[str, File | Folder] = field(default_factory=dict)
    durable: dict[str, File | Folder] = field(default_factory=dict)


class Disk:
    """Takes the operations one by one. `source` is on the disk from the beginning."""

    def __init__(self, root: str, source: Path | None) -> None:
        self.root = root
        self.top = Folder()
        if source is not None:
            self.top.names["run"] = self.top.durable["run"] = _durable(source)

    def _find(self, path: str) -> tuple[Folder, str]:
        *above, name = Path(path).relative_to(self.root).parts or ("",)
        folder = self.top
        for part in above:
            found = folder.names[part]
            assert isinstance(found, Folder)
            folder = found
        return folder, name

    def _node(self, path: str) -> Any:
        folder, name = self._find(path)
        return folder.names.get(name) if name else self.top

    def apply(self, operation: Operation) -> None:
        if not operation.done or operation.op in (Op.MARK, Op.READ):
            return
        path = operation.path
        if path.endswith(" (deleted)"):
            return
        folder, name = self._find(path)
        node = self._node(path)
        if operation.op == Op.OPEN:
            if node is None and operation.offset & os.O_CREAT:
                folder.names[name] = File()
            elif isinstance(node, File) and operation.offset & os.O_TRUNC:
                del node.content[:]
        elif operation.op == Op.WRITE:
            end = operation.offset + len(operation.data)
            node.content.extend(bytes(max(0, end - len(node.content))))
            node.content[operation.offset : end] = operation.data
        elif operation.op == Op.TRUNCATE:
            del node.content[operation.offset :]
        elif operation.op == Op.SYNC:
            node.durable = dict(node.names) if isinstance(node, Folder) else bytes(node.content)
        elif operation.op == Op.RENAME:
            target, new = self._find(operation.target)
            target.names[new] = folder.names.pop(name)
        elif operation.op == Op.UNLINK:
            del folder.names[name]
        elif operation.op == Op.MKDIR:
            folder.names[name] = Folder()

    def restore(self, place: Path, luck: random.Random | None) -> None:
        """What is left after a power cut: only what was synced, or by luck a part of the rest."""
        _write(self.top, place, luck)


def _durable(source: Path) -> Folder:
    folder = Folder()
    for path in source.iterdir():
        content = _durable(path) if path.is_dir() else File(bytearray(path.read_bytes()), path.read_bytes())
        folder.names[path.name] = folder.durable[path.name] = content
    return folder


def _write(folder: Folder, place: Path, luck: random.Random | None) -> None:
    place.mkdir(exist_ok=True)
    for name in sorted({*folder.names, *folder.durable}):
        node = (folder.names if luck and luck.random() < 0.5 else folder.durable).get(name)
        if isinstance(node, Folder):
            _write(node, place / name, luck)
        elif node is not None:
            (place / name).write_bytes(_content(node, luck))


def _content(file: File, luck: random.Random | None) -> bytes:
    """Of data not synced all may be there, none, the beginning, or zeros in its place."""
    now = bytes(file.content)
    if luck is None or now == file.durable:
        return file.durable
    known = 0
    while known < min(len(now), len(file.durable)) and now[known] == file.durable[known]:
        known += 1
    cut = luck.randint(known, len(now))
    return luck.choice([file.durable, now, now[:cut], now[:known] + bytes(len(now) - known)])
