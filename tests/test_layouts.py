"""Layouts are named by their seeds, whoever makes them and whatever happens to the process that works ahead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deir.config import EnvConfig
from deir.envs.minigrid import cells
from deir.envs.minigrid.catalogue import TaskSpec, ending_of, resolve, target_of
from deir.envs.minigrid.engine import MiniGridEnvs
from deir.envs.minigrid.layout_maker import Layout, LayoutMaker
from deir.envs.minigrid.layout_worker import Worker
from deir.envs.minigrid.layouts import AHEAD, LayoutStock, layout_seed
from deir.envs.minigrid.random_integers import Draws, UnknownDraw

PATIENCE = 30.0  # seconds


def task(name: str) -> TaskSpec:
    spec = resolve(name)
    assert spec is not None
    return spec


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def worker_of(stock: LayoutStock) -> Worker:
    assert stock._worker is not None
    return stock._worker


def wait_until_ready(stock: LayoutStock, seed: int) -> None:
    worker = worker_of(stock)

    def ready() -> bool:
        worker.send()
        worker._receive()
        return seed in worker._ready

    wait_for(ready)


def same(one: Layout, other: Layout) -> bool:
    return np.array_equal(one.cells, other.cells) and one[1:] == other[1:]


@pytest.mark.parametrize(
    ("name", "seeds"),
    [
        ("MultiRoom-N2-S4", 40),  # rooms of one size: no number is drawn for it
        ("MultiRoom-N6", 40),
        ("MultiRoom-N30", 3),  # half a second each in Farama's own code
        ("KeyCorridorS6R3", 40),
        ("ObstructedMaze-Full", 40),
        ("FourRooms", 40),
        ("Fetch-8x8-N3", 40),
    ],
)
def test_layouts_are_faramas(name: str, seeds: int) -> None:
    maker = LayoutMaker(task(name))
    env: Any = task(name).build()
    ending = ending_of(env)
    assert ending is not None
    for seed in range(seeds):
        layout = maker.make(seed)
        env.reset(seed=seed)
        plain = [cells.encode(obj, target_of(env, ending)) for obj in env.grid.grid]
        assert layout.cells.tolist() == plain
        assert layout[1:] == (*env.agent_pos, env.agent_dir)
    assert maker._draws is not None  # not by falling back on NumPy's generator


@pytest.mark.parametrize("name", ["Empty-Random-6x6", "MultiRoom-N6"])
def test_a_task_that_draws_other_numbers_is_made_with_numpys_generator(name: str) -> None:
    maker = LayoutMaker(task(name))
    generate = type(maker.env)._gen_grid

    def with_floats(width: int, height: int) -> None:
        maker.env.np_random.random()
        generate(maker.env, width, height)

    maker.env._gen_grid = with_floats
    first = maker.make(3)
    assert maker._draws is None
    assert isinstance(maker.env.np_random, np.random.Generator)
    assert same(first, maker.make(3))


def test_draws_are_numpys() -> None:
    spans = np.random.default_rng(0)
    draws = Draws()
    for seed in range(20):
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
        draws.seed(seed)
        for _ in range(500):
            low = int(spans.integers(-50, 50))
            high = low + int(spans.choice([1, 2, 3, 7, 10, 1000, 3_000_000_000]))  # the last is often drawn again
            assert draws.integers(low, high) == generator.integers(low, high)
    for unknown in (lambda: draws.random(), lambda: draws.integers(0, 3, size=2), lambda: draws.integers(3, 3)):
        with pytest.raises(UnknownDraw):
            unknown()


def test_seeds_differ_by_run_environment_and_episode() -> None:
    seeds = {layout_seed(run, env, episode) for run in range(10) for env in range(10) for episode in range(10)}
    assert len(seeds) == 1000
    assert layout_seed(3, 1, 2) == layout_seed(3, 1, 2)


def test_worker_makes_the_same_layouts() -> None:
    alone, helped = (LayoutStock(task("KeyCorridorS4R3"), 5, 3, worker=worker) for worker in (False, True))
    for episode in range(2 * AHEAD):
        for env in range(3):
            wait_until_ready(helped, layout_seed(5, env, episode))
            assert same(helped.take(env, episode), alone.take(env, episode))
    assert not worker_of(helped)._ready.keys() - worker_of(helped)._wanted
    assert len(worker_of(helped)._wanted) == 3 * AHEAD  # bounded: what has been taken makes room
    helped.close()


def test_taking_never_waits_for_the_worker() -> None:
    stock, alone = (LayoutStock(task("DoorKey-8x8"), 5, 4, worker=worker) for worker in (True, False))
    process = worker_of(stock).process
    os.kill(process.pid, signal.SIGSTOP)
    for episode in range(300):  # far more than the pipes and the stock hold
        for env in range(4):
            assert same(stock.take(env, episode), alone.take(env, episode))
    os.kill(process.pid, signal.SIGCONT)
    for episode in range(300, 320):  # and it comes back
        wait_until_ready(stock, layout_seed(5, 0, episode + 1))
        assert same(stock.take(0, episode), alone.take(0, episode))
    stock.close()


def test_environments_survive_their_worker(caplog: pytest.LogCaptureFixture) -> None:
    config = EnvConfig(id="Empty-Random-5x5", n_envs=3, max_steps=5)
    helped = MiniGridEnvs(task("Empty-Random-5x5"), config, 1)
    alone = MiniGridEnvs(task("Empty-Random-5x5"), EnvConfig(n_envs=3, max_steps=5, layout_worker=False), 1)
    np.testing.assert_array_equal(helped.reset(), alone.reset())
    for step in range(100):
        if step == 20:
            worker_of(helped._layouts).process.kill()
        for one, other in zip(helped.step(np.full(3, step % 3)), alone.step(np.full(3, step % 3)), strict=True):
            np.testing.assert_array_equal(one, other)
    assert "made when they are needed" in caplog.text
    helped.close()
    helped.close()


def test_interrupts_are_the_parents_and_close_ends_the_worker() -> None:
    stock = LayoutStock(task("DoorKey-8x8"), 0, 1)
    process = worker_of(stock).process
    wait_until_ready(stock, layout_seed(0, 0, 0))
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert process.poll() is None
    assert os.getpgid(process.pid) != os.getpgid(0)  # a terminal's Ctrl-C does not even reach it
    stock.close()
    assert process.poll() is not None
    stock.take(0, 0)  # still works, on the spot


SCRIPT = """
import os, sys
from deir.envs.minigrid.catalogue import resolve
from deir.envs.minigrid.layouts import LayoutStock
stock = LayoutStock(resolve("MultiRoom-N30"), 0, 4)
print(stock._worker.process.pid, flush=True)
if sys.argv[1] == "crash":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("way", ["crash", "exit"])
def test_worker_does_not_outlive_its_parent(way: str) -> None:
    """Without `close`, and in a script that has no `__main__` guard."""
    path = os.pathsep.join(p or os.getcwd() for p in sys.path)
    parent = subprocess.run(
        [sys.executable, "-c", SCRIPT, way], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert parent.returncode == (-9 if way == "crash" else 0), parent.stderr
    worker = Path(f"/proc/{int(parent.stdout)}/stat")
    if worker.parent.parent.exists():
        wait_for(lambda: not worker.exists() or worker.read_text().split()[2] == "Z")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted in /proc")
def test_closed_environments_hold_no_file():
    before = set(os.listdir("/proc/self/fd"))
    stock = LayoutStock(task("DoorKey-5x5"), 0, 1)
    stock.maker.make(5)
    opened = set(os.listdir("/proc/self/fd"))
    stock.close()
    assert len(opened - before) >= 2  # the worker's two pipes
    assert set(os.listdir("/proc/self/fd")) <= before
