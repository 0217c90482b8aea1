"""Configuration: every path in and out, and errors that name the field and the nearest valid choice."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from deir.config import Config, load_yaml, merge, parse_count, to_dict
from deir.errors import UserError
from deir.runs.presets import SUITES, resolve, suite_of
from deir.runs.ranges import check
from deir.runs.run import configure


@pytest.mark.parametrize(
    ("text", "value"),
    [("200k", 200_000), ("2M", 2_000_000), ("1.5m", 1_500_000), ("1e6", 10**6), ("1_000", 1000), ("7", 7)],
)
def test_counts(text, value):
    assert parse_count(text) == value


@pytest.mark.parametrize("text", ["-5", "0", "abc", "1.5", "k", "", "nan"])
def test_bad_counts(text):
    with pytest.raises(UserError, match="steps"):
        parse_count(text)


def test_yaml_round_trip(tmp_path):
    config = configure({"env": {"id": "procgen:ninja", "noise": 0.0}, "steps": "2M", "ppo": {"learning_rate": "3e-5"}})
    assert config.steps == 2_000_000
    assert config.ppo.learning_rate == 3e-5
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(to_dict(config)))
    assert merge(Config(), load_yaml(tmp_path / "c.yaml")) == config


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"ppo": {"gama": 0.9}}, "ppo.gama.*Did you mean 'gamma'"),
        ({"metod": "deir"}, "Did you mean 'method'"),
        ({"ppo": 3}, "ppo: got 3, expected a mapping"),
        ({"ppo": {"gamma": "high"}}, "ppo.gamma: got 'high', expected a number"),
        ({"env": {"n_envs": 2.5}}, "env.n_envs: got 2.5, expected a whole number"),
        ({"env": {"time_penalty": 1}}, "env.time_penalty: got 1, expected true or false"),
        ({"env": {"noise_units": "raww"}}, "Did you mean 'raw'"),
        ({"steps": -5}, None),
    ],
)
def test_bad_keys_and_types(overrides, message):
    if message is None:
        with pytest.raises(UserError, match="steps"):
            check(merge(Config(), overrides))
        return
    with pytest.raises(UserError, match=message):
        merge(Config(), overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        {"env": {"n_envs": 0}},
        {"env": {"view_size": 4}},
        {"env": {"view_size": 1}},
        {"env": {"noise": -0.1}},
        {"env": {"max_steps": 0}},
        {"ppo": {"gamma": 1.5}},
        {"ppo": {"minibatch_size": 1}},
        {"ppo": {"epochs": 0}},
        {"reward": {"momentum": -0.1}},
        {"reward": {"deir": {"queue_size": 0}}},
        {"reward": {"rnd": {"mlp": 1}}},
        {"reward": {"rnd": {"max_factor": 0.5}}},
        {"reward": {"rnd": {"error_momentum": 1.5}}},
        {"reward": {"ngu": {"neighbours": 0}}},
        {"reward": {"ngu": {"cluster_distance": -1.0}}},
        {"reward": {"icm": {"forward_weight": 2.0}}},
        {"reward": {"noveld": {"alpha": -0.5}}},
        {"seed": -1},
        {"threads": 0},
        {"ppo": {"learning_rate": float("nan")}},
    ],
)
def test_out_of_range_values_name_their_field(overrides):
    (section, inner), *_ = overrides.items()
    field = section
    while isinstance(inner, dict):
        (key, inner), *_ = inner.items()
        field = f"{field}.{key}"
    with pytest.raises(UserError, match=field.replace(".", r"\.")):
        check(merge(Config(), overrides))


def test_bad_files(tmp_path):
    with pytest.raises(UserError, match="existing YAML file"):
        load_yaml(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(UserError, match="mapping"):
        load_yaml(tmp_path / "list.yaml")
    (tmp_path / "broken.yaml").write_text("a: [1")
    with pytest.raises(UserError, match="not a YAML file"):
        load_yaml(tmp_path / "broken.yaml")
    (tmp_path / "empty.yaml").write_text("")
    assert load_yaml(tmp_path / "empty.yaml") == {}


@pytest.mark.parametrize(
    ("env", "suite"),
    [
        ("DoorKey-8x8", "swift"),
        ("MiniGrid-ObstructedMaze-Full-v0", "omfull"),
        ("ObstructedMaze-Full", "omfull"),
        ("procgen:ninja", "procgen"),
        ("CartPole-v1", "control"),
    ],
)
def test_the_preset_follows_the_task(env, suite):
    assert suite_of(env) == suite
    assert configure({"env": {"id": env}}).preset == suite


def test_precedence_defaults_preset_then_overrides():
    config = configure({"env": {"id": "procgen:jumper"}, "ppo": {"epochs": 9}})
    assert (config.ppo.epochs, config.ppo.learning_rate, config.env.n_envs, config.reward.beta) == (9, 1e-4, 64, 5e-2)
    assert configure({"env": {"id": "procgen:caveflyer"}}).reward.beta == 5e-3
    assert resolve(merge(Config(), {"preset": "omfull"})).reward.extrinsic_coef == 10.0
    assert set(SUITES) == {"minigrid", "omfull", "procgen", "swift", "omfull-author", "control", "continuous"}


def test_every_field_is_documented():
    """The command line and the configuration reference are made from the docstrings under the fields."""
    import inspect

    from deir import config as module

    source = inspect.getsource(module)
    for cls in (getattr(module, name) for name in dir(module)):
        if dataclasses.is_dataclass(cls) and cls.__module__ == module.__name__:
            for field in dataclasses.fields(cls):
                if not dataclasses.is_dataclass(field.default_factory):
                    line = source[source.index(f"    {field.name}: ") :]
                    assert '"""' in line[: line.index("\n\n")], f"{cls.__name__}.{field.name}"


def test_to_dict_is_plain():
    assert to_dict(Config())["ppo"]["gamma"] == 0.99
    assert not any(isinstance(v, Path) for v in to_dict(Config()).values())
