"""The documented name of `deir.plugin.stable_baselines3`."""

from deir.plugin.stable_baselines3 import add_reward, load

__all__ = ["add_reward", "load"]
