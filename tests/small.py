"""Small configurations, the same for every test that needs no other."""

from typing import Any

SMALL: dict[str, Any] = {
    "preset": "minigrid",  # a small learning rate: rounding stays rounding
    "env": {"id": "DoorKey-5x5", "n_envs": 4, "layout_worker": False},
    "ppo": {"rollout_steps": 32, "minibatch_size": 64, "epochs": 1},
    "reward": {"minibatch_size": 64, "epochs": 1},
    "threads": 1,
    "loggers": "csv",
}
"""128 frames an iteration."""

WORDS = (
    "--env", "DoorKey-5x5", "--env.n-envs", "4", "--env.no-layout-worker", "--ppo.rollout-steps", "32",
    "--ppo.minibatch-size", "64", "--reward.minibatch-size", "64", "--steps", "256", "--threads", "1",
)  # fmt: skip
"""Two such iterations, with the preset's epochs, as typed."""

MODEL = {"minibatch_size": 32, "epochs": 1, "network": {"features": 16, "hidden": 16, "mlp": 16}}
"""Options of `make_reward`."""


def small(**changes: Any) -> dict[str, Any]:
    """`SMALL` with `changes` laid over it; an environment of another name brings all its options itself."""
    other = changes.get("env", {}).get("id", SMALL["env"]["id"]) != SMALL["env"]["id"]
    kept = {**SMALL, "preset": "auto", "env": {"n_envs": SMALL["env"]["n_envs"]}} if other else SMALL
    return laid_over(kept, changes)


def laid_over(tree: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Nested dictionaries, key by key."""
    return tree | {
        key: laid_over(tree[key], value) if isinstance(tree.get(key), dict) else value for key, value in changes.items()
    }
