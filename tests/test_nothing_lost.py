"""What a run wrote is never lost without a word: endings, damaged files, logs with holes, caches."""

import errno
import json
import os
import shutil
import signal
import stat
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import deir
from deir.algorithm.trainer import Trainer
from deir.cli import main
from deir.config import to_dict
from deir.errors import UserError
from deir.experiments.report.curves import read_run
from deir.experiments.sweep.grid import merged
from deir.experiments.sweep.jobs import Job
from deir.runs import checkpoint, run
from deir.runs.run import configure
from faults.runs import FRAMES, ITERATIONS, TINY, Reference, same, status, untimed


def tiny(**changes):
    return configure(merged(TINY, changes))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An undisturbed run."""
    path = tmp_path_factory.mktemp("whole") / "run"
    run.start(tiny(), path)
    return path


@pytest.fixture
def a(whole, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(whole, tmp_path / "a"))


def newest(path: Path) -> Path:
    return sorted((path / "checkpoints").glob("*.safetensors"))[-1]


def flip(file: Path, position: int, bit: int = 0) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 1 << bit
    file.write_bytes(content)


def command(monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["deir", *words])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def stop_after(monkeypatch, iteration: int, action) -> None:
    original = Trainer.iterate

    def iterate(self):
        figures = original(self)
        if self.iteration == iteration:
            action()
        return figures

    monkeypatch.setattr(Trainer, "iterate", iterate)


def odd_steps() -> int:
    """Reached only with frames to spare."""
    return FRAMES * ITERATIONS - 3


# a run that did all its frames


def test_a_run_killed_after_its_last_checkpoint_finishes(whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(run, "write_summary", lambda *_: None)
        run.start(tiny(steps=odd_steps()), tmp_path / "a")
    assert not (tmp_path / "a" / "summary.json").exists()
    assert command(monkeypatch, "train", "--resume", str(tmp_path / "a")) == 0
    assert Reference(whole).difference(tmp_path / "a") is None
    assert (tmp_path / "a" / "learning_curve.png").is_file()
    assert Job(tiny(steps=odd_steps()), tmp_path / "a").finished


def test_a_signal_in_the_last_iteration_lets_the_run_finish(whole, tmp_path, monkeypatch):
    stop_after(monkeypatch, ITERATIONS, lambda: os.kill(os.getpid(), signal.SIGTERM))
    run.start(tiny(steps=odd_steps()), tmp_path / "a")
    assert Reference(whole).difference(tmp_path / "a") is None


def test_more_steps_that_are_done_already_let_the_run_finish(tmp_path):
    """As a sweep asks that was lengthened by less than an iteration."""
    run.start(tiny(steps=odd_steps()), tmp_path / "a")
    run.resume(tmp_path / "a", {"steps": odd_steps() + 1})
    assert status(tmp_path / "a") == "finished"


def test_fewer_steps_than_done_are_still_refused_when_they_are_new(a):
    with pytest.raises(UserError, match=r"steps: got 16, expected at least the 64 frames"):
        run.resume(a, {"steps": FRAMES})


# "finished" is earned


@pytest.mark.parametrize(
    ("error", "told"),
    [(RuntimeError("the environment broke"), "failed: RuntimeError: the environment broke"),
     (OSError(errno.ENOSPC, "No space left on device"), "failed: OSError"),
     (KeyboardInterrupt(), "interrupted")],
    ids=["crash", "full disk", "second Ctrl-C"],
)  # fmt: skip
def test_a_run_that_broke_is_not_called_finished(tmp_path, monkeypatch, error, told):
    def fail():
        raise error

    stop_after(monkeypatch, 2, fail)
    with pytest.raises(type(error)):
        run.start(tiny(), tmp_path / "a")
    assert status(tmp_path / "a").startswith(told)
    assert not Job(tiny(), tmp_path / "a").finished


def test_a_run_is_running_until_its_last_checkpoint_is_on_disk(tmp_path, monkeypatch):
    seen = []
    save = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda *args: (seen.append(status(tmp_path / "a")), save(*args)))
    run.start(tiny(), tmp_path / "a")
    assert seen == ["running"] * ITERATIONS
    assert status(tmp_path / "a") == "finished"


# damaged checkpoints


def test_a_damaged_checkpoint_never_costs_a_good_one(whole, a, capsys):
    damaged = newest(a)
    flip(damaged, -100)
    run.resume(a, {"checkpoint": {"every": 1, "keep": 1}})
    assert "damaged checkpoint left aside" in capsys.readouterr().err
    assert Reference(whole).difference(a) is None  # the damaged file was replaced
    names = {p.name for p in (a / "checkpoints").iterdir()}
    assert names == {damaged.name, f"{damaged.name}.aside"}


def test_evaluate_and_load_say_that_they_use_an_older_checkpoint(a, capsys, monkeypatch):
    flip(newest(a), -100)
    deir.load(a)
    told = capsys.readouterr().err
    assert "damaged checkpoint left aside" in told and "going on from" in told and "0000003" in told
    assert command(monkeypatch, "evaluate", str(a), "--episodes", "1") == 0
    assert "0000003" in capsys.readouterr().err
    assert newest(a).name == "0000004.safetensors"  # who only reads changes nothing


def header_of(file: Path) -> bytes:
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return content[8 : 8 + length]


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"/policy/', b'"/qolicy/'), (b'"F32"', b'"I32"'), (b'"shape": [', b'"shape": [1, '), (b'"state"', b'"stade"'),
     (b'"format": "2"', b'"format": "3"'), (b'"checksum"', b'"checksun"'), (b'"log": "', b'"log": "0')],
    ids=["name", "type", "shape", "no state", "format", "no checksum", "log"],
)  # fmt: skip
def test_the_checksum_covers_the_header(whole, a, capsys, old, new):
    file = newest(a)
    header = header_of(file)
    assert old in header
    changed = header.replace(old, new, 1)
    file.write_bytes(struct.pack("<Q", len(changed)) + changed + file.read_bytes()[8 + len(header) :])
    with pytest.raises(checkpoint.DamagedCheckpoint):
        checkpoint.load(file)
    run.resume(a)
    assert "going on from" in capsys.readouterr().err
    assert Reference(whole).difference(a) is None


@pytest.mark.parametrize(
    "change",
    [{"frames": -1_000_000}, {"frames": "many"}, {"iteration": 7}, {"policy": {}}, {"stage": None}, {"collection": 3}],
    ids=str,
)
def test_a_state_that_cannot_be_is_one_message_and_a_fallback(whole, a, capsys, change):
    found = checkpoint.read(newest(a))
    checkpoint.save({**found.state, **change}, found.path, found.log)
    run.resume(a)
    assert "checkpoint left aside" in capsys.readouterr().err
    assert Reference(whole).difference(a) is None
    for file in (a / "checkpoints").glob("*.safetensors"):
        found = checkpoint.read(file)
        checkpoint.save({**found.state, **change}, file, found.log)
    with pytest.raises(UserError, match="no whole checkpoint is left"):
        run.resume(a)


@pytest.mark.parametrize(
    "change", [{"frames": -1_000_000}, {"frames": 3}, {"iteration": 3}, {"iteration": True}], ids=str
)
def test_counters_that_cannot_be_are_damage(a, change):
    found = checkpoint.read(newest(a))
    checkpoint.save({**found.state, **change}, found.path, found.log)
    _, source, complaints = checkpoint.load_latest(a / "checkpoints")
    assert source.name == "0000003.safetensors" and "expected" in complaints[0]


def test_checkpoints_of_the_first_format_still_load(tmp_path):
    """Its checksum was over the JSON and the values alone."""
    from safetensors.numpy import save_file

    arrays = {"/b": np.arange(3.0), "/a": np.arange(4)}
    text = json.dumps({"dict": {"a": {"array": "/a"}, "b": {"tensor": "/b"}}})
    checksum = zlib.crc32(arrays["/b"].tobytes(), zlib.crc32(arrays["/a"].tobytes(), zlib.crc32(text.encode())))
    metadata = {"format": "1", "state": text, "checksum": str(checksum)}
    save_file(arrays, tmp_path / "1.safetensors", metadata)
    loaded = checkpoint.load(tmp_path / "1.safetensors")
    assert same(loaded, {"a": np.arange(4), "b": torch.arange(3, dtype=torch.float64)})


def test_other_readers_of_safetensors_read_ours(a):
    from safetensors.torch import load_file

    tensors = load_file(newest(a))
    state = checkpoint.load(newest(a))["policy"]
    assert state and all(torch.equal(tensors[f"/policy/{name}"], tensor) for name, tensor in state.items())


# progress.csv


@pytest.mark.parametrize("torn", ["5,", "5,80", "11,", "\x00\x00", "5,80,nan,1e"])
def test_a_torn_last_row_is_dropped_with_a_word(whole, a, capsys, torn):
    with (a / "progress.csv").open("a") as file:
        file.write(torn)
    assert run.frames_done(a) == FRAMES * ITERATIONS
    assert len(read_run(a).frames) == ITERATIONS
    run.resume(a)
    assert "its torn last row is dropped" in capsys.readouterr().err
    assert Reference(whole).difference(a) is None


def test_a_line_that_is_no_row_is_left_out(whole, a):
    with (a / "progress.csv").open("a") as file:
        file.write("5,80\n" + ",".join(["word"] * 60) + "\n")
    assert run.frames_done(a) == FRAMES * ITERATIONS
    assert len(read_run(a).frames) == ITERATIONS
    run.resume(a)
    assert Reference(whole).difference(a) is None


def test_rows_a_checkpoint_counts_and_the_log_lacks_are_made_again(whole, a, capsys):
    lines = (a / "progress.csv").read_text().splitlines(keepends=True)
    (a / "progress.csv").write_text("".join(lines[:-1]))
    run.resume(a)
    assert "has no whole row 4, which checkpoint 4 counts" in capsys.readouterr().err
    assert Reference(whole).difference(a) is None


@pytest.mark.parametrize(
    "change",
    [lambda lines: lines[:1], lambda lines: [], lambda lines: lines[:2] + lines[3:], lambda lines: lines[:-2],
     lambda lines: [lines[0], lines[1].replace(",16,", ",17,"), *lines[2:]]],
    ids=["no rows", "empty", "a hole", "too short", "a changed digit"],
)  # fmt: skip
def test_rows_that_no_checkpoint_can_make_again_are_missed_aloud(a, change):
    log = a / "progress.csv"
    log.write_text("".join(change(log.read_text().splitlines(keepends=True))))
    before = sorted(p.name for p in a.rglob("*"))
    with pytest.raises(UserError, match=r"(?s)progress.csv.*with that file moved away.*no whole checkpoint is left"):
        run.resume(a)
    assert sorted(p.name for p in a.rglob("*")) == before


def test_holes_are_missed_where_a_checkpoint_has_no_checksum_of_its_rows(a):
    """As in runs of earlier versions."""
    for file in (a / "checkpoints").iterdir():
        checkpoint.save(checkpoint.load(file), file)
    log = a / "progress.csv"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:2] + lines[3:]))
    with pytest.raises(UserError, match="has no whole row 2"):
        run.resume(a)


def test_a_run_whose_log_was_moved_away_goes_on_and_can_be_resumed_again(whole, a, capsys):
    (a / "progress.csv").unlink()
    run.resume(a)
    assert Job(tiny(), a).finished
    run.resume(a, {"steps": FRAMES * (ITERATIONS + 1)})
    assert "is gone; it begins anew at iteration 5" in capsys.readouterr().err
    run.resume(a, {"steps": FRAMES * (ITERATIONS + 2)})
    assert [row["iteration"] for row in untimed(a)] == ["5", "6"]


def test_rows_are_on_disk_before_the_checkpoint_that_counts_them(tmp_path, monkeypatch):
    synced: list[tuple[str, int]] = []
    fsync = os.fsync

    def record(handle: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{handle}")).name, os.fstat(handle).st_size))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", record)
    run.start(tiny(), tmp_path / "a")
    names = [name for name, _ in synced]
    for iteration in range(1, ITERATIONS + 1):
        saved = names.index(f".{iteration:07d}.safetensors.tmp")
        log = [size for name, size in synced[:saved] if name == "progress.csv"]
        rows = (tmp_path / "a" / "progress.csv").read_bytes().split(b"\n")[: iteration + 1]
        assert log[-1] == len(b"\n".join(rows)) + 1
        assert names[saved + 1] == "checkpoints"  # the folder, after the new name
    for file in (".config.yaml.tmp", ".summary.json.tmp"):
        assert names[names.index(file) + 1] == "a"


# other files


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"status": "finished"}', '{"status": 3, "final": {}}', "\xff"]
)
def test_an_unreadable_summary_means_not_finished(a, text):
    (a / "summary.json").write_bytes(text.encode("latin-1"))
    job = Job(tiny(), a)
    assert not job.finished
    assert job.state == "to resume"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_in_a_run_are_not_waited_for(whole, a, capsys):
    """Each would wait for a writer for ever; the alarm is for a test that fails."""
    for file in (a / "summary.json", newest(a)):
        file.unlink()
        os.mkfifo(file)

    def hangs(*_):
        raise AssertionError("a named pipe is waited for")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(60)
    try:
        assert not Job(tiny(), a).finished
        deir.load(a)
        run.resume(a)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert "going on from" in capsys.readouterr().err
    assert Reference(whole).difference(a) is None


def test_a_summary_that_was_changed_is_not_trusted(a):
    file = a / "summary.json"
    longer = tiny(steps=FRAMES * 9)
    assert Job(tiny(), a).finished and not Job(longer, a).finished
    file.write_text(file.read_text().replace('"frames": 64', '"frames": 764'))
    assert not Job(longer, a).finished and not Job(tiny(), a).finished


def test_a_changed_config_is_refused_unless_it_was_meant(a):
    file = a / "config.yaml"
    text = file.read_text()
    assert "\nseed: 0\n" in text
    file.write_text(text.replace("\nseed: 0\n", "\nseed: 1\n"))
    for use in (run.resume, deir.load, read_run, Job(tiny(), a).check):
        with pytest.raises(UserError, match="if you meant that, delete its first line, which begins") as told:
            use(a) if use.__name__ != "check" else use()
        assert "\n" not in str(told.value)
    assert text.startswith("# crc32")
    file.write_text(text.split("\n", 1)[1])
    run.resume(a)  # without the checksum it is taken as it is
    file.write_text("")
    with pytest.raises(UserError, match="expected the configuration of a run"):
        run.resume(a)
    assert yaml.safe_load(text) == to_dict(tiny())


def test_temporary_files_of_a_killed_writer_are_removed(whole, a):
    for name in (
        ".summary.json.tmp",
        ".progress.csv.tmp",
        "checkpoints/.0000004.safetensors.tmp",
        "checkpoints/.tmpXy1",
    ):
        (a / name).write_text("half")
    run.resume(a)
    assert Reference(whole).difference(a) is None


def test_a_killed_start_leaves_room_for_the_next(tmp_path):
    place = tmp_path / "a"
    place.mkdir()
    (place / ".config.yaml.tmp").write_text("half")
    (place / ".lock").write_text("")
    (place / ".writer").write_text("process 1")
    run.start(tiny(), place)
    assert status(place) == "finished"


@pytest.mark.parametrize("mask", [0o022, 0o007])
def test_files_honour_the_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        run.start(tiny(steps=FRAMES, maps=True), tmp_path / "a")
    finally:
        os.umask(before)
    files = [p for p in (tmp_path / "a").rglob("*") if p.is_file()]
    assert {"config.yaml", "progress.csv", "summary.json", "maps.npz", "0000001.safetensors"} <= {p.name for p in files}
    assert {stat.S_IMODE(p.stat().st_mode) for p in files} == {0o666 & ~mask}
