"""`deir tune FILE.yaml`: Optuna over the paper's candidates or any ranges, on the engines of `deir sweep`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from deir.errors import UserError, invalid
from deir.experiments.sweep.engines import Engine
from deir.experiments.sweep.jobs import Job, check_all
from deir.experiments.sweep.live_table import SweepBoard
from deir.experiments.sweep.options import ManyRuns
from deir.experiments.sweep.scheduler import PAUSE, STALL, Run, advance, stop_all, stop_signals
from deir.experiments.tune.lock import alone
from deir.experiments.tune.study import Plan, TrialCurve, figure, read_plan
from deir.files import make_writable, only_writer

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class Tune(ManyRuns):
    """Search for good values of any configuration keys. The same command goes on with an interrupted study."""

    file: tyro.conf.Positional[Path]
    """YAML file of the study (docs/tuning.md)."""
    storage: str | None = None
    """Database of the study, such as postgresql://user@host/name; an SQLite file in --out when not given."""


class Judged:
    """A trial under way: its runs, and how much of its curve Optuna knows."""

    def __init__(self, trial: optuna.Trial, plan: Plan, out: Path, known: int = 0) -> None:
        self.trial = trial
        jobs = plan.jobs(trial.params, out)
        _check_own(trial, jobs)
        self.runs = [Run(job, "finished" if job.finished else "waiting") for job in jobs]
        self.curve = TrialCurve(plan, jobs)
        self.warmup = plan.warmup
        self.reported = known
        self.pruned = False

    @property
    def ended(self) -> bool:
        return not any(run.active for run in self.runs)

    def report(self) -> None:
        """Tells Optuna what is new of the curve, and stops the runs when it sees no hope in them."""
        points = self.curve.points()
        for step in range(self.reported + 1, len(points) + 1):
            self.reported = step
            value = points[step - 1]
            if value is None or step <= self.warmup:
                continue
            self.trial.report(value, step)
            if self.trial.should_prune():
                self.pruned = True
                for run in self.runs:
                    run.stop()
                return

    def conclude(self, study: optuna.Study) -> str:
        """Hands the result over; gives it in words."""
        from optuna.trial import TrialState

        value = self.curve.value()
        if any(run.status == "failed" for run in self.runs) or (value is None and not self.pruned):
            study.tell(self.trial, state=TrialState.FAIL)
            return "failed" if value is not None else "failed: no episode has ended"
        if self.pruned:
            study.tell(self.trial, state=TrialState.PRUNED)
            return f"pruned after {self.reported} reports"
        study.tell(self.trial, value)
        return f"{value:.4f}"


def _check_own(trial: optuna.Trial, jobs: Sequence[Job]) -> None:
    """Runs that are there must be of these parameters: the database may be a new one, and the runs of an old one."""
    try:
        check_all(jobs)
    except UserError as mistake:
        raise UserError(f"trial {trial.number}: {mistake}") from None


def tune(args: Tune) -> int:
    """The exit code: 0 when all trials are done, 1 when any failed, 130 when interrupted."""
    args.check()
    _check_installed()
    plan = read_plan(args.file, args.engine == "local", args.trust)
    out = args.out or Path("runs") / plan.name
    args.check_engine()
    make_writable("out", out)
    engine = args.make_engine()
    try:
        with only_writer(out):
            storage = args.storage or f"sqlite:///{out / 'study.db'}"
            study = open_study(plan, storage)
            with SweepBoard(out) as board:
                finished = search(study, storage, plan, out, engine, args.retries, board, args.stall)
            _write_results(study, plan, out)
    finally:
        engine.close()
    if not finished:
        storage = " --storage …" if args.storage else ""  # which may hold a password
        print(f"interrupted; the same command goes on: {args.words('deir', 'tune', str(args.file))}{storage}")
        return 130
    return 1 if any(trial.state.name == "FAIL" for trial in study.trials) else 0


