"""What the examples, docs/extending.md and docs/integrations.md show really runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import deir
from builders import ACTIONS, SPACE, random_episodes
from deir.algorithm.rewards import METHODS, make_reward
from deir.algorithm.rewards.base import Context
from deir.config import EnvConfig, merge
from deir.envs import make_envs
from deir.fast.ops import FastOps
from deir.registry import Entry
from deir.runs import run
from deir.runs.progress import read_rows
from deir.runs.run import configure
from small import small
from test_gymnasium import assert_same, transitions

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
        monkeypatch.setitem(METHODS, name, Entry(name, cls, "from the documentation"))
    yield
    for name in CODE:
        sys.modules.pop(name, None)


def test_the_page_has_the_code_these_tests_are_about():
    assert set(CODE) == {*REWARDS, "corridor", "best", "cells", "chain"}
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example_runs_and_is_short(path, tmp_path):
    assert len(path.read_text().splitlines()) < 60
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(path), "2k"], cwd=tmp_path, capture_output=True, text=True, timeout=300, env=environment
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


def test_documented_logger_keeps_the_best_return(documented, tmp_path):
    options = small(env={"id": "corridor:Corridor"}, ppo={"rollout_steps": 64}, loggers="csv,best:Best")
    path = deir.train(steps=1024, out=tmp_path / "run", **options).path
    returns = [float(row["return_mean"]) for row in read_rows(path / "progress.csv") if row["return_mean"]]
    assert float((path / "best.txt").read_text()) == pytest.approx(max(returns), abs=1e-5)


def test_documented_environment_trains(documented, tmp_path):
    final = deir.train(steps=256, out=tmp_path / "run", **small(env={"id": "corridor:Corridor"})).final
    assert final["frames"] == 256
    assert final["episode_length_mean"] <= 60


@pytest.mark.parametrize("ops", ["plain", "fast"])
def test_documented_encoder_trains(documented, ops, tmp_path):
    chosen = {"encoder": "cells:Cells"}
    final = deir.train(steps=256, out=tmp_path / "run", **small(network=chosen, reward=chosen, ops=ops)).final
    assert final["frames"] == 256 and final["intrinsic_reward_mean"] > 0
    agent = deir.load(tmp_path / "run", trust=True)
    assert type(agent.policy.encoder).__name__ == type(agent.reward.model.reward.encoder).__name__ == "Cells"


def test_documented_backend_keeps_the_contract(documented):
    def played(seed, generation):
        config = EnvConfig("chain:Chain", n_envs=3)
        return transitions(make_envs(config, seed, generation), 150)

    found = played(0, 0)
    assert_same(found, played(0, 0))
    firsts = [[np.argmax(rows[0][0]) for rows in played(*names)] for names in ((0, 0), (1, 0), (0, 1))]
    assert firsts[0] != firsts[1] and firsts[0] != firsts[2]
    ends = [(row[3], row[4]) for rows in found for row in rows if row[3] or row[4]]
    assert (True, False) in ends and (False, True) in ends
    for rows in found:
        for now, then in zip(rows, rows[1:], strict=False):  # one cell at a time, and the true last one at an end
            place, after = np.argmax(now[0]), np.argmax(now[5])
            assert after == max(0, place + (1 if now[1] else -1)) and now[2] == (after == 11) == now[3]
            assert np.array_equal(now[5], then[0]) or now[3] or now[4]


def test_documented_backend_trains_and_resumes_to_the_bit(documented, tmp_path):
    config = configure(small(env={"id": "chain:Chain"}, ppo={"rollout_steps": 32}, steps=512))
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    _, final = run.start(config, whole)
    run.start(merge(config, {"steps": 256}), halves)
    _, resumed = run.resume(halves, {"steps": 512}, trust=True)
    for name in final:
        assert name.startswith(("seconds", "fps")) or float(final[name] or 0) == float(resumed[name] or 0), name
