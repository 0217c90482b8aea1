"""Episode statistics against a naive loop, and the times of phases."""

import copy

import numpy as np
import pytest

from deir.algorithm import metrics
from deir.algorithm.metrics import EpisodeStatistics, Timer
from deir.envs.base import EnvStep

ENVS = 3
NONE_YET = {"return_mean": None, "success_rate": None, "episode_length_mean": None, "episodes": 0}


def random_steps(count: int, seed: int = 0) -> list[EnvStep]:
    """Dummy steps among them, of which nothing may count; of the genuine ones some pay, some take, most do neither."""
    rng, steps = np.random.default_rng(seed), []
    none = np.zeros(0, np.int64)
    for _ in range(count):
        rewards = rng.choice([-0.5, 0.0, 0.0, 0.0, 1.0], ENVS)
        terminated, truncated = rng.random((2, ENVS)) < 0.15
        steps.append(EnvStep(none, rewards, terminated, truncated, rng.random(ENVS) < 0.8, none, none, none))
    return steps


def told(steps: list[EnvStep]) -> tuple[np.ndarray, ...]:
    """As `EpisodeStatistics` takes them."""
    rows = [(step.rewards, step.terminated | step.truncated, step.valid) for step in steps]
    return tuple(np.stack(column) for column in zip(*rows, strict=True))


def ended_episodes(steps: list[EnvStep]) -> list[tuple[float, int]]:
    """Return and length of each, in the order of their ends."""
    ended, running = [], [[0.0, 0] for _ in range(ENVS)]
    for step in steps:
        for n in range(ENVS):
            if step.valid[n]:
                running[n][0] += step.rewards[n]
                running[n][1] += 1
                if step.terminated[n] or step.truncated[n]:
                    ended.append(tuple(running[n]))
                    running[n] = [0.0, 0]
    return ended


@pytest.mark.parametrize("count", [5, 20, 400])
@pytest.mark.parametrize("saved", [False, True])
def test_episodes_are_those_of_a_naive_loop_and_the_last_hundred_count(count, saved):
    steps, statistics = random_steps(count), EpisodeStatistics(ENVS)
    assert statistics.summary() == NONE_YET
    statistics.update(*told(steps[: count // 2]))
    if saved:
        state, old = copy.deepcopy(statistics.state_dict()), statistics
        statistics = EpisodeStatistics(ENVS)
        statistics.load_state_dict(state)
        old.update(*told(steps))  # what was saved does not follow it
    statistics.update(*told(steps[count // 2 :]))
    ended = ended_episodes(steps)
    last = ended[-100:]
    assert (len(ended) > 100) == (count == 400)
    found = statistics.summary()
    assert found["episodes"] == len(ended)
    assert found["return_mean"] == pytest.approx(np.mean([earned for earned, _ in last]))
    assert found["episode_length_mean"] == pytest.approx(np.mean([length for _, length in last]))
    assert found["success_rate"] == pytest.approx(np.mean([earned > 0 for earned, _ in last]))
    assert statistics.lengths.maxlen == statistics.returns.maxlen == 100


def test_a_saved_state_does_not_change_with_the_statistics():
    statistics = EpisodeStatistics(ENVS)
    steps = random_steps(40)
    statistics.update(*told(steps[:20]))
    state = statistics.state_dict()
    before = copy.deepcopy(state)
    statistics.update(*told(steps[20:]))
    assert all(np.array_equal(state[name], before[name]) for name in before)


def test_episodes_under_way_can_be_forgotten():
    steps = [step for step in random_steps(60) if not (step.terminated | step.truncated).any()]
    statistics, fresh = EpisodeStatistics(ENVS), EpisodeStatistics(ENVS)
    statistics.update(*told(steps))
    assert statistics.running_length.any() and statistics.running_return.any()
    statistics.forget_running()
    for one in (statistics, fresh):
        one.update(*told(random_steps(60, seed=1)))
    assert statistics.summary() == fresh.summary()


def test_seconds_are_summed_by_phase_even_if_a_phase_fails(monkeypatch):
    clock = iter([10.0, 11.5, 20.0, 24.0, 30.0, 30.25, 40.0, 41.0])
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: next(clock))
    known = {"env": 100.0}
    timer = Timer(known)
    for phase in ("env", "reward", "env"):
        with timer(phase):
            pass
    with pytest.raises(KeyError), timer("reward"):
        raise KeyError
    assert timer.seconds == {"env": 101.75, "reward": 5.0} and known == {"env": 100.0}
    assert Timer().seconds == {}
