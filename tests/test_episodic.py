"""Distances within an episode, against naive loops."""

import pytest
import torch

import deir.fast.threads
from deir.algorithm.episodic import (
    earlier_occurrences,
    episode_first_positions,
    episodic_min_ratio,
    episodic_nearest,
    first_occurrences,
    repeats_in_episode,
)
from deir.fast.tiles import min_ratio, nearest_keys


def test_episode_first_positions():
    starts = torch.tensor([[1, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]], dtype=torch.bool)
    carried = torch.tensor([0, 3, 1])
    expected = torch.tensor([[3, 0, 2], [3, 0, 4], [3, 5, 4], [6, 5, 4]])
    assert torch.equal(episode_first_positions(starts, carried), expected)


def naive_min_ratio(q_obs, q_traj, k_obs, k_traj, first, last, eps):
    rewards = torch.zeros(q_obs.shape[:2], dtype=q_obs.dtype)
    for t in range(len(q_obs)):
        for n in range(q_obs.shape[1]):
            ratios = [
                (q_obs[t, n] - k_obs[i, n]).square().sum() / ((q_traj[t, n] - k_traj[i, n]).norm() + eps)
                for i in range(int(first[t, n]), int(last[t]) + 1)
            ]
            rewards[t, n] = min(ratios) if ratios else 0.0
    return rewards


@pytest.mark.parametrize("steps", [1, 12, 90])  # 90: more keys than are compared at a time
def test_episodic_min_ratio_equals_a_naive_loop(steps):
    generator = torch.Generator().manual_seed(1)
    carried, envs = 5, 3
    q_obs, q_traj = torch.randn(2, steps, envs, 4, generator=generator)
    k_obs, k_traj = torch.randn(2, steps + carried, envs, 4, generator=generator)
    first = torch.randint(0, steps + carried + 2, (steps, envs), generator=generator)
    last = torch.arange(steps) + carried - 1
    others = first, last, 0.1  # ε large enough to count
    expected = naive_min_ratio(q_obs, q_traj, k_obs, k_traj, *others)
    for compute in (min_ratio, episodic_min_ratio):
        found = compute(q_obs, q_traj, [k_obs], [k_traj], *others)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        parts = k_obs.split(4), k_traj.split(3)
        assert torch.equal(compute(q_obs, q_traj, *parts, *others), found)


def few_observations(steps, carried, envs, generator):
    """Names, embeddings by name, and episodes of a rollout whose observations often come again."""
    names = torch.randint(0, 9, (steps + 1, envs), generator=generator)
    embeddings = torch.randn(9, 4, generator=generator)
    starts = torch.rand(steps, envs, generator=generator) < 0.1
    first = episode_first_positions(starts, torch.full((envs,), carried))
    return names, embeddings, first


@pytest.mark.parametrize("compute", [episodic_min_ratio, min_ratio])
@pytest.mark.parametrize("behind", [0, 1])
def test_leaving_out_repeated_observations_changes_nothing(behind, compute):
    generator = torch.Generator().manual_seed(2)
    steps, carried, envs = 40, 7, 3
    names, embeddings, first = few_observations(steps, carried, envs, generator)
    q_obs, keys = embeddings[names[1:]], embeddings[names[:-1]]
    k_obs = torch.cat([torch.randn(carried, envs, 4, generator=generator), keys])
    q_traj = torch.randn(steps, envs, 4, generator=generator)
    k_traj = torch.randn(steps + carried, envs, 4, generator=generator)
    last = torch.arange(steps) + carried - behind
    repeated = repeats_in_episode(names[:-1], names[1:], first, last, carried)
    assert 0.3 < repeated.float().mean() < 1
    actual = compute(q_obs, q_traj, k_obs.split(5), [k_traj], first, last, 1e-6, repeated)
    expected = naive_min_ratio(q_obs, q_traj, k_obs, k_traj, first, last, 1e-6)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    assert (actual[repeated] == 0).all() and (actual[~repeated & (first <= last[:, None])] > 0).all()


