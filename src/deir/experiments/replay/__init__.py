"""`deir replay`: an episode with what the agent saw, expected and found new, as one page."""
