"""Mutation testing: small faults put into the algorithm one at a time, each of which a test must notice.

    make mutants                                 every module of the table below
    python tests/mutants.py functional ppo       some of them
    python tests/mutants.py ppo --again          what survived once more, after a test was added
    python tests/mutants.py --show               the results so far, without running anything

Cosmic Ray makes the faults. The tests of each run in a copy of the tree and in a process of its own, forked from one
that has run them without a fault: what does not depend on the module is loaded and compiled by then. Results stand in
.mutants/: a run that is broken off goes on where it was, and a module that has changed since begins again.
docs/mutants.md says why the survivors may live.
"""

import argparse
import ast
import gc
import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / ".mutants"
TREE = OUT / "tree"

ITERATE, COLLECT, REWARDS = "tests/test_iterate.py", "tests/test_collect.py", "tests/test_rewards.py"
EXPLAIN, OPS, RUN = "tests/test_explanation.py", "tests/test_ops.py", "tests/test_run.py"
TESTS: dict[str, list[str]] = {
    "functional": ["tests/test_functional.py"],
    "episodic": ["tests/test_episodic.py", "tests/test_exploration.py"],
    "quasimetric": [OPS, REWARDS, "-k", "temporal or etd and not two_iterations and not falls"],
    "memory": ["tests/test_memory.py", "tests/test_exploration.py"],
    "visits": ["tests/test_exploration.py", REWARDS, "-k", "test_exploration or count"],
    "types": ["tests/test_types.py"],
    "metrics": ["tests/test_metrics.py", "tests/test_exploration.py"],
    "maps": ["tests/test_maps.py", "-k", "not resumed"],
    "layers": ["tests/test_networks.py", "-k", "map_norm or normalisation or shapes or written_out or every_shape"],
    "networks": [
        "tests/test_networks.py",
        "tests/test_vector_encoder.py",
        "tests/test_registries.py",
        "-k",
        "test_networks and not many_kinds and not frozen and not distinct and not rows or test_vector_encoder"
        " or of_several_parts or with_encoders or will_see or is_checked",
    ],
    "ops": [OPS, "-k", "each or single or who or plain_table or numbers-deir or vectors-ngu or views-etd"],
    "optimizer": ["tests/test_optim.py", "-k", "not compiler"],
    "overlap": [RUN, "-k", "run[deir] or diverges or bit[plain] or beside_a_model"],
    "policy": [
        "tests/test_ppo.py",
        "tests/test_actions.py",
        COLLECT,
        "-k",
        "fresh or free or test_ppo or real or any_kind",
    ],
    "actions": ["tests/test_actions.py", "tests/test_ppo.py", "-k", "not runs_repeat and not minigrid"],
    "rollout": [COLLECT, "-k", "each or every or alone or kind"],
    "ppo": ["tests/test_ppo.py", ITERATE, "-k", "test_ppo or none or time_limit or each_batch"],
    "flat_adam": ["tests/test_optim.py", "-k", "not compiler"],
    "reward_model": [
        "tests/test_plug.py",
        ITERATE,
        RUN,
        "-k",
        "beta or exactly[deir] or exactly[ngu] or stands_in or update_needs or divergence_it or plainly[rnd]"
        " or plainly[deir] or run[deir] or named or genuine_steps or without_a_model",
    ],
    "trainer": [
        ITERATE,
        "tests/test_maps.py",
        RUN,
        "-k",
        "plainly[deir] or plainly[none] or plainly[count] or plainly[False] or test_maps or bit[plain] or run[deir]"
        " or unless_there or hooks or diverge or cannot_be_saved",
    ],
    "rewards/base": [
        REWARDS,
        EXPLAIN,
        "-k",
        "refuse or hold and ngu or goes_on or requires and deir or figures and e3b",
    ],
    "rewards/shared": [
        EXPLAIN,
        REWARDS,
        "-k",
        "figures and (icm or rnd or ngu) or refuse or requires or losses or distillation or policys or normalisation"
        " or wide or goes_on and ngu or loop and 0.2 and (icm or ngu)",
    ],
    "rewards/deir": ["tests/test_deir.py", EXPLAIN, REWARDS, "-k", "test_deir or deir"],
    "rewards/deir_rnd": [EXPLAIN, REWARDS, "-k", "deir+rnd or with_random_distillation"],
    "rewards/ablations": [EXPLAIN, REWARDS, "-k", "no-mi or inverse or forward or ablations"],
    "rewards/icm": [EXPLAIN, REWARDS, "-k", "(icm or inverse) and not falls"],
    "rewards/ngu": [EXPLAIN, REWARDS, "-k", "ngu and not falls or with_random_distillation"],
    "rewards/noveld": [EXPLAIN, REWARDS, "-k", "noveld or refuse"],
    "rewards/rnd": [EXPLAIN, REWARDS, "-k", "(rnd or normalis) and not falls"],
    "rewards/etd": [EXPLAIN, REWARDS, "-k", "(etd or contrastive) and not falls"],
    "rewards/e3b": [EXPLAIN, REWARDS, "-k", "e3b and not falls"],
    "rewards/ride": [EXPLAIN, REWARDS, "-k", "ride and not falls or losses_of"],
    "rewards/re3": [EXPLAIN, REWARDS, "-k", "re3 and not falls"],
    "rewards/disagreement": [EXPLAIN, REWARDS, "-k", "(disagreement or ensemble) and not falls"],
    "rewards/pseudo_counts": [EXPLAIN, REWARDS, "-k", "pseudo-counts and not falls"],
    "rewards/deir_visits": [EXPLAIN, REWARDS, "-k", "deir+visits or first_visit"],
    "rewards/count": [EXPLAIN, REWARDS, "-k", "count or refuse"],
    "rewards/none": [REWARDS, ITERATE, "-k", "none"],
}
"""The tests that belong to each module, as pytest takes them; the quickest first."""

