"""Run directories with curves made by hand, for the tests of reports."""

import csv
from pathlib import Path

import yaml

STEP = 1000  # frames an iteration


def make_run(path: Path, returns, env=None, method="deir", seed=0, episodes=200, seconds=1.0, steps=None, **columns):
    """A run with one iteration for each return (None: no episode has ended); `columns` are lists or single values."""
    path.mkdir(parents=True, exist_ok=True)
    task = {"id": "DoorKey-8x8", "n_envs": 16, "noise": 0.0, **(env or {})}
    config = {
        "env": task,
        "method": method,
        "seed": seed,
        "steps": steps or STEP * len(returns),
        "reward": {"beta": 0.01},
    }
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    rows = []
    for number, value in enumerate(returns, 1):
        row = {
            "iteration": number,
            "frames": STEP * number,
            "seconds": seconds * number,
            "fps": 1,
            "return_mean": value,
            "success_rate": value,
            "episode_length_mean": 10,
            "intrinsic_reward_mean": 0.5,
            "episodes": episodes[number - 1] if isinstance(episodes, list) else episodes,
            "episodic_efficiency": 0.3,
            "lifelong_efficiency": 0.1 / number,
            **{k: v[number - 1] if isinstance(v, list) else v for k, v in columns.items()},
        }
        rows.append({k: "" if v is None else f"{v:.6g}" for k, v in row.items()})
    with (path / "progress.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def make_sweep(root: Path, tasks=("DoorKey-8x8", "FourRooms"), methods=("deir", "rnd", "none"), seeds=3, length=10):
    """Runs as `deir sweep` lays them out; the methods learn one later than the other."""
    for t, task in enumerate(tasks):
        for m, method in enumerate(methods):
            for seed in range(seeds):
                start = 2 + 2 * m + seed / 2 + t
                returns = [min(0.9, max(0.0, (i - start) / 5)) for i in range(length)]
                make_run(root / task / method / f"seed{seed}", returns, {"id": task}, method, seed, seconds=1 + m)
    (root / "sweep.yaml").write_text("name: made\n")
    return root
