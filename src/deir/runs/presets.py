"""Table A1 as data, cell by cell, what we add to it, and the configuration that follows for a suite and a method."""

from __future__ import annotations

from typing import Any, NamedTuple

from deir.config import Config, merge
from deir.errors import unknown

Overrides = dict[str, Any]

SUITE_NAMES = ("minigrid", "omfull", "procgen")
DASH = "-"  # the paper has no value: the method was not run there, or the option is off
TOTAL_AVERAGE = None  # the configuration's word for a mean over all of training instead of a moving one

DESCRIPTIONS = {
    "minigrid": "MiniGrid and any other task as in the paper: 16 workers x 512 steps, batch normalisation",
    "omfull": "ObstructedMaze-Full: 64 workers x 256 steps, layer normalisation, extrinsic reward x 10",
    "procgen": "ProcGen: 64 workers x 256 steps, layer normalisation, IMPALA and DQN encoders",
    "swift": "not in the paper: MiniGrid in less than half the frames, by short rollouts: 32 workers x 64 steps",
    "omfull-author": "ObstructedMaze-Full by its author's own command: wider networks, clipped values",
    "control": "not in the paper: Gymnasium tasks with vectors to see and counted actions, such as MountainCar-v0",
    "continuous": "not in the paper: Gymnasium tasks with Box actions, such as MountainCarContinuous-v0 or MuJoCo's",
}


class Row(NamedTuple):
    """One line of Table A1. Names and order are the paper's."""

    name: str
    fields: tuple[str, ...]  # what it sets in the configuration
    minigrid: Any
    omfull: Any
    procgen: Any
    candidates: tuple[Any, ...]  # all values that were tried

    def value(self, suite: str) -> Any:
        return getattr(self, suite)


# fmt: off
COMMON: tuple[Row, ...] = (
    Row("PPO γ", ("ppo.gamma",), 0.99, 0.99, 0.99, (0.99, 0.997, 0.999)),
    Row("PPO λ_GAE", ("ppo.gae_lambda",), 0.95, 0.95, 0.95, (0.0, 0.8, 0.9, 0.95, 0.99, 0.997)),
    Row("PPO rollout steps", ("ppo.rollout_steps",), 512, 256, 256, (128, 256, 512, 1024, 2048, 4096)),
    Row("PPO workers", ("env.n_envs",), 16, 64, 64, (16, 32, 64, 128)),
    Row("PPO clip range", ("ppo.clip_range",), 0.2, 0.2, 0.2, (0.1, 0.2, 0.3)),
    Row("PPO training epochs", ("ppo.epochs",), 4, 3, 3, (2, 3, 4)),
    Row("model training epochs", ("reward.epochs",), 4, 3, 3, (1, 3, 4)),
    Row("mini-batch size", ("ppo.minibatch_size", "reward.minibatch_size"), 512, 2048, 2048, (512, 1024, 2048)),
    Row("entropy loss coef", ("ppo.entropy_coef",), 1e-2, 5e-4, 1e-2, (5e-4, 1e-3, 1e-2, 1e-1)),
    Row("advantage normalization", ("ppo.advantage_norm",), "ema", "none", "none", ("ema", "none")),
    Row("adv norm momentum", ("ppo.advantage_momentum",), 0.9, DASH, DASH, (0.0, 0.9, 0.95, 0.99, 0.999)),
    Row("Adam learning rate", ("ppo.learning_rate",), 3e-4, 1e-4, 1e-4, (3e-5, 1e-4, 3e-4, 1e-3)),
    Row("Adam epsilon", ("ppo.adam_eps",), 1e-5, 1e-5, 1e-5, (1e-2, 1e-4, 1e-5, 1e-8)),
    Row("Adam beta1", ("ppo.adam_beta1",), 0.9, 0.9, 0.9, (0.9, 0.95, 0.99)),
    Row("Adam beta2", ("ppo.adam_beta2",), 0.999, 0.999, 0.999, (0.999, 0.9999)),
    Row("normalization for layers", ("network.norm",), "batch", "layer", "layer", ("batch", "layer", "none")),
    Row("seeds in experiments", (), 20, 12, 3, ()),
    Row("extrinsic reward coef", ("reward.extrinsic_coef",), 1.0, 10.0, 1.0, ()),
)

