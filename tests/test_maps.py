"""Visit and intrinsic-reward maps against a plain loop, from real runs and through a checkpoint."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import deir
from builders import walk
from deir.algorithm.maps import ExplorationMaps
from deir.algorithm.metrics import Timer
from deir.errors import UserError
from deir.runs.run import configure
from deir.runs.training import make_trainer
from small import small

TINY = small(env={"max_steps": 30}, ppo={"rollout_steps": 64})


def naive_maps(rollout, raw, height, width):
    visits, arrivals, intrinsic = np.zeros((3, height, width))
    steps, envs = rollout.shape
    ended = set(rollout.final_indices.tolist())
    for t in range(steps):
        for n in range(envs):
            x, y = rollout.positions[t, n].tolist()
            visits[y, x] += 1
            if t * envs + n not in ended:
                x, y = rollout.positions[t + 1, n].tolist()
                arrivals[y, x] += 1
                intrinsic[y, x] += float(raw[t, n])
    return visits, arrivals, intrinsic


def test_maps_equal_a_plain_loop():
    trainer = make_trainer(configure({**TINY, "maps": True}))
    rollout = trainer._collect(Timer()).rollout
    raw = torch.rand(rollout.shape)
    maps = ExplorationMaps()
    maps.update(rollout, raw)
    trainer.close()
    assert len(rollout.final_indices) > 0
    for found, expected in zip(maps.arrays().values(), naive_maps(rollout, raw, *maps.visits.shape), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("env_id", ["DoorKey-5x5", "MiniGrid-DoorKey-5x5-v0"])
def test_positions_are_inside_the_walls(env_id):
    trainer = make_trainer(configure({**TINY, "env": {**TINY["env"], "id": env_id}, "method": "none"}))
    positions = trainer._collect(Timer()).rollout.positions
    trainer.close()
    assert positions.shape == (65, 4, 2) and positions.min() >= 1 and positions.max() <= 3


def test_a_resumed_run_writes_the_same_maps(tmp_path):
    settings = {**TINY, "maps": True, "checkpoint": {"every": 1}}
    env = settings.pop("env")
    whole = deir.train(env, steps=768, out=tmp_path / "whole", **settings).path
    part = deir.train(env, steps=512, out=tmp_path / "part", **settings).path
    deir.runs.run.resume(part, {"steps": 768})
    with np.load(whole / "maps.npz") as expected, np.load(part / "maps.npz") as found:
        for name in ("visits", "arrivals", "intrinsic"):
            np.testing.assert_array_equal(found[name], expected[name])
    assert expected and (whole / "maps.png").stat().st_size > 5000


def test_a_run_goes_on_with_maps_or_without_them_whatever_it_was_saved_with():
    mapped, plain, fresh = (make_trainer(configure({**TINY, "maps": maps})) for maps in (True, False, True))
    mapped.iterate()
    plain.load_state_dict(mapped.state_dict())
    assert mapped.maps.visits.sum() == 256 and plain.maps is None
    fresh.load_state_dict(plain.state_dict())
    assert fresh.maps.visits.size == 0 and fresh.frames == 256
    for trainer in (mapped, plain, fresh):
        trainer.close()


def test_a_task_without_a_grid_says_so():
    with pytest.raises(UserError, match=r"maps: got True.*CartPole-v1 does not tell"):
        make_trainer(configure({"env": {"id": "CartPole-v1", "n_envs": 2}, "maps": True, "threads": 1}))


def test_maps_grow_to_the_largest_cell_and_keep_what_they_hold():
    maps = ExplorationMaps()
    for cells in ([[0, 0], [4, 1]], [[2, 2], [1, 0]]):  # columns and rows: 2 x 5 cells, then 3 x 5
        rollout = walk(1, 1)
        maps.update(replace(rollout, positions=torch.tensor(cells)[:, None]), torch.full((1, 1), 0.5))
        held = {name: array.copy() for name, array in maps.arrays().items()}
        assert held["visits"].shape == ((2, 5) if cells[0] == [0, 0] else (3, 5))
    assert np.argwhere(held["visits"]).tolist() == [[0, 0], [2, 2]]
    assert np.argwhere(held["arrivals"]).tolist() == [[0, 1], [1, 4]] and held["intrinsic"][1, 4] == 0.5
