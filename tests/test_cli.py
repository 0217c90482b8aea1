"""The command line as a user types it."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from small import WORDS


def deir(*words: str, cwd: Path, check: bool = True) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [sys.executable, "-m", "deir.cli", *words], cwd=cwd, capture_output=True, text=True, timeout=300
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    where = tmp_path_factory.mktemp("cli")
    deir("train", *WORDS, "--out", "run", cwd=where)
    return where / "run"


def test_train_writes_a_run_and_says_where_to_look(trained):
    assert {p.name for p in trained.iterdir()} == {
        "config.yaml", "progress.csv", "checkpoints", "summary.json", "learning_curve.png", "tensorboard",
    }  # fmt: skip
    with (trained / "progress.csv").open() as file:
        assert [int(row["frames"]) for row in csv.DictReader(file)] == [128, 256]
    assert (trained / "learning_curve.png").read_bytes()[:4] == b"\x89PNG"


def test_default_directory_names_env_method_and_seed(tmp_path):
    out = deir("train", *WORDS, "--seed", "3", "--method", "none", cwd=tmp_path).stdout
    (run,) = (tmp_path / "runs" / "DoorKey-5x5" / "none").iterdir()
    assert run.name.startswith("seed3-")
    assert str(run.relative_to(tmp_path)) in out
    assert "preset swift" in out
    assert "256 / 256 frames" in out  # one plain line an iteration where there is no terminal


def test_resume_lengthens_a_run_but_does_not_change_the_task(trained, tmp_path):
    import shutil

    shutil.copytree(trained, tmp_path / "run")
    deir("train", "--resume", "run", "--steps", "512", cwd=tmp_path)
    with (tmp_path / "run" / "progress.csv").open() as file:
        assert [int(row["frames"]) for row in csv.DictReader(file)] == [128, 256, 384, 512]
    refused = deir("train", "--resume", "run", "--ppo.gamma", "0.5", cwd=tmp_path, check=False)
    assert refused.returncode == 2
    assert "--resume can change only" in refused.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--env", "DoorKey-9x9"], "DoorKey-8x8"),
        (["--method", "dier"], "deir"),
        (["--steps", "-5"], "frames"),
        (["--resume", "nowhere"], "run directory"),
        (["--config", "unknown.yaml"], "gamma"),
        (["--preset", "minigird"], "minigrid"),
        (["--ppo.gama", "0.9"], "--ppo.gamma"),
        (["--ppo.gamma", "2"], "from 0 to 1"),
        (["--env", "CartPole-v1", "--env.view-size", "3"], "view_size"),
        (["--device", "tpu"], "device"),
        (["--out", "taken"], "new or empty directory"),
    ],
)
def test_mistakes_get_one_clear_message_and_create_nothing(words, message, tmp_path):
    (tmp_path / "unknown.yaml").write_text("ppo: {gama: 0.9}\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("")
    before = sorted(tmp_path.rglob("*"))
    done = deir("train", *words, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert message in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_unknown_command_and_version_and_help(tmp_path):
    assert "train" in deir("tran", cwd=tmp_path, check=False).stderr
    assert deir("--version", cwd=tmp_path).stdout.startswith("deir ")
    assert "deir train" in deir(cwd=tmp_path).stdout
    assert "--env.invisible-obstacles" in deir("train", "--help", cwd=tmp_path).stdout


def test_lists(tmp_path):
    envs = deir("list", "envs", cwd=tmp_path).stdout
    assert "MultiRoom-N30" in envs
    assert "procgen:ninja" in envs
    assert "deir" in deir("list", "methods", cwd=tmp_path).stdout
    assert "omfull" in deir("list", "presets", cwd=tmp_path).stdout


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_evaluate_reports_and_films(trained, tmp_path, suffix):
    film = tmp_path / f"film{suffix}"
    done = deir(
        "evaluate",
        str(trained),
        "--episodes",
        "5",
        "--json",
        "--video",
        str(film),
        "--video-episodes",
        "1",
        cwd=tmp_path,
    )
    figures = json.loads(done.stdout)
    assert figures["episodes"] == 5
    assert 0 <= figures["success_rate"] <= 1
    assert film.stat().st_size > 1000
    again = deir("evaluate", str(trained), "--episodes", "5", "--json", cwd=tmp_path)
    assert json.loads(again.stdout) == figures
    assert deir("evaluate", str(trained), "--video", str(film), cwd=tmp_path, check=False).returncode == 2


def test_evaluate_mistakes(tmp_path, trained):
    assert deir("evaluate", "nowhere", cwd=tmp_path, check=False).returncode == 2
    assert deir("evaluate", str(trained), "--video", "film.avi", cwd=tmp_path, check=False).returncode == 2
    assert deir("evaluate", str(trained), "--episodes", "0", cwd=tmp_path, check=False).returncode == 2


def test_several_seeds_at_once(tmp_path):
    done = deir("train", *WORDS, "--seeds", "0-1,4", "--jobs", "2", "--out", "many", cwd=tmp_path)
    assert {p.name for p in (tmp_path / "many").iterdir() if p.is_dir()} == {"seed0", "seed1", "seed4"}
    assert "768 frames" in done.stdout
    assert deir("train", *WORDS, "--seeds", "0-1", "--out", "many", cwd=tmp_path, check=False).returncode == 2
    assert deir("train", *WORDS, "--seeds", "3-1", cwd=tmp_path, check=False).returncode == 2
