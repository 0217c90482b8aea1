"""The reward model's embeddings for another task: does the agent of DoorKey carry the key?

python examples/embeddings.py [FRAMES]
"""

import sys

import numpy as np
import torch
from torch import nn

import deir
from deir.config import EnvConfig

KEY, STEPS = 5, 256  # MiniGrid's code of a key; steps to look at
run = deir.train("DoorKey-5x5", steps=sys.argv[1] if len(sys.argv) > 1 else "60k", ppo={"rollout_steps": 128})
agent = deir.load(run.path)

envs = deir.make_envs(EnvConfig("DoorKey-5x5", n_envs=16), seed=1)
observations, starts, state = [envs.reset()], [np.ones(16, bool)], None
for _ in range(STEPS - 1):
    actions, state = agent.act(observations[-1], state)
    step = envs.step(actions)
    state[step.starts] = 0
    observations.append(step.observations)
    starts.append(step.starts)
envs.close()

seen = np.stack(observations)  # [T, N, 7, 7, 3]
labels = torch.from_numpy((seen[:, :, 3, 6, 0] == KEY).flatten()).float()  # what is carried shows in the agent's cell
found = agent.embed(seen, np.stack(starts))
print("observation embeddings", found.observations.shape, "trajectory embeddings", found.trajectories.shape)

inputs = torch.from_numpy(found.trajectories).flatten(0, 1)  # [T*N, H]
train, test = (slice(0, None, 2), slice(1, None, 2))
classifier = nn.Linear(inputs.shape[1], 1)
optimizer = torch.optim.Adam(classifier.parameters(), 1e-2)
for _ in range(300):
    loss = nn.functional.binary_cross_entropy_with_logits(classifier(inputs[train])[:, 0], labels[train])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
right = ((classifier(inputs[test])[:, 0] > 0) == labels[test].bool()).float().mean()
print(f"carrying the key: {labels.mean():.0%} of steps; told from the embedding: {right:.1%} right")