BETA, NORM, MOMENTUM = ("reward.beta",), ("reward.normalize",), ("reward.momentum",)
ERROR_NORM, ERROR_MOMENTUM = ("reward.rnd.normalize_error",), ("reward.rnd.error_momentum",)
TOTAL = (TOTAL_AVERAGE, TOTAL_AVERAGE, TOTAL_AVERAGE)
TOTAL_BUT_OMFULL = (TOTAL_AVERAGE, DASH, TOTAL_AVERAGE)

TABLE: dict[str, tuple[Row, ...]] = {
    "deir": (
        Row("IR coef β", BETA, 1e-2, 1e-3, 5e-2, (1e-3, 3e-3, 5e-3, 1e-2, 3e-2, 5e-2, 1e-1)),
        Row("IR normalization", NORM, True, True, True, (True, False)),
        Row("IR norm momentum", MOMENTUM, 0.9, 0.9, 0.9, (0.0, 0.9, 0.95, 0.99, TOTAL_AVERAGE)),
        Row("observation queue size", ("reward.deir.queue_size",), 10**5, 10**5, 10**5, (10**4, 10**5, 10**6)),
    ),
    "noveld": (
        Row("IR coef β", BETA, 3e-2, 3e-3, 3e-2, (1e-4, 1e-3, 3e-3, 5e-3, 1e-2, 3e-2, 5e-2, 1e-1)),
        Row("IR normalization", NORM, True, True, True, (True,)),
        Row("IR norm momentum", MOMENTUM, 0.9, 0.9, 0.9, (0.9,)),
        Row("RND error normalization", ERROR_NORM, False, False, False, (True, False)),
        Row("RND error momentum", ERROR_MOMENTUM, *TOTAL, (0.997, TOTAL_AVERAGE)),
    ),
    "ngu": (
        Row("IR coef β", BETA, 1e-3, DASH, 3e-4, (1e-4, 3e-4, 1e-3, 3e-3, 5e-3, 1e-2, 3e-2, 1e-1)),
        Row("IR normalization", NORM, True, DASH, True, (True, False)),
        Row("IR norm momentum", MOMENTUM, 0.0, DASH, 0.0, (0.0, 0.2, 0.5, 0.9)),
        Row("RND-based lifelong bonus", ("reward.ngu.lifelong",), True, DASH, True, (True, False)),
        Row("RND error normalization", ERROR_NORM, True, DASH, True, (True, False)),
        Row("RND error momentum", ERROR_MOMENTUM, *TOTAL_BUT_OMFULL, (0.997, TOTAL_AVERAGE)),
        Row("momentum (squared dist.)", ("reward.ngu.distance_momentum",), 0.997, DASH, 0.997,
            (0.99, 0.997, 0.999, 0.9999, TOTAL_AVERAGE)),
    ),
    "rnd": (
        Row("IR coef β", BETA, 3e-3, DASH, 1e-2, (1e-5, 1e-4, 1e-3, 3e-3, 5e-3, 1e-2, 3e-2)),
        Row("IR normalization", NORM, True, DASH, True, (True, False)),
        Row("IR norm momentum", MOMENTUM, 0.9, DASH, 0.9, (0.0, 0.9)),
        Row("RND error normalization", ERROR_NORM, False, DASH, False, (True, False)),
        Row("RND error momentum", ERROR_MOMENTUM, *TOTAL_BUT_OMFULL, (0.997, TOTAL_AVERAGE)),
    ),
    "icm": (
        Row("IR coef β", BETA, 1e-2, DASH, 1e-4, (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 5e-3, 1e-2, 3e-2)),
        Row("IR normalization", NORM, True, DASH, True, (True,)),
        Row("IR norm momentum", MOMENTUM, 0.9, DASH, 0.9, (0.9,)),
        Row("forward loss coef.", ("reward.icm.forward_weight",), 0.2, DASH, 0.2, (0.2,)),
    ),
    # not in the paper; the values of β are of experiments/betas-field.yaml
    "etd": (Row("IR coef β", BETA, 1e-2, DASH, DASH, (3e-3, 1e-2, 3e-2, 1e-1)),),
    "e3b": (Row("IR coef β", BETA, 1e-2, DASH, DASH, (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)),),
    "ride": (Row("IR coef β", BETA, 1e-2, DASH, DASH, (3e-3, 1e-2, 3e-2, 1e-1)),),
    "re3": (Row("IR coef β", BETA, 1e-2, DASH, DASH, (1e-3, 3e-3, 1e-2, 3e-2)),),
    "disagreement": (Row("IR coef β", BETA, 3e-3, DASH, DASH, (1e-3, 3e-3, 1e-2, 3e-2)),),
    "deir+visits": (
        Row("IR coef β", BETA, 1e-2, DASH, DASH, (3e-3, 1e-2, 3e-2, 1e-1)),
        Row("IR norm momentum", MOMENTUM, 0.0, DASH, DASH, (0.0, 0.9)),
    ),
    "pseudo-counts": (Row("IR coef β", BETA, 3e-3, DASH, DASH, (1e-3, 3e-3, 1e-2, 3e-2)),),
}
# fmt: on

