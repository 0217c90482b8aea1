"""The same mathematics, faster on a CPU."""
