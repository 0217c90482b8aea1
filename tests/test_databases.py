"""Several tuners at once on one database, SQLite or a real PostgreSQL: no trial is lost, none is begun twice."""

import collections
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import optuna
import pytest
import yaml

from deir.experiments.tune.command import asked, interrupted_trials, open_study
from test_sweep import wait_for
from test_tune import FILE, plan_of


def postgres_programs() -> Path:
    """Debian keeps the server's programs out of the way."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda place: int(place.parent.name))
    found = shutil.which("postgres")
    places += [Path(found).resolve().parent] if found else []
    places = [place for place in places if (place / "initdb").exists() and (place / "postgres").exists()]
    if not places:
        if os.environ.get("DEIR_REQUIRE_POSTGRES"):
            raise AssertionError("PostgreSQL is missing: apt-get install postgresql")
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    return places[-1]


def answers(place: Path) -> bool:
    import psycopg

    try:
        psycopg.connect(host=str(place), user="deir", dbname="postgres").close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.fixture(scope="module")
def postgres():
    """A server of its own, in a directory of its own, without a port; gives the address of its database."""
    pytest.importorskip("psycopg", reason="no driver of PostgreSQL: pip install 'deir[postgres]'")
    programs = postgres_programs()
    place = Path(tempfile.mkdtemp(prefix="deir-postgres-"))
    options = {}
    if os.geteuid() == 0:  # the server refuses to be run by root
        owner = pwd.getpwnam("postgres")
        os.chown(place, owner.pw_uid, owner.pw_gid)
        options = {"user": "postgres", "group": "postgres", "extra_groups": []}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": place, **options}
    data = str(place / "data")
    subprocess.run([programs / "initdb", "-D", data, "-A", "trust", "-U", "deir", "--no-sync"], check=True, **quiet)
    settings = ("listen_addresses=", f"unix_socket_directories={place}", "fsync=off")
    words = [word for setting in settings for word in ("-c", setting)]
    server = subprocess.Popen([programs / "postgres", "-D", data, *words], **quiet)
    try:
        wait_for(lambda: answers(place), 60)
        yield f"postgresql+psycopg://deir@/postgres?host={place}"
    finally:
        server.send_signal(signal.SIGINT)  # a fast end
        server.wait(60)
        shutil.rmtree(place)


@pytest.fixture(params=["sqlite", "postgres"])
def storage(request, tmp_path) -> str:
    return f"sqlite:///{tmp_path}/study.db" if request.param == "sqlite" else request.getfixturevalue("postgres")


def test_many_askers_at_once_begin_each_trial_once(storage, tmp_path):
    plan = plan_of(name="many", n_trials=12, search={"ppo.gamma": [k / 100 for k in range(80, 92)]})
    tried: list[float] = []
    failures: list[BaseException] = []

    def tuner() -> None:
        try:
            study = open_study(plan, storage)
            while trial := asked(study, storage, plan, tmp_path):
                tried.append(trial.trial.params["ppo.gamma"])
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=tuner) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert sorted(tried) == plan.search["ppo.gamma"]
    states = collections.Counter(
        trial.state.name for trial in optuna.load_study(study_name="many", storage=storage).trials
    )
    assert states == {"RUNNING": 12}


def test_a_trial_whose_tuner_died_as_it_began_is_taken_up_once(storage, tmp_path):
    plan = plan_of(name="orphan", n_trials=2)
    study = open_study(plan, storage)
    study.ask()  # and killed before it could say its values, or where its runs are
    first, second = (interrupted_trials(study, plan, tmp_path / name) for name in ("a", "b"))
    assert len(first) == 1 and not second
    assert first[0].trial.params == {"env.max_steps": 60}  # the first of the queue
    (again,) = interrupted_trials(study, plan, tmp_path / "a")
    assert again.trial.params == first[0].trial.params


def tuner(file: Path, out: Path, storage: str) -> subprocess.Popen:
    words = ["tune", str(file), "--out", str(out), "--storage", storage, "--jobs", "1"]
    return subprocess.Popen(
        [sys.executable, "-m", "deir.cli", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_two_tuners_on_postgresql_one_killed_no_trial_lost_or_doubled(postgres, tmp_path):
    values = [60, 61, 62]
    changes = {"n_trials": 3, "search": {"env.max_steps": values}, "pruner": "none", "steps": 256 * 4}
    file = tmp_path / "two.yaml"
    file.write_text(yaml.safe_dump({**FILE, "name": "two", **changes}))
    first, second = (tuner(file, tmp_path / name, postgres) for name in ("a", "b"))
    wait_for(lambda: list((tmp_path / "a").glob("trials/*/seed0/progress.csv")))
    first.kill()
    first.wait()
    told = second.communicate(timeout=400)[0]
    assert second.returncode == 0, told
    # its trial waits for the same command, and nobody else has begun it again
    again = tuner(file, tmp_path / "a", postgres)
    told = again.communicate(timeout=400)[0]
    assert again.returncode == 0, told
    study = optuna.load_study(study_name="two", storage=postgres)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 3, told
    assert sorted(trial.params["env.max_steps"] for trial in study.trials) == values
    runs = sorted(path.relative_to(tmp_path).parts for path in tmp_path.glob("*/trials/*"))
    assert sorted(place[2] for place in runs if place[2].isdigit()) == ["0000", "0001", "0002"]
    assert {place[0] for place in runs} == {"a", "b"}
