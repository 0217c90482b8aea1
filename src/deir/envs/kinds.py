"""Which kind of task a registered id is, for the choice of a preset."""

from __future__ import annotations

from functools import cache

import gymnasium
from gymnasium.spaces import Box

OWN: dict[str, str | None] = {  # modules of Gymnasium's own tasks, which are known without making one
    "gymnasium.envs.box2d.bipedal_walker": "continuous",
    "gymnasium.envs.box2d.car_racing": "continuous",
    "gymnasium.envs.classic_control.acrobot": "control",
    "gymnasium.envs.classic_control.cartpole": "control",
    "gymnasium.envs.classic_control.continuous_mountain_car": "continuous",
    "gymnasium.envs.classic_control.mountain_car": "control",
    "gymnasium.envs.classic_control.pendulum": "continuous",
    "gymnasium.envs.mujoco": "continuous",
    "gymnasium.envs.toy_text": None,
}


def suits_control(name: str) -> str | None:
    """The preset for a registered task by its spaces: continuous, control, or None for images and other names."""
    spec = gymnasium.registry.get(name)
    if spec is None or name.startswith(("MiniGrid-", "BabyAI-")):
        return None
    module = spec.entry_point.partition(":")[0] if isinstance(spec.entry_point, str) else ""
    if module == "gymnasium.envs.box2d.lunar_lander":
        return "continuous" if spec.kwargs.get("continuous") else "control"
    for known in (module, module.rpartition(".")[0]):
        if known in OWN:
            return OWN[known]
    return _by_its_spaces(name)


@cache
def _by_its_spaces(name: str) -> str | None:
    """Of a task of another package: its spaces are known only once it is made, which happens once in a process."""
    try:
        env = gymnasium.make(name, disable_env_checker=True)
    except Exception:  # whatever it is, making the environments will tell
        return None
    sees, acts = env.observation_space, env.action_space
    env.close()
    if isinstance(acts, Box):
        return "continuous"
    return "control" if isinstance(sees, Box) and len(sees.shape) == 1 else None
