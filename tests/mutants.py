"""Mutation testing: small faults put into the algorithm one at a time, each of which a test must notice.

    make mutants                                 every module of the table below
    python tests/mutants.py functional ppo       some of them
    python tests/mutants.py functional --show    what survived, without running anything

Cosmic Ray makes the faults. The tests of each run in a process of its own, forked once PyTorch is loaded, in a copy of
the tree. Results stand in .mutants/: a run that is broken off goes on where it was, and a module that has changed since
begins again. docs/mutants.md says why the survivors may live.
"""

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / ".mutants"
TREE = OUT / "tree"

ITERATE, COLLECT, REWARDS = "tests/test_iterate.py", "tests/test_collect.py", "tests/test_rewards.py"
TESTS: dict[str, list[str]] = {
    "functional": ["tests/test_functional.py"],
    "episodic": ["tests/test_episodic.py", "tests/test_exploration.py"],
    "memory": ["tests/test_memory.py", "tests/test_exploration.py"],
    "visits": ["tests/test_exploration.py", REWARDS, "-k", "test_exploration or count"],
    "types": [COLLECT, "-k", "vectors"],
    "metrics": ["tests/test_exploration.py", "tests/test_run.py", "-k", "test_exploration or the_same_seed or resumed"],
    "maps": ["tests/test_maps.py"],
    "layers": ["tests/test_networks.py", "tests/test_kernels.py"],
    "networks": ["tests/test_networks.py", "tests/test_kernels.py"],
    "recurrent": ["tests/test_networks.py", "tests/test_kernels.py"],
    "policy": ["tests/test_actions.py", "tests/test_ppo.py", COLLECT, "-k", "fresh or test_ppo or real or kind"],
    "actions": ["tests/test_actions.py", "tests/test_ppo.py", "-k", "not runs_repeat and not minigrid"],
    "rollout": [COLLECT],
    "ppo": ["tests/test_ppo.py", ITERATE, "-k", "test_ppo or none or time_limit"],
    "flat_adam": ["tests/test_optim.py"],
    "reward_model": ["tests/test_plug.py", ITERATE, "tests/test_run.py", "-k", "beta or saved or plainly or beside"],
    "trainer": [ITERATE, "tests/test_run.py", "-k", "plainly or resumed or beside or diverge"],
    "rewards/base": [REWARDS, ITERATE, "-k", "test_rewards or rnd"],
    "rewards/shared": [REWARDS],
    "rewards/deir": ["tests/test_deir.py", REWARDS, "-k", "test_deir or deir"],
    "rewards/deir_rnd": [REWARDS, ITERATE, "-k", "deir+rnd or random_distillation"],
    "rewards/ablations": [REWARDS, ITERATE, "-k", "no-mi or inverse or forward"],
    "rewards/icm": [REWARDS, ITERATE, "-k", "icm or inverse"],
    "rewards/ngu": [REWARDS, ITERATE, "-k", "ngu or random_distillation"],
    "rewards/noveld": [REWARDS, ITERATE, "-k", "noveld or refuse"],
    "rewards/rnd": [REWARDS, ITERATE, "-k", "rnd or normalisation"],
    "rewards/count": [REWARDS, "-k", "count or refuse"],
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
    """Wherever in the package the module lives."""
    (path,) = (root / "src" / "deir").rglob(f"{name}.py")
    return path


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


def load_libraries() -> None:
    """What every test needs and no mutant changes."""
    import gymnasium  # noqa: F401
    import minigrid  # noqa: F401
    import numba  # noqa: F401
    import pytest  # noqa: F401
    import torch

    torch.set_num_threads(1)


def fresh_tree() -> None:
    shutil.rmtree(TREE, ignore_errors=True)
    for folder in ("src", "tests", "docs"):
        shutil.copytree(ROOT / folder, TREE / folder, ignore=shutil.ignore_patterns("*.pyc", "*.egg-info"))


def passes(arguments: list[str], seconds: float) -> bool:
    """Whether the tests pass in the copied tree; those that take too long do not."""
    child = os.fork()
    if child == 0:
        _test(arguments)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _test(arguments: list[str]) -> None:
    """In the child: never returns."""
    code = 3
    try:
        os.setsid()
        os.chdir(TREE)
        log = os.open(OUT / "last.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1), os.dup2(log, 2)
        sys.dont_write_bytecode = True
        sys.path[:0] = [str(TREE / "src"), str(TREE / "tests")]
        import pytest

        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--rootdir", str(TREE), *arguments])
    finally:
        os._exit(int(code))


class Results:
    """One JSON line a mutant, below the hash of the module they are of."""

    def __init__(self, name: str, source: str) -> None:
        self.path = OUT / f"{name.replace('/', '.')}.jsonl"
        self.survived: dict[str, bool] = {}
        digest = hashlib.sha256(source.encode()).hexdigest()
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        if lines and json.loads(lines[0]) == digest:
            rows = map(json.loads, lines[1:])
            self.survived = {row["mutant"]: row["survived"] for row in rows}
        else:
            self.path.write_text(json.dumps(digest) + "\n")

    def add(self, mutant: Mutant, survived: bool) -> None:
        self.survived[mutant.key] = survived
        with self.path.open("a") as file:
            file.write(json.dumps({"mutant": mutant.key, "survived": survived}) + "\n")


def run(name: str, show: bool) -> tuple[int, int]:
    """Tests every mutant of a module that has no result yet. Gives the numbers of killed and of all tested."""
    source = module_path(name).read_text()
    results, found = Results(name, source), list(mutants(source))
    waiting = [mutant for mutant in found if mutant.key not in results.survived and not show]
    if waiting:
        begin, target = time.monotonic(), module_path(name, TREE)
        if not passes(TESTS[name], 3600):
            sys.exit(f"{name}: its tests fail without any fault, see {OUT / 'last.log'}")
        limit = 60 + 10 * (time.monotonic() - begin)
        for count, mutant in enumerate(waiting, 1):
            target.write_text(mutated(source, mutant))
            results.add(mutant, passes(TESTS[name], limit))
            target.write_text(source)
            print(f"\r{name}: {count} of {len(waiting)}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
    lived = [mutant for mutant in found if results.survived.get(mutant.key)]
    tested = sum(mutant.key in results.survived for mutant in found)
    print(f"{name:20} {tested - len(lived):4} killed {len(lived):4} survived {len(found) - tested:4} not tested")
    for mutant in sorted(lived, key=lambda m: m.line):
        before, after = (text.split("\n")[mutant.line - 1].strip() for text in (source, mutated(source, mutant)))
        print(f"    {mutant.line:4}  {before}\n       →  {after}")
    return tested - len(lived), tested


def main() -> None:
    parser = argparse.ArgumentParser(description="Puts small faults into the algorithm and tells which no test sees.")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(TESTS)}; all if none is given")
    parser.add_argument("--show", action="store_true", help="show the results so far, and test nothing")
    options = parser.parse_args()
    unknown = [name for name in options.modules if name not in TESTS]
    if unknown:
        parser.error(f"unknown module {unknown[0]!r}, expected one of {', '.join(TESTS)}")
    OUT.mkdir(exist_ok=True)
    if not options.show:
        load_libraries()
        fresh_tree()
    counts = [run(name, options.show) for name in options.modules or TESTS]
    killed, tested = map(sum, zip(*counts, strict=True))
    print(f"{'all':20} {killed:4} killed of {tested}: {killed / max(1, tested):.0%}")


if __name__ == "__main__":
    main()
