"""The committed experiments: every file parses, every run of it is valid, and the figures of the paper are kept."""

import re
from pathlib import Path

import pytest

from deir.config import Config
from deir.experiments.paper.distances import DEFAULTS, Distances
from deir.experiments.paper.distances import check as check_distances
from deir.experiments.paper.probe import Probe
from deir.experiments.paper.probe import check as check_probe
from deir.experiments.sweep.grid import read_grid
from deir.runs.options import parse
from deir.runs.presets import SEEDS, suite_of
from deir.runs.run import configure

FILES = sorted((Path(__file__).parent.parent / "experiments").glob("*.yaml"))
COMMANDS = {"figure-7": "probe", "figure-a1": "distances"}  # the rest are sweeps
OURS = {
    "mini-figure-3-noise",
    "mini-figure-3-advanced",
    "count",
    "betas-field",
    "betas-visits",
    "field",
    "first-visits",
    "full-view",
    "obstructed-1q",
    "speed-check",
    "swift",
    "methods",
    "noise",
    "noise-normalized",
    "ablations-keycorridor",
    "obstructed-full",
    "doorkey",
    "larger-task",
    "betas",
    "betas-noveld",
    "candidates",
    "pairing",
    "mountaincar",
    "mujoco",
    "procgen-small",
    "procgen-precision",
    "precision",
}
STUDIES = {"tune-beta", "tune-swift-doorkey", "tune-swift-multiroom"}
SWEEPS = [path for path in FILES if path.stem not in STUDIES and path.stem.split("-", 1)[-1] not in COMMANDS]
FIGURES = {"1", "3", "4", "5", "6", "7", "a1", "a2", "a3", "a4"}


def runs_of(path: Path) -> dict[tuple[str, str], tuple[Config, list[int]]]:
    """(env label, method label) -> the configuration of its first seed, and the seeds."""
    cells = read_grid(path).cells
    return {(cell.env, cell.method): (cell.configs[0], [config.seed for config in cell.configs]) for cell in cells}


def figure(number: str) -> dict[tuple[str, str], tuple[Config, list[int]]]:
    return runs_of(next(path for path in FILES if path.stem == f"paper-figure-{number}"))


def test_every_figure_has_a_file_of_the_papers_size_and_a_small_one():
    names = {path.stem for path in FILES}
    assert names == {f"{size}-figure-{number}" for size in ("paper", "mini") for number in FIGURES} | OURS | STUDIES


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_header_gives_the_command_and_the_time(path):
    header = "".join(line for line in path.read_text().splitlines(keepends=True) if line.startswith("#"))
    command = "tune" if path.stem in STUDIES else COMMANDS.get(path.stem.split("-", 1)[-1], "sweep")
    assert re.search(rf"^# deir {command} .*experiments/{path.name}", header, re.M)
    assert re.search(r"on two cores", header, re.I)


@pytest.mark.parametrize("path", SWEEPS, ids=lambda p: p.stem)
def test_every_run_of_a_sweep_is_a_valid_configuration(path):
    runs = runs_of(path)
    assert all(config.steps >= 25_000 for config, _ in runs.values())


@pytest.mark.parametrize("path", [p for p in SWEEPS if p.stem.startswith("paper")], ids=lambda p: p.stem)
def test_sweeps_of_the_papers_size_have_its_seeds(path):
    for config, seeds in runs_of(path).values():
        preset = suite_of(config.env.id).replace("swift", "minigrid")  # the paper's own, not ours
        assert seeds == list(range(SEEDS[preset]))
        assert config.preset == preset


BUDGETS = {  # frames; the text of the paper names none, so these are kept here for whoever changes one
    "1": {5_000_000}, "3": {1_000_000, 2_000_000, 5_000_000}, "a4": {1_000_000}, "4": {100_000_000},
    "5": {100_000_000}, "6": {5_000_000}, "a2": {5_000_000}, "a3": {5_000_000},
}  # fmt: skip


@pytest.mark.parametrize("number", BUDGETS)
def test_budgets_are_those_written_down(number):
    assert {config.steps for config, _ in figure(number).values()} == BUDGETS[number]


