"""Sweeps: the file is checked whole, runs are ordinary ones, and nothing that dies takes more than it must."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from deir.cli import main
from deir.errors import UserError
from deir.experiments.report.curves import read_all
from deir.experiments.sweep.command import Sweep, estimate
from deir.experiments.sweep.engines import LocalEngine
from deir.experiments.sweep.grid import make_grid
from deir.experiments.sweep.jobs import Job
from deir.experiments.sweep.live_table import SweepBoard
from deir.experiments.sweep.scheduler import Board, Run, run_all
from deir.files import HOLDER, held, only_writer
from deir.runs import run
from deir.runs.progress import last_row, read_rows

OVERRIDES = {
    "env": {"n_envs": 4, "layout_worker": False},
    "ppo": {"rollout_steps": 64, "minibatch_size": 64, "epochs": 2},
    "reward": {"minibatch_size": 64, "epochs": 2},
    "loggers": "csv",
}
FILE = {
    "name": "tiny",
    "envs": ["Empty-5x5"],
    "methods": ["none"],
    "seeds": "0-1",
    "steps": 512,
    "overrides": OVERRIDES,
}
ENDLESS = 256 * 4000


def written(path: Path, **changes) -> Path:
    path.write_text(yaml.safe_dump({**FILE, **changes}))
    return path


def sweep(*words: str) -> int:
    """The command in this process; the runs are processes of their own."""
    before, sys.argv = sys.argv, ["deir", "sweep", *words]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = before
    raise AssertionError("the command ended without an exit code")


def started_sweep(*words: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "deir.cli", "sweep", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for(condition, seconds: float = 120):
    """What `condition` gives once it is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come to pass")


def writer_of(place: Path) -> int | None:
    """The process that holds a run directory; None while none does, or is just about to."""
    holder = place / HOLDER
    text = holder.read_text() if held(place) and holder.is_file() else ""
    return int(text.split()[1]) if text else None


def has_checkpoint(place: Path) -> bool:
    return any((place / "checkpoints").glob("*.safetensors"))


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"


def iterations(place: Path) -> list[int]:
    with (place / "progress.csv").open(newline="") as file:
        return [int(row["iteration"]) for row in csv.DictReader(file)]


def status(place: Path) -> str:
    return json.loads((place / "summary.json").read_text())["status"]


def test_the_grid_resolves_presets_variants_and_cells_as_train_would():
    grid = make_grid(
        {
            "envs": [
                "DoorKey-8x8",
                {"noisy": {"id": "DoorKey-8x8", "noise": 0.1, "noise_units": "raw"}},
                "procgen:ninja",
            ],
            "methods": ["deir", {"a1": {"method": "deir", "reward": {"deir": {"pairing": "a1"}}}}],
            "seeds": "0-2",
            "steps": "200k",
            "overrides": {"ppo": {"gamma": 0.9}},
            "cells": [{"env": "noisy", "steps": "100k"}, {"method": "a1", "env": ["noisy"], "seeds": [7]}],
        },
        "named-by-its-file",
    )
    assert grid.name == "named-by-its-file"
    cells = {(cell.env, cell.method): cell.configs for cell in grid.cells}
    assert len(cells) == 6
    plain = cells["DoorKey-8x8", "deir"][2]
    assert plain == run.configure({"env": {"id": "DoorKey-8x8"}, "ppo": {"gamma": 0.9}, "seed": 2, "threads": 1})
    (single,) = cells["noisy", "a1"]
    assert (single.env.noise, single.env.noise_units, single.steps, single.seed) == (0.1, "raw", 100_000, 7)
    assert single.reward.deir.pairing == "a1"
    assert [c.steps for c in cells["noisy", "deir"]] == [100_000] * 3
    assert cells["procgen:ninja", "deir"][0].preset == "procgen"
    outs = [job.out for job in grid.jobs(Path("x"))]
    assert Path("x/procgen-ninja/a1/seed1") in outs
    assert len(set(outs)) == len(outs) == 16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stepz": 1}, "steps"),
        ({"envs": []}, "envs"),
        ({"envs": ["Empty-5x6"]}, "Empty-6x6"),
        ({"envs": ["Empty-5x5", {"Empty-5x5": {"noise": 0.1}}]}, "differ"),
        ({"envs": ["a/b", "a:b"]}, "differ"),
        ({"envs": [{"a": {"id": "Empty-5x5", "nois": 0.1}}]}, "noise"),
        ({"envs": [{"..": {"id": "Empty-5x5"}}]}, "directory"),
        ({"envs": [{"a": {}, "b": {}}]}, "one label"),
        ({"methods": ["nne"]}, "none"),
        ({"methods": [{"x": {"methd": "none"}}]}, "method"),
        ({"methods": "none"}, "a list"),
        ({"seeds": "2-0"}, "rising range"),
        ({"seeds": [1, 1]}, "distinct"),
        ({"seeds": ["a"]}, "whole numbers"),
        ({"steps": "many"}, "number of frames"),
        ({"overrides": {"ppo": {"gamme": 1}}}, "gamma"),
        ({"overrides": {"seed": 1}}, "seed"),
        ({"overrides": 3}, "mapping"),
        ({"cells": [{"env": "Empty-5x", "steps": 1}]}, "Empty-5x5"),
        ({"cells": [{"method": "deir", "steps": 1}]}, "none"),
        ({"cells": [{"steps": 1}]}, "env or a method"),
        ({"cells": [{"env": "Empty-5x5"}]}, "what to change"),
        ({"cells": [{"env": "Empty-5x5", "stps": 1}]}, "steps"),
        ({"cells": [{"env": "Empty-5x5", "ppo": {"gamma": 3}}]}, "from 0 to 1"),
    ],
)
def test_a_mistake_in_the_file_is_told_before_anything_starts(tmp_path, capsys, changes, message):
    file = written(tmp_path / "file.yaml", **changes)
    assert sweep(str(file), "--out", str(tmp_path / "out")) == 2
    told = capsys.readouterr().err
    assert message in told and "file.yaml" in told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [["--jobs", "0"], ["--retries", "-1"], ["--address", "auto"], ["--gpus", "1"]])
