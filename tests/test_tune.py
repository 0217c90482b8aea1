"""Tuning: the file is checked whole, trials are judged by their curves, hopeless ones end early, a study goes on."""

import csv
import signal
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
import yaml

from deir.cli import main
from deir.errors import UserError
from deir.experiments.sweep.grid import merged
from deir.experiments.sweep.jobs import Job
from deir.experiments.tune.command import make_pruner, make_sampler, open_study
from deir.experiments.tune.page import _figures, write_page
from deir.experiments.tune.study import TrialCurve, make_plan, objective
from deir.runs import run
from deir.runs.presets import CANDIDATES
from test_sweep import OVERRIDES, wait_for

FILE = {
    "name": "tiny",
    "env": "Empty-5x5",
    "method": "none",
    "steps": 256 * 20,
    "seeds": [0],
    "n_trials": 2,
    "search": {"env.max_steps": [60, 1]},  # nobody reaches the goal in one step
    "sampler": "grid",
    "pruner": {"kind": "median", "startup_trials": 1, "warmup": 256 * 2},
    "overrides": merged(OVERRIDES, {"env": {"max_steps": 60}, "checkpoint": {"every": 2}}),
}


def plan_of(**changes):
    return make_plan({**FILE, **changes}, "file")


def write_curve(job: Job, values: list[float | str], interval: int = 256) -> None:
    job.out.mkdir(parents=True, exist_ok=True)
    lines = [f"{interval * (k + 1)},{value}" for k, value in enumerate(values)]
    (job.out / "progress.csv").write_text("frames,return_mean\n" + "".join(f"{line}\n" for line in lines))


def command(file: Path, out: Path, jobs: str = "1") -> list[str]:
    return ["tune", str(file), "--out", str(out), "--jobs", jobs]


def tune(*words: str) -> int:
    before, sys.argv = sys.argv, ["deir", *words]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = before
    raise AssertionError("the command ended without an exit code")


def trials(out: Path) -> list[dict[str, str]]:
    with (out / "trials.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"serch": {}}, "search"),
        ({"search": {}}, "at least one"),
        ({"search": {"reward.bta": "candidates"}}, "reward.beta"),
        ({"search": {"seed": [0, 1]}}, "a key other than"),
        ({"search": {"reward.rnd.max_factor": "candidates"}}, "Table A1 has no candidates"),
        ({"search": {"reward.beta": 0.1}}, "a list of values"),
        ({"search": {"reward.beta": {"low": 1, "hgh": 2}}}, "high"),
        ({"search": {"reward.beta": {"low": 2, "high": 1}}}, "low below high"),
        ({"search": {"reward.beta": {"low": 0, "high": 1, "log": True}}}, "low above 0"),
        ({"search": {"ppo.epochs": {"low": 1.5, "high": 3}}}, "a whole number"),
        ({"search": {"ppo.gamma": [0.9, 2]}}, "from 0 to 1"),
        ({"search": {"ppo.gamma": {"low": 0.5, "high": 1.5}}, "sampler": "tpe"}, "from 0 to 1"),
        ({"search": {"ppo.gamma": {"low": 0.5, "high": 0.9}}}, "not ranges"),
        ({"n_trials": 0}, "n_trials"),
        ({"n_trials": 3}, "at most the 2 points"),
        ({"objective": "aera"}, "area"),
        ({"pruner": "medain"}, "median"),
        ({"pruner": {"kind": "halving", "factor": 1}}, "pruner.factor"),
        ({"env": {"id": "Empty-5x5", "nose": 1}}, "noise"),
        ({"method": "dier"}, "deir"),
        ({"overrides": {"ppo": {"gama": 1}}}, "gamma"),
    ],
)
def test_a_mistake_in_the_file_is_told_before_anything_starts(tmp_path, capsys, changes, message):
    file = tmp_path / "file.yaml"
    file.write_text(yaml.safe_dump({**FILE, **changes}))
    assert tune(*command(file, tmp_path / "out")) == 2
    told = capsys.readouterr().err
    assert message in told and "file.yaml" in told
    assert not (tmp_path / "out").exists()


