"""Formulas against closed forms and naive loops."""

from collections import Counter

import numpy as np
import pytest
import torch

from deir.algorithm.functional import (
    EmaMoments,
    RunningMean,
    explained_variance,
    gae,
    minibatches,
    moments,
    occurrence_ranks,
)


def naive_gae(rewards, values, next_values, dones, gamma, lam):
    steps, envs = rewards.shape
    result = torch.zeros_like(rewards)
    for n in range(envs):
        for t in range(steps):
            weight = 1.0
            for k in range(t, steps):
                delta = rewards[k, n] + gamma * next_values[k, n] - values[k, n]
                result[t, n] += weight * delta
                if dones[k, n]:
                    break
                weight *= gamma * lam
    return result


def test_gae_equals_a_naive_sum_over_each_episode():
    generator = torch.Generator().manual_seed(0)
    rewards, values, next_values = torch.randn(3, 20, 4, generator=generator, dtype=torch.float64)
    dones = torch.rand(20, 4, generator=generator) < 0.2
    actual = gae(rewards, values, next_values, dones, 0.9, 0.8)
    torch.testing.assert_close(actual, naive_gae(rewards, values, next_values, dones, 0.9, 0.8))


@pytest.mark.parametrize(("gamma", "lam"), [(0.99, 0.95), (0.9, 1.0), (0.5, 0.0)])
def test_gae_under_a_constant_value_and_reward_is_a_geometric_sum(gamma, lam):
    steps, value, reward = 30, 2.0, 0.5
    constant = torch.full((steps, 1), value, dtype=torch.float64)
    rewards = torch.full((steps, 1), reward, dtype=torch.float64)
    actual = gae(rewards, constant, constant, torch.zeros(steps, 1, dtype=torch.bool), gamma, lam)[:, 0]
    delta = reward + gamma * value - value
    left = torch.arange(steps, 0, -1, dtype=torch.float64)
    expected = delta * (1 - (gamma * lam) ** left) / (1 - gamma * lam)
    torch.testing.assert_close(actual, expected)


def test_gae_of_a_single_step_is_its_temporal_difference():
    rewards, values, next_values = torch.tensor([[[1.0]], [[0.3]], [[2.0]]])
    for done in (False, True):
        advantages = gae(rewards, values, next_values, torch.tensor([[done]]), 0.9, 0.8)
        torch.testing.assert_close(advantages, torch.tensor([[1.0 + 0.9 * 2.0 - 0.3]]))


def test_gae_with_lambda_one_and_no_bootstrap_is_the_discounted_return_minus_the_value():
    rewards = torch.tensor([[0.0], [0.0], [1.0]])
    values = torch.tensor([[0.2], [0.3], [0.4]])
    next_values = torch.tensor([[0.3], [0.4], [0.0]])
    dones = torch.tensor([[False], [False], [True]])
    expected = torch.tensor([[0.81 - 0.2], [0.9 - 0.3], [1 - 0.4]])
    torch.testing.assert_close(gae(rewards, values, next_values, dones, 0.9, 1.0), expected)


def test_ema_moments_follow_their_recurrence():
    moments = EmaMoments(0.9)
    x = torch.tensor([1.0, 2.0, 3.0])
    moments.update(x)
    assert moments.mean == pytest.approx(0.1 * 2)
    assert moments.var == pytest.approx(0.9 + 0.1 * np.mean((x.numpy() - 0.2) ** 2))
    torch.testing.assert_close(moments.normalize(x), (x - moments.mean) / (moments.var**0.5 + 1e-5))
    before = moments.state_dict()
    moments.update(torch.zeros(0))
    assert moments.state_dict() == before


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_corrected_moments_are_the_weighted_means_of_the_rollouts_alone(momentum):
    """The closed form: weights ρ^(K-k), summing to one, and nothing of the start."""
    moments, rollouts = EmaMoments(momentum, corrected=True), [torch.rand(5) * k + k for k in range(1, 7)]
    means, squares = [], []
    for k, x in enumerate(rollouts):
        if k == 3:
            state, moments = moments.state_dict(), EmaMoments(momentum, corrected=True)
            moments.load_state_dict(state)
        moments.update(x)
        weights = np.array([momentum ** (k - i) for i in range(k + 1)])
        means.append(float(x.double().mean()))
        mean = np.average(means, weights=weights)
        squares.append(float((x.double() - mean).square().mean()))
        assert moments.mean == pytest.approx(mean)
        assert moments.var == pytest.approx(np.average(squares, weights=weights))


