"""The configuration of a run: the tree of options, and how files and mappings become one."""

from deir.config.counts import Count, parse_count
from deir.config.merging import flatten, merge, to_dict, with_old_keys
from deir.config.tree import (
    CheckpointConfig,
    Config,
    DeirConfig,
    EnvConfig,
    IcmConfig,
    NetworkConfig,
    NguConfig,
    NoveldConfig,
    PPOConfig,
    Precision,
    RewardConfig,
    RndConfig,
)
from deir.config.yaml_files import load_yaml, parse_yaml

__all__ = [
    "CheckpointConfig",
    "Config",
    "Count",
    "DeirConfig",
    "EnvConfig",
    "IcmConfig",
    "NetworkConfig",
    "NguConfig",
    "NoveldConfig",
    "PPOConfig",
    "Precision",
    "RewardConfig",
    "RndConfig",
    "flatten",
    "load_yaml",
    "merge",
    "parse_count",
    "parse_yaml",
    "to_dict",
    "with_old_keys",
]
