"""A user's own encoders and backends: by registration, or as package.module:Class. What all registries have in common
is in tests/test_own_methods.py."""

import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import deir
from deir.algorithm.networks import ENCODERS, Encoder, GridEncoder, check_encoder, encoder_kind, make_encoder
from deir.envs import BACKENDS
from deir.envs.base import Backend, EnvStep
from deir.envs.spaces import PackedBox
from deir.errors import UserError
from deir.imports import BACKEND_PREFIXES
from deir.runs import run
from deir.runs.training import make_trainer
from small import small

MODULE = """
from test_registries import Counting, Flat, Narrow
"""


class Flat(Encoder):
    """One layer on whatever is seen."""

    def __init__(self, shape, features, norm):
        super().__init__()
        self.layer = nn.Linear(int(np.prod(shape)), features)

    def forward(self, observations):
        return self.layer(observations.flatten(1).to(self.layer.weight.dtype)).tanh()


class Doubled(GridEncoder):
    """Derived from ours, but not ours: the fast code must not take it for that."""

    def forward(self, observations):
        return 2 * super().forward(observations)


class Narrow(Flat):
    """Gives other embeddings than it was asked for."""

    def forward(self, observations):
        return super().forward(observations)[:, 1:]


class Counting(Backend):
    """Shows how many steps each environment has made; every fifth ends an episode. Resets within the step."""

    options = ("max_steps",)

    def __init__(self, config, seed=0, generation=0):
        self.n_envs, self.seed = config.n_envs, seed
        self.observation_space = spaces.Box(0, 5, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    @classmethod
    def names(cls):
        return ["five"]

    def _seen(self):
        return np.full((self.n_envs, 1), self.steps % 5, np.float32)

    def reset(self):
        self.steps = 0
        return self._seen()

    def step(self, actions):
        self.steps += 1
        ended = np.full(self.n_envs, self.steps % 5 == 0)
        return EnvStep(
            self._seen(), actions.astype(np.float64), ended, np.zeros_like(ended), np.ones_like(ended), ended,
            np.flatnonzero(ended), np.full((ended.sum(), 1), 5, np.float32),
        )  # fmt: skip


@pytest.fixture
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's, and the registries as they were."""
    (tmp_path / "my_parts.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    before = dict(ENCODERS), dict(BACKENDS), set(BACKEND_PREFIXES)
    yield "my_parts"
    sys.modules.pop("my_parts", None)
    for registry, entries in zip((ENCODERS, BACKENDS, BACKEND_PREFIXES), before, strict=True):
        registry.clear()
        registry.update(entries)


@pytest.mark.parametrize("cls", [Flat, Doubled])
def test_an_encoder_of_ones_own_gives_the_same_figures_plain_and_fast(own, cls, double):
    deir.register_encoder("mine", cls)
    rows = []
    for ops in ("plain", "fast"):
        config = run.configure(small(network={"encoder": "mine"}, reward={"encoder": "mine"}, ops=ops))
        run.validate(config)
        trainer = make_trainer(config)
        assert type(trainer.policy.encoder) is cls and type(trainer.model.reward.encoder) is cls
        rows.append([trainer.iterate() for _ in range(2)][1])
        trainer.close()
    for name in ("intrinsic_reward_mean", "model_loss", "entropy", "value_loss"):
        assert rows[0][name] == pytest.approx(rows[1][name], rel=1e-6), name


def test_an_encoder_by_its_module_trains_resumes_and_loads(own, tmp_path):
    config = run.configure(small(network={"encoder": f"{own}:Flat"}, steps=128))
    path, _ = run.start(config, tmp_path / "run")
    with pytest.raises(UserError, match=r"^network\.encoder: .* names code"):
        deir.load(path)
    _, row = run.resume(path, {"steps": 256}, trust=[f"{own}:Flat"])
    assert row["frames"] == 256
    actions, _ = deir.load(path, trust=True).act(np.zeros((3, 7, 7, 3), np.uint8))
    assert actions.shape == (3,)


def test_an_encoder_of_images_takes_the_images_of_several_parts(own):
    deir.register_encoder("mine", Flat)
    parts = PackedBox({"camera": spaces.Box(0, 255, (8, 8, 3), np.uint8), "speed": spaces.Box(-1, 1, (2,))})
    kind = encoder_kind("mine", parts, images="dqn")
    assert kind == "mine+mlp"
    made = make_encoder(kind, parts, 6, "none")
    assert made(torch.from_numpy(np.stack([parts.sample() for _ in range(3)]))).shape == (3, 6)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_an_encoder_is_tried_with_observations_of_the_type_it_will_see(own, dtype):
    class Looking(Flat):
        def forward(self, observations):
            self.seen = observations.dtype
            return super().forward(observations)

    deir.register_encoder("mine", Looking)
    made = make_encoder("mine", spaces.Box(0, 1, (4, 4, 3), np.dtype(dtype)), 6, "none")
    assert made.seen == getattr(torch, dtype) and made.training


def test_the_name_of_an_encoder_is_checked_unless_one_is_to_be_chosen():
    check_encoder("network.encoder", "auto")
    check_encoder("network.encoder", "dqn")
    with pytest.raises(UserError, match="unknown name 'gird'"):
        check_encoder("network.encoder", "gird")


def test_mistakes_with_encoders_are_told(own):
    for name, message in {
        "gird": "unknown name 'gird'. Did you mean 'grid'?",
        f"{own}:Falt": "Did you mean 'Flat'?",
        f"{own}:Counting": "unknown name 'Counting'",
        "no_such_module:Thing": "module 'no_such_module' of 'no_such_module:Thing' cannot be imported",
    }.items():
        for section in ("network", "reward"):
            with pytest.raises(UserError) as caught:
                run.validate(run.configure({section: {"encoder": name}}))
            assert str(caught.value).startswith(f"{section}.encoder") and message in str(caught.value)
    with pytest.raises(UserError, match=r"embeddings: got \(2, 63\), expected \(2, 64\)"):
        make_trainer(run.configure(small(network={"encoder": f"{own}:Narrow"})))
    with pytest.raises(UserError, match=r"'my_parts:Flat' cannot take observations of shape \(4,\); use 'mlp'"):
        make_trainer(run.configure(small(env={"id": "CartPole-v1"}, network={"encoder": f"{own}:Flat"})))
    with pytest.raises(UserError, match="a name that no encoder of the package has"):
        deir.register_encoder("grid", Flat)
    for name in ("auto", "a+b", "a:b"):
        with pytest.raises(UserError, match="name: got"):
            deir.register_encoder(name, Flat)


@pytest.mark.parametrize("name", ["mine:five", "my_parts:Counting"])
def test_a_backend_of_ones_own_trains_and_its_agent_loads_without_an_environment(own, name, tmp_path, monkeypatch):
    if name.startswith("mine"):
        deir.register_backend("mine", Counting)
    config = run.configure(small(env={"id": name, "max_steps": 5}, steps=256))
    path, row = run.start(config, tmp_path / "run")
    assert row["frames"] == 256 and row["episode_length_mean"] == 5
    monkeypatch.setattr(Counting, "__init__", lambda *_: pytest.fail("an environment was made"))
    agent = deir.load(path, trust=True)
    assert agent.act(np.zeros((2, 1), np.float32))[0].shape == (2,)


def test_a_registered_prefix_names_no_code_but_a_module_does(own, tmp_path):
    deir.register_backend("mine", Counting)
    for name, refused in (("mine:five", False), (f"{own}:Counting", True)):
        config = run.configure(small(env={"id": name}, steps=128))
        path, _ = run.start(config, tmp_path / name.replace(":", "-"))
        if refused:
            with pytest.raises(UserError, match=r"^env: .* names code"):
                run.load_config(path)
        else:
            assert run.load_config(path).env.id == name


def test_mistakes_with_backends_are_told(own):
    deir.register_backend("mine", Counting)
    for option in ({"noise": 0.1}, {"num_levels": 3}, {"view_size": 3}):
        with pytest.raises(UserError, match=f"env.{next(iter(option))}: .*mine:five does not heed it"):
            run.validate(run.configure({"env": {"id": "mine:five", **option}}))
    with pytest.raises(UserError, match="Did you mean 'mine:five'"):
        deir.make_envs("mine-five")
    with pytest.raises(UserError, match="a name that no backend of the package has"):
        deir.register_backend("procgen", Counting)
    with pytest.raises(UserError, match="cannot be drawn"):
        deir.make_envs("mine:five").render(0)
