"""The file of a tuning study: one task, one method, what is searched, how a trial is judged."""

from __future__ import annotations

import itertools
import math
import typing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deir.config import Config, flatten, load_yaml, parse_count, to_dict, with_old_keys
from deir.errors import UserError, invalid, shortened, unknown
from deir.experiments.sweep.grid import CONFIG_KEYS, ENV_KEYS, Tree, known_keys, mapping, merged, name_of, seed_list
from deir.experiments.sweep.jobs import Job
from deir.imports import check_trusted
from deir.runs.directory import RunDirectory
from deir.runs.presets import CANDIDATES, nested, part_of
from deir.runs.progress import read_rows
from deir.runs.ranges import LARGEST_WHOLE, check_count
from deir.runs.run import configure, validate

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

REQUIRED = ("env", "method", "steps", "seeds", "n_trials", "search")
KEYS = ("name", *REQUIRED, "objective", "pruner", "sampler", "overrides")
FIXED = ("env.id", "method", "preset", "steps", "seed", "device", "threads", "ops", "precision", "loggers")
OBJECTIVES = ("area", "final")
PRUNER_KEYS = ("kind", "startup_trials", "warmup", "factor")
PRUNERS = ("median", "halving", "none")
SAMPLERS = ("tpe", "random", "grid")
RANGE_KEYS = ("low", "high", "log", "step")


@dataclass(frozen=True)
class Plan:
    name: str
    base: Tree  # the configuration keys of every trial, without the seed
    seeds: tuple[int, ...]
    n_trials: int
    search: dict[str, Any]  # dotted key -> list of values, or a range
    objective: str
    pruner: Tree
    sampler: str
    config: Config  # of the preset with the overrides, nothing searched

    def identity(self) -> Tree:
        """What must not change while a study goes on."""
        names = ("base", "seeds", "search", "objective", "pruner", "sampler")
        return {name: _plain(getattr(self, name)) for name in names}

    @property
    def interval(self) -> int:
        """Frames between two reports of a trial: one iteration, as long as that is not what is searched."""
        return self.config.env.n_envs * self.config.ppo.rollout_steps

    @property
    def warmup(self) -> int:
        """Reports that are not made: Optuna goes by the best one, and the first episodes are luck."""
        return int(self.pruner["warmup"]) // self.interval

    def jobs(self, params: Tree, out: Path) -> list[Job]:
        return [Job(self._configured(params, seed), out / f"seed{seed}") for seed in self.seeds]

    def _configured(self, params: Tree, seed: int) -> Config:
        config = configure({**merged(self.base, nested(params)), "seed": seed})
        return replace(config, threads=config.threads or 1)

    def best(self, params: Tree) -> Tree:
        """Configuration keys for `deir train --config`."""
        return merged(self.base, nested(params))

    def own_values(self) -> Tree:
        """What the preset says of the searched keys."""
        flat = flatten(to_dict(self.config))
        return {key: flat[key] for key in self.search}

    def grid(self) -> list[Tree]:
        """Every combination of the values, for the sampler `grid`."""
        if self.sampler != "grid":
            return []
        return [dict(zip(self.search, values, strict=True)) for values in itertools.product(*self.search.values())]

    def space(self) -> dict[str, BaseDistribution]:
        return {key: _distribution(key, values) for key, values in self.search.items()}


def _plain(value: Any) -> Any:
    """As JSON gives it back."""
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def read_plan(path: Path, check_device: bool = True, trust: bool = False) -> Plan:
    """`trust`: whether code that the file names may be imported."""
    tree = load_yaml(path)
    try:
        return make_plan(tree, path.stem, check_device, trust)
    except UserError as mistake:
        raise UserError(f"{path}: {mistake}") from None


def make_plan(tree: Tree, default_name: str, check_device: bool = True, trust: bool = False) -> Plan:
    known_keys(tree, KEYS, "tuning key")
    for key in REQUIRED:
        if key not in tree:
            raise UserError(f"{key}: missing; a study needs {', '.join(REQUIRED)}")
    overrides = with_old_keys(mapping(tree.get("overrides"), "overrides"))
    known_keys(overrides, CONFIG_KEYS, "key of overrides")
    env = tree["env"] if isinstance(tree["env"], dict) else {"id": tree["env"]}
    known_keys(env, ENV_KEYS, "key of env")
    base = merged(overrides, {"env": env, "method": tree["method"], "steps": parse_count(tree["steps"])})
    config = configure(base)
    check_trusted(config, "the file", trust)
    search = {key: _values(key, given, config) for key, given in mapping(tree["search"], "search").items()}
    if not search:
        raise invalid("search", tree["search"], "at least one configuration key")
    plan = Plan(
        name_of(tree.get("name", default_name)), base, tuple(seed_list(tree["seeds"])), _n_trials(tree["n_trials"]),
        search, _chosen("objective", tree.get("objective", "area"), OBJECTIVES), _pruner(tree.get("pruner", "median")),
        _chosen("sampler", tree.get("sampler", "tpe"), SAMPLERS), config,
    )  # fmt: skip
    if plan.sampler == "grid" and not all(isinstance(values, list) for values in search.values()):
        raise invalid("sampler", "grid", "candidates or lists in search, not ranges")
    if plan.sampler == "grid":
        check_count("n_trials", math.prod(len(values) for values in search.values()))  # before they are listed
    if plan.sampler == "grid" and plan.n_trials > len(plan.grid()):
        raise invalid("n_trials", plan.n_trials, f"at most the {len(plan.grid())} points of the grid")
    for key, values in search.items():
        for value in values if isinstance(values, list) else (values["low"], values["high"]):
            wanted = plan.jobs({**plan.own_values(), key: value}, Path())[0].config
            validate(wanted if check_device else replace(wanted, device="cpu"))
    return plan


