"""The command line as a user types it."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deir.cli import COMMON, main
from deir.cli.reference import reference
from deir.config import Config, EnvConfig, flatten, to_dict
from deir.errors import UserError
from deir.runs import directory
from deir.runs.directory import told_nearest
from deir.runs.display import Display, plain_line
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
    short, whole = (deir("train", word, cwd=tmp_path).stdout for word in ("--help", "--help-all"))
    assert len(short.splitlines()) < 45 and "--target-return X" in short and "--help-all" in short
    assert "--env.invisible-obstacles" in whole and "--env.invisible-obstacles" not in short
    assert all(len(line) <= 80 for line in short.splitlines())
    said = int(re.search(r"(\d+) more options", short)[1])
    listed = reference().split("## What the presets")[0].split("Of `deir evaluate RUN`")[0]
    assert said + len(COMMON) == len(re.findall(r"^\| `", listed, re.M))


@pytest.mark.parametrize("command", ["evaluate", "list", "sweep", "tune", "report", "probe", "distances", "bench"])
def test_every_command_has_both_kinds_of_help(command, monkeypatch, capsys):
    for word in ("--help", "--help-all"):
        monkeypatch.setattr(sys, "argv", ["deir", command, word])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        assert f"deir {command}" in capsys.readouterr().out


@pytest.mark.parametrize("words", ["", "--help", "--version", "list envs", "list loggers", "train -h"])
def test_answers_that_need_no_training_do_not_load_pytorch(words):
    code = (
        "import sys; from deir.__main__ import main; sys.argv = ['deir', *sys.argv[1:]]\n"
        "try: main()\nexcept SystemExit: pass\n"
        "sys.exit(bool({'torch', 'matplotlib', 'numba', 'tensorboard'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words.split()], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("train --stepz 2k", "option: unknown name '--stepz'. Did you mean '--steps'?"),
        ("train --env.nois=1", "option: unknown name '--env.nois'. Did you mean '--env.noise'?"),
        ("train --steps abc", "steps: got 'abc', expected a number of frames such as 200000, 200k or 2M"),
        ("train --seed x", "seed: got 'x', expected a whole number"),
        ("train --target-return high", "target-return: got 'high', expected none or FLOAT"),
        ("train --ppo.gamma x", "ppo.gamma: got 'x', expected a number"),
        ("train --steps", "Missing value for argument '--steps'"),
        ("list env", "what: unknown name 'env'. Did you mean 'envs'? (expected one of: envs, "),
        ("evaluate runs/a b", "option: got 'b', expected an option of `deir evaluate --help-all`"),
        ("report runs", "Missing from deir report: --out PATH"),
        ("evaluate zoo:DoorKey-8x9", "zoo: unknown name 'DoorKey-8x9'. Did you mean 'DoorKey-8x8'?"),
    ],
)
@pytest.mark.parametrize("columns", ["60", "200"])
def test_a_mistyped_word_is_told_in_one_line(words, told, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "argv", ["deir", *words.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert ended.value.code == 2 and not shown.out
    assert shown.err.startswith(f"error: {told}") and shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("some/dir/seed0O", "some/dir/seed0"),
        ("some/dri/seed1", "some/dir/seed1"),
        ("some/dir/seed1/checkpoints", "some/dir/seed1"),
        ("my run/one two", "'my runs/one two'"),
        ("doorkey/deir/seed3", "runs/DoorKey-8x8/deir/seed3-now"),
    ],
)
@pytest.mark.parametrize(
    "command", [["replay"], ["evaluate"], ["train", "--resume"], ["report", "--out", "report"], ["watch"]]
)
def test_a_mistyped_run_is_answered_with_the_nearest_one(command, typed, meant, tmp_path, monkeypatch, capsys):
    for place in ("some/dir/seed0", "some/dir/seed1", "my runs/one two", "runs/DoorKey-8x8/deir/seed3-now"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "config.yaml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["deir", *command, typed])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.strip().endswith(f"; the nearest one is {meant}")


def test_a_mistyped_directory_above_runs_is_answered_too(tmp_path, monkeypatch):
    for place in ("sweeps/first/seed0", "sweeps/second/seed0"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "config.yaml").touch()
    assert told_nearest(tmp_path / "sweeps" / "secnd", above=True) == f"; the nearest one is {tmp_path}/sweeps/second"
    assert told_nearest(tmp_path / "sweeps") == f"; the nearest one is {tmp_path}/sweeps/first/seed0"
    monkeypatch.setattr(directory, "MOST_LOOKED_AT", 1)
    assert told_nearest(tmp_path / "sweeps" / "secnd", above=True) == ""  # not all of a disk is searched


def test_an_empty_zoo_says_so(monkeypatch, capsys):
    from deir.runs import zoo
    from deir.runs.listing import print_zoo

    monkeypatch.setattr(zoo, "names", lambda home=None: [])
    print_zoo()
    assert capsys.readouterr().out == f"{zoo.EMPTY}\n"
    with pytest.raises(UserError, match="zoo: got 'DoorKey-8x8', but this copy"):
        zoo.read("DoorKey-8x8")


def test_words_to_type_are_never_broken_in_lists(monkeypatch, capsys):
    from deir.runs.listing import print_envs, print_methods, print_presets

    monkeypatch.setenv("COLUMNS", "80")
    print_presets()
    shown = capsys.readouterr().out
    flags = {f"--{name}".replace("_", "-") for name in flatten(to_dict(Config()))}
    assert set(re.findall(r"--[a-z][\w.-]*", shown)) <= flags
    assert len(re.findall(r"\bminigrid +┃", shown)) == 2  # the heads of Table A1's columns
    assert max(map(len, shown.splitlines())) <= 80
    print_envs()
    print_methods()
    shown = capsys.readouterr().out
    assert all(re.search(rf"{re.escape(name)}\s", shown) for name in ("ObstructedMaze-Full", "deir-no-rnn-no-mi"))


def test_hints_quote_paths_that_need_it(tmp_path):
    out = deir("train", *WORDS, "--out", "my run", cwd=tmp_path).stdout
    assert "deir evaluate 'my run' --video film.mp4" in out and "tensorboard --logdir 'my run'" in out
    assert "deir replay 'my run'" in out


def test_the_line_of_an_iteration_says_what_its_mean_is_of():
    row = {"frames": 128, "fps": 10.0, "return_mean": 0.5, "success_rate": 1.0, "intrinsic_reward_mean": 0.1,
           "entropy": 1.0, "episodes": 7}  # fmt: skip
    told = plain_line(Config(), row)
    assert "return 0.500 (of 7 episodes)  success 100%" in told
    assert "(of 100 episodes)" in plain_line(Config(), row | {"episodes": 2500})
    assert "(of 1 episode)" in plain_line(Config(), row | {"episodes": 1})
    assert "success" not in plain_line(Config(env=EnvConfig("CartPole-v1")), row)
    grid = Display("x", plain=True)._figures(Config(env=EnvConfig("CartPole-v1")), row)
    cells = [cell for column in grid.columns for cell in column._cells]
    assert "return of 7 episodes" in cells and "success" not in cells


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
    zoo = deir("evaluate", "zoo:DoorKey-8x8", "--video", "film.mp4", "--overlay", cwd=tmp_path, check=False)
    assert zoo.stderr.startswith("error: overlay: got 'zoo:DoorKey-8x8', expected a run directory") and not zoo.stdout


def test_several_seeds_at_once(tmp_path):
    done = deir("train", *WORDS, "--seeds", "0-1,4", "--jobs", "2", "--out", "many", cwd=tmp_path)
    assert {p.name for p in (tmp_path / "many").iterdir() if p.is_dir()} == {"seed0", "seed1", "seed4"}
    assert "768 frames" in done.stdout
    assert deir("train", *WORDS, "--seeds", "0-1", "--out", "many", cwd=tmp_path, check=False).returncode == 2
    assert deir("train", *WORDS, "--seeds", "3-1", cwd=tmp_path, check=False).returncode == 2