def test_the_space_is_the_papers_candidates_lists_or_ranges():
    plan = plan_of(
        method="deir",
        sampler="tpe",
        search={
            "reward.beta": "candidates",
            "reward.momentum": "candidates",
            "ppo.epochs": {"low": 1, "high": 5, "step": 2},
            "ppo.learning_rate": {"low": "1e-5", "high": "1e-3", "log": True},
        },
    )
    space = plan.space()
    assert space["reward.beta"].choices == CANDIDATES["deir"]["reward.beta"]
    assert None in space["reward.momentum"].choices
    assert space["ppo.epochs"] == optuna.distributions.IntDistribution(1, 5, step=2)
    assert space["ppo.learning_rate"] == optuna.distributions.FloatDistribution(1e-5, 1e-3, log=True)
    assert plan.own_values() == {
        "reward.beta": 0.01, "reward.momentum": 0.9, "ppo.epochs": 2, "ppo.learning_rate": 5e-4,
    }  # fmt: skip
    (job,) = plan.jobs({"reward.beta": 0.05}, Path("x"))
    assert job.config.reward.beta == 0.05 and job.config.threads == 1 and job.out == Path("x/seed0")


def test_objectives_against_their_definitions():
    curves = [[0.0, 0.5, 1.0], [1.0, 1.0]]
    assert objective(curves, "area") == pytest.approx((0.5 + 1.0) / 2)
    assert objective(curves, "final") == 1.0
    assert objective([], "area") is None


def test_a_trials_curve_is_that_of_its_seeds_one_after_the_other(tmp_path):
    plan = plan_of(steps=256 * 3, seeds=[0, 1])
    jobs = plan.jobs({}, tmp_path)
    curve = TrialCurve(plan, jobs)
    assert curve.points() == [] and curve.value() is None
    write_curve(jobs[0], ["", 0.2])
    write_curve(jobs[1], [0.5])  # side by side: the second waits for the first
    assert curve.points() == [None, pytest.approx(0.2)]
    write_curve(jobs[0], ["", 0.2, 0.4])
    assert curve.points() == [None, *map(pytest.approx, (0.2, 0.3, (0.3 + 0.5) / 2))]
    write_curve(jobs[1], [0.5, 0.6, 0.7])
    assert curve.points()[-1] == pytest.approx((0.3 + 0.6) / 2) == curve.value()
    final = TrialCurve(plan_of(steps=256 * 3, seeds=[0, 1], objective="final"), jobs)
    assert final.points() == [None, *map(pytest.approx, (0.2, 0.4, 0.45, 0.5, 0.55))]


def test_longer_iterations_are_reported_at_the_same_frames(tmp_path):
    """So that trials with other rollout lengths can be compared."""
    plan = plan_of(steps=256 * 4)
    (job,) = plan.jobs({}, tmp_path)
    write_curve(job, [0.1, 0.3], interval=512)
    assert TrialCurve(plan, [job]).points() == [None, *map(pytest.approx, (0.1, 0.1, 0.2))]


def test_pruners_and_samplers():
    warm = {"warmup": 256 * 10}
    assert plan_of(pruner={"kind": "median", **warm}).warmup == 10
    assert isinstance(make_pruner(plan_of()), optuna.pruners.MedianPruner)
    assert isinstance(make_pruner(plan_of(pruner={"kind": "halving", **warm})), optuna.pruners.SuccessiveHalvingPruner)
    assert isinstance(make_pruner(plan_of(pruner="none")), optuna.pruners.NopPruner)
    grid = plan_of(search={"ppo.epochs": [1, 2], "ppo.gamma": "candidates"}).grid()
    assert len(grid) == 6 and {"ppo.epochs": 2, "ppo.gamma": 0.997} in grid
    for name in ("tpe", "random"):
        draws = []
        for so_far in (0, 0, 5):
            study = optuna.create_study(sampler=make_sampler(plan_of(sampler=name), so_far))
            draws.append(study.ask().suggest_float("x", 0, 1))
        assert draws[0] == draws[1] != draws[2]


