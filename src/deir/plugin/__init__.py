"""The rewards for other training loops."""
