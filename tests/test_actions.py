"""Actions of every kind: probabilities against torch.distributions, losses against oracles, whole runs."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions as D

import deir
from deir.algorithm.actions import BoxActions, DiscreteActions, MultiDiscreteActions, actions_of
from deir.algorithm.metrics import Timer
from deir.algorithm.policy import Policy
from deir.algorithm.ppo import ppo_loss
from deir.algorithm.rewards import METHODS
from deir.algorithm.rollout import Position, collect
from deir.config import EnvConfig, NetworkConfig, PPOConfig
from deir.envs import make_envs
from deir.errors import UserError
from deir.fast.acting import FrozenPolicy
from deir.runs import run
from deir.runs.evaluate import evaluate
from deir.runs.run import configure
from test_run import assert_same, final_state, untimed

BOX = spaces.Box(np.array([-2.0, 0.0, -np.inf], np.float32), np.array([2.0, 10.0, np.inf], np.float32))
ACTION_SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4, start=3),
    "multi": spaces.MultiDiscrete([2, 3]),
    "binary": spaces.MultiBinary(3),
    "box": spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)),
}
OBSERVATION_SPACES: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-np.inf, np.inf, (5,), np.float32),
    "image": spaces.Box(0, 255, (3, 8, 9), np.uint8),
    "dict": spaces.Dict(
        camera=spaces.Box(0, 255, (8, 8, 3), np.uint8), speed=spaces.Box(-1e3, 1e3, (2,)), gear=spaces.Discrete(3)
    ),
}


class World(gymnasium.Env[Any, Any]):
    """Any spaces: a random walk through samples of the observation space, steered by the seed and the actions."""

    def __init__(self, observations: str, actions: str) -> None:
        self.observation_space, self.action_space = OBSERVATION_SPACES[observations], ACTION_SPACES[actions]
        self.place, self.steps = 0, 0

    def _see(self) -> Any:
        self.observation_space.seed(self.place)
        return self.observation_space.sample()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.steps = int(self.np_random.integers(20)), 0
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.place = (self.place + 1 + int(np.sum(np.abs(action)))) % 20
        self.steps += 1
        return self._see(), float(self.place == 7), self.place == 7, self.steps >= 15, {}


def vector_dict(num_envs: int) -> Any:
    return gymnasium.vector.SyncVectorEnv(
        [lambda: World("dict", "box")] * num_envs, autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP
    )


def outputs_of(kind: Any, count: int = 200, seed: int = 0) -> torch.Tensor:
    """Small enough that no deviation meets its limit."""
    return torch.randn(count, kind.outputs + kind.free, generator=torch.Generator().manual_seed(seed)).clamp(-1.9, 1.9)


def test_discrete_and_multidiscrete_probabilities_are_those_of_torch():
    generator = torch.Generator().manual_seed(0)
    kind = DiscreteActions(5)
    outputs = outputs_of(kind)
    choices = kind.sample(outputs, generator)
    torch.testing.assert_close(kind.log_prob(outputs, choices), D.Categorical(logits=outputs).log_prob(choices))
    torch.testing.assert_close(kind.judge(outputs, choices)[1], D.Categorical(logits=outputs).entropy())
    multi = MultiDiscreteActions([2, 3, 4])
    outputs = outputs_of(multi)
    choices = multi.sample(outputs, generator)
    assert choices.shape == (200, 3) and choices.dtype == torch.int64
    parts = [D.Categorical(logits=logits) for logits in outputs.split([2, 3, 4], -1)]
    log_probs, entropies = multi.judge(outputs, choices)
    torch.testing.assert_close(log_probs, sum(p.log_prob(choices[:, k]) for k, p in enumerate(parts)))
    torch.testing.assert_close(entropies, sum(p.entropy() for p in parts))
    assert torch.equal(multi.mode(outputs), torch.stack([p.probs.argmax(-1) for p in parts], -1))
    many = multi.sample(outputs[:1].expand(40_000, -1), generator)
    for k, part in enumerate(parts):
        frequencies = torch.bincount(many[:, k], minlength=part.probs.shape[-1]) / len(many)
        torch.testing.assert_close(frequencies, part.probs[0], atol=0.01, rtol=0)


def squashed_entropy(mean: float, std: float) -> float:
    """-∫ p log p over the scaled action in (-1, 1), by brute force in u."""
    u = torch.linspace(mean - 12 * std, mean + 12 * std, 200_001, dtype=torch.float64)
    log_p = D.Normal(mean, std).log_prob(u) - torch.log1p(-torch.tanh(u).square().clamp(max=1 - 1e-15))
    return float(-torch.trapezoid(D.Normal(mean, std).log_prob(u).exp() * log_p, u))


def test_a_squashed_box_has_the_density_of_a_transformed_normal():
    kind = BoxActions(BOX, "squashed")
    outputs = outputs_of(kind)
    choices = kind.sample(outputs, torch.Generator().manual_seed(1))
    actions = kind.taken(choices)
    assert all(BOX.contains(a.numpy()) for a in actions)
    vectors = kind.vector(actions)
    torch.testing.assert_close(vectors[:, :2], choices[:, :2].tanh(), atol=1e-5, rtol=0)
    torch.testing.assert_close(vectors[:, 2], choices[:, 2])
    mean, log_std = outputs.double().chunk(2, -1)
    normal = D.Normal(mean, log_std.exp())
    bounded = D.TransformedDistribution(
        D.Normal(mean[:, :2], log_std[:, :2].exp()), [D.transforms.TanhTransform(cache_size=1)]
    )
    drawn = choices.double()
    scaled = bounded.transforms[0](drawn[:, :2])  # the cache gives the inverse exactly
    expected = bounded.log_prob(scaled).sum(-1) + normal.log_prob(drawn)[:, 2]
    torch.testing.assert_close(kind.log_prob(outputs, choices).double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm", ["batch", "layer", "none"])
@pytest.mark.parametrize("box", ["squashed", "clipped"])
@pytest.mark.parametrize("actions", ACTION_SPACES)
def test_a_fresh_policy_prefers_nothing_and_expects_nothing(actions: str, box: Any, norm: Any):
    policy = Policy(OBSERVATION_SPACES["vector"], ACTION_SPACES[actions], NetworkConfig(norm=norm, box_policy=box))
    for mode in (policy.train(), policy.eval()):
        outputs, values, _ = mode(torch.randn(6, 5), torch.randn(6, 64))
        assert torch.equal(values, torch.zeros(6))
        kind = policy.actions
        if isinstance(kind, BoxActions):  # the middle of the Box
            expected = torch.tensor([0.0, 5.0]).expand(6, 2)
            torch.testing.assert_close(kind.taken(kind.mode(outputs)), expected, rtol=0, atol=0)
        else:
            assert torch.equal(outputs, torch.zeros_like(outputs))  # equal logits: uniform


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.7, 0.3), (-2.0, 0.5), (0.0, 0.05), (1.5, 2.0)])
def test_the_entropy_of_a_squashed_box_is_the_integral(mean: float, std: float):
    kind = BoxActions(spaces.Box(-3, 3, (1,)), "squashed")
    outputs = torch.tensor([[mean, math.log(std)]])
    entropy = kind.judge(outputs, torch.zeros(1, 1))[1]
    assert float(entropy) == pytest.approx(squashed_entropy(mean, std), abs=0.02)
    assert float(entropy) <= math.log(2) + 0.02  # nothing on (-1, 1) is wider than the uniform distribution


def test_a_clipped_box_is_a_normal_cut_at_its_bounds():
    kind = BoxActions(BOX, "clipped")
    outputs = outputs_of(kind)
    choices = kind.sample(outputs, torch.Generator().manual_seed(1))
    mean, log_std = outputs.chunk(2, -1)
    normal = D.Independent(D.Normal(mean, log_std.exp()), 1)
    log_probs, entropies = kind.judge(outputs, choices)
    torch.testing.assert_close(log_probs, normal.log_prob(choices))
    torch.testing.assert_close(entropies, normal.entropy())
    expected = torch.stack([2 * choices[:, 0].clamp(-1, 1), 5 + 5 * choices[:, 1].clamp(-1, 1), choices[:, 2]], -1)
    torch.testing.assert_close(kind.taken(choices), expected)
    torch.testing.assert_close(kind.taken(kind.mode(outputs))[:, 2], mean[:, 2])
    drawn = kind.sample(outputs[:1].expand(40_000, -1), torch.Generator().manual_seed(2))
    torch.testing.assert_close(drawn.mean(0), mean[0], atol=0.05, rtol=0)
    torch.testing.assert_close(drawn.std(0), log_std[0].exp(), atol=0.05, rtol=0)


def test_inverse_losses_equal_naive_ones():
    rng = np.random.default_rng(0)
    multi = MultiDiscreteActions([2, 3])
    predicted, actions = rng.normal(size=(30, 5)), np.stack([rng.integers(0, 2, 30), rng.integers(0, 3, 30)], -1)
    loss, metrics = multi.inverse_loss(torch.from_numpy(predicted), torch.from_numpy(actions))
    total, hits = 0.0, 0
    for row, (a, b) in zip(predicted, actions, strict=True):
        for logits, chosen in ((row[:2], a), (row[2:], b)):
            total -= logits[chosen] - np.log(np.exp(logits).sum())
            hits += logits.argmax() == chosen
    assert float(loss) == pytest.approx(total / 30)
    assert float(metrics["inverse_accuracy"]) == pytest.approx(hits / 60)
    expected = np.concatenate([np.eye(2)[actions[:, 0]], np.eye(3)[actions[:, 1]]], 1)
    assert np.array_equal(multi.vector(torch.from_numpy(actions)).numpy(), expected)
    box = BoxActions(BOX, "squashed")
    taken = np.array([[-2.0, 0.0, 4.0], [1.0, 7.5, -3.0]], np.float32)
    assert np.allclose(box.vector(torch.from_numpy(taken)), [[-1, -1, 4], [0.5, 0.5, -3]])
    guess = np.zeros((2, 3), np.float32)
    squared = np.mean([1, 1, 16, 0.25, 0.25, 9])
    assert float(box.inverse_loss(torch.from_numpy(guess), torch.from_numpy(taken))[0]) == pytest.approx(squared)


def test_an_unknown_action_space_is_told():
    with pytest.raises(UserError, match=r"Discrete, MultiDiscrete, MultiBinary or Box"):
        actions_of(spaces.Dict(a=spaces.Discrete(2)))


@pytest.mark.parametrize("actions", ACTION_SPACES)
@pytest.mark.parametrize("box", ["squashed", "clipped"])
def test_the_ratio_is_one_before_any_update(actions: str, box: Any):
    envs = make_envs(EnvConfig(f"test_actions:{name_of('vector', actions)}", n_envs=3))
    torch.manual_seed(0)
    policy = Policy(envs.observation_space, envs.action_space, NetworkConfig(box_policy=box))
    start = Position(envs.reset(), np.ones(3, bool), policy.initial_hidden(3))
    rollout, trace, *_ = collect(envs, policy, start, 20, torch.Generator().manual_seed(0), False, None, Timer())
    kind = policy.actions
    assert rollout.actions.shape == (20, 3, *kind.shape)
    assert rollout.actions.dtype == (torch.float32 if actions == "box" else torch.int64)
    flat = rollout.ids[:-1].flatten()
    outputs, values, _ = policy(rollout.table.rows(flat), trace.hidden.flatten(0, 1))
    zeros = torch.zeros(60)
    assert trace.choices is not None
    _, metrics = ppo_loss(
        outputs, values, trace.choices.flatten(0, 1), trace.log_probs.flatten(), zeros, zeros, zeros, PPOConfig(), kind
    )
    assert float(metrics["approx_kl"]) == pytest.approx(0, abs=1e-6)
    assert float(metrics["clip_fraction"]) == 0
    with torch.no_grad():
        frozen = FrozenPolicy(policy)
        step, _ = frozen.step(frozen.gates(rollout.table.distinct[flat]), trace.hidden.flatten(0, 1))
    torch.testing.assert_close(step, outputs.detach(), rtol=1e-4, atol=1e-4)


def name_of(observations: str, actions: str) -> str:
    """A factory of this module that makes such worlds."""
    name = f"world_{observations}_{actions}"
    globals()[name] = lambda: World(observations, actions)
    return name


def tiny(observations: str, actions: str, method: str = "deir", **changes: Any) -> Any:
    env = {"id": f"test_actions:{name_of(observations, actions)}", "n_envs": 2}
    return configure(
        {
            "env": env, "method": method, "ppo": {"rollout_steps": 16, "minibatch_size": 16, "epochs": 1},
            "reward": {"minibatch_size": 16, "epochs": 1}, "network": {"features": 8, "hidden": 8, "mlp": 8},
            "tensorboard": False, "threads": 1, "steps": 64, **changes,
        }
    )  # fmt: skip


@pytest.mark.parametrize("observations", OBSERVATION_SPACES)
@pytest.mark.parametrize("actions", ["discrete", "multi", "box"])
@pytest.mark.parametrize("method", [method for method in METHODS if method != "count"])
def test_every_method_with_every_kind(tmp_path: Path, method: str, actions: str, observations: str):
    _, row = run.start(tiny(observations, actions, method), tmp_path / "run")
    assert row["frames"] == 64
    assert all(np.isfinite(value) for value in row.values() if value is not None)


@pytest.mark.parametrize(("observations", "actions"), [("vector", "box"), ("dict", "multi"), ("dict", "box")])
def test_runs_repeat_resume_and_act(tmp_path: Path, observations: str, actions: str):
    """Gymnasium environments begin anew on resuming, so two resumptions of one checkpoint must agree."""
    config = tiny(observations, actions)
    for name in ("a", "b"):
        run.start(config, tmp_path / name)
    assert_same(final_state(tmp_path / "a"), final_state(tmp_path / "b"))
    for name in ("a", "b"):
        run.resume(tmp_path / name, {"steps": 128})
    assert untimed(tmp_path / "a") == untimed(tmp_path / "b")
    assert_same(final_state(tmp_path / "a"), final_state(tmp_path / "b"))
    agent = deir.load(tmp_path / "a")
    envs = make_envs(config.env, 5)
    seen = envs.reset()
    actions_taken, _ = agent.act(seen, greedy=True)
    assert all(envs.action_space.contains(a) for a in actions_taken)
    one, _ = agent.act(seen[0], greedy=True)
    np.testing.assert_allclose(one, actions_taken[0], atol=1e-6)
    if observations == "dict":
        parts = envs.observation_space.unpack(seen)  # type: ignore[attr-defined]
        mapped, _ = agent.act(parts, greedy=True)
        np.testing.assert_array_equal(mapped, actions_taken)
        single, _ = agent.act({name: part[0] for name, part in parts.items()}, greedy=True)
        np.testing.assert_allclose(single, actions_taken[0], atol=1e-6)
        with pytest.raises(UserError, match="camera, speed, gear"):
            agent.act({"camera": parts["camera"]})
    assert np.isfinite(evaluate(agent, 3).returns).all()


def test_dummy_steps_of_late_resets_carry_vectors_too(tmp_path: Path):
    _, row = run.start(tiny("dict", "box", env={"id": "test_actions:vector_dict", "n_envs": 2}), tmp_path / "run")
    assert row["frames"] >= 64 and np.isfinite(row["policy_loss"])


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_minigrid_with_directions_resumes_to_the_last_bit(tmp_path: Path, noise: float):
    env = {"id": "DoorKey-5x5", "n_envs": 2, "layout_worker": False, "direction": True, "noise": noise}
    whole = tiny("vector", "discrete", env=env)
    run.start(whole, tmp_path / "whole")
    run.start(replace(whole, steps=32), tmp_path / "parts")
    run.resume(tmp_path / "parts", {"steps": 64})
    assert untimed(tmp_path / "whole") == untimed(tmp_path / "parts")
    assert_same(final_state(tmp_path / "whole"), final_state(tmp_path / "parts"))
