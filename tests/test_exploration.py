"""Exploration efficiency and visits against a naive loop; lifelong counts against a dictionary."""

import dataclasses
import itertools
from collections import Counter

import numpy as np
import pytest
import torch

from builders import random_episodes
from deir.algorithm.memory import LifelongCounts
from deir.algorithm.metrics import ExplorationStatistics
from deir.algorithm.visits import first_visits, no_visits, observation_keys, visit_counts


class NaiveExploration:
    def __init__(self, envs):
        self.episodes = [set() for _ in range(envs)]
        self.lifetime = set()

    def update(self, rollout):
        steps, envs = rollout.shape
        episodic = lifelong = total = 0
        for t in range(steps):
            for n in range(envs):
                if rollout.starts[t, n]:
                    self.episodes[n] = set()
                if not rollout.valid[t, n]:
                    continue
                state = int(rollout.states[t, n])
                total += 1
                episodic += state not in self.episodes[n]
                lifelong += state not in self.lifetime
                self.episodes[n].add(state)
                self.lifetime.add(state)
        return {"episodic_efficiency": episodic / total, "lifelong_efficiency": lifelong / total}


@pytest.mark.parametrize("late_resets", [False, True])
@pytest.mark.parametrize("done_rate", [0.0, 0.1, 0.5])
def test_efficiency_equals_a_naive_loop_across_rollouts_and_a_checkpoint(late_resets, done_rate):
    envs = 3
    statistics, naive = ExplorationStatistics(envs), NaiveExploration(envs)
    for k, rollout in enumerate(
        itertools.islice(random_episodes(9, envs, done_rate, seed=3, kinds=60, late_resets=late_resets), 6)
    ):
        if k == 3:
            restored = ExplorationStatistics(envs)
            restored.load_state_dict(statistics.state_dict())
            statistics = restored
        assert statistics.update(rollout) == naive.update(rollout)


def test_without_states_there_is_no_efficiency():
    rollout = next(random_episodes(5, 2, 0.1, seed=0))
    figures = ExplorationStatistics(2).update(dataclasses.replace(rollout, states=None))
    assert figures == {"episodic_efficiency": None, "lifelong_efficiency": None}


@pytest.mark.parametrize("steps", [0, 1])
def test_efficiency_is_by_the_genuine_steps_however_few(steps):
    rollout = next(random_episodes(1, 2, 0.0, seed=0))
    rollout = dataclasses.replace(rollout, valid=torch.tensor([[steps > 0, False]]))
    expected = {"episodic_efficiency": float(steps), "lifelong_efficiency": float(steps)}
    assert ExplorationStatistics(2).update(rollout) == expected


def test_forgetting_running_episodes_keeps_the_lifetime():
    statistics = ExplorationStatistics(2)
    rollout = next(random_episodes(8, 2, 0.0, seed=0, kinds=6))
    first = statistics.update(rollout)
    statistics.forget_running()
    assert statistics.update(rollout) == {**first, "lifelong_efficiency": 0.0}


def test_lifelong_counts_equal_a_dictionary_through_merges_and_a_checkpoint(monkeypatch):
    monkeypatch.setattr(LifelongCounts, "SMALL", 16)
    rng = np.random.default_rng(0)
    counts, expected = LifelongCounts(), Counter()
    for k in range(30):
        keys = rng.integers(-300, 300, rng.integers(0, 60)) * 2**50
        new = {int(key) for key in keys} - set(expected)
        assert counts.add(keys) == len(new)
        expected.update(keys.tolist())
        if k == 15:
            state = counts.state_dict()
            counts = LifelongCounts()
            counts.load_state_dict(state)
    asked = np.arange(-310, 310) * 2**50
    assert counts.of(asked).tolist() == [expected[int(key)] for key in asked]
    assert len(counts) == len(expected)
    assert len(counts.tables[0].keys) > 0


def test_observation_keys_tell_observations_apart_whatever_their_type():
    views = torch.randint(0, 3, (500, 2, 2, 1), dtype=torch.uint8)
    for observations in (views, views.float() / 7):
        keys = observation_keys(observations)
        same = (observations[:, None] == observations[None]).flatten(2).all(2)
        assert torch.equal(keys[:, None] == keys[None], same)


@pytest.mark.parametrize("late_resets", [False, True])
@pytest.mark.parametrize(("steps", "kinds", "count"), [(7, 9, 5), (3, 4, 20)])
def test_visits_of_next_observations_equal_a_naive_loop(late_resets, steps, kinds, count):
    envs, history, counted = 3, no_visits(3), no_visits(3)
    seen = [[] for _ in range(envs)]
    rollouts = random_episodes(steps, envs, 0.2, seed=8, kinds=kinds, late_resets=late_resets)
    for rollout in itertools.islice(rollouts, count):
        keys = observation_keys(rollout.table.distinct)
        now, then = keys[rollout.ids[:-1]], keys[rollout.next_ids]
        first, history = first_visits(history, now, then, rollout.starts, including_now=True)
        counts, counted = visit_counts(counted, now, then, rollout.starts)
        for t in range(steps):
            for n in range(envs):
                if rollout.starts[t, n]:
                    seen[n] = []
                seen[n].append(int(now[t, n]))
                visits = seen[n].count(int(then[t, n]))
                assert int(counts[t, n]) == visits and bool(first[t, n]) == (visits == 0)