BEYOND_THE_PAPER = ("etd", "e3b", "ride", "re3", "disagreement", "deir+visits", "pseudo-counts")
"""Methods whose rows in the table are ours."""
LIKE_DEIR = ("deir-no-mi", "deir-no-rnn-no-mi", "deir-inverse", "deir-forward", "deir+rnd", "count")
"""Methods without a part of the table: the ablations use DEIR's values (Section 4.3), and so do we for the others."""

BEYOND: dict[str, dict[str, Any]] = {
    "procgen": {"network.features": 256, "network.hidden": 256, "network.mlp": 256},  # Appendix A.5
    "deir+rnd": {"reward.rnd.normalize_error": True},  # as NGU's factor
}
"""What the presets of a suite or method set beyond the table."""

_VECTORS: dict[str, Any] = {
    "env.n_envs": 8,
    "ppo.rollout_steps": 256,
    "ppo.minibatch_size": 256,
    "reward.minibatch_size": 256,
    "ppo.learning_rate": 5e-4,
    "ppo.truncation": "bootstrap",  # a reward at every step: what a time limit cuts off must be valued
    "reward.extrinsic_coef": 0.1,  # returns of ±100 would leave the shared layers to the value loss
}


class OurSuite(NamedTuple):
    """A suite that Table A1 does not have."""

    base: str  # the column of the table that it changes
    changes: dict[str, Any]  # for all methods
    own: dict[str, dict[str, Any]]  # by the part of the table, what was found for it; other parts keep the base's


OURS: dict[str, OurSuite] = {
    # found by `deir tune` and confirmed on other tasks (docs/tuning.md)
    "swift": OurSuite(
        "minigrid",
        {
            "env.n_envs": 32,
            "ppo.rollout_steps": 64,
            "ppo.learning_rate": 5e-4,
            "checkpoint.every": 40,  # as many frames as ten rollouts of Table A1
        },
        {
            "deir": {"reward.beta": 1e-2},
            "noveld": {"reward.beta": 3e-2},
            "ngu": {"reward.beta": 3e-2},
            "rnd": {"reward.beta": 3e-4},
            "icm": {"reward.beta": 3e-3},
            "etd": {"reward.beta": 3e-2},
            "e3b": {"reward.beta": 3e-2},
            "ride": {"reward.beta": 1e-2},
            "re3": {"reward.beta": 3e-3},
            "disagreement": {"reward.beta": 3e-3},
            "pseudo-counts": {"reward.beta": 3e-3},
            "deir+visits": {"reward.beta": 3e-2},
        },
    ),
    "omfull-author": OurSuite(
        "omfull",
        {"network.features": 256, "network.hidden": 256, "network.mlp": 256, "ppo.clip_range_value": 0.2},
        {"deir": {"reward.momentum": 0.99}},
    ),
    # normalised, the advantages of a task that has not paid yet are noise, along which PPO drifts away; statistics of a
    # batch, which move with what the agent has just begun to do, made it lose the goal again
    "control": OurSuite(
        "minigrid",
        {**_VECTORS, "ppo.advantage_norm": "none", "network.norm": "none", "ppo.learning_rate": 1e-3},
        {"deir": {"reward.beta": 0.3}},
    ),
    "continuous": OurSuite(
        "minigrid",
        {**_VECTORS, "ppo.entropy_coef": 0.0, "network.log_std": -0.7},
        {"deir": {"reward.beta": 0.1}},
    ),
}