@pytest.mark.parametrize("behind", [0, 1])
def test_repeats_in_episode_equal_a_naive_search(behind):
    generator = torch.Generator().manual_seed(3)
    names, _, first = few_observations(30, 4, 2, generator)
    last = torch.arange(30) + 4 - behind
    found = repeats_in_episode(names[:-1], names[1:], first, last, 4)
    for t in range(30):
        for n in range(2):
            earlier = names[max(0, int(first[t, n]) - 4) : t + 1 - behind, n]
            assert found[t, n] == (earlier == names[t + 1, n]).any()


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("carried", [0, 4])
@pytest.mark.parametrize("ends", [0.0, 0.1])
def test_occurrences_in_an_episode_equal_a_naive_count(ends, carried, envs):
    """The earliest row and the number of rows up to now with the same name; rows of no episode (-1) never count."""
    generator = torch.Generator().manual_seed(4)
    steps, rows = 40, 40 + carried
    keys = torch.randint(-2, 3, (rows, envs), generator=generator)
    queries = torch.randint(-2, 4, (steps, envs), generator=generator)  # one name more than the keys have
    before = torch.randint(0, carried + 1, (envs,), generator=generator)  # rows of the running episode
    before[0] = carried
    query_first = episode_first_positions(torch.rand(steps, envs, generator=generator) < ends, before)
    history = torch.full((carried, envs), -1)
    for n in range(envs):
        history[carried - before[n] :, n] = carried - before[n]
    key_first = torch.cat([history, query_first])
    earliest = first_occurrences(keys, key_first, queries, query_first)
    counts = earlier_occurrences(keys, key_first, queries, query_first)
    for t in range(steps):
        for n in range(envs):
            same = (keys[:, n] == queries[t, n]) & (key_first[:, n] == query_first[t, n])
            found = same.nonzero().flatten().tolist()
            assert earliest[t, n] == (found[0] if found else rows)
            assert counts[t, n] == sum(row <= carried + t for row in found)
    assert counts.max() > 2 and (counts == 0).any() and (earliest == rows).any()


@pytest.mark.parametrize("compute", [episodic_min_ratio, min_ratio])
def test_a_repeated_observation_earns_nothing_even_far_from_the_origin(compute):
    obs = 100 + torch.randn(1, 1, 64)
    keys = torch.cat([obs, obs + 1])
    traj = torch.randn(2, 1, 64)
    reward = compute(obs, traj[:1] + 0.1, [keys], [traj], torch.tensor([[0]]), torch.tensor([1]), 1e-6)
    assert reward.item() < 1e-7  # single precision would give 1e-2


@pytest.mark.parametrize("tile", [2, 1024])
def test_nearest_keys_of_the_episode_equal_a_naive_search(tile):
    generator = torch.Generator().manual_seed(0)
    queries, keys = torch.rand(9, 2, 4, generator=generator), torch.rand(12, 2, 4, generator=generator)
    first = torch.tensor([[0, 2]] * 4 + [[7, 2]] * 5)
    last = torch.arange(9) + 3
    found = nearest_keys(queries, keys, first, last, 3, chunk=4, tile=tile)
    torch.testing.assert_close(episodic_nearest(queries, keys, first, last, 3), found)
    for t in range(9):
        for n in range(2):
            rows = keys[int(first[t, n]) : int(last[t]) + 1, n]
            expected = (rows - queries[t, n]).square().sum(1).sort().values[:3]
            expected = torch.cat([expected, torch.full((3 - len(expected),), torch.inf)])
            torch.testing.assert_close(found[t, n].float(), expected)


def test_the_number_of_threads_does_not_change_a_bit(monkeypatch):
    generator = torch.Generator().manual_seed(4)
    obs, traj = torch.randn(2, 300, 5, 64, generator=generator)
    first, last = torch.zeros(300, 5, dtype=torch.int64), torch.arange(300) - 1
    found = []
    for threads in (1, 2, 4):
        monkeypatch.setattr(deir.fast.threads, "_threads", threads)
        found.append(min_ratio(obs + 0.1, traj + 0.1, [obs], [traj], first, last, 1e-6))
        found.append(nearest_keys(obs + 0.1, obs, first, last, 3))
    assert all(torch.equal(found[i], found[i % 2]) for i in range(len(found)))


@pytest.mark.parametrize("compute", [episodic_nearest, nearest_keys])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rows_are_exactly_at_distance_zero(compute, dtype):
    """Also far from the origin, and nothing else is."""
    generator = torch.Generator().manual_seed(5)
    kinds = 100 + torch.randn(20, 64, generator=generator, dtype=dtype)
    kinds[1] = kinds[0] * (1 + 1e-6)
    names = torch.randint(0, 20, (81, 3), generator=generator)
    names[:, 2] = torch.arange(81) % 2  # two rows that hardly differ
    first, last = torch.zeros(80, 3, dtype=torch.int64), torch.arange(80)
    found = compute(kinds[names[1:]], kinds[names[:-1]], first, last, 4)
    equal = torch.stack([(names[: t + 1] == names[t + 1]).sum(0) for t in range(80)]).clamp(max=4)  # [T, N]
    assert torch.equal((found == 0).sum(-1), equal) and (equal > 0).any() and (equal < 4).any()


def test_the_nearest_are_in_order_where_products_cannot_tell_them_apart():
    generator = torch.Generator().manual_seed(6)
    row = 100 + torch.randn(64, generator=generator, dtype=torch.float64)
    far = 1 + 1e-9 * torch.randperm(12, generator=generator).double()
    keys = (far[:, None] * row)[:, None]  # [S, 1, F]; |q|² + |k|² - 2qk of all these is rounding
    found = nearest_keys(row[None, None], keys, torch.zeros(1, 1, dtype=torch.int64), torch.tensor([11]), 12)
    expected = (keys[:, 0] - row).square().sum(1).sort().values
    torch.testing.assert_close(found[0, 0], expected, rtol=1e-9, atol=0)
