"""The runs that are watched: found anew at every look, read and never written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from deir.config import load_yaml
from deir.errors import UserError
from deir.files import abandoned
from deir.runs.directory import RunDirectory
from deir.runs.progress import last_row
from deir.runs.summary import read_summary

CHECKPOINTS = "*.safetensors"


class Page(NamedTuple):
    version: str  # of what it shows
    html: str


class Watched:
    """Runs at or below some places, each with a name that is no path: what is asked for by name is one of them."""

    def __init__(self, places: Sequence[Path], trust: bool = False) -> None:
        self.places, self.trust = [place.resolve() for place in places], trust
        self.pages: dict[str, Page] = {}
        self.busy = Lock()  # one page is made at a time: training needs the processor more

    def runs(self) -> dict[str, Path]:
        """By name, in the order of their paths."""
        found = {path.parent for place in self.places for path in place.rglob("config.yaml")}
        return {name_of(path): path for path in sorted(found) if self._inside(path)}

    def _inside(self, path: Path) -> bool:
        """A run whose files are below the watched places, where links lead too."""
        try:
            files = [(path / name).resolve() for name in ("config.yaml", "progress.csv", "checkpoints")]
        except (OSError, RuntimeError):  # links that lead to themselves
            return False
        return files[1].is_file() and all(any(f.is_relative_to(place) for place in self.places) for f in files)

    def state(self) -> dict[str, Any]:
        """What the live page shows, and the versions of the pages in it."""
        runs = self.runs()
        return {
            "report": self.report_version(runs),
            "runs": [
                {"name": name, **_figures(path), "replay": newest_checkpoint(path)} for name, path in runs.items()
            ],
        }

    def report_version(self, runs: dict[str, Path]) -> str:
        sizes = [str((path / "progress.csv").stat().st_size) for path in runs.values()]
        return blake2b("/".join([*runs, *sizes]).encode(), digest_size=6).hexdigest() if runs else ""

    def report(self) -> str:
        """The report's page of all runs."""
        from deir.experiments.report import page
        from deir.experiments.report.analysis import Study
        from deir.experiments.report.command import require_extra
        from deir.experiments.report.curves import read_all

        def make() -> str:
            require_extra()
            curves, notes = read_all(list(runs.values()))
            return page.render(Study(curves, 100, notes), "Runs so far")

        runs = self.runs()
        if not runs:
            raise UserError("no run has begun yet")
        return self._kept("report", self.report_version(runs), make)

    def replay(self, name: str) -> str | None:
        """The newest episode of a run, by its newest checkpoint; None for a name that no run has."""
        path = self.runs().get(name)
        if path is None:
            return None

        def make() -> str:
            from deir.agent import load
            from deir.experiments.replay.players import Choices, make_page

            return make_page([load(path, self.trust)], Choices(episodes=1, map_episodes=8))

        return self._kept(f"replay {name}", newest_checkpoint(path), make)

    def _kept(self, key: str, version: str, make: Callable[[], str]) -> str:
        with self.busy:
            if key not in self.pages or self.pages[key].version != version:
                self.pages[key] = Page(version, make())
            return self.pages[key].html


def name_of(path: Path) -> str:
    return blake2b(str(path).encode(), digest_size=6).hexdigest()


def newest_checkpoint(path: Path) -> str:
    """Its name, empty before there is one."""
    return max((file.name for file in RunDirectory(path).checkpoints.glob(CHECKPOINTS)), default="")


def _figures(path: Path) -> dict[str, Any]:
    run = RunDirectory(path)
    config, row, summary = load_yaml(run.config), last_row(run.progress) or {}, read_summary(run.summary) or {}
    env, checkpoint = config.get("env"), config.get("checkpoint")
    task = env.get("id") if isinstance(env, dict) else env
    status = str(summary.get("status", "running"))
    return {
        "title": f"{config.get('method')} on {task}, seed {config.get('seed')}",
        "path": path.name,
        "status": "stopped" if status == "running" and abandoned(path) else status,
        "steps": _whole(config.get("steps")),
        "every": _whole(checkpoint.get("every")) if isinstance(checkpoint, dict) else None,
        **{key: row.get(key) or None for key in ("frames", "fps", "return_mean", "episodes")},
    }


def _whole(value: Any) -> int | None:
    """A stranger's configuration may have anything in its place, and some of it is no JSON."""
    return value if isinstance(value, int) else None