def test_a_study_that_is_there_must_be_the_same_but_for_the_number_of_trials(tmp_path):
    storage = f"sqlite:///{tmp_path}/study.db"
    study = open_study(plan_of(), storage)
    assert study.ask(plan_of().space()).params == {"env.max_steps": 60}  # the file's own value is tried first
    open_study(plan_of(n_trials=1), storage)
    for changes, name in ({"seeds": [0, 1]}, "seeds"), ({"steps": 100}, "base"), ({"objective": "final"}, "objective"):
        with pytest.raises(UserError, match=f"^{name}: the study has"):
            open_study(plan_of(**changes), storage)
    with pytest.raises(UserError, match="storage"):
        open_study(plan_of(), "nosuchsql://host/name")


def test_an_interrupted_study_goes_on_prunes_and_writes_its_results(tmp_path, capsys):
    """Ctrl-C in the first trial; the second command takes it up again from its checkpoint."""
    file, out = tmp_path / "file.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(FILE))
    process = subprocess.Popen(
        [sys.executable, "-m", "deir.cli", *command(file, out)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    first = out / "trials" / "0000" / "seed0"
    wait_for(lambda: any((first / "checkpoints").glob("*.safetensors")))
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=60)[0]
    assert process.returncode == 130 and "Traceback" not in told, told
    assert f"deir tune {file}" in told
    assert [row["state"] for row in trials(out)] == ["running"]

    assert tune(*command(file, out)) == 0
    told = capsys.readouterr().out
    rows = trials(out)
    assert [(row["env.max_steps"], row["state"]) for row in rows] == [("60", "complete"), ("1", "pruned")]
    assert int(rows[0]["reports"]) == 18 > int(rows[1]["reports"])  # two belong to the warm-up
    assert (first.parent / "seed0.log").read_text().count(" 256 / ") == 1  # resumed, not begun again
    best = run.configure(yaml.safe_load((out / "best.yaml").read_text()))
    assert best.env.max_steps == 60 and best.steps == FILE["steps"] and "best:" in told
    page = (out / "study.html").read_text()
    assert "Plotly.newPlot" in page and "<script src" not in page

    assert tune(*command(file, out)) == 0  # nothing is left to do
    assert trials(out) == rows


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("trials", "kind", "missing"), [
    (0, "rising", 7), (1, "rising", 3), (3, "rising", 2), (4, "rising", 1), (5, "same", 2), (30, "rising", 1),
])  # fmt: skip
def test_a_plot_that_would_be_empty_says_why_and_optuna_warns_of_nothing(trials, kind, missing, tmp_path, capsys):
    search = {"ppo.gamma": {"low": 0.1, "high": 0.9}, "ppo.epochs": [1, 2]}
    plan = make_plan(FILE | {"search": search, "sampler": "random"}, "x")
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(trials):
        trial = study.ask(plan.space())
        study.tell(trial, trial.params["ppo.gamma"] if kind == "rising" else 0.0)
    figures = _figures(study, plan)
    assert [isinstance(drawing, str) for _, drawing in figures].count(True) == missing
    assert all(isinstance(drawing, str) or drawing.data for _, drawing in figures)
    write_page(study, plan, tmp_path / "study.html")
    page = (tmp_path / "study.html").read_text()
    assert page.count("Nothing to show: ") == missing
    assert capsys.readouterr().err == ""


def test_runs_of_other_parameters_are_never_taken_over(tmp_path, capsys):
    """The database is gone, the range is another one, --out is the same."""
    changes = {"steps": 256 * 2, "n_trials": 1, "pruner": {"kind": "none"}}
    file, out = tmp_path / "tiny.yaml", tmp_path / "study"
    file.write_text(yaml.safe_dump({**FILE, **changes, "search": {"env.max_steps": [60]}}))
    assert tune(*command(file, out)) == 0
    best = (out / "best.yaml").read_text()
    (out / "study.db").unlink()
    file.write_text(yaml.safe_dump({**FILE, **changes, "search": {"env.max_steps": [50]}}))
    assert tune(*command(file, out)) == 2
    assert "trial 0: env.max_steps: the run in" in capsys.readouterr().err
    assert (out / "best.yaml").read_text() == best
