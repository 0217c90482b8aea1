"""Nothing is run that was not asked for: names of code in files, and modules that lie in the working directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import deir
from deir.config import to_dict
from deir.errors import UserError
from deir.experiments.sweep.grid import read_grid
from deir.experiments.tune.study import read_plan
from deir.imports import python, search_path
from deir.runs import run
from deir.runs.options import parse

EVIL = """
import pathlib
pathlib.Path(__file__).with_name("executed").touch()
def make(**_):
    raise SystemExit(0)
X = make
"""
NAMES = [
    ("env", "evil:make"),
    ("env", "evil:DoorKey-v0"),
    ("env", "sys:exit"),
    ("method", "evil:X"),
    ("method", "procgen:X"),
    ("network.encoder", "evil:X"),
    ("reward.encoder", "evil:X"),
    ("loggers", "evil:X"),
]


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A working directory with a module that leaves a trace when it is imported."""
    (tmp_path / "evil.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield tmp_path
    sys.modules.pop("evil", None)


def saved_run(place: Path, field: str, name: str) -> Path:
    """A run directory as a stranger may send it."""
    config = to_dict(run.configure({}))
    section, _, key = {"env": "env.id"}.get(field, field).rpartition(".")
    (config[section] if section else config)[key] = f"csv, {name}" if field == "loggers" else name
    (place / "checkpoints").mkdir(parents=True)
    (place / "config.yaml").write_text(yaml.safe_dump(config))
    (place / "progress.csv").write_text("iteration,frames\n1,8192\n")
    return place


@pytest.mark.parametrize(("field", "name"), NAMES)
def test_a_saved_name_of_code_is_refused(stranger, field, name):
    from deir import cli
    from deir.experiments.paper.probe import Probe

    place = saved_run(stranger / "run", field, name)
    config = str(place / "config.yaml")
    other = ["--env", "none"] if field == "method" else ["--method", "none"]
    attempts = [
        lambda: deir.load(place),
        lambda: deir.load_reward(place),
        lambda: run.resume(place),
        lambda: run.load_config(place),
        lambda: cli.evaluate([str(place)]),
        lambda: cli.train(["--resume", str(place)]),
        lambda: cli.train(["--config", config, "--out", "new"]),
        lambda: cli.train(["--config", config, "--out", "new", *other]),
        lambda: cli.probe(["--run", str(place)]),
        lambda: parse(Probe, ["--config", config], "deir probe", {}),
        lambda: cli.distances(["--config", config]),
    ]
    for attempt in attempts:
        with pytest.raises(UserError, match=f"^{field}: .* names code.*{name}.*--{field}.*--trust"):
            attempt()
    assert not (stranger / "executed").exists()


def test_a_file_of_a_sweep_or_a_study_too(stranger):
    sweep = {"envs": [{"x": {"id": "evil:make"}}], "methods": ["none"], "seeds": 0, "steps": "1k"}
    hidden = {
        **sweep,
        "envs": ["Empty-5x5"],
        "overrides": {"method": "evil:X"},
        "methods": [{"y": {"method": "evil:X"}}],
    }
    study = {"env": "evil:make", "method": "none", "steps": "1k", "seeds": 0, "n_trials": 1,
             "search": {"ppo.gamma": [0.9]}}  # fmt: skip
    for tree, read in (sweep, read_grid), (hidden, read_grid), (study, read_plan):
        (stranger / "file.yaml").write_text(yaml.safe_dump(tree))
        with pytest.raises(UserError, match=r"names code.*--trust"):
            read(stranger / "file.yaml")
        assert not (stranger / "executed").exists()
        with pytest.raises(UserError, match="unknown name 'X'") if tree is hidden else pytest.raises(SystemExit):
            for cell in read(stranger / "file.yaml", trust=True).cells if read is read_grid else ():
                deir.make_envs(cell.configs[0].env)
            deir.make_envs("evil:make")
        (stranger / "executed").unlink()
        sys.modules.pop("evil")


def test_a_file_cannot_ask_to_be_trusted(stranger):
    from deir.experiments.paper.probe import Probe

    place = saved_run(stranger / "run", "method", "evil:X")
    for asked in ({"run": str(place), "trust": True}, {"config": "other.yaml"}):
        (stranger / "file.yaml").write_text(yaml.safe_dump(asked))
        with pytest.raises(UserError, match="expected it on the command line only"):
            parse(Probe, ["--config", "file.yaml"], "deir probe", {})
    assert not (stranger / "executed").exists()


def test_a_logger_that_the_user_names_is_imported(stranger):
    from deir import cli

    place = saved_run(stranger / "run", "loggers", "evil:X")
    for words in (["--resume", str(place), "--loggers", "csv,evil:X"], ["--resume", str(place), "--trust"]):
        with pytest.raises(UserError, match="unknown name 'X'"):  # imported, and found to be no logger
            cli.train(words)
        assert (stranger / "executed").exists()
        (stranger / "executed").unlink()
        sys.modules.pop("evil")


def test_what_the_user_names_is_imported(stranger):
    from deir import cli

    place = saved_run(stranger / "run", "method", "evil:X")
    for words in (["--resume", str(place), "--method", "evil:X"], ["--resume", str(place), "--trust"]):
        with pytest.raises(UserError, match="unknown name 'X'"):  # imported, and found to be no reward
            cli.train(words)
        assert (stranger / "executed").exists()
        (stranger / "executed").unlink()
        sys.modules.pop("evil")
    with pytest.raises(UserError, match="unknown name 'X'"):
        deir.load(place, trust=True)


def test_a_method_of_our_own_does_not_open_the_working_directory(tmp_path):
    """Optional packages that are not installed must not be found where the user happens to stand."""
    code = (
        "import sys; from deir.algorithm.rewards import reward_class; reward_class('deir')\n"
        "sys.exit(sys.argv[1] in sys.path)"
    )
    assert subprocess.run([sys.executable, "-P", "-c", code, str(tmp_path)], cwd=tmp_path).returncode == 0


SCRIPTS = {
    "layouts": """
import time, deir
envs = deir.make_envs("Empty-5x5")
envs.reset()
time.sleep(2)
assert envs._layouts._worker._alive and envs._layouts._worker.process.poll() is None
envs.close()
""",
    "worker": """
from deir.experiments.sweep.launch import launch
config = {"threads": 1, "steps": 1, "method": "none", "env": {"id": "x"}}
process = launch({"out": "o", "log": "o.log", "config": config})
process.wait(60)
assert "configuration key" in open("o.log").read() or "error" in open("o.log").read(), open("o.log").read()
""",
    "bench": """
from deir.experiments.bench import measuring as bench
try:
    bench.in_own_process("nothing")
except Exception as error:
    assert "KeyError: 'nothing'" in str(error), error
""",
    "probe": """
from pathlib import Path
from deir.experiments.paper.probe import Probe, all_seeds
if __name__ == "__main__":
    try:
        list(all_seeds(Probe(jobs=2, run=Path("nowhere")), [0, 1]))
    except ValueError as error:
        assert "nowhere" in str(error), error
""",
}
SHADOWS = ("zlib", "queue", "json", "select", "threading", "yaml", "numpy", "pickle", "random", "struct", "typing")


@pytest.mark.parametrize("kind", ["layouts", "worker", "bench", "probe"])
def test_modules_in_the_working_directory_shadow_nothing_in_our_processes(tmp_path, kind):
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()\nraise ImportError\n")
    script = tmp_path.parent / f"{tmp_path.name}-{kind}" / "script.py"  # elsewhere: Python looks where a script lies
    script.parent.mkdir()
    script.write_text(SCRIPTS[kind])
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()


def test_children_look_where_the_parent_looks_but_in_the_working_directory_last(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "/first", *sys.path])
    path = search_path()
    assert path[0] == "/first" and path[-1] == str(tmp_path) and "" not in path
    (tmp_path / "probe_me.py").write_text(
        "import os, sys\ndef main():\n    print(os.pathsep.join(sys.path), *sys.argv[1:])\n"
    )
    told = subprocess.run(
        [*python("probe_me", "main", path), "word"], capture_output=True, text=True, check=True
    ).stdout
    assert told.split() == [os.pathsep.join(path), "word"]
