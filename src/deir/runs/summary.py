"""summary.json: how a run ended, and its last figures. Other commands take a run for finished if it says so."""

from __future__ import annotations

import json
import platform
import zlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

from deir.config import Config
from deir.files import write_whole
from deir.runs.progress import FIRST_COLUMNS, Row

ENDED_WELL = ("finished", "target reached")
PACKAGES = ("deir", "torch", "numpy", "gymnasium", "minigrid")


def write_summary(path: Path, config: Config, networks: str, row: Row, status: str) -> None:
    """`row`: the last one of the run's progress. `status`: "running", one of ENDED_WELL, or why the run stopped."""
    summary = {
        "status": status,
        "env": config.env.id,
        "method": config.method,
        "seed": config.seed,
        "networks": networks,
        "final": {name: row.get(name) for name in FIRST_COLUMNS},
        "frames_per_second": row["frames"] / row["seconds"] if row["seconds"] else None,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
    }
    write_whole(path, json.dumps({**summary, "crc32": _crc(summary)}, indent=2) + "\n")


def read_summary(path: Path) -> dict[str, Any] | None:
    """None if there is none that can be trusted: such a run is not finished."""
    if not path.is_file():  # a named pipe would be waited for
        return None
    try:
        summary = json.loads(path.read_bytes())
        crc = summary.pop("crc32", None)  # earlier versions wrote none
        whole = crc is None or crc == _crc(summary)
        known = isinstance(summary["status"], str) and isinstance(summary["final"]["frames"], (int, float))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return summary if whole and known else None


def _crc(summary: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(summary).encode()):08x}"