FAULTS = re.compile(
    r"core/(NumberReplacer|AddNot|ReplaceTrueWithFalse|ReplaceFalseWithTrue|ReplaceAndWithOr|ReplaceOrWithAnd"
    r"|ReplaceBreakWithContinue|ReplaceContinueWithBreak|RemoveDecorator|ZeroIterationForLoop"
    r"|ReplaceUnaryOperator_Delete_(USub|Invert|Not)"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Div_Mul|FloorDiv_Div|Mod_FloorDiv|Pow_Mul|BitAnd_BitOr|BitOr_BitAnd)"
    r"|ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Lt_LtE|Lt_GtE|LtE_Lt|LtE_Gt|Gt_GtE|Gt_LtE|GtE_Gt|GtE_Lt"
    r"|Is_IsNot|IsNot_Is|In_NotIn|NotIn_In))"
)
"""Of Cosmic Ray's operators those that change what is computed, without five more of each that any test would see."""
Position = tuple[int, int]  # line and column


class Mutant(NamedTuple):
    operator: str
    occurrence: int
    line: int

    @property
    def key(self) -> str:
        return f"{self.operator}#{self.occurrence}"


def module_path(name: str, root: Path = ROOT) -> Path:
    """In algorithm/, or else in fast/: some names stand in both."""
    paths = [root / "src" / "deir" / folder / f"{name}.py" for folder in ("algorithm", "fast")]
    return next(path for path in paths if path.exists())


def without_meaning(source: str) -> list[tuple[Position, Position]]:
    """Parts that compute nothing: annotations, the guards of `zip(…, strict=True)`, and how a dataclass is made."""
    lines = source.split("\n")

    def place(line: int, offset: int) -> Position:  # ast counts bytes
        return line, len(lines[line - 1].encode()[:offset].decode())

    found: list[ast.AST | None] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found += [d for d in node.decorator_list if "dataclass" in ast.unparse(d)]
        if isinstance(node, ast.FunctionDef):
            found.append(node.returns)
        if isinstance(node, (ast.arg, ast.AnnAssign)):
            found.append(node.annotation)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            found.append(node.value if ast.unparse(node.value.value) in ("dict", "Literal", "tuple") else None)
        if isinstance(node, ast.keyword) and node.arg == "strict":
            found.append(node.value)
    return [
        (place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)) for node in found if node
    ]


def mutants(source: str) -> Iterator[Mutant]:
    tree, skipped = get_ast(source), without_meaning(source)
    for name in operator_names():
        if not FAULTS.fullmatch(name):
            continue
        operator = get_operator(name)()
        places = (at for node in ast_nodes(tree) for at, _ in operator.mutation_positions(node))
        for occurrence, at in enumerate(places):
            if not any(begin <= at < end for begin, end in skipped):
                yield Mutant(name, occurrence, at[0])


def mutated(source: str, mutant: Mutant) -> str:
    return mutate_code(source, get_operator(mutant.operator)(), mutant.occurrence)


def fresh_tree() -> None:
    shutil.rmtree(TREE, ignore_errors=True)
    for folder in ("src", "tests", "docs"):
        shutil.copytree(ROOT / folder, TREE / folder, ignore=shutil.ignore_patterns("*.pyc", "*.egg-info"))


def dependents(module: str) -> set[str]:
    """The loaded modules of the package that import `module`, directly or not, and itself."""
    imported = {}
    for name, loaded in list(sys.modules.items()):
        if name.split(".")[0] == "deir" and getattr(loaded, "__file__", None):
            imported[name] = set(_imports(ast.parse(Path(loaded.__file__).read_text())))
    found = {module}
    while more := {name for name, names in imported.items() if names & found} - found:
        found |= more
    return found


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def forget(stale: set[str]) -> None:
    """Lets these modules and the tests be imported anew."""
    tests, packages = str(TREE / "tests"), []
    for name, loaded in sorted(sys.modules.items()):
        if name in stale or (getattr(loaded, "__file__", None) or "").startswith(tests):
            del sys.modules[name]
            packages += [name] if hasattr(loaded, "__path__") else []
    for package in packages:  # a new one does not know those of its modules that stay
        fresh = importlib.import_module(package)
        for name, loaded in list(sys.modules.items()):
            if name.rpartition(".")[0] == package:
                setattr(fresh, name.rpartition(".")[2], loaded)


