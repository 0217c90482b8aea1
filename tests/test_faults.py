"""A short version of `make faults`: nothing is lost and nobody sees a traceback, whatever fault is put in."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from faults.base import kinds
from faults.disk import Disk
from faults.preload import Op, Operation
from undone import MENDS

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """All kinds in one process, because a warm one takes seconds to make."""
    file = tmp_path_factory.mktemp("faults") / "outcomes.json"
    command = [sys.executable, "-m", "tests.faults", "--short", "--json", str(file)]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert file.is_file(), result.stdout + result.stderr
    return {row["kind"]: row for row in json.loads(file.read_text())}


@pytest.mark.parametrize("name", kinds())
def test_nothing_is_lost_and_nobody_sees_a_traceback(outcomes, name):
    outcome = outcomes[name]
    if outcome["skipped"]:
        pytest.skip(outcome["skipped"])
    assert outcome["tried"] > 0
    assert outcome["tried"] == outcome["exact"] + outcome["errors"] + outcome["tracebacks"] + outcome["lost"]
    assert outcome["faults"] == []


def played(*operations: tuple[str, str, str | int | bytes]) -> Disk:
    disk = Disk("/d", None)
    for name, path, more in operations:
        target, offset, data = ("", 0, b"")
        if isinstance(more, bytes):
            data = more
        elif isinstance(more, int):
            offset = more
        else:
            target = more
        disk.apply(Operation(Op[name], True, f"/d{path}", f"/d{target}", offset, data))
    return disk


NEW = [("OPEN", "/.a", os.O_CREAT), ("WRITE", "/.a", b"new")]


@pytest.mark.parametrize(
    ("operations", "left"),
    [
        (NEW, {}),
        ([*NEW, ("SYNC", "/.a", 0)], {}),
        ([*NEW, ("SYNC", "", 0)], {".a": b""}),
        ([*NEW, ("RENAME", "/.a", "/a"), ("SYNC", "", 0)], {"a": b""}),
        ([*NEW, ("SYNC", "/.a", 0), ("RENAME", "/.a", "/a")], {}),
        ([*NEW, ("SYNC", "/.a", 0), ("SYNC", "", 0), ("RENAME", "/.a", "/a")], {".a": b"new"}),
        ([*NEW, ("SYNC", "/.a", 0), ("RENAME", "/.a", "/a"), ("SYNC", "", 0)], {"a": b"new"}),
        ([*NEW, ("SYNC", "/.a", 0), ("SYNC", "", 0), ("UNLINK", "/.a", 0)], {".a": b"new"}),
        ([*NEW, ("SYNC", "/.a", 0), ("SYNC", "", 0), ("WRITE", "/.a", b"other")], {".a": b"new"}),
    ],
)
def test_the_model_of_a_disk_keeps_what_was_synced_and_nothing_else(tmp_path, operations, left):
    played(*operations).restore(tmp_path / "left", None)
    assert {path.name: path.read_bytes() for path in (tmp_path / "left").iterdir()} == left


def test_every_mend_can_still_be_undone():
    """tests/undone.py takes half an hour; that it finds its texts is seen here."""
    sources = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    found = {mend.what: sum(text.count(mend.old) for text in sources) for mend in MENDS}
    assert {what: count for what, count in found.items() if count != 1} == {}
    tests = {path.name: path.read_text() for path in (ROOT / "tests").glob("test_*.py")}
    for mend in MENDS:
        file, _, name = mend.test.split()[0].partition("::")
        assert f"def {name}(" in tests[file], mend.test
