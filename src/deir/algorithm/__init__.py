"""The algorithm, in the order of the paper: rollouts, rewards, advantages, updates."""