TASKS: dict[tuple[str, str], Overrides] = {
    ("procgen:caveflyer", "deir"): {"reward": {"beta": 5e-3}},  # the table's second footnote
}


def nested(values: dict[str, Any]) -> Overrides:
    """{'ppo.gamma': 0.99} -> {'ppo': {'gamma': 0.99}}"""
    tree: Overrides = {}
    for path, value in values.items():
        *sections, name = path.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[name] = value
    return tree


def column(rows: tuple[Row, ...], suite: str) -> dict[str, Any]:
    """What the rows say for a suite, field by field; a dash leaves the default."""
    values = {field: row.value(suite) for row in rows for field in row.fields}
    return {field: value for field, value in values.items() if value != DASH}


def part_of(method: str) -> str:
    """The part of the table that a method uses."""
    return "deir" if method in LIKE_DEIR else method


def source(suite: str, method: str) -> str:
    """Where a method's values come from: MiniGrid's column where neither the paper nor we tried it in the suite."""
    part = part_of(method)
    if suite in OURS:
        return suite if part in OURS[suite].own else source(OURS[suite].base, method)
    return suite if TABLE[part][0].value(suite) != DASH else "minigrid"


def _method_values(suite: str, method: str) -> Overrides:
    part, ours = part_of(method), OURS.get(suite)
    values = column(TABLE[part], source(ours.base if ours else suite, method))
    return nested({**values, **BEYOND.get(method, {}), **(ours.own.get(part, {}) if ours else {})})


SUITES: dict[str, Overrides] = {
    **{suite: nested({**column(COMMON, suite), **BEYOND.get(suite, {})}) for suite in SUITE_NAMES},
    **{suite: nested({**column(COMMON, ours.base), **ours.changes}) for suite, ours in OURS.items()},
}
METHODS: dict[tuple[str, str], Overrides] = {
    (suite, method): _method_values(suite, method) for method in (*TABLE, *LIKE_DEIR) for suite in SUITES
}
SEEDS: dict[str, int] = {
    suite: row.value(suite) for row in COMMON if row.name.startswith("seeds") for suite in SUITE_NAMES
}
CANDIDATES: dict[str, dict[str, tuple[Any, ...]]] = {
    part: {row.fields[0]: row.candidates for row in rows if row.fields and row.candidates}
    for part, rows in {"ppo": COMMON, **TABLE}.items()
}
"""For tuning: the values tried, by the field they set; 'ppo' is what all methods share."""


def suite_of(env_id: str) -> str:
    """The column of Table A1 for a task, or our suite for its kind of observations and actions."""
    from deir.envs.kinds import suits_control
    from deir.envs.minigrid.catalogue import resolve as minigrid_task

    if env_id.startswith("procgen:"):
        return "procgen"
    if "ObstructedMaze-Full" in env_id:
        return "omfull"
    return suits_control(env_id) or ("swift" if minigrid_task(env_id) else "minigrid")


def resolve(config: Config) -> Config:
    """`config` with its preset laid over it; `preset: auto` becomes the name of the one chosen."""
    suite = suite_of(config.env.id) if config.preset == "auto" else config.preset
    if suite not in SUITES:
        raise unknown("preset", suite, ["auto", *SUITES])
    layers = [
        {"preset": suite},
        SUITES[suite],
        METHODS.get((suite, config.method), {}),
        TASKS.get((config.env.id, part_of(config.method)), {}),
    ]
    for layer in layers:
        config = merge(config, layer)
    return config
