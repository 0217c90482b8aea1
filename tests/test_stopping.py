"""Ends that come from outside: hung environments, closed terminals and pipes, full and read-only disks, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from deir import cli
from deir.config import to_dict
from deir.errors import UserError
from deir.experiments.sweep.engines import LocalEngine
from deir.experiments.sweep.jobs import Job
from deir.experiments.sweep.launch import launch
from deir.experiments.sweep.scheduler import Board, Progress, Run, run_all
from deir.files import check_file, make_writable
from deir.runs import run
from deir.runs.stopping import run_command
from test_sweep import OVERRIDES, alive, status, wait_for, writer_of

HANG = """
import ctypes, os, signal, time
import gymnasium
import numpy as np

class Hangs(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        Hangs.steps += 1
        if Hangs.steps > 300:
            open("hanging", "w").close()
            HOW
        return np.zeros(2, np.float32), 0.0, False, False, {}
"""
WAYS = {
    "in Python": "while True: time.sleep(1)",
    # in C, with Python's lock held and every signal blocked: nothing of Python runs in this process any more
    "in C": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64)); ctypes.PyDLL(None).sleep(10_000)",
}


def hanging(place: Path, way: str):
    (place / "hangs.py").write_text(HANG.replace("HOW", WAYS[way]))
    tree = {**OVERRIDES, "env": {"id": "hangs:Hangs", "n_envs": 4}, "method": "none", "threads": 1, "steps": "1M"}
    return run.configure(tree)


@pytest.mark.parametrize("way", list(WAYS))
def test_a_hung_worker_ends_when_its_parent_does(tmp_path, monkeypatch, way):
    monkeypatch.chdir(tmp_path)
    config = hanging(tmp_path, way)
    order = {"out": str(tmp_path / "run"), "log": str(tmp_path / "run.log"), "config": to_dict(config), "grace": 1.0}
    process = launch(order)
    try:
        wait_for(lambda: (tmp_path / "hanging").exists())
        process.stdin.close()  # as when the parent dies, however it dies
        assert process.wait(60) == -signal.SIGKILL
        assert "has not stopped for 1 s: killed" in (tmp_path / "run.log").read_text()
    finally:
        process.kill()


def test_a_sweep_says_that_a_run_hangs_and_one_signal_ends_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jobs = [Job(hanging(tmp_path, "in Python"), tmp_path / "run")]
    told, worker = [], []

    class Listener(Board):
        def tell(self, run: Run, event: str) -> None:
            told.append(event)
            if "no progress" in event and (tmp_path / "hanging").exists():  # not while it is still being set up
                worker.append(writer_of(tmp_path / "run"))
                os.kill(os.getpid(), signal.SIGTERM)

    begin = time.monotonic()
    runs = run_all(jobs, LocalEngine(1, grace=1.0), board=Listener(), stall=5 / 60)
    assert told[:2] == ["started", "no progress for 0.0833333 min; it may hang"]
    assert (tmp_path / "hanging").exists()
    assert told[-1] == "killed: asked to stop, it did not end for 1 s"
    assert [run.status for run in runs] == ["stopped"]
    assert time.monotonic() - begin < 100
    assert worker and not alive(worker[0])


def test_progress_is_a_new_row_and_a_run_in_a_queue_has_not_begun(tmp_path):
    job = Job(run.configure({}), tmp_path / "run")
    job.out.mkdir()
    seen = Progress(job)
    assert seen.look(1000.0) == 0  # nobody has started it yet
    job.log.touch()
    assert [seen.look(t) for t in (2000.0, 2010.0)] == [0, 10]
    (job.out / "progress.csv").write_text("iteration\n1\n")
    assert [seen.look(t) for t in (2020.0, 2025.0)] == [0, 5]
    job.log.write_text("a warning every second is no progress")
    assert seen.look(2030.0) == 10


def test_the_worker_of_layouts_ends_with_its_parent_in_the_middle_of_a_layout(tmp_path):
    """A layout that takes for ever, and a parent that is killed."""
    (tmp_path / "slow.py").write_text(
        "import time\nfrom minigrid.envs import EmptyEnv\n\n\nclass Slow(EmptyEnv):\n"
        "    def _gen_grid(self, *size):\n        open('generating', 'a').close()\n        time.sleep(10_000)\n"
    )
    parent = tmp_path / "parent.py"
    parent.write_text(
        "import time\nfrom deir.envs.minigrid.catalogue import TaskSpec\n"
        "from deir.envs.minigrid.layout_worker import Worker\n"
        "worker = Worker.start(TaskSpec('slow', 'slow:Slow'))\nworker.request(1)\nworker.send()\n"
        "print(worker.process.pid, flush=True)\ntime.sleep(1000)\n"
    )
    process = subprocess.Popen([sys.executable, str(parent)], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    worker = int(process.stdout.readline())
    try:
        wait_for(lambda: (tmp_path / "generating").exists())
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not alive(worker), 30)


TINY = [
    "--env", "Empty-5x5", "--method", "none", "--env.n-envs", "4", "--ppo.rollout-steps", "32",
    "--ppo.minibatch-size", "64", "--steps", "100M", "--threads", "1", "--env.no-layout-worker", "--loggers", "csv",
    "--checkpoint.every", "1000000",
]  # fmt: skip


def begun(place: Path, **options) -> subprocess.Popen:
    """A run that has done an iteration."""
    process = subprocess.Popen(
        [sys.executable, "-m", "deir.cli", "train", *TINY, "--out", str(place)],
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
    wait_for(lambda: run.frames_done(place))
    return process


def test_a_hang_up_and_a_closed_pipe_stop_a_run_with_a_checkpoint(tmp_path):
    nobody, told = os.pipe()
    piped = begun(tmp_path / "pipe", stdout=told)
    os.close(told)
    os.close(nobody)
    hung_up = begun(tmp_path / "hup", stdout=subprocess.DEVNULL)
    hung_up.send_signal(signal.SIGHUP)
    for process, name in ((piped, "pipe"), (hung_up, "hup")):
        errors = process.communicate(timeout=100)[1]
        assert process.returncode == 130, errors
        assert f"deir train --resume {tmp_path / name}" in errors and "Traceback" not in errors
        assert status(tmp_path / name) == "interrupted"
        assert list((tmp_path / name / "checkpoints").glob("*.safetensors"))


def test_a_hang_up_that_nohup_ignores_stays_ignored():
    from deir.runs.stopping import stop_signals

    assert signal.SIGHUP in stop_signals()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signal.SIGHUP not in stop_signals()
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("failure", "code", "message"),
    [
        (OSError(28, "No space left on device", "runs/x"), 2, "error: runs/x: No space left on device; make room"),
        (OSError(5, "Input/output error", "runs/x"), 2, "error: runs/x: Input/output error"),
        (OSError(5, "Input/output error"), 2, "error: [Errno 5] Input/output error"),
        (PermissionError(13, "Permission denied", "a"), 2, "error: a: Permission denied; expected a place you may use"),
        (FileNotFoundError(2, "No such file or directory"), 2, "error: [Errno 2] No such file or directory"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
        (MemoryError(), 2, "error: not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 2, "error: not enough memory"),
        (UserError("steps: no"), 2, "error: steps: no"),
    ],
)
def test_failures_of_the_system_are_one_message_in_every_command(capsys, monkeypatch, failure, code, message):
    def fail(argv: list[str]) -> None:
        raise failure

    for command in cli.COMMANDS:
        monkeypatch.setitem(cli.COMMANDS, command, fail)
        monkeypatch.setattr(sys, "argv", ["deir", command])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == code
        told = capsys.readouterr().err
        assert told.startswith(message) and told.count("\n") == bool(message)


def test_a_fault_of_ours_is_not_hidden():
    def fault() -> None:
        raise RuntimeError("a fault")

    with pytest.raises(RuntimeError, match="a fault"):
        run_command(fault)


def odd_places(tmp_path: Path) -> list[str]:
    (tmp_path / "file").write_text("")
    return [
        str(tmp_path / "file" / "below"),
        str(tmp_path / ("x" * 300)),
        "/dev/null",
        "/proc/deir/x",
        str(tmp_path / "file"),
    ]


def test_a_place_that_cannot_be_written_is_told_before_any_work(tmp_path, monkeypatch, capsys):
    """Of every command with a place to write to; and nothing is set up first."""
    monkeypatch.chdir(tmp_path)
    sweep = {"envs": ["Empty-5x5"], "methods": ["none"], "seeds": 0, "steps": 512}
    study = {
        "env": "Empty-5x5",
        "method": "none",
        "seeds": 0,
        "steps": 512,
        "n_trials": 1,
        "search": {"ppo.gamma": [0.9]},
    }
    Path("sweep.yaml").write_text(yaml.safe_dump(sweep))
    Path("study.yaml").write_text(yaml.safe_dump(study))
    place = tmp_path / "runs" / "done"
    place.mkdir(parents=True)
    (place / "config.yaml").write_text(yaml.safe_dump(to_dict(run.configure({}))))
    (place / "progress.csv").write_text("iteration,frames,seconds,return_mean\n1,8,1,0\n")

    def never(*_: object, **__: object) -> None:
        raise AssertionError("work was begun")

    for name in ("deir.runs.run.make_trainer", "deir.experiments.sweep.scheduler.advance",
                 "deir.experiments.report.curves.read_all",
                 "deir.experiments.paper.distances.make_trainer", "deir.experiments.paper.trajectories.make_trainer",
                 "deir.experiments.bench.command.in_own_process"):  # fmt: skip
        monkeypatch.setattr(name, never)
    for odd in odd_places(tmp_path):
        commands = [
            ["train", "--out", odd], ["train", "--out", odd, "--seeds", "0-1"], ["sweep", "sweep.yaml", "--out", odd],
            ["tune", "study.yaml", "--out", odd], ["report", "runs", "--out", odd + "/report"],
            ["probe", "--env", "DoorKey-8x8", "--out", odd], ["distances", "--out", odd],
            ["bench", "--json", odd + "/x.json"], ["evaluate", "runs/done", "--video", odd + "/film.gif"],
        ]  # fmt: skip
        for words in commands:
            monkeypatch.setattr(sys, "argv", ["deir", *words])
            with pytest.raises(SystemExit) as end:
                cli.main()
            told = capsys.readouterr().err
            assert end.value.code == 2, (words, told)
            assert told.startswith("error: ") and "Traceback" not in told, (words, told)


def test_places_are_tried_and_left_as_they_were(tmp_path):
    make_writable("out", tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    check_file("json", tmp_path / "figures.json")
    with pytest.raises(UserError, match=r"json: got .*expected the name of a file"):
        check_file("json", tmp_path)
    with pytest.raises(UserError, match=r"json: got .*expected a file in an existing directory"):
        check_file("json", tmp_path / "none" / "figures.json")


def test_a_full_disk_in_the_middle_of_a_run_is_one_message(tmp_path, monkeypatch, capsys):
    """By a limit on the size of files, which the system tells as it tells a full disk."""
    code = (
        "import resource, signal, sys\nfrom deir import cli\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nresource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))\n"
        "sys.argv[0] = 'deir'\ncli.main()\n"
    )
    place = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-c", code, "train", *TINY, "--out", str(place)], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 2, done.stderr
    assert "File too large" in done.stderr and "Traceback" not in done.stderr
    assert str(place) in done.stderr  # which disk it is
    assert json.loads((place / "summary.json").read_text())["status"] != "interrupted"


def test_ctrl_c_before_the_run_has_begun_says_so(tmp_path, monkeypatch, capsys):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("deir.runs.run.make_trainer", interrupted)
    monkeypatch.setattr(sys, "argv", ["deir", "train", "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 130
    assert capsys.readouterr().err == "\ninterrupted; the run had not begun\n"


def test_ctrl_c_while_the_program_loads_is_no_traceback():
    """Only what is small is loaded before it is caught."""
    code = "import sys, deir.__main__; sys.exit(any(m in sys.modules for m in ('tyro', 'numpy', 'torch', 'rich')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    script = (
        "import sys, deir.__main__\n\n\nclass Interrupts:\n    def find_spec(self, name, *_):\n"
        "        if name == 'deir.cli':\n            raise KeyboardInterrupt\n\n\n"
        "sys.meta_path.insert(0, Interrupts())\ndeir.__main__.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
