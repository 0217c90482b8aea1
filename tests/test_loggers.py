"""Who is told each iteration's figures: TensorBoard, the services as their own packages read them back, one's own."""

import csv
import json
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import deir
from deir.errors import UserError
from deir.runs import run
from deir.runs.loggers import LOGGERS, Logger, check_loggers
from deir.runs.loggers.base import scalars, tag
from small import small

OWN = """
from pathlib import Path
from deir.runs.loggers.base import Logger

class Lines(Logger):
    def __init__(self, context):
        super().__init__(context)
        self.file = context.directory / "lines.txt"
        self.note(f"begins, resumed at {context.resumed_at}")

    def note(self, text):
        with self.file.open("a") as file:
            file.write(text + "\\n")

    def write(self, row):
        self.note(f"row {row['frames']}")

    def close(self, status):
        self.note(status)

class Breaks(Lines):
    def write(self, row):
        self.note("asked")
        raise OSError("no line")

class NoStart(Lines):
    def __init__(self, context):
        raise OSError("not today")

class Plain:
    pass
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's own in the working directory."""
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("mine", None)


def train(place: Path, loggers: str, steps: int = 256) -> Path:
    run.start(run.configure(small(loggers=loggers, steps=steps)), place)
    return place


def rows_of(place: Path) -> list[dict[str, str]]:
    with (place / "progress.csv").open() as file:
        return list(csv.DictReader(file))


def test_every_column_has_its_group(tmp_path):
    columns = set(rows_of(train(tmp_path / "a", "csv"))[0]) - {"iteration", "frames"}
    groups = {name: tag(name).split("/")[0] for name in columns}
    assert {n for n, g in groups.items() if g == "time"} == {n for n in columns if n.startswith(("seconds", "fps"))}
    assert {n for n, g in groups.items() if g == "rollout"} == {
        "return_mean", "success_rate", "episode_length_mean", "episodes", "intrinsic_reward_mean",
        "intrinsic_reward_std", "episodic_efficiency", "lifelong_efficiency",
    }  # fmt: skip
    assert {"policy_loss", "value_loss", "entropy", "model_loss"} <= {n for n, g in groups.items() if g == "train"}
    assert scalars({"iteration": 1, "frames": 2, "fps": 3.0, "return_mean": None}) == {"time/fps": 3.0}


def test_tensorboard_has_the_rows_of_progress_under_grouped_tags(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    place = train(tmp_path / "a", "csv,tensorboard")
    run.resume(place, {"steps": 384})
    events = EventAccumulator(str(place / "tensorboard")).Reload()
    assert {name.split("/")[0] for name in events.Tags()["scalars"]} == {"train", "rollout", "time"}
    told = {event.step: event.value for event in events.Scalars("train/entropy")}
    assert told == pytest.approx({int(row["frames"]): float(row["entropy"]) for row in rows_of(place)}, rel=1e-4)


def test_a_logger_of_ones_own_hears_everything_once_and_the_end(own):
    place = train(own / "run", "csv,mine:Lines")
    assert (place / "lines.txt").read_text().splitlines() == [
        "begins, resumed at None", "row 128", "row 256", "finished",
    ]  # fmt: skip
    run.resume(place, {"steps": 384}, trust=["mine:Lines"])
    assert (place / "lines.txt").read_text().splitlines()[4:] == ["begins, resumed at 256", "row 384", "finished"]


def test_a_logger_that_fails_is_left_out_and_the_run_goes_on(own, capsys):
    place = train(own / "run", "mine:Breaks,mine:Lines")
    assert len(rows_of(place)) == 2
    assert (place / "lines.txt").read_text().count("asked") == 1
    assert (place / "lines.txt").read_text().count("row") == 2
    assert "logger mine:Breaks failed (OSError: no line); the run goes on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("csv,tensorbord", "Did you mean 'tensorboard'"),
        (" , ", "loggers: got ' , ', expected names such as csv,tensorboard"),
        ("mine:Plain", r"unknown name 'Plain'.*Lines"),
        ("nowhere:X", "module 'nowhere' of 'nowhere:X' cannot be imported"),
    ],
)
def test_wrong_names_are_told_before_anything_is_created(own, names, message):
    with pytest.raises(UserError, match=message):
        train(own / "run", names)
    assert not (own / "run").exists()


def test_a_logger_that_cannot_begin_ends_the_run_at_once(own):
    with pytest.raises(UserError, match="mine:NoStart cannot begin: OSError: not today"):
        train(own / "run", "mine:NoStart")
    assert not (own / "run" / "progress.csv").exists()


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(LOGGERS, "wandb", LOGGERS["wandb"]._replace(package="no_such_package"))
    with pytest.raises(UserError, match=r"pip install 'deir\[wandb\]'"):
        check_loggers("wandb")


