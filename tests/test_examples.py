"""What the examples, docs/extending.md and docs/integrations.md show really runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import deir
from builders import ACTIONS, SPACE, random_episodes
from deir.algorithm.rewards import METHODS, Method, make_reward
from deir.algorithm.rewards.base import Context
from deir.fast.ops import FastOps
from deir.runs.run import configure
from small import small

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BLOCKS = re.findall(r"^```python\n# (\S+)\n(.*?)^```$", (ROOT / "docs" / "extending.md").read_text(), re.M | re.S)
CODE = {Path(path).stem: text for path, text in BLOCKS}
SAID = {
    "quickstart": "return_mean",
    "cleanrl_style": "novelty",
    "custom_env": "mean return",
    "custom_reward": "observations seen",
    "embeddings": "trajectory embeddings (256, 16, 64)",
    "sb3": "deir/",
}
REWARDS = {"surprise": "Surprise", "novelty": "Novelty"}


@pytest.fixture
def documented(tmp_path, monkeypatch):
    """The modules of docs/extending.md, importable; the rewards registered."""
    for name, text in CODE.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name, cls in REWARDS.items():
        monkeypatch.setitem(METHODS, name, Method(name, cls, "from the documentation"))
    yield
    for name in CODE:
        sys.modules.pop(name, None)


def test_the_page_has_the_code_these_tests_are_about():
    assert set(CODE) == {*REWARDS, "corridor"}
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example_runs_and_is_short(path, tmp_path):
    assert len(path.read_text().splitlines()) < 60
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(path), "2048"], cwd=tmp_path, capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert SAID[path.stem] in done.stdout


def test_the_guides_first_loop_runs_as_it_stands(capsys):
    block = re.search(r"^```python\n(.*?)^```$", (ROOT / "docs" / "integrations.md").read_text(), re.M | re.S)
    exec(block[1], {})
    said = capsys.readouterr().out
    assert said.count("(128, 8)") == 5 and "discriminator_accuracy" in said


@pytest.mark.parametrize("name", REWARDS)
def test_documented_reward_trains(documented, name, tmp_path):
    final = deir.train(method=name, steps=256, out=tmp_path / "run", **small()).final
    assert final["frames"] == 256
    assert final["intrinsic_reward_mean"] > 0
    assert ("surprise_error" in final) == (name == "surprise")


@pytest.mark.parametrize("late_resets", [False, True])
def test_documented_novelty_is_that_of_a_plain_loop(documented, late_resets):
    config = configure({"method": "novelty"})
    reward = make_reward(Context(SPACE, ACTIONS, config, FastOps()))
    rollouts = random_episodes(12, 3, 0.15, seed=0, kinds=8, late_resets=late_resets)
    state, seen = reward.initial_state(3), [[], [], []]
    for _ in range(4):
        rollout = next(rollouts)
        found, state = reward.compute(rollout, state)
        with torch.no_grad():
            features = reward.features(rollout.table.distinct).double()
        for t in range(12):
            for n in range(3):
                if rollout.starts[t, n]:
                    seen[n] = []
                seen[n].append(features[rollout.ids[t, n]])
                distances = [(row - features[rollout.next_ids[t, n]]).square().sum() for row in seen[n]]
                expected = min(distances) * rollout.valid[t, n]
                torch.testing.assert_close(found[t, n].double(), expected, rtol=1e-4, atol=1e-4)


def test_documented_environment_trains(documented, tmp_path):
    final = deir.train(steps=256, out=tmp_path / "run", **small(env={"id": "corridor:Corridor"})).final
    assert final["frames"] == 256
    assert final["episode_length_mean"] <= 60