def _check_installed() -> None:
    try:
        import optuna
        import plotly  # noqa: F401
    except ImportError as missing:
        raise UserError(f"tune: {missing.name} is not installed; type: pip install 'deir[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def open_study(plan: Plan, storage: str) -> optuna.Study:
    """A new study, or the one that is there if the file still says the same."""
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    wanted = json.loads(json.dumps(plan.identity()))
    try:
        with alone(storage, plan.name):
            study = optuna.create_study(
                storage=storage, study_name=plan.name, direction="maximize", load_if_exists=True,
                pruner=make_pruner(plan),
            )  # fmt: skip
            if "plan" not in study.user_attrs:
                _enqueue(study, plan)
                study.set_user_attr("plan", wanted)
    except (SQLAlchemyError, ImportError) as error:
        raise invalid("storage", storage, f"a database that can be opened ({error})") from None
    stored = study.user_attrs["plan"]
    for name in wanted:
        if wanted[name] != stored[name]:
            raise UserError(
                f"{name}: the study has {stored[name]!r}, the file now says {wanted[name]!r}; only n_trials may change "
                "while a study goes on. Another name or another --out begins a new one"
            )
    study.sampler = make_sampler(plan, len(study.trials))
    return study


def _enqueue(study: optuna.Study, plan: Plan) -> None:
    """The preset's values come first, so that the search confirms them or finds better ones; then a grid's others."""
    own = plan.own_values()
    first = [own] if all(_allows(values, own[key]) for key, values in plan.search.items()) else []
    for params in [*first, *(point for point in plan.grid() if point not in first)]:
        study.enqueue_trial(params, skip_if_exists=True)  # a tuner may have been killed while it filled the queue


def _allows(values: Any, value: Any) -> bool:
    if isinstance(values, list):
        return value in values
    return value is not None and bool(values["low"] <= value <= values["high"])


def make_pruner(plan: Plan) -> optuna.pruners.BasePruner:
    from optuna import pruners

    if plan.pruner["kind"] == "median":
        return pruners.MedianPruner(plan.pruner["startup_trials"])
    if plan.pruner["kind"] == "halving":
        return pruners.SuccessiveHalvingPruner(max(1, plan.warmup), reduction_factor=plan.pruner["factor"])
    return pruners.NopPruner()


def make_sampler(plan: Plan, trials_so_far: int) -> optuna.samplers.BaseSampler:
    """The seed moves on with the study: a resumed one must not draw the same values again."""
    from optuna import samplers

    if plan.sampler in ("random", "grid"):  # the points of a grid are in the queue
        return samplers.RandomSampler(seed=trials_so_far)
    return samplers.TPESampler(seed=trials_so_far, n_startup_trials=max(3, plan.n_trials // 4), constant_liar=True)


def search(
    study: optuna.Study, storage: str, plan: Plan, out: Path, engine: Engine, retries: int, board: SweepBoard,
    stall: float = STALL,
) -> bool:  # fmt: skip
    """Whether it came to its end: all trials done, and not interrupted."""
    root = (out / "trials").resolve()
    with alone(storage, plan.name):  # one that another tuner is just beginning does not say yet whose it is
        trials = interrupted_trials(study, plan, root)
    runs: list[Run] = [run for trial in trials for run in trial.runs]
    with stop_signals() as signals:
        try:
            while not signals:
                while len(_active(runs)) < engine.capacity and (trial := asked(study, storage, plan, root)):
                    trials.append(trial)
                    runs += trial.runs
                if not trials:
                    return True
                advance(runs, engine, retries, board.tell, stall)
                board.show(runs)
                for trial in trials:
                    if not trial.pruned:
                        trial.report()
                    if trial.ended:
                        print(f"trial {trial.trial.number}  {_words(trial.trial.params)}  {trial.conclude(study)}")
                trials = [trial for trial in trials if not trial.ended]
                time.sleep(PAUSE)
            return False
        finally:
            stop_all(runs, lambda: len(signals) > 1, engine.grace, board.tell)


def _active(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.active]


def _count_begun(study: optuna.Study) -> int:
    """Trials that have been asked for, by whoever shares the study."""
    return sum(trial.state.name != "WAITING" for trial in study.get_trials(deepcopy=False))


def asked(study: optuna.Study, storage: str, plan: Plan, root: Path) -> Judged | None:
    """The next trial, or None when all have been begun, by whoever shares the study."""
    if _count_begun(study) >= plan.n_trials:
        return None
    with alone(storage, plan.name):
        if _count_begun(study) >= plan.n_trials:
            return None
        trial = study.ask(plan.space())
        place = root / f"{trial.number:04d}"
        trial.set_user_attr("runs", str(place))
    return Judged(trial, plan, place)


def interrupted_trials(study: optuna.Study, plan: Plan, root: Path) -> list[Judged]:
    """Trials of this directory that nobody ended: their runs go on from their checkpoints."""
    import optuna

    found = []
    for frozen in study.trials:
        place = root / f"{frozen.number:04d}"
        if frozen.state.name == "RUNNING" and frozen.user_attrs.get("runs", str(place)) == str(place):
            trial = optuna.Trial(study, frozen._trial_id)
            trial.set_user_attr("runs", str(place))  # its tuner may have been killed before it could say so
            for key, distribution in plan.space().items():
                trial._suggest(key, distribution)  # or before it had all its values; what it has stays
            found.append(Judged(trial, plan, place, known=max(frozen.intermediate_values, default=0)))
    return found


def _words(params: dict[str, Any]) -> str:
    return ", ".join(f"{key} {figure(value)}" for key, value in params.items())


def _write_results(study: optuna.Study, plan: Plan, out: Path) -> None:
    from deir.experiments.tune.page import begun, write_best, write_page, write_trials

    write_trials(study, plan, out / "trials.csv")
    best = write_best(study, plan, out / "best.yaml")
    write_page(study, plan, out / "study.html")
    counts = [trial.state.name.lower() for trial in begun(study)]
    told = ", ".join(f"{counts.count(state)} {state}" for state in dict.fromkeys(counts))
    print(f"{told} of {plan.n_trials} trials")
    if best is not None:
        print(f"best: {best.value:.4f} with {_words(best.params)} (trial {best.number})")
        print(f"  deir train --config {out / 'best.yaml'}")
    print(f"  {out / 'study.html'}   the plots;  trials.csv the numbers")