def _n_trials(given: Any) -> int:
    if not isinstance(given, int) or isinstance(given, bool):
        raise invalid("n_trials", given, "a whole number above 0")
    check_count("n_trials", given)
    return given


def _chosen(field: str, given: Any, choices: tuple[str, ...]) -> str:
    if not isinstance(given, str) or given not in choices:
        raise unknown(field, shortened(given).strip("'"), choices)
    return given


def _pruner(given: Any) -> Tree:
    """Warm-up and the first rung of successive halving in frames of the trial, all seeds counted."""
    keys = dict(given) if isinstance(given, dict) else {"kind": given}
    known_keys(keys, PRUNER_KEYS, "key of pruner")
    whole = {name: keys.get(name, default) for name, default in (("startup_trials", 4), ("factor", 3))}
    for name, least in (("startup_trials", 0), ("factor", 2)):
        if type(whole[name]) is not int or not least <= whole[name] <= LARGEST_WHOLE:
            raise invalid(f"pruner.{name}", whole[name], f"a whole number of at least {least}")
    warmup = parse_count(keys["warmup"]) if keys.get("warmup") else 0
    return {"kind": _chosen("pruner.kind", keys.get("kind", "median"), PRUNERS), "warmup": warmup, **whole}


def _values(key: str, given: Any, config: Config) -> Any:
    """A list of values, or a range as {low, high, log, step}."""
    fields = flatten(to_dict(config))
    if key not in fields:
        raise unknown("search", shortened(key).strip("'"), fields)
    if key in FIXED:
        raise invalid("search", key, f"a key other than {', '.join(FIXED)}")
    if given == "candidates":
        known = {**CANDIDATES["ppo"], **CANDIDATES.get(part_of(config.method), {})}
        if key not in known:
            raise UserError(f"search.{key}: Table A1 has no candidates for it; those it has: {', '.join(known)}")
        return list(known[key])
    if isinstance(given, list) and given:
        return [_number(value) for value in given]
    if not isinstance(given, dict):
        raise invalid(f"search.{key}", given, "candidates, a list of values, or {low, high, log, step}")
    known_keys(given, RANGE_KEYS, f"key of search.{key}")
    limits = {name: _number(given.get(name)) for name in ("low", "high", "step")}
    kinds = int if is_whole(key) else (int, float)
    number = "a whole number" if is_whole(key) else "a number"
    for name in ("low", "high"):
        if not isinstance(limits[name], kinds) or isinstance(limits[name], bool):
            raise invalid(f"search.{key}.{name}", given.get(name), number)
    if limits["step"] is not None and (not isinstance(limits["step"], kinds) or not limits["step"] > 0):
        raise invalid(f"search.{key}.step", given["step"], f"{number} above 0")
    log = bool(given.get("log", False))
    if not limits["low"] < limits["high"] or (log and limits["low"] <= 0) or (log and limits["step"] is not None):
        raise invalid(f"search.{key}", given, "low below high; with log: low above 0, and no step")
    return {**limits, "log": log}


def _number(value: Any) -> Any:
    """YAML reads 1e-3 as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def is_whole(key: str) -> bool:
    """Whether a configuration key holds whole numbers."""
    kind: Any = Config
    for part in key.split("."):
        kind = typing.get_type_hints(kind)[part]
    return kind is int or int in typing.get_args(kind)


def _distribution(key: str, values: Any) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(values, list):
        return CategoricalDistribution(values)
    low, high, log, step = (values[name] for name in ("low", "high", "log", "step"))
    if is_whole(key):
        return IntDistribution(low, high, log=log, step=step or 1)
    return FloatDistribution(low, high, log=log, step=step)


class TrialCurve:
    """A trial's learning curve: those of its seeds, one after the other, so that it can be judged while it grows."""

    def __init__(self, plan: Plan, jobs: list[Job]) -> None:
        self.plan = plan
        self.jobs = jobs

    def read(self) -> list[list[tuple[int, float]]]:
        """Frames and return of each seed, as far as they are."""
        curves = []
        for job in self.jobs:
            rows = read_rows(RunDirectory(job.out).progress)
            curves.append([(int(float(r["frames"])), float(r["return_mean"])) for r in rows if r["return_mean"]])
        return curves

    def points(self) -> list[float | None]:
        """The value after each interval of frames reached; None where no episode has ended yet."""
        steps, interval = self.plan.config.steps, self.plan.interval
        a_seed = max(1, steps // interval)
        earlier: list[list[float]] = []
        points: list[float | None] = []
        for curve in self.read():
            reached = min(a_seed, curve[-1][0] // interval) if curve else 0
            for k in range(1, reached + 1):
                now = [value for frames, value in curve if frames <= k * interval]
                points.append(objective([*earlier, now] if now else earlier, self.plan.objective))
            if reached < a_seed:
                break
            earlier.append([value for _, value in curve])
        return points

    def value(self) -> float | None:
        """The trial's value, once its runs are finished."""
        return objective([[value for _, value in curve] for curve in self.read() if curve], self.plan.objective)


def objective(curves: list[list[float]], kind: str) -> float | None:
    """Mean over seeds of the mean return over the run (`area`), or of the last return (`final`)."""
    values = [sum(curve) / len(curve) if kind == "area" else curve[-1] for curve in curves]
    return sum(values) / len(values) if values else None


def figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
