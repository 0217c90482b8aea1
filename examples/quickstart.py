"""Trains a small agent, loads it, lets it act, and evaluates it.

python examples/quickstart.py [FRAMES]
"""

import sys

import deir
from deir.config import EnvConfig
from deir.runs.evaluate import evaluate

frames = sys.argv[1] if len(sys.argv) > 1 else "60k"

# Any configuration key is an argument; the run directory is runs/DoorKey-5x5/deir/seed0-<time>.
run = deir.train(
    "DoorKey-5x5",
    method="deir",
    steps=frames,
    seed=0,
    ppo={"rollout_steps": 128},
    listener=lambda config, row: print(row["frames"], "frames, mean return", row["return_mean"]),
)

agent = deir.load(run.path)
envs = deir.make_envs(EnvConfig("DoorKey-5x5", n_envs=4), seed=1)
observations, state = envs.reset(), None
for _ in range(100):
    actions, state = agent.act(observations, state)
    step = envs.step(actions)
    state[step.starts] = 0  # an episode begins without memory
    observations = step.observations
envs.close()

print(evaluate(agent, episodes=20).figures())