def test_moments_of_older_checkpoints_go_on_as_they_did():
    moments, before = EmaMoments(0.9, corrected=True), EmaMoments(0.9)
    moments.load_state_dict({"mean": 3.0, "var": 2.0})
    before.load_state_dict({"mean": 3.0, "var": 2.0})
    for old in (moments, before):
        old.update(torch.tensor([1.0, 5.0]))
    assert (moments.mean, moments.var) == pytest.approx((before.mean, before.var))


@pytest.mark.parametrize("corrected", [False, True])
def test_momentum_one_keeps_the_start(corrected):
    moments = EmaMoments(1.0, corrected)
    moments.update(torch.tensor([100.0, 200.0]))
    assert (moments.mean, moments.var) == (0.0, 1.0)


def test_momentum_zero_forgets_the_past():
    moments = EmaMoments(0.0)
    moments.update(torch.tensor([100.0, 200.0]))
    moments.update(torch.tensor([1.0, 3.0]))
    assert (moments.mean, moments.var) == (2.0, 1.0)


def test_minibatches_are_a_partition_into_nearly_equal_parts():
    indices = torch.arange(10, 1013)
    parts = minibatches(indices, 100, torch.Generator().manual_seed(0))
    assert len(parts) == 10
    assert {len(p) for p in parts} == {100, 101}
    assert torch.equal(torch.cat(parts).sort().values, indices)
    (whole,) = minibatches(indices[:10], 100, torch.Generator().manual_seed(0))
    assert torch.equal(whole.sort().values, indices[:10])


def test_explained_variance():
    target = torch.tensor([1.0, 2.0, 3.0])
    assert explained_variance(target, target) == 1.0
    assert explained_variance(torch.zeros(3), target) == pytest.approx(0.0)
    assert explained_variance(target, torch.ones(3)) == 0.0


def test_total_moments_are_those_of_everything_seen():
    total = moments(None)
    parts = [torch.rand(k) * 5 + k for k in (3, 1, 40)]
    for k, part in enumerate(parts):
        total.update(part)
        total.update(part[:0])
        if k == 1:
            state, total = total.state_dict(), moments(None)
            total.load_state_dict(state)
    everything = torch.cat(parts).double()
    assert total.mean == pytest.approx(float(everything.mean()))
    assert total.var == pytest.approx(float(everything.var(unbiased=False)))
    assert type(moments(0.9)) is EmaMoments
    assert not moments(0.9).corrected and moments(0.9, corrected=True).corrected


@pytest.mark.parametrize(("momentum", "expected"), [(0.5, [4.0, 4.0, 3.0, 4.5]), (None, [4.0, 4.0, 3.0, 4.0])])
def test_running_mean_begins_with_the_first_value_and_passes_over_gaps(momentum, expected):
    mean = RunningMean(momentum)
    assert mean.scan(torch.tensor([torch.nan])).tolist() == [0.0]
    assert mean.scan(torch.tensor([4.0, torch.nan])).tolist() == expected[:2]
    again = RunningMean(momentum)
    again.load_state_dict(mean.state_dict())
    assert again.scan(torch.tensor([2.0, 6.0])).tolist() == expected[2:]


def test_occurrence_ranks_count_what_came_before():
    assert occurrence_ranks(torch.tensor([5, -1, 5, 5, -1, 7])).tolist() == [0, 0, 1, 2, 1, 0]
    assert occurrence_ranks(torch.zeros(0, dtype=torch.int64)).tolist() == []
    keys, seen = torch.randint(0, 3, (2000,), generator=torch.Generator().manual_seed(0)), Counter()
    for key, rank in zip(keys.tolist(), occurrence_ranks(keys).tolist(), strict=True):
        assert rank == seen[key]
        seen[key] += 1
