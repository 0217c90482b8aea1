"""Table A1 as data: (suite, method) -> overrides of the configuration's defaults."""

from __future__ import annotations

from typing import Any

from deir.config import Config, merge
from deir.errors import unknown

Overrides = dict[str, Any]

SUITES: dict[str, Overrides] = {
    "minigrid": {},  # the defaults of the configuration are this column
    "omfull": {
        "env": {"n_envs": 64},
        "network": {"norm": "layer"},
        "ppo": {
            "rollout_steps": 256,
            "epochs": 3,
            "minibatch_size": 2048,
            "entropy_coef": 5e-4,
            "advantage_norm": "none",
            "learning_rate": 1e-4,
        },
        "reward": {"epochs": 3, "minibatch_size": 2048, "extrinsic_coef": 10.0},
    },
    "procgen": {
        "env": {"n_envs": 64},
        "network": {"norm": "layer", "features": 256, "hidden": 256, "mlp": 256},
        "ppo": {
            "rollout_steps": 256,
            "epochs": 3,
            "minibatch_size": 2048,
            "entropy_coef": 1e-2,
            "advantage_norm": "none",
            "learning_rate": 1e-4,
        },
        "reward": {"epochs": 3, "minibatch_size": 2048},
    },
}

DESCRIPTIONS = {
    "minigrid": "MiniGrid and any other task: 16 workers x 512 steps, batch normalisation",
    "omfull": "ObstructedMaze-Full: 64 workers x 256 steps, layer normalisation, extrinsic reward x 10",
    "procgen": "ProcGen: 64 workers x 256 steps, layer normalisation, IMPALA and DQN encoders",
}

METHODS: dict[tuple[str, str], Overrides] = {
    ("minigrid", "deir"): {"reward": {"beta": 1e-2}},
    ("omfull", "deir"): {"reward": {"beta": 1e-3}},
    ("procgen", "deir"): {"reward": {"beta": 5e-2}},
}

TASKS: dict[tuple[str, str], Overrides] = {
    ("procgen:caveflyer", "deir"): {"reward": {"beta": 5e-3}},
}


def suite_of(env_id: str) -> str:
    """The column of Table A1 for a task."""
    if env_id.startswith("procgen:"):
        return "procgen"
    return "omfull" if "ObstructedMaze-Full" in env_id else "minigrid"


def resolve(config: Config) -> Config:
    """`config` with its preset laid over it; `preset: auto` becomes the name of the one chosen."""
    suite = suite_of(config.env.id) if config.preset == "auto" else config.preset
    if suite not in SUITES:
        raise unknown("preset", suite, ["auto", *SUITES])
    layers = [
        {"preset": suite},
        SUITES[suite],
        METHODS.get((suite, config.method), {}),
        TASKS.get((config.env.id, config.method), {}),
    ]
    for layer in layers:
        config = merge(config, layer)
    return config
