"""The benchmark's arithmetic."""

import json
import subprocess
from subprocess import CompletedProcess

import numpy as np
import pytest
from gymnasium import spaces

from deir.errors import UserError
from deir.experiments.bench import measuring as bench
from deir.experiments.bench import scaling
from deir.experiments.bench.command import _with_efficiency, parse_pair, parse_settings
from deir.experiments.bench.measuring import measure, plain_mflop_per_frame
from deir.runs.run import configure

VIEWS, ACTIONS = spaces.Box(0, 255, (7, 7, 3), np.uint8), spaces.Discrete(7)


def test_plain_arithmetic_is_that_of_the_layer_shapes():
    convolutions = 2 * 4 * (36 * 3 * 32 + 25 * 32 * 64 + 16 * 64 * 64)
    linear = 2 * 1024 * 64
    gru = 2 * 2 * 64 * 192
    heads = 2 * (64 * 128 + 128 * 7 + 64 * 128 + 128)
    forward = convolutions + linear + gru + heads
    # acting once, then four epochs forward and twice backward
    assert plain_mflop_per_frame(configure({"method": "none"}), VIEWS, ACTIONS) == pytest.approx(
        (1 + 3 * 4) * forward / 1e6
    )
    discriminator = 2 * 2 * (135 * 128 + 128 * 128 + 128)  # true and fake
    loss = 3 * (convolutions + linear + gru / 2) + 2 * gru / 2 + discriminator
    model = plain_mflop_per_frame(configure({}), VIEWS, ACTIONS) - (1 + 3 * 4) * forward / 1e6
    assert model == pytest.approx(3 * 4 * loss / 1e6, rel=0.06)  # and the reward: one pass over each observation


def test_one_pair_is_measured_and_its_efficiency_follows(monkeypatch):
    monkeypatch.setattr(bench, "FRAMES", 128)
    small = {
        "env": {"id": "DoorKey-5x5", "n_envs": 4, "layout_worker": False},
        "threads": 1,
        "ppo": {"rollout_steps": 32},
    }
    figures = _with_efficiency(measure(small, 1), 1)
    assert figures["fps"] > 0
    assert {"env", "method", "fps", "phases", "memory_mb", "mflop_per_frame", "peak_gflops"} <= figures.keys()
    expected = figures["fps"] * figures["mflop_per_frame"] * 1e6 / (figures["peak_gflops"] * 1e9)
    assert figures["efficiency"] == pytest.approx(expected)


def test_the_memory_of_the_compiler_is_not_measured(monkeypatch):
    """What had to compile loops is measured again; once, if they cannot be remembered."""
    for outcomes, expected in (([False], 1), ([True, False], 2), ([True, True], 2)):
        done = [json.dumps({"memory_mb": number + 1, "compiled": told}) for number, told in enumerate(outcomes)]
        answers = iter(done)
        monkeypatch.setattr(subprocess, "run", lambda *_, answers=answers, **__: CompletedProcess([], 0, next(answers)))
        assert bench.in_own_process("measure", {}) == {"memory_mb": expected}
        assert next(answers, None) is None


def test_what_a_second_core_gives():
    assert scaling.with_one_thread({"method": "none"}, 2) == {"method": "none", "threads": 1}
    assert scaling.with_one_thread({"method": "none"}, 1) is None
    assert scaling.with_one_thread({"threads": 1}, 2) is None
    results = [
        {"kind": "pair", "fps": 300.0, "peak_gflops": 180.0},
        {"kind": "one thread", "fps": 200.0, "peak_gflops": 100.0},
        {"kind": "pair", "fps": 500.0},
        {"kind": "peer", "fps": 100.0},
    ]
    assert scaling.ratios(results) == [(results[0], results[1])]
    (line,) = scaling.lines(results, 2, ["a", "b", "c", "d"])
    assert line == "  a: 200 frames/s with one thread, 300 with 2: 1.50 times (matrix products 1.80 times)"


def test_pairs():
    assert parse_pair("DoorKey-8x8/rnd") == {"env": {"id": "DoorKey-8x8"}, "method": "rnd"}
    assert parse_pair("A/deir/omfull") == {"env": {"id": "A"}, "method": "deir", "preset": "omfull"}
    with pytest.raises(UserError, match="ENV/METHOD"):
        parse_pair("DoorKey-8x8")


def test_settings():
    assert parse_settings(("ppo.epochs=1", "env.noise=0.1", "env.noise_units=raw")) == {
        "ppo": {"epochs": 1},
        "env": {"noise": 0.1, "noise_units": "raw"},
    }
    with pytest.raises(UserError, match="KEY=VALUE"):
        parse_settings(("ppo.epochs",))
