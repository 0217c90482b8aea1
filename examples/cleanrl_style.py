"""A single-file actor-critic loop with an intrinsic reward: three lines are ours.

python examples/cleanrl_style.py [FRAMES]
"""

import sys

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import deir
from deir.config import parse_count

frames, steps, n_envs, gamma, lam = parse_count(sys.argv[1] if len(sys.argv) > 1 else "100k"), 64, 8, 0.99, 0.95
torch.manual_seed(0)
envs = gym.make_vec("MountainCar-v0", n_envs, vector_kwargs={"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP})
space, actions_space = envs.single_observation_space, envs.single_action_space
net = nn.Sequential(nn.Linear(space.shape[0], 64), nn.Tanh(), nn.Linear(64, actions_space.n + 1))
optimizer = torch.optim.Adam(net.parameters(), 3e-3)

reward = deir.make_reward("deir", space, actions_space, n_envs)  # 1

obs, _ = envs.reset(seed=0)
for update in range(max(1, frames // (steps * n_envs))):
    seen, actions, rewards, ends, cuts, finals = [obs], [], [], [], [], {}
    for t in range(steps):
        with torch.no_grad():
            chosen = Categorical(logits=net(torch.from_numpy(obs))[:, :-1]).sample().numpy()
        obs, earned, terminated, truncated, infos = envs.step(chosen)
        finals |= {(t, n): infos["final_obs"][n] for n in np.flatnonzero(terminated | truncated)}
        seen.append(obs)
        actions.append(chosen)
        rewards.append(earned)
        ends.append(terminated)
        cuts.append(truncated)
    seen, actions, rewards, ends, cuts = map(np.stack, (seen, actions, rewards, ends, cuts))

    rewards = rewards + reward.compute(seen, actions, ends, cuts, final_observations=finals)  # 2
    figures = reward.update()  # 3

    out = net(torch.from_numpy(seen))  # [T+1, N, A+1]
    values, policy = out[..., -1], Categorical(logits=out[:-1, :, :-1])
    advantages, last, more = torch.zeros(steps, n_envs), 0.0, torch.from_numpy(~(ends | cuts)).float()
    for t in reversed(range(steps)):
        delta = torch.from_numpy(rewards[t]) + gamma * more[t] * values[t + 1].detach() - values[t].detach()
        advantages[t] = last = delta + gamma * lam * more[t] * last
    returns, scaled = advantages + values[:-1].detach(), (advantages - advantages.mean()) / advantages.std()
    gain = policy.log_prob(torch.from_numpy(actions)) * scaled + 0.01 * policy.entropy()
    loss = 0.5 * (values[:-1] - returns).square().mean() - gain.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if update % 20 == 0:
        print(f"update {update}: furthest {seen[..., 0].max():.2f}, novelty {figures['intrinsic_reward_mean']:.3f}")
