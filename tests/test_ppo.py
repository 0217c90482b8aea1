"""The PPO loss and update against hand-made references."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from builders import ACTIONS, SPACE, random_episodes
from deir.algorithm.actions import DiscreteActions, MultiDiscreteActions
from deir.algorithm.functional import EmaMoments
from deir.algorithm.policy import Policy
from deir.algorithm.ppo import METRICS, advantages_and_returns, normalized_advantages, ppo_loss
from deir.algorithm.types import PolicyTrace
from deir.config import NetworkConfig, PPOConfig


def naive_loss(logits, values, actions, old_log_probs, old_values, advantages, returns, config):
    """The loss, and the figures that are logged of it."""
    if config.advantage_norm == "minibatch":
        advantages = (advantages - np.mean(advantages)) / (np.std(advantages, ddof=1) + 1e-8)
    terms, value_terms, entropies, divergences, clippings = [], [], [], [], []
    for k in range(len(actions)):
        probabilities = np.exp(logits[k] - logits[k].max())
        probabilities /= probabilities.sum()
        ratio = probabilities[actions[k]] / np.exp(old_log_probs[k])
        clipped = min(max(ratio, 1 - config.clip_range), 1 + config.clip_range)
        terms.append(min(ratio * advantages[k], clipped * advantages[k]))
        value = values[k]
        if config.clip_range_value is not None:
            value = old_values[k] + np.clip(value - old_values[k], -config.clip_range_value, config.clip_range_value)
        value_terms.append((value - returns[k]) ** 2)
        entropies.append(-(probabilities * np.log(probabilities)).sum())
        divergences.append(ratio - 1 - np.log(ratio))
        clippings.append(ratio != clipped)
    figures = -np.mean(terms), np.mean(value_terms), np.mean(entropies), np.mean(divergences), np.mean(clippings)
    loss = figures[0] + config.value_coef * figures[1] - config.entropy_coef * figures[2]
    return loss, dict(zip(METRICS, figures, strict=True))


@pytest.mark.parametrize("changes", [{}, {"clip_range_value": 0.1}, {"advantage_norm": "minibatch"}])
@pytest.mark.parametrize("compiled", [True, False])
def test_loss_equals_a_naive_computation(changes, compiled):
    """A product of one categorical distribution takes the plain way, which works on any device."""
    rng = np.random.default_rng(0)
    config = replace(PPOConfig(), **changes)
    logits = rng.normal(size=(50, 5))
    actions = rng.integers(0, 5, 50)
    rest = [rng.normal(size=50) for _ in range(5)]
    values, old_log_probs, old_values, advantages, returns = rest
    old_log_probs = np.log(0.2) + 0.6 * old_log_probs
    arguments = (logits, values, actions, old_log_probs, old_values, advantages, returns)
    given = [torch.from_numpy(x) for x in arguments]
    if compiled:
        loss, metrics = ppo_loss(*given, config)
    else:
        given[2] = given[2][:, None]
        loss, metrics = ppo_loss(*given, config, MultiDiscreteActions([5]))
    expected, figures = naive_loss(*arguments, config)
    assert float(loss) == pytest.approx(expected)
    assert {name: float(metric) for name, metric in metrics.items()} == pytest.approx(figures)
    assert 0 < figures["clip_fraction"] < 1


@pytest.mark.parametrize("changes", [{}, {"clip_range_value": 0.1}, {"advantage_norm": "minibatch"}])
def test_the_compiled_loss_has_the_gradients_of_the_plain_one(changes):
    config, generator = replace(PPOConfig(), entropy_coef=0.01, **changes), torch.Generator().manual_seed(0)
    outputs, (values, old_values, advantages, returns) = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((50, 5), (4, 50))
    )
    choices = torch.randint(0, 5, (50,), generator=generator)
    old_log_probs = DiscreteActions(5).log_prob(outputs + 0.3 * torch.sin(outputs * 9), choices)
    found = []
    for kind, drawn in ((DiscreteActions(5), choices), (MultiDiscreteActions([5]), choices[:, None])):
        inputs = outputs.clone().requires_grad_(), values.clone().requires_grad_()
        loss, metrics = ppo_loss(*inputs, drawn, old_log_probs, old_values, advantages, returns, config, kind)
        loss.backward()
        found.append([loss.detach(), *(metrics[name].double() for name in METRICS), *(x.grad for x in inputs)])
    assert 0 < float(found[0][5]) < 1  # some ratios are clipped
    for compiled, plain in zip(*found, strict=True):
        torch.testing.assert_close(compiled, plain)


@pytest.mark.parametrize("late_resets", [False, True])
@pytest.mark.parametrize("truncation", ["terminate", "bootstrap"])
def test_no_advantage_crosses_an_episode_end_or_a_dummy_step(late_resets, truncation):
    rollout = next(random_episodes(40, 3, 0.2, seed=0, late_resets=late_resets))
    generator = torch.Generator().manual_seed(0)
    values, next_values, rewards = torch.randn(3, 40, 3, generator=generator)
    rewards = rewards * rollout.valid
    config = replace(PPOConfig(), truncation=truncation)
    advantages, returns = advantages_and_returns(
        rollout, PolicyTrace(values, values, values, next_values), rewards, config
    )
    for t, n in itertools.product(range(40), range(3)):
        if not rollout.valid[t, n]:
            continue
        expected, weight = 0.0, 1.0
        for k in range(t, 40):
            cut = rollout.terminated[k, n] or (truncation == "terminate" and rollout.truncated[k, n])
            expected += weight * (rewards[k, n] + 0.99 * next_values[k, n] * (not cut) - values[k, n])
            if rollout.dones[k, n]:
                break
            weight *= 0.99 * 0.95
        assert float(advantages[t, n]) == pytest.approx(float(expected), abs=1e-5)
    torch.testing.assert_close(returns, advantages + values)


def test_advantages_are_normalised_by_moving_statistics_of_genuine_steps():
    advantages, valid = torch.randn(10, 2) * 3 + 1, torch.rand(10, 2) < 0.7
    moments, expected = EmaMoments(0.9), EmaMoments(0.9)
    actual = normalized_advantages(advantages, valid, PPOConfig(), moments)
    expected.update(advantages[valid])
    torch.testing.assert_close(actual, (advantages - expected.mean) / (expected.var**0.5 + 1e-8))
    assert normalized_advantages(advantages, valid, replace(PPOConfig(), advantage_norm="none"), moments) is advantages


def test_actions_are_drawn_from_the_softmax():
    logits = torch.tensor([[0.0, 1.0, 2.0]]).repeat(40_000, 1)
    drawn = DiscreteActions(3).sample(logits, torch.Generator().manual_seed(0))
    frequencies = torch.bincount(drawn, minlength=3) / len(drawn)
    torch.testing.assert_close(frequencies, torch.softmax(logits[0], 0), atol=0.01, rtol=0)


def test_policy_and_value_share_encoder_and_memory_but_not_heads():
    policy = Policy(SPACE, ACTIONS, NetworkConfig())
    assert sum(p.numel() for p in policy.actor.parameters()) == 64 * 128 + 128 + 2 * 128 + 128 * 7 + 7
    assert policy.gru.input_size == policy.gru.hidden_size == 64
