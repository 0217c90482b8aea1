"""What is remembered of compiled functions."""

from pathlib import Path

import numba
import pytest

import deir.compiled
from deir.compiled import FOLDERS, compiled, sources


@pytest.fixture
def remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))


def twice(x):
    return 2 * x


def hits(function):
    assert function(3) == 6
    return sum(function.stats.cache_hits.values())


def test_a_function_is_compiled_anew_when_any_compiled_source_has_changed(remembered, monkeypatch):
    assert hits(compiled(twice)) == 0
    assert hits(compiled(twice)) == 1
    monkeypatch.setattr(deir.compiled, "sources", lambda: b"other")
    assert hits(compiled(twice)) == 0
    assert hits(compiled(twice)) == 1


def test_every_file_with_compiled_functions_counts(tmp_path, monkeypatch):
    home = tmp_path / "deir"
    for folder in FOLDERS:
        (home / folder).mkdir(parents=True)
        (home / folder / "loops.py").write_text("a")
    monkeypatch.setattr(deir.compiled, "__file__", str(home / "compiled.py"))
    found = set()
    for folder in FOLDERS:
        (home / folder / "loops.py").write_text("b")
        sources.cache_clear()
        found.add(sources())
    sources.cache_clear()
    assert len(found) == len(FOLDERS)


def test_compiled_functions_live_where_changes_are_seen():
    home = Path(deir.__file__).parent
    users = {
        path.parent.relative_to(home).as_posix()
        for path in home.rglob("*.py")
        if "from deir.compiled import" in path.read_text()
    }
    assert users <= set(FOLDERS)


def test_what_is_found_on_disk_holds_no_module_and_can_still_be_called_by_what_is_compiled_later(remembered):
    hits(compiled(twice))
    found = compiled(twice)
    assert hits(found) == 1
    (overload,) = found.overloads.values()
    assert overload.library._shared_module is None

    @numba.njit
    def later(x):
        return found(x) + 1

    assert later(3) == 7
    assert overload.library._shared_module is None
