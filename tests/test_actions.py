"""Actions of every kind: probabilities against torch.distributions, losses against oracles, whole runs."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions as D

import deir
from deir.algorithm.actions import BoxActions, DiscreteActions, MultiDiscreteActions, actions_of, gumbel_noise
from deir.algorithm.policy import Policy
from deir.config import NetworkConfig
from deir.envs import make_envs
from deir.errors import UserError
from deir.runs import run
from deir.runs.evaluate import evaluate
from deir.runs.run import configure
from small import small
from test_run import assert_same, final_state, untimed
from worlds import ACTION_SPACES, OBSERVATION_SPACES

BOX = spaces.Box(np.array([-2.0, 0.0, -np.inf], np.float32), np.array([2.0, 10.0, np.inf], np.float32))


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


def test_the_entropy_of_a_box_is_the_sum_over_its_entries():
    mean, std = [0.3, -0.5, 4.0], [0.5, 0.8, 3.0]
    outputs = torch.tensor([[*mean, *map(math.log, std)]])
    entropy = BoxActions(BOX, "squashed").judge(outputs, torch.zeros(1, 3))[1]
    free = float(D.Normal(mean[2], std[2]).entropy())  # it has no bounds
    assert float(entropy) == pytest.approx(squashed_entropy(0.3, 0.5) + squashed_entropy(-0.5, 0.8) + free, abs=0.02)


def test_the_free_outputs_of_a_policy_are_the_same_for_all_it_sees():
    policy = Policy(OBSERVATION_SPACES["vector"], BOX, NetworkConfig(log_std=-0.5))
    outputs = torch.randn(4, 2, 3)
    expected = torch.cat([outputs, torch.full((4, 2, 3), -0.5)], -1)
    assert torch.equal(policy.complete(outputs), expected)
    assert torch.equal(policy.complete(outputs[0]), expected[0])
    assert policy.device == torch.device("cpu") and policy.critic[-1].out_features == 1


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


KINDS = {
    "discrete": DiscreteActions(5),
    "multi": MultiDiscreteActions([2, 3, 4]),
    "squashed": BoxActions(BOX, "squashed"),
    "clipped": BoxActions(BOX, "clipped"),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_any_leading_dimensions_are_those_of_a_batch(kind: Any):
    flat = outputs_of(kind, 8)
    outputs = flat.view(4, 2, -1)
    noise = kind.noise((4, 2), torch.Generator().manual_seed(0))
    assert noise.shape == (4, 2, kind.outputs)
    choices = kind.choose(outputs, noise)
    assert choices.shape == (4, 2, *kind.shape)
    assert torch.equal(choices, kind.sample(outputs, torch.Generator().manual_seed(0)))
    assert torch.equal(choices.flatten(0, 1), kind.choose(flat, noise.flatten(0, 1)))
    assert torch.equal(kind.mode(outputs).flatten(0, 1), kind.mode(flat))
    for found, expected in zip(kind.judge(outputs, choices), kind.judge(flat, choices.flatten(0, 1)), strict=True):
        assert found.shape == (4, 2)
        torch.testing.assert_close(found.flatten(), expected)
    actions = kind.taken(choices)
    vectors = kind.vector(actions)
    assert vectors.shape == (4, 2, kind.width)
    assert torch.equal(vectors.flatten(0, 1), kind.vector(actions.flatten(0, 1)))


def test_the_noise_of_a_choice_is_finite_whatever_is_drawn(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: torch.tensor([0.0, 0.5, 1.0]))
    noise = gumbel_noise((3,), torch.Generator())
    assert noise.isfinite().all() and float(noise[1]) == pytest.approx(-math.log(math.log(2)))


def test_the_deviation_of_a_gaussian_has_limits():
    outputs = torch.tensor([[1.0, -9.0], [1.0, 0.5], [1.0, 9.0]])
    choices = BoxActions(spaces.Box(-1, 1, (1,)), "clipped").choose(outputs, torch.ones(3, 1))[:, 0]
    torch.testing.assert_close(choices, 1 + torch.tensor([-5.0, 0.5, 2.0]).exp())


@pytest.mark.parametrize("policy", ["squashed", "clipped"])
def test_entries_of_a_box_without_two_bounds_are_taken_as_they_are_within_what_there_is(policy: Any):
    low, high = [1.0, -np.inf, 0.0, 2.0], [1.0, 3.0, np.inf, 4.0]  # the first can only be 1
    kind = BoxActions(spaces.Box(np.array(low, np.float32), np.array(high, np.float32)), policy)
    taken = kind.taken(torch.tensor([[0.5, 0.5, 0.5, 0.0], [7.0, 7.0, 7.0, 7.0], [-7.0, -7.0, -7.0, -7.0]]))
    expected = torch.tensor([[1.0, 0.5, 0.5, 3.0], [1.0, 3.0, 7.0, 4.0], [1.0, -7.0, 0.0, 2.0]])
    torch.testing.assert_close(taken, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(kind.vector(expected)[:, :3], expected[:, :3])


def test_the_kind_of_actions_of_each_space():
    assert actions_of(spaces.Discrete(4)).outputs == 4
    multi, binary = actions_of(spaces.MultiDiscrete([3, 2])), actions_of(spaces.MultiBinary(3))
    assert isinstance(multi, MultiDiscreteActions) and multi.sizes == [3, 2] and multi.shape == (2,)
    assert isinstance(binary, MultiDiscreteActions) and binary.sizes == [2, 2, 2]
    for options, squashed in (((), True), (("squashed",), True), (("clipped",), False)):
        box = actions_of(BOX, *options)
        assert isinstance(box, BoxActions) and box.squashed is squashed and box.outputs == box.free == box.width == 3


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict(a=spaces.Discrete(2)),
        spaces.MultiDiscrete([[2, 3], [4, 5]]),
        spaces.MultiBinary((2, 2)),
        spaces.Box(-1, 1, (2, 2)),
    ],
    ids=str,
)
def test_an_unknown_action_space_is_told(space: Any):
    with pytest.raises(UserError, match=r"Discrete, MultiDiscrete, MultiBinary or Box"):
        actions_of(space)


def tiny(**changes: Any) -> Any:
    sizes = {
        "ppo": {"rollout_steps": 16, "minibatch_size": 16},
        "reward": {"minibatch_size": 16},
        "network": {"features": 8, "hidden": 8, "mlp": 8},
    }
    return configure(small(steps=64, **sizes, **changes))


@pytest.mark.parametrize(("observations", "actions"), [("vector", "box"), ("dict", "multi"), ("dict", "box")])
def test_runs_repeat_resume_and_act(tmp_path: Path, observations: str, actions: str):
    """Gymnasium environments begin anew on resuming, so two resumptions of one checkpoint must agree."""
    config = tiny(env={"id": f"worlds:{observations}_{actions}", "n_envs": 2})
    for name in ("a", "b"):
        run.start(config, tmp_path / name)
    assert_same(final_state(tmp_path / "a"), final_state(tmp_path / "b"))
    for name in ("a", "b"):
        run.resume(tmp_path / name, {"steps": 128}, trust=True)
    assert untimed(tmp_path / "a") == untimed(tmp_path / "b")
    assert_same(final_state(tmp_path / "a"), final_state(tmp_path / "b"))
    agent = deir.load(tmp_path / "a", trust=True)
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


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_minigrid_with_directions_resumes_to_the_last_bit(tmp_path: Path, noise: float):
    env = {"id": "DoorKey-5x5", "n_envs": 2, "layout_worker": False, "direction": True, "noise": noise}
    whole = tiny(env=env)
    run.start(whole, tmp_path / "whole")
    run.start(replace(whole, steps=32), tmp_path / "parts")
    run.resume(tmp_path / "parts", {"steps": 64})
    assert untimed(tmp_path / "whole") == untimed(tmp_path / "parts")
    assert_same(final_state(tmp_path / "whole"), final_state(tmp_path / "parts"))
