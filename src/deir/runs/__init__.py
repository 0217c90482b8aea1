"""A run on disk: its configuration, directory, checkpoints and figures."""
