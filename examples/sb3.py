"""Stable-Baselines3's PPO with an intrinsic reward: one line. Needs `pip install 'deir[sb3]'`.

python examples/sb3.py [FRAMES]
"""

import sys

import gymnasium
from minigrid.wrappers import FlatObsWrapper
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from deir.config import parse_count
from deir.integrations.sb3 import add_reward, load

frames = parse_count(sys.argv[1] if len(sys.argv) > 1 else "100k")

envs = make_vec_env(lambda: FlatObsWrapper(gymnasium.make("MiniGrid-DoorKey-5x5-v0")), n_envs=8, seed=0)
model = PPO("MlpPolicy", envs, n_steps=128, batch_size=256, n_epochs=4, ent_coef=0.01, seed=0, device="cpu", verbose=1)
add_reward(model, "deir", beta=0.01)  # the one line
model.learn(frames)

model.save("agent")  # the reward's state is in agent.zip too
model = load(PPO, "agent", env=envs)
model.learn(1024)