def test_mistakes_on_the_command_line(tmp_path, capsys, words):
    assert sweep(str(written(tmp_path / "file.yaml")), "--out", str(tmp_path / "out"), *words) == 2
    assert words[0].lstrip("-") in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_sweep_makes_ordinary_runs_skips_finished_ones_and_lengthens_them(tmp_path, capsys):
    file, out = written(tmp_path / "file.yaml"), tmp_path / "out"
    assert sweep(str(file), "--out", str(out), "--dry-run") == 0
    assert "2 runs, 1,024 frames; 2 runs and 1,024 frames to do" in capsys.readouterr().out
    assert not out.exists()
    assert sweep(str(file), "--out", str(out), "--jobs", "2") == 0
    first, second = (out / "Empty-5x5" / "none" / f"seed{s}" for s in (0, 1))
    assert run.load_config(first).threads == 1
    assert status(first) == status(second) == "finished"
    alone = run.load_config(second)
    run.start(alone, tmp_path / "alone")
    assert [r["return_mean"] for r in read_rows(second / "progress.csv")] == [
        r["return_mean"] for r in read_rows(tmp_path / "alone" / "progress.csv")
    ]
    before = (first / "summary.json").stat().st_mtime_ns
    capsys.readouterr()
    assert sweep(str(file), "--out", str(out)) == 0
    assert "started" not in capsys.readouterr().out
    assert (first / "summary.json").stat().st_mtime_ns == before
    assert (out / "sweep.yaml").read_text() == file.read_text()

    written(file, steps=1024, seeds=[0])
    assert sweep(str(file), "--out", str(out), "--dry-run") == 0
    told = capsys.readouterr().out
    assert "1 to resume" in told and "512 frames to do" in told
    assert sweep(str(file), "--out", str(out)) == 0
    assert iterations(first) == [1, 2, 3, 4]
    for changes, field in ({"steps": 512}, "steps"), ({"overrides": {**OVERRIDES, "reward": {"beta": 0.5}}}, "reward."):
        written(file, **{"steps": 1024, "seeds": [0], **changes})
        assert sweep(str(file), "--out", str(out)) == 2
        told = capsys.readouterr().err
        assert field in told and str(first) in told
    assert iterations(first) == [1, 2, 3, 4]