def test_figure_3_has_four_standard_and_twelve_advanced_tasks():
    runs = figure("3")
    envs = {env: config.env for (env, _), (config, _) in runs.items()}
    tasks = {"FourRooms", "MultiRoom-N6", "DoorKey-16x16", "KeyCorridorS6R3"}
    assert {env.id for env in envs.values()} == tasks and len(envs) == 16
    for task in tasks:
        assert envs[f"{task}-view3"].view_size == 3
        assert envs[f"{task}-noisy"].noise == 0.1 and envs[f"{task}-noisy"].noise_units == "raw"
        assert envs[f"{task}-invisible"].invisible_obstacles
        assert envs[task] == configure({"env": {"id": task}, "preset": "minigrid"}).env
    assert {method for _, method in runs} == {"deir", "noveld", "ngu", "rnd", "icm", "none"}


def test_figure_1_is_about_thirty_rooms_with_each_difficulty():
    envs = {config.env for config, _ in figure("1").values()}
    assert {env.id for env in envs} == {"MultiRoom-N30"}
    assert {(env.view_size, env.noise, env.invisible_obstacles) for env in envs} == {
        (3, 0.0, False), (None, 0.1, False), (None, 0.0, True),
    }  # fmt: skip


def test_figure_4_has_the_four_games_in_hard_mode():
    envs = {config.env for config, _ in figure("4").values()}
    assert {env.id for env in envs} == {f"procgen:{game}" for game in ("ninja", "climber", "jumper", "caveflyer")}
    assert {(env.distribution_mode, env.num_levels) for env in envs} == {("hard", 0)}


def test_figure_5_compares_deir_and_noveld():
    runs = figure("5")
    assert {method for _, method in runs} == {"deir", "noveld"}
    assert all(config.env.n_envs == 64 and config.reward.extrinsic_coef == 10 for config, _ in runs.values())


def test_figure_6_is_the_task_with_all_three_changes_and_five_agents():
    runs = figure("6")
    (env,) = {config.env for config, _ in runs.values()}
    assert (env.id, env.view_size, env.noise, env.invisible_obstacles) == ("KeyCorridorS6R3", 3, 0.3, True)
    assert [config.method for config, _ in runs.values()] == [
        "deir", "deir-no-mi", "deir-no-rnn-no-mi", "deir-inverse", "deir-forward",
    ]  # fmt: skip


def test_figure_a2_and_a3_vary_one_thing_in_thirty_rooms():
    lengths = [config.env for config, _ in figure("a2").values()]
    assert [env.max_steps for env in lengths] == [300, 500, 1000, 2000, 5000]
    assert not any(env.time_penalty for env in lengths)
    queues = [config for config, _ in figure("a3").values()]
    assert [config.reward.deir.queue_size for config in queues] == [10**4, 10**5, 10**6]
    assert {config.env.id for config in queues} == {env.id for env in lengths} == {"MultiRoom-N30"}


def test_the_confirmation_of_swift_is_what_its_results_say():
    runs = runs_of(next(path for path in FILES if path.stem == "swift"))
    seeds = {env: len(seeds) for (env, _), (_, seeds) in runs.items()}
    assert seeds == {
        "MultiRoom-N6": 10, "DoorKey-16x16": 5, "KeyCorridorS4R3": 3, "FourRooms": 3, "KeyCorridorS6R3": 3,
    }  # fmt: skip
    assert {config.preset for config, _ in runs.values()} == {"swift"}


@pytest.mark.parametrize("size", ["paper", "mini"])
def test_probe_and_distances_take_their_files(size, tmp_path):
    folder, out = FILES[0].parent, ["--out", str(tmp_path / "out")]
    probe = parse(Probe, ["--config", str(folder / f"{size}-figure-7.yaml"), *out], "deir probe", {})
    seeds = check_probe(probe)
    assert probe.env.id == "DoorKey-8x8" and probe.jobs == 2
    if size == "paper":
        assert seeds == list(range(SEEDS["minigrid"])) and probe.method == "none" and probe.target_return == 0.9
    distances = parse(Distances, ["--config", str(folder / f"{size}-figure-a1.yaml"), *out], "deir distances", DEFAULTS)
    check_distances(distances)
    assert distances.env.id == "FourRooms" and distances.env.invisible_obstacles and distances.env.view_size == 3
