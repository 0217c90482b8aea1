"""What a user would pick from PyPI instead, with our network, so that `deir bench --peers` compares like with like."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor

from deir.algorithm.networks import GridEncoder

FRAMES = 16 * 512  # of one iteration


class GridFeatures(BaseFeaturesExtractor):
    """The encoder of Appendix A.5; stable-baselines3 hands images over channels first."""

    def __init__(self, observation_space: Any, features_dim: int = 64) -> None:
        super().__init__(observation_space, features_dim)
        channels, height, width = observation_space.shape
        self.encoder = GridEncoder((height, width, channels), features_dim, "batch")

    def forward(self, observations: Tensor) -> Tensor:
        return self.encoder(observations.permute(0, 2, 3, 1).to(torch.float32))


def frames_per_second(name: str, env_id: str, iterations: int, threads: int) -> float:
    """16 environments, 512 steps, 4 epochs, mini-batches of 512, no intrinsic reward; one iteration for warming up."""
    from minigrid.wrappers import ImgObsWrapper

    torch.set_num_threads(threads)
    envs = make_vec_env(lambda: ImgObsWrapper(gymnasium.make(env_id)), n_envs=16, seed=0)
    options: dict[str, Any] = {"n_steps": 512, "batch_size": 512, "n_epochs": 4, "ent_coef": 1e-2, "device": "cpu"}
    shape: dict[str, Any] = {"features_extractor_class": GridFeatures, "net_arch": [128], "normalize_images": False}
    model: Any
    if "Recurrent" in name:
        from sb3_contrib import RecurrentPPO

        model = RecurrentPPO("CnnLstmPolicy", envs, policy_kwargs={**shape, "lstm_hidden_size": 64}, **options)
    else:
        model = PPO("CnnPolicy", envs, policy_kwargs=shape, **options)
    model.learn(FRAMES)
    begin = time.perf_counter()
    model.learn(FRAMES * iterations, reset_num_timesteps=False)
    return FRAMES * iterations / (time.perf_counter() - begin)
