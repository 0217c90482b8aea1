"""The rooms of the house: lower ones never import higher ones."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "deir"
TRAINING = {f"deir.algorithm.{name}" for name in ("policy", "rollout", "trainer")}
ABOVE = {"deir.envs.gymnasium", "deir.envs.minigrid", "deir.runs.run", "deir.cli", *TRAINING}


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def modules(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


@pytest.mark.parametrize(
    "path",
    modules("algorithm/functional.py", "algorithm/memory.py", "fast/loops.py", "seeding.py", "errors.py"),
    ids=lambda p: p.stem,
)
def test_the_ground_floor_imports_nothing_of_ours(path):
    assert not {name for name in imports_of(path) if name.split(".")[0] == "deir"}


@pytest.mark.parametrize("path", modules("algorithm/rewards/*.py"), ids=lambda p: p.stem)
def test_rewards_know_nothing_of_ppo_envs_or_training(path):
    forbidden = {*ABOVE, "deir.algorithm.ppo"}
    assert not {name for name in imports_of(path) if any(name == f or name.startswith(f"{f}.") for f in forbidden)}


@pytest.mark.parametrize("path", [p for p in modules("**/*.py") if "experiments" not in p.parts], ids=lambda p: p.stem)
def test_heavy_tools_live_above(path):
    heavy = {"ray", "optuna", "plotly", "scipy", "matplotlib", "stable_baselines3", "sb3_contrib"}
    if "plugin" in path.parts:
        heavy -= {"stable_baselines3"}
    assert not {name for name in imports_of(path) if name.split(".")[0] in heavy}


@pytest.mark.parametrize(
    "path", modules("plugin/reward.py", "plugin/arrays.py", "algorithm/reward_model.py"), ids=lambda p: p.stem
)
def test_a_reward_for_any_loop_needs_nothing_of_ours_but_itself(path):
    forbidden = ABOVE
    assert not {name for name in imports_of(path) if any(name == f or name.startswith(f"{f}.") for f in forbidden)}


@pytest.mark.parametrize("path", modules("envs/**/*.py"), ids=lambda p: p.stem)
def test_environments_need_no_torch(path):
    assert not {name for name in imports_of(path) if name.split(".")[0] == "torch"}


def test_the_layout_worker_and_the_bare_package_do_not_load_torch():
    code = "import sys, deir, deir.envs, deir.envs.minigrid.layouts; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
