"""A user's own reward: by registration, or as package.module:Class."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import deir
from deir.algorithm.rewards import METHODS, reward_class
from deir.algorithm.rewards.base import IntrinsicReward
from deir.algorithm.rewards.none import NoReward
from deir.errors import UserError
from deir.runs import run
from deir.runs.listing import print_methods
from deir.runs.training import make_trainer
from small import small

PAGE = (Path(__file__).parent.parent / "docs" / "extending.md").read_text()
BLOCKS = dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```$", PAGE, re.M | re.S))
SURPRISE = BLOCKS["src/deir/algorithm/rewards/surprise.py"]


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text(SURPRISE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_rewards"
    sys.modules.pop("my_rewards", None)


@pytest.fixture
def registry():
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


class Local(NoReward):
    """Pays nothing, from a test."""


def test_a_class_by_its_module_trains_resumes_and_loads(own_module, tmp_path):
    config = run.configure(small(method=f"{own_module}:Surprise", steps=128))
    path, row = run.start(config, tmp_path / "run")
    assert row["intrinsic_reward_mean"] > 0
    sys.modules.pop(own_module)
    _, row = run.resume(path, {"steps": 256}, trust=[config.method])
    assert row["frames"] == 256 and "surprise_error" in row
    agent = deir.load(path, trust=True)
    with pytest.raises(UserError, match="learns no embeddings"):
        agent.embed(np.zeros((2, 1, 7, 7, 3), np.uint8))
    assert run.default_directory(config).parts[2] == f"{own_module}-Surprise"


def test_it_learns_beside_the_policy(own_module, registry):
    deir.register_reward("mine", reward_class(f"{own_module}:Surprise"))
    trainer = make_trainer(run.configure(small(method="mine", steps=128, threads=2)))
    try:
        assert trainer.overlap.overlaps
        assert trainer.iterate()["surprise_error"] > 0
    finally:
        trainer.close()


def test_a_registered_class_is_a_method_like_any_other(registry, capsys):
    deir.register_reward("local", Local)
    print_methods()
    assert "Pays nothing, from a test." in capsys.readouterr().out
    assert deir.make_reward("local", *_spaces()).method == "local"

    class Inner(NoReward):
        """Known to this function only."""

    deir.register_reward("inner", Inner)
    trainer = make_trainer(run.configure(small(method="inner", steps=128, threads=2)))
    try:
        assert isinstance(trainer.model.reward, Inner)
    finally:
        trainer.close()
    deir.register_reward("inner", Local)  # again, as in a notebook
    assert reward_class("inner") is Local


def _spaces():
    from gymnasium import spaces

    return spaces.Box(-1, 1, (3,)), spaces.Discrete(2)


def test_mistakes_are_told(own_module, registry):
    for method, message in {
        "no_such_module:Thing": "method: module 'no_such_module' of 'no_such_module:Thing' cannot be imported",
        f"{own_module}:Suprise": "Did you mean 'Surprise'?",
        f"{own_module}:nn": "unknown name 'nn'",
        ":Thing": "method: module '' of ':Thing' cannot be imported",
        "dier": "Did you mean 'deir'? (expected one of: count, deir,",
    }.items():
        with pytest.raises(UserError) as caught:
            run.validate(run.configure({"method": method}))
        assert message in str(caught.value)
    with pytest.raises(UserError, match="a name that no method of the package has"):
        deir.register_reward("deir", Local)
    with pytest.raises(UserError, match="without a colon"):
        deir.register_reward("a:b", Local)
    with pytest.raises(UserError, match="derived from"):
        deir.register_reward("mine", dict)
    assert issubclass(Local, IntrinsicReward)
