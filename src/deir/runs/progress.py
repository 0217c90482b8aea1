"""progress.csv, the log of a run: one row for each iteration. The only module that reads and writes it."""

from __future__ import annotations

import csv
import io
import os
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deir.files import naming, replacing, sync_directory
from deir.runs.checkpoint import UnfitCheckpoint

FIRST_COLUMNS = (
    "iteration",
    "frames",
    "seconds",
    "fps",
    "return_mean",
    "success_rate",
    "episode_length_mean",
    "intrinsic_reward_mean",
)
TAIL = 1 << 15  # bytes that hold the last row of any progress.csv
Row = dict[str, Any]
LARGEST_COUNT = 2**63  # a number beyond it was not counted


def read_rows(progress: Path) -> list[dict[str, str]]:
    """The whole rows of a file that may be in the middle of being written."""
    if not progress.is_file():
        return []
    header, *lines = _whole_lines(progress.read_bytes()) or [b""]
    return [row for row in (_row(header, line) for line in lines) if row]


def last_row(progress: Path) -> dict[str, str] | None:
    """The last whole row, without reading the rest."""
    if not progress.is_file():
        return None
    with progress.open("rb") as file:
        header = file.readline()
        begin = file.tell()
        file.seek(0, os.SEEK_END)
        file.seek(max(begin, file.tell() - TAIL))
        lines = _whole_lines(file.read())
    return next((row for line in reversed(lines) if (row := _row(header.rstrip(b"\n"), line))), None)


def frames_done(progress: Path) -> int | None:
    """Frames of the last whole row."""
    row = last_row(progress)
    return int(float(row["frames"])) if row and row.get("frames") else None


def _whole_lines(text: bytes) -> list[bytes]:
    return text.split(b"\n")[:-1]


def _row(header: bytes, line: bytes) -> dict[str, str] | None:
    """None if it cannot be a row: it must have a cell for each column, each a number or empty."""
    try:
        names, cells = (next(csv.reader([text.decode(errors="replace")]), []) for text in (header, line))
    except csv.Error:  # such as a cell without end
        return None
    if len(cells) != len(names) or not all(map(_is_number, cells)):
        return None
    row = dict(zip(names, cells, strict=True))
    counts = (float(row.get(name) or 0) for name in ("iteration", "frames"))
    return row if all(0 <= count < LARGEST_COUNT for count in counts) else None


def _is_number(text: str) -> bool:
    try:
        return text == "" or float(text) is not None
    except ValueError:
        return False


@dataclass
class StoredLog:
    """A log on disk, as a run that resumes finds it."""

    path: Path
    lines: list[bytes]  # the header and whole lines
    torn: bool  # the file ends within a line

    @classmethod
    def of(cls, path: Path) -> StoredLog:
        text = path.read_bytes() if path.is_file() else b""
        return cls(path, _whole_lines(text), not text.endswith(b"\n") and bool(text))

    def until(self, iteration: int, checksum: str) -> list[Row]:
        """The rows up to a checkpoint; later ones will be made again. Refused if one is missing or not as written.

        `checksum`: what the checkpoint noted of them; nothing in those of earlier versions.
        """
        if not self.path.exists():
            if iteration:
                print(f"warning: {self.path} is gone; it begins anew at iteration {iteration + 1}", file=sys.stderr)
            return []
        rows: list[Row] = []
        # A log that was moved away begins later, and its checksum says that this is right.
        expected = None if checksum else 1
        for line in self.lines[1:]:
            row = _row(self.lines[0], line)
            text = row.get("iteration", "") if row else ""
            number = int(text) if text.isascii() and text.isdigit() else 0
            if row is None or number > iteration or number != (expected or number):
                break
            rows.append(row)
            expected = number + 1
        if iteration and (not rows or int(rows[-1]["iteration"]) != iteration):
            raise self._unfit(f"{self.path} has no whole row {expected or 1}, which checkpoint {iteration} counts")
        counted = b"".join(line + b"\n" for line in self.lines[: len(rows) + 1])
        if rows and checksum and checksum != f"{zlib.crc32(counted):08x}":
            raise self._unfit(f"a row of {self.path} is not what was written before checkpoint {iteration}")
        if self.torn:
            print(f"warning: {self.path}: its torn last row is dropped", file=sys.stderr)
        return rows

    def _unfit(self, reason: str) -> UnfitCheckpoint:
        return UnfitCheckpoint(f"{reason} (with that file moved away, the run goes on from there and begins a new one)")


class ProgressLog:
    """progress.csv, being written."""

    def __init__(self, path: Path, rows: list[Row]) -> None:
        self.path = path
        self.columns: list[str] = list(rows[0]) if rows else []
        text = _csv_text(self.columns, rows, header=True).encode() if rows else b""
        self._crc = zlib.crc32(text)
        if text and path.read_bytes() != text:
            with replacing(path) as file:
                file.write(text)

    def write(self, row: Row) -> None:
        header = not self.columns
        if header:
            self.columns = [*FIRST_COLUMNS, *(name for name in row if name not in FIRST_COLUMNS)]
        text = _csv_text(self.columns, [row], header).encode()
        with naming(self.path), self.path.open("wb" if header else "ab") as file:
            file.write(text)
        self._crc = zlib.crc32(text, self._crc)

    def settle(self) -> str:
        """The rows are on disk after this. Their checksum, for the checkpoint that counts them."""
        if not self.columns:
            return ""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        sync_directory(self.path.parent)
        return f"{self._crc:08x}"


def _csv_text(columns: list[str], rows: list[Row], header: bool) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, restval="", lineterminator="\n", extrasaction="ignore")
    if header:
        writer.writeheader()
    writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    return buffer.getvalue()