def test_a_report_names_the_runs_of_a_sweep_by_its_labels(tmp_path):
    file, out = tmp_path / "file.yaml", tmp_path / "out"
    labelled = {
        "envs": [{"small room": {"id": "Empty-5x5", "noise": 0.1}}],
        "methods": [{"steady": {"method": "none"}}],
    }
    written(file, **labelled, seeds=[0], steps=256)
    assert sweep(str(file), "--out", str(out), "--jobs", "1") == 0
    curves, _ = read_all([out])
    assert [(curve.env, curve.method, curve.seed) for curve in curves] == [("small room", "steady", 0)]


def test_an_interrupted_sweep_names_the_whole_command():
    assert Sweep(Path("a.yaml")).words("deir", "sweep", "a.yaml") == "deir sweep a.yaml"
    given = Sweep(Path("a.yaml"), out=Path("b"), engine="ray", jobs=2, address="auto")
    assert (
        given.words("deir", "sweep", "a b.yaml") == "deir sweep 'a b.yaml' --out b --engine ray --jobs 2 --address auto"
    )


def test_the_estimate_uses_finished_runs_of_the_same_cell(tmp_path):
    jobs = [
        Job(run.configure({"steps": 1000}), tmp_path / "env" / method / f"seed{s}") for method in "ab" for s in (0, 1)
    ]
    summary = {"status": "finished", "final": {"frames": 1000}, "frames_per_second": 50.0}
    jobs[0].out.mkdir(parents=True)
    (jobs[0].out / "summary.json").write_text(json.dumps(summary))
    assert estimate({jobs[1]: 500}, jobs)[0] == pytest.approx(10)
    seconds, basis = estimate({jobs[1]: 500, jobs[2]: 1000}, jobs)
    assert seconds == pytest.approx(10 + 1000 / 2000)
    assert "guess" in basis and "1 of 2 runs" in basis


