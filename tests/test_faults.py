"""A short version of `make faults`: nothing is lost and nobody sees a traceback, whatever fault is put in."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from faults.base import kinds

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
