"""The layers of the package: lower modules never import higher ones, heavy libraries stay where they are needed."""

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "deir"
LAYERS = {  # a module imports only modules of its own layer and below; the longest name that fits tells the layer
    "deir.errors": 0,
    "deir.compiled": 0,
    "deir.imports": 0,
    "deir.seeding": 0,
    "deir.files": 0,
    "deir.config": 0,
    "deir.registry": 0,
    "deir.envs": 1,
    "deir.algorithm": 2,
    "deir.fast": 3,
    "deir.runs": 4,
    "deir.plugin": 5,
    "deir.integrations": 5,
    "deir.agent": 6,
    "deir.experiments": 7,
    "deir.api": 8,
    "deir.cli": 9,
    "deir.__main__": 10,
}
CONTRACT = {"deir.envs.base", "deir.envs.spaces"}  # all that the algorithm knows of environments
PROGRAMS = {"deir.experiments.sweep.worker": {"deir.cli"}}  # started as a program, imported by nobody
HEAVY = {  # library: the modules that may import it at all, and then only when a function needs it
    "envpool": {"deir.envs.procgen"},
    "PIL": {"deir.experiments.replay"},
    "imageio": {"deir.runs.evaluate", "deir.experiments.replay"},
    "jinja2": {"deir.experiments.report"},
    "matplotlib": {"deir.experiments"},
    "mlflow": {"deir.runs.loggers"},
    "optuna": {"deir.experiments.tune"},
    "plotly": {"deir.experiments.report", "deir.experiments.tune"},
    "ray": {"deir.experiments.sweep"},
    "sb3_contrib": {"deir.experiments.bench"},
    "scipy": {"deir.experiments"},
    "sqlalchemy": {"deir.experiments.tune"},
    "stable_baselines3": {"deir.plugin.stable_baselines3", "deir.experiments.bench"},
    "tensorboard": {"deir.runs.loggers"},
    "torch.utils.tensorboard": {"deir.runs.loggers"},
    "trackio": {"deir.runs.loggers"},
    "wandb": {"deir.runs.loggers"},
}
COMMANDS = {"deir.experiments.paper.probe", "deir.experiments.paper.distances"}  # beside every command.py
ALIASES = {"deir.integrations.sb3", "deir.experiments.sb3_comparison"}  # documented names of modules that moved
LONGEST_FILE, LONGEST_FUNCTION, ROOT_MODULES = 300, 60, 10


def name_of(path: Path) -> str:
    parts = ("deir", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}


def imported(name: str, nodes: list[ast.AST]) -> set[str]:
    """What import statements name: modules, and what is taken from them."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def at_once(tree: ast.Module) -> list[ast.AST]:
    """The statements that run when the module is imported: not those of functions, nor for type checkers alone."""
    nodes: list[ast.AST] = []

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            nodes.append(child)
            visit(child)

    visit(tree)
    return nodes


TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}
EVER = {name: imported(name, list(ast.walk(tree))) for name, tree in TREES.items()}
AT_ONCE = {name: imported(name, at_once(tree)) for name, tree in TREES.items()}


def within(name: str, place: str) -> bool:
    return name == place or name.startswith(f"{place}.")


def layer_of(name: str) -> int:
    fitting = [place for place in LAYERS if within(name, place)]
    assert fitting, f"{name} has no layer"
    return LAYERS[max(fitting, key=len)]


def ours(names: set[str]) -> set[str]:
    return {name for name in names if name in MODULES and name != "deir"}


@pytest.mark.parametrize("name", [n for n in MODULES if n != "deir"])
def test_lower_modules_never_import_higher_ones(name):
    above = {other for other in ours(EVER[name]) if layer_of(other) > layer_of(name)}
    assert above <= PROGRAMS.get(name, set())


def test_programs_are_imported_by_nobody():
    assert not {name for name, names in EVER.items() if names & set(PROGRAMS)}


@pytest.mark.parametrize("name", [n for n in MODULES if within(n, "deir.algorithm")])
def test_the_algorithm_knows_of_environments_only_the_contract(name):
    assert {other for other in ours(EVER[name]) if within(other, "deir.envs")} <= CONTRACT


@pytest.mark.parametrize("name", [n for n in MODULES if within(n, "deir.algorithm.rewards")])
def test_rewards_know_nothing_of_ppo_and_training(name):
    training = {f"deir.algorithm.{part}" for part in ("ppo", "policy", "rollout", "trainer", "reward_model")}
    assert not ours(EVER[name]) & training


def test_there_are_no_cycles():
    edges = {name: ours(names) - {name} for name, names in AT_ONCE.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"cycle: {' -> '.join((*trail[trail.index(name) :], name))}"
        if name not in done:
            for other in sorted(edges[name]):
                visit(other, (*trail, name))
            done.add(name)

    for name in edges:
        visit(name, ())


def test_packages_have_no_cycles_either():
    """Also through imports inside functions."""
    edges: dict[str, set[str]] = defaultdict(set)
    for name, names in EVER.items():
        for other in ours(names) - PROGRAMS.get(name, set()):
            here, there = (".".join(n.split(".")[:2]) for n in (name, other))
            if here != there and name != "deir":
                edges[here].add(there)
    for here, theirs in list(edges.items()):
        for there in theirs:
            assert here not in edges.get(there, set()), f"{here} and {there} import each other"


def heavy_in(names: set[str]) -> set[str]:
    return {library for library in HEAVY for name in names if within(name, library)}


@pytest.mark.parametrize("name", MODULES)
def test_heavy_libraries_stay_where_they_are_needed(name):
    for library in heavy_in(EVER[name]):
        assert any(within(name, place) for place in HEAVY[library]), f"{name} imports {library}"


def is_command(name: str) -> bool:
    return (
        name in COMMANDS or name.endswith((".command", ".grid", ".study", ".jobs")) or MODULES[name].stem == "__init__"
    )


@pytest.mark.parametrize("name", MODULES)
def test_no_module_loads_a_heavy_library_by_being_imported(name):
    """Neither itself nor through what it imports at once, but for the parts of a command that are about the library."""
    reached, waiting = set(), [name]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += ours(AT_ONCE[module])
    for library in heavy_in(set().union(*(AT_ONCE[module] for module in reached))):
        about = any(within(name, place) for place in HEAVY[library]) and not is_command(name)
        assert about or name in ALIASES, f"{name} loads {library}"


@pytest.mark.parametrize("name", [n for n in MODULES if within(n, "deir.envs")])
def test_environments_need_no_torch(name):
    assert not {other for other in EVER[name] if within(other, "torch")}


def test_the_layout_worker_and_the_bare_package_do_not_load_torch():
    code = "import sys, deir, deir.envs, deir.envs.minigrid.layout_worker; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_root_holds_few_modules():
    assert len(list(ROOT.glob("*.py"))) <= ROOT_MODULES


@pytest.mark.parametrize("name", MODULES)
def test_files_and_functions_are_short(name):
    assert len(MODULES[name].read_text().splitlines()) <= LONGEST_FILE
    for node in ast.walk(TREES[name]):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno - node.lineno + 1 <= LONGEST_FUNCTION, f"{node.name} is too long"