def test(arguments: list[str]) -> bool:
    """Whether the tests pass, in this process."""
    import pytest

    quick = ["-p", "no:cacheprovider", "--assert=plain", "--tb=line"]
    with (OUT / "last.log").open("w") as log, redirect_stdout(log), redirect_stderr(log):
        return pytest.main(["-x", "-q", "--rootdir", str(TREE), *quick, *arguments]) == 0


def outcome(stale: set[str], arguments: list[str], seconds: float) -> str:
    """survived, killed, or timeout; `stale`: the modules a fault can reach."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            gc.disable()  # it would walk through all that the parent has loaded, and the process is short
            forget(stale)
            code = 0 if test(arguments) else 1
        finally:
            os._exit(code)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "survived" if status == 0 else "killed"
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


class Results:
    """One JSON line a mutant, below the hash of the module they are of."""

    def __init__(self, name: str, source: str) -> None:
        self.path = OUT / f"{name.replace('/', '.')}.jsonl"
        self.outcomes: dict[str, str] = {}
        digest = hashlib.sha256(source.encode()).hexdigest()
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        if lines and json.loads(lines[0]) == digest:
            self.outcomes = {row["mutant"]: row["outcome"] for row in map(json.loads, lines[1:])}
        else:
            self.path.write_text(json.dumps(digest) + "\n")

    def add(self, mutant: Mutant, outcome: str) -> None:
        self.outcomes[mutant.key] = outcome
        with self.path.open("a") as file:
            file.write(json.dumps({"mutant": mutant.key, "outcome": outcome}) + "\n")


def run(name: str, again: bool) -> None:
    """Tests every mutant of a module that has no result yet; `again`: the survivors too, since a test was added."""
    path, target = module_path(name), module_path(name, TREE)
    source = path.read_text()
    results = Results(name, source)
    done = [key for key, outcome in results.outcomes.items() if not again or outcome != "survived"]
    waiting = [mutant for mutant in mutants(source) if mutant.key not in done]
    if not waiting:
        return
    module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    begin = time.monotonic()
    if not test(TESTS[name]):
        sys.exit(f"{name}: its tests fail without any fault, see {OUT / 'last.log'}")
    limit, stale = 60 + 10 * (time.monotonic() - begin), dependents(module)
    if outcome(stale, TESTS[name], limit) != "survived":
        sys.exit(f"{name}: its tests fail once its modules are imported anew, see {OUT / 'last.log'}")
    for count, mutant in enumerate(waiting, 1):
        target.write_text(mutated(source, mutant))
        results.add(mutant, outcome(stale, TESTS[name], limit))
        target.write_text(source)
        print(f"\r{name}: {count} of {len(waiting)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def report(name: str) -> tuple[int, int]:
    """Prints what became of a module's mutants. Gives the numbers of killed and of all tested."""
    source = module_path(name).read_text()
    results, found = Results(name, source).outcomes, list(mutants(source))
    lived = [mutant for mutant in found if results.get(mutant.key) == "survived"]
    tested = sum(mutant.key in results for mutant in found)
    late = sum(results.get(mutant.key) == "timeout" for mutant in found)
    print(
        f"{name:18} {tested - len(lived):4} killed ({late} by the clock) {len(lived):4} survived"
        f" {len(found) - tested:4} not tested"
    )
    for mutant in sorted(lived, key=lambda m: m.line):
        before, after = (text.split("\n")[mutant.line - 1].strip() for text in (source, mutated(source, mutant)))
        print(f"    {mutant.line:4}  {before}\n       →  {after}")
    return tested - len(lived), tested


def main() -> None:
    parser = argparse.ArgumentParser(description="Puts small faults into the algorithm and tells which no test sees.")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(TESTS)}; all if none is given")
    parser.add_argument("--again", action="store_true", help="test what survived once more, with the tests of today")
    parser.add_argument("--show", action="store_true", help="show the results so far, and test nothing")
    options = parser.parse_args()
    unknown = [name for name in options.modules if name not in TESTS]
    if unknown:
        parser.error(f"unknown module {unknown[0]!r}, expected one of {', '.join(TESTS)}")
    chosen = options.modules or list(TESTS)
    OUT.mkdir(exist_ok=True)
    if not options.show:
        fresh_tree()
        os.chdir(TREE)
        os.environ["OMP_NUM_THREADS"] = "1"  # a process with threads of its own cannot be forked
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        sys.dont_write_bytecode = True
        sys.path[:0] = [str(TREE / "src"), str(TREE / "tests")]
        for name in chosen:
            run(name, options.again)
    killed, tested = (sum(counts) for counts in zip(*map(report, chosen), strict=True))
    print(f"{'all':18} {killed:4} killed of {tested}: {killed / max(1, tested):.0%}")


if __name__ == "__main__":
    main()
