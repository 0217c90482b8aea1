"""MiniGrid: a batched engine over the layouts of the `minigrid` package."""
