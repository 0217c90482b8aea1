"""Policies that come with the package."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import deir
from deir.config import flatten, to_dict
from deir.errors import UserError
from deir.experiments.zoo import Add, add, command_of
from deir.runs import zoo
from deir.runs.evaluate import evaluate
from deir.runs.run import configure
from small import small


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo")
    result = deir.train(steps=256, out=folder / "run", **small())
    add(Add(result.path, "small", episodes=8, home=folder))
    return folder


def test_a_policy_out_of_a_run_acts_as_the_run_does(home, monkeypatch):
    monkeypatch.setattr(zoo, "names", lambda home_=None: ["small"])
    monkeypatch.setattr(zoo, "_path", lambda name, _: home / f"{name}.safetensors")
    ours, theirs = deir.load("zoo:small"), deir.load(home / "run")
    for name, value in theirs.policy.state_dict().items():
        assert torch.equal(value, ours.policy.state_dict()[name])
    observations = np.random.default_rng(0).integers(0, 3, (5, 7, 7, 3)).astype(np.uint8)
    assert np.array_equal(ours.act(observations, greedy=True)[0], theirs.act(observations, greedy=True)[0])


def test_what_is_stored_is_what_evaluate_says(home):
    found = zoo.read("zoo:small", home)
    agent = deir.load(home / "run")
    for kind, greedy in (("sampled", False), ("greedy", True)):
        assert found.figures[kind] == pytest.approx(evaluate(agent, 8, greedy, 1000).figures())
    assert found.frames == 256


def test_the_command_names_all_that_differs_from_the_preset(home):
    found = zoo.read("small", home)
    words = command_of(found.config).split()
    assert words[:2] == ["deir", "train"]
    preset = configure({"env": {"id": found.config.env.id}, "method": found.config.method, "preset": "minigrid"})
    own, default = flatten(to_dict(found.config)), flatten(to_dict(preset))
    changed = {name for name in own if own[name] != default[name]} - {"threads", "loggers"}
    assert {"ppo.epochs", "env.layout_worker", "steps"} <= changed
    for name in changed:
        value, flag = own[name], "--" + name.replace("_", "-")
        assert (flag.replace("layout", "no-layout") if value is False else f"{flag} {value}") in " ".join(words)


def test_an_unknown_name_names_the_nearest(home):
    with pytest.raises(UserError, match="small"):
        zoo.read("zoo:smal", home)


def test_a_damaged_file_is_one_clear_error(home, tmp_path):
    data = bytearray((home / "small.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "small.safetensors").write_bytes(data)
    with pytest.raises(UserError, match="checksum"):
        zoo.read("small", tmp_path)


@pytest.mark.parametrize("name", zoo.names())
def test_every_specimen_is_small_and_loads(name):
    assert (zoo.HOME / f"{name}.safetensors").stat().st_size <= 2**20
    found = zoo.read(name)
    assert found.figures["sampled"]["episodes"] == 1000
    agent = deir.load(f"zoo:{name}")
    observations = np.zeros((2, *agent.policy.observation_space.shape), agent.policy.observation_space.dtype)
    assert agent.act(observations)[0].shape == (2,)


def test_the_list_and_evaluate_know_them():
    listed = subprocess.run([sys.executable, "-m", "deir", "list", "zoo"], capture_output=True, text=True, check=True)
    for name in zoo.names():
        assert name in listed.stdout