def test_an_agent_needs_no_logger(own):
    place = train(own / "run", "mine:Lines")
    before = (place / "lines.txt").read_text()
    assert deir.load(place, trust=True).config.loggers == "mine:Lines"
    assert (place / "lines.txt").read_text() == before


def test_the_switch_of_earlier_versions_is_understood(tmp_path):
    assert run.configure({"tensorboard": False}).loggers == "csv"
    assert run.configure({"tensorboard": True}).loggers == "csv,tensorboard"
    assert run.configure({"tensorboard": True, "loggers": "csv"}).loggers == "csv"
    with pytest.raises(UserError, match="tensorboard: got 'yes', expected true or false"):
        run.configure({"tensorboard": "yes"})
    place = train(tmp_path / "a", "csv")
    text = (place / "config.yaml").read_text().split("\n", 1)[1]
    (place / "config.yaml").write_text(text.replace("loggers: csv\n", "tensorboard: false\n"))
    assert run.load_config(place).loggers == "csv"
    run.resume(place, {"steps": 384})
    assert len(rows_of(place)) == 3


def offline(place: Path, logger: str, **environment: str) -> None:
    """Trains, and resumes for one more iteration. In a process of its own: these packages start threads and servers."""
    code = (
        "import sys; from pathlib import Path; from deir.runs import run; from small import small\n"
        "place = Path(sys.argv[1])\n"
        "run.start(run.configure(small(loggers=sys.argv[2], steps=256)), place)\n"
        "run.resume(place, {'steps': 384})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(place), logger],
        capture_output=True, text=True, timeout=300, cwd=place.parent,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "failed" not in done.stderr, done.stderr


def needs(package: str) -> None:
    if find_spec(package) is None and not os.environ.get("DEIR_REQUIRE_LOGGERS"):
        pytest.skip(f"{package} is not installed (make setup-loggers)")


def expected(place: Path, column: str = "entropy") -> dict[int, float]:
    return pytest.approx({int(row["frames"]): float(row[column]) for row in rows_of(place)}, rel=1e-4)


def records_of(content: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: LevelDB's log format after a header of 7 bytes, in blocks of 32 kB."""
    position, parts = 7, b""
    while position + 7 <= len(content):
        if 32768 - position % 32768 < 7:  # no room for another header: the block is filled up
            position += 32768 - position % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", content, position)
        parts += content[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def test_wandb_offline(tmp_path):
    needs("wandb")
    from wandb.proto import wandb_internal_pb2

    place = tmp_path / "run"
    offline(place, "wandb", WANDB_MODE="offline", WANDB_SILENT="true")
    files = sorted(place.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2 and len({file.name for file in files}) == 1  # one run, in two parts
    told: dict[int, float] = {}
    for file in files:
        for data in records_of(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            names = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            if "frames" in names:
                told[json.loads(names["frames"])] = json.loads(names["train/entropy"])
    assert told == expected(place)


def test_mlflow_offline(tmp_path):
    needs("mlflow")
    from mlflow import MlflowClient

    place, uri = tmp_path / "run", f"sqlite:///{tmp_path / 'mlflow.db'}"
    offline(place, "mlflow", MLFLOW_TRACKING_URI=uri)
    client = MlflowClient(uri)
    (found,) = client.search_runs([client.get_experiment_by_name("deir").experiment_id])
    assert found.data.params["method"] == "deir" and found.data.params["ppo.rollout_steps"] == "32"
    assert found.data.tags["status"] == "finished" and found.info.status == "FINISHED"
    history = client.get_metric_history(found.info.run_id, "train/entropy")
    assert {metric.step: metric.value for metric in history} == expected(place)


def test_trackio_offline(tmp_path):
    needs("trackio")
    place = tmp_path / "run"
    offline(place, "trackio", TRACKIO_DIR=str(tmp_path / "trackio"), HF_HUB_OFFLINE="1")
    (database,) = (tmp_path / "trackio").glob("*.db")
    with sqlite3.connect(database) as connection:
        rows = connection.execute("SELECT run_name, step, metrics FROM metrics ORDER BY step").fetchall()
    assert len({name for name, *_ in rows}) == 1
    told = {step: json.loads(metrics)["train/entropy"] for _, step, metrics in rows}
    assert told == expected(place)


def test_the_contract_says_what_must_be_written():
    with pytest.raises(NotImplementedError):
        Logger(None).write({})
