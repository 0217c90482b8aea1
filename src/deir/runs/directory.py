"""The files of a run directory."""

from __future__ import annotations

from pathlib import Path

from deir.errors import invalid, nearest


class RunDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.progress = path / "progress.csv"
        self.checkpoints = path / "checkpoints"
        self.summary = path / "summary.json"
        self.figure = path / "learning_curve.png"
        self.maps = path / "maps.npz"

    @classmethod
    def existing(cls, path: Path, field: str) -> RunDirectory:
        run = cls(path)
        if not run.config.is_file():
            raise invalid(field, str(path), f"a run directory with a config.yaml{_nearest_run(path)}")
        return run


def _nearest_run(path: Path) -> str:
    runs = [str(p.parent) for p in Path("runs").glob("**/config.yaml")] if Path("runs").is_dir() else []
    close = nearest(str(path), runs)
    return f"; the nearest one is {close}" if close else ""