def test_a_run_that_cannot_be_done_is_tried_again_then_reported_while_the_others_go_on(tmp_path, capsys, monkeypatch):
    (tmp_path / "broken.py").write_text("def make(**_):\n    raise RuntimeError('out of order')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(str(tmp_path))
    file, out = tmp_path / "file.yaml", tmp_path / "out"
    written(file, envs=[{"broken": {"id": "broken:make"}}, "Empty-5x5"], seeds=[0])
    assert sweep(str(file), "--out", str(out), "--retries", "1", "--jobs", "2", "--trust") == 1
    told = capsys.readouterr().out
    assert told.count("started   broken") == 2
    assert "tried again" in told
    assert "FAILED    broken" in told and "out of order" in told
    assert status(out / "Empty-5x5" / "none" / "seed0") == "finished"
    assert (out / "broken" / "none" / "seed0.log").read_text().count("out of order") >= 2


def test_kill_minus_nine_of_a_worker_is_survived(tmp_path):
    job, told, killed = Job(endless(every=2), tmp_path / "run"), [], []

    class Killer(Board):
        def tell(self, run: Run, event: str) -> None:
            told.append(event)

        def show(self, runs) -> None:
            if not killed and has_checkpoint(job.out):
                killed.append(writer_of(job.out))
                os.kill(killed[0], signal.SIGKILL)
            if killed and writer_of(job.out) not in (None, *killed):  # the second attempt
                os.kill(os.getpid(), signal.SIGINT)

    (ended,) = run_all([job], LocalEngine(1), 2, Killer())
    assert told == ["started", "ended with code -9, tried again", "started"]
    assert ended.status == "stopped"
    assert iterations(job.out) == list(range(1, len(iterations(job.out)) + 1))
    assert job.log.read_text().count(" 256 / ") == 1  # it went on from its checkpoint


def endless(every: int):
    return run.configure(
        {**OVERRIDES, "env": {**OVERRIDES["env"], "id": "Empty-5x5"}, "method": "none", "steps": ENDLESS, "threads": 1,
         "checkpoint": {"every": every}}
    )  # fmt: skip


def endless_file(tmp_path: Path, every: int) -> Path:
    return written(tmp_path / "file.yaml", steps=ENDLESS, overrides={**OVERRIDES, "checkpoint": {"every": every}})


def test_kill_minus_nine_of_the_sweep_ends_its_runs_well_and_a_second_sweep_goes_on(tmp_path):
    """Every run stops by itself with a checkpoint; meanwhile no second process writes to its directory."""
    file, out = endless_file(tmp_path, every=1000), tmp_path / "out"
    places = [out / "Empty-5x5" / "none" / f"seed{s}" for s in (0, 1)]
    first = started_sweep(str(file), "--out", str(out), "--jobs", "2")
    wait_for(lambda: all(last_row(p / "progress.csv") for p in places))
    workers = [writer_of(place) for place in places]
    rival = started_sweep(str(file), "--out", str(out))
    assert "is writing there" in rival.communicate(timeout=60)[0]
    assert rival.returncode == 2
    first.kill()
    first.communicate()
    second = started_sweep(str(file), "--out", str(out), "--jobs", "2")
    wait_for(lambda: not any(map(alive, workers)))
    for place in places:
        wait_for(lambda place=place: writer_of(place) not in (None, *workers))
        assert has_checkpoint(place)
    begun = {place: len(iterations(place)) for place in places}
    wait_for(lambda: all(len(iterations(place)) > begun[place] for place in places))
    second.send_signal(signal.SIGINT)
    told = second.communicate(timeout=60)[0]
    assert second.returncode == 130, told
    assert f"deir sweep {file}" in told and "Traceback" not in told
    for place in places:
        assert iterations(place) == list(range(1, len(iterations(place)) + 1))
        assert status(place) == "interrupted"
        assert not held(place)


def test_a_run_that_died_before_its_first_checkpoint_begins_again_and_keeps_its_log(tmp_path):
    config = endless(every=1000)
    job = Job(config, tmp_path / "run")
    handle = LocalEngine(1).start(job)
    wait_for(lambda: len(read_rows(job.out / "progress.csv")) >= 3)
    handle.kill()
    wait_for(lambda: handle.poll() is not None)
    lost = read_rows(job.out / "progress.csv")
    printed = job.log.read_text()
    again = LocalEngine(1).start(job)
    wait_for(lambda: (job.out / "progress-1.csv").exists() and len(read_rows(job.out / "progress.csv")) >= 1)
    again.stop()
    wait_for(lambda: again.poll() is not None)
    assert read_rows(job.out / "progress-1.csv") == lost
    assert job.log.read_text().startswith(printed)
    assert iterations(job.out)[0] == 1
    assert has_checkpoint(job.out)


def test_a_directory_has_one_writer(tmp_path):
    with only_writer(tmp_path):
        assert held(tmp_path)
        with pytest.raises(UserError, match=rf"process {os.getpid()} .* is writing there"), only_writer(tmp_path):
            pass
    assert not held(tmp_path)
    assert not list(tmp_path.iterdir())
    run.start(replace(endless(every=1000), steps=256), tmp_path / "a")
    with only_writer(tmp_path / "a"), pytest.raises(UserError, match="is writing there"):
        run.resume(tmp_path / "a", {"steps": 512})


def test_the_last_row_is_whole(tmp_path):
    path = tmp_path / "progress.csv"
    assert last_row(path) is None
    path.write_text("frames,return_mean\n")
    assert last_row(path) is None
    path.write_text("frames,return_mean\n1,0.5\n2,0.75\n3,0.")
    assert last_row(path) == {"frames": "2", "return_mean": "0.75"} == read_rows(path)[-1]
    path.write_text("frames,return_mean\n" + "".join(f"{k},0.1234567890\n" for k in range(5000)))
    assert last_row(path) == read_rows(path)[-1]


def test_the_live_table_shows_each_run_and_the_total(tmp_path):
    from rich.console import Console

    job = Job(run.configure({"steps": 1000}), tmp_path / "env" / "deir" / "seed0")
    job.out.mkdir(parents=True)
    (job.out / "progress.csv").write_text("frames,fps,return_mean,success_rate\n250,125,0.5,0.75\n")
    console = Console(force_terminal=True, width=100, record=True)
    with SweepBoard(tmp_path, console) as board:
        runs = [Run(job, "running"), Run(Job(job.config, tmp_path / "env" / "deir" / "seed1"))]
        board.show(runs)
    text = console.export_text()
    assert "env/deir/seed0" in text and "25% of 1,000" in text and "125" in text and "0.500" in text and "75%" in text
    assert "0 finished, 1 running of 2 runs; 250 / 2,000 frames" in text
