"""The whole run in one typed, frozen tree. The command line, `config.yaml` and the docs are all made from it."""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import tyro
import yaml

from deir.errors import UserError, invalid, shortened, unknown

T = TypeVar("T")
_SUFFIXES = {"k": 10**3, "m": 10**6, "b": 10**9}
YAML_CHARACTERS, YAML_ENTRIES, YAML_DEPTH = 2_000_000, 100_000, 32


def parse_count(text: str | int) -> int:
    """'200k' -> 200000, '2M' -> 2000000, '1e6' -> 1000000."""
    if isinstance(text, int) and not isinstance(text, bool) and text > 0:
        return text
    try:
        raw = str(text).strip().lower().replace("_", "").replace(",", "")
        scale = _SUFFIXES.get(raw[-1:], 1)
        value = float(raw[:-1] if scale > 1 else raw) * scale
    except (ValueError, RecursionError):
        raise invalid("steps", text, "a number of frames such as 200000, 200k or 2M") from None
    if not value.is_integer() or value < 1:
        raise invalid("steps", text, "a whole number of frames above 0, such as 200k")
    return int(value)


Count = Annotated[
    int,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="FRAMES",
        instance_from_str=lambda args: parse_count(args[0]),
        is_instance=lambda x: isinstance(x, int),
        str_from_instance=lambda x: [str(x)],
    ),
]


@dataclass(frozen=True)
class EnvConfig:
    """The task and its variants."""

    id: Annotated[str, tyro.conf.arg(aliases=["--env"])] = "DoorKey-8x8"
    """Task: a name of `deir list envs`, any Gymnasium id, or module:factory."""
    n_envs: int = 16
    """Environments stepped side by side (Table A1: PPO workers)."""
    view_size: int | None = None
    """MiniGrid: side of the agent's square view (odd, 3 or more; the task's own is 7)."""
    noise: float = 0.0
    """MiniGrid: standard deviation of Gaussian noise added to every observation (paper: 0.1)."""
    noise_units: Literal["normalized", "raw"] = "normalized"
    """Noise on observations scaled to [0, 1] (the paper's words) or on the raw integer codes (its figures)."""
    invisible_obstacles: bool = False
    """MiniGrid: walls, unseen and empty cells look alike (Algorithm A5)."""
    direction: bool = False
    """MiniGrid: the agent also sees which way it faces."""
    mission: bool = False
    """MiniGrid: the agent also reads its mission, as words; through Gymnasium, which is slower."""
    max_steps: int | None = None
    """Longest episode; the task's own when not given."""
    time_penalty: bool = True
    """MiniGrid: reward 1 - 0.9 t/max_steps on success; without it the reward is 1."""
    distribution_mode: Literal["easy", "hard", "extreme", "memory", "exploration"] = "hard"
    """ProcGen: difficulty of the levels."""
    num_levels: int = 0
    """ProcGen: number of levels; 0 is the full distribution."""
    start_level: int = 0
    """ProcGen: first level."""
    layout_worker: bool = True
    """MiniGrid: prepare the layouts of coming episodes in a background process."""


@dataclass(frozen=True)
class NetworkConfig:
    """Shapes of the policy and of the reward model (Appendix A.5)."""

    encoder: Literal["auto", "grid", "impala", "dqn", "mlp"] = "auto"
    """Encoder of the policy; auto: grid for small images, impala for others, mlp for vectors."""
    features: int = 64
    """Width of an observation embedding."""
    hidden: int = 64
    """Width of the GRU, that is, of a trajectory embedding."""
    mlp: int = 128
    """Width of the output heads' hidden layers."""
    norm: Literal["batch", "layer", "none"] = "batch"
    """Normalisation of all non-recurrent layers and of the input; vectors are scaled by their moments in any case."""
    box_policy: Literal["squashed", "clipped"] = "squashed"
    """Continuous actions: Gaussian draws brought into their bounds by tanh, or by cutting them off."""
    log_std: float = 0.0
    """Continuous actions: logarithm of the initial standard deviation, of actions scaled to -1 … 1."""


@dataclass(frozen=True)
class PPOConfig:
    """Proximal policy optimisation (Table A1)."""

    rollout_steps: int = 512
    """Steps of every environment between two updates."""
    epochs: int = 4
    """Passes over a rollout."""
    minibatch_size: int = 512
    """Transitions in one gradient step."""
    gamma: float = 0.99
    """Discount."""
    gae_lambda: float = 0.95
    """Decay of generalised advantage estimation."""
    clip_range: float = 0.2
    """Clipping of the policy ratio."""
    clip_range_value: float | None = None
    """Clipping of the value's change; none when not given."""
    entropy_coef: float = 1e-2
    """Weight of the entropy bonus."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Largest gradient norm, for each network on its own."""
    advantage_norm: Literal["ema", "minibatch", "none"] = "ema"
    """Advantages normalised by moving statistics over rollouts, within a mini-batch, or not at all."""
    advantage_momentum: float = 0.9
    """Momentum of the moving statistics."""
    truncation: Literal["terminate", "bootstrap"] = "terminate"
    """A time limit ends the return, or the value of the last observation stands for the rest."""
    learning_rate: float = 3e-4
    """Adam's learning rate, of policy and reward model."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    adam_beta1: float = 0.9
    """Adam's first momentum."""
    adam_beta2: float = 0.999
    """Adam's second momentum."""


@dataclass(frozen=True)
class DeirConfig:
    """What only DEIR has."""

    pairing: Literal["eq4", "a1", "published"] = "eq4"
    """Which trajectory embedding is paired with which observation (docs/deviations.md)."""
    queue_size: int = 100_000
    """Recent novel observations kept to make fake transitions from."""
    eps: float = 1e-6
    """Epsilon in the denominator of Equation 4."""
    features: int | None = None
    """Width of the model's observation embedding; the policy's when not given."""
    mlp: int | None = None
    """Width of the discriminator's MLP; the policy's when not given."""


@dataclass(frozen=True)
class IcmConfig:
    """What only ICM has."""

    forward_weight: float = 0.2
    """Weight of the forward loss; the inverse loss has the rest."""


@dataclass(frozen=True)
class RndConfig:
    """Random distillation: of RND, NovelD, and the lifelong factor of NGU and deir+rnd."""

    mlp: int | None = None
    """Width of the hidden layers, half of it of the outputs; twice the width of other heads when not given."""
    normalize_error: bool = False
    """Normalise the prediction error by its mean and deviation before it is used."""
    error_momentum: float | None = None
    """Momentum of that mean and deviation; none: the average of all training."""
    max_factor: float = 5.0
    """Largest lifelong factor (NGU, deir+rnd)."""


@dataclass(frozen=True)
class NguConfig:
    """What only NGU has (its Algorithm 1)."""

    neighbours: int = 10
    """Nearest neighbours in the episodic memory."""
    distance_momentum: float | None = 0.997
    """Momentum of the running mean of squared distances; none: the average of all training."""
    cluster_distance: float = 0.008
    """Normalised squared distance below which two embeddings are the same."""
    eps: float = 1e-3
    """Epsilon of the kernel."""
    pseudo_count: float = 1e-3
    """Constant added to the similarity."""
    max_similarity: float = 8.0
    """Similarity above which nothing is earned."""
    lifelong: bool = True
    """Multiply by the lifelong factor of random distillation."""


@dataclass(frozen=True)
class NoveldConfig:
    """What only NovelD has."""

    alpha: float = 0.5
    """Share of the current observation's novelty that is taken off the next one's."""
    visits: Literal["observation", "state"] = "observation"
    """What must be new to the episode: the observation, or the full state (an oracle, where the task can tell it)."""


@dataclass(frozen=True)
class RewardConfig:
    """The intrinsic reward: r = extrinsic_coef * r_E + beta * normalised r_I."""

    beta: float = 1e-2
    """Weight of the intrinsic reward."""
    extrinsic_coef: float = 1.0
    """Weight of the task's own reward."""
    normalize: bool = True
    """Normalise the intrinsic reward by its moving mean and deviation."""
    momentum: float | None = 0.9
    """Momentum of the moving mean and variance; none: those of all training."""
    epochs: int = 4
    """Passes of the reward model over a rollout."""
    minibatch_size: int = 512
    """Transitions in one gradient step of the reward model."""
    overlap: bool = True
    """Let the reward model learn in a thread of its own beside the policy, where that pays and there are two cores."""
    encoder: Literal["auto", "grid", "impala", "dqn", "mlp"] = "auto"
    """Encoder of the reward model; auto: grid for small images, dqn for others, mlp for vectors."""
    embeddings: Literal["policy", "own"] = "policy"
    """What RND, NGU's and deir+rnd's lifelong factor and NovelD read: the policy's embeddings or an encoder's own."""
    deir: DeirConfig = field(default_factory=DeirConfig)
    icm: IcmConfig = field(default_factory=IcmConfig)
    rnd: RndConfig = field(default_factory=RndConfig)
    ngu: NguConfig = field(default_factory=NguConfig)
    noveld: NoveldConfig = field(default_factory=NoveldConfig)


@dataclass(frozen=True)
class CheckpointConfig:
    """When the state of the run is written."""

    every: int = 10
    """Iterations between two checkpoints; one is always written at the end and on Ctrl-C or SIGTERM."""
    keep: int = 2
    """How many of the last checkpoints stay."""
    max_queue_mb: int = 256
    """A larger observation queue is left out and refilled after a resume."""


@dataclass(frozen=True)
class Config:
    """Everything that decides a run."""

    env: EnvConfig = field(default_factory=EnvConfig)
    method: str = "deir"
    """Intrinsic reward: a name of `deir list methods`, or package.module:Class; none is PPO alone."""
    preset: str = "auto"
    """Table A1 column: a name of `deir list presets`; the task's own when not given (auto)."""
    steps: Count = 200_000
    """Frames to train for; 200k and 2M are understood."""
    seed: int = 0
    """Seed of environments, noise, actions, mini-batches and initial weights."""
    target_return: float | None = None
    """End once the mean return over the last 100 episodes reaches this."""
    device: str = "cpu"
    """PyTorch device of the networks: cpu, cuda, cuda:1, …"""
    threads: int | None = None
    """CPU threads of the run; the machine's cores (or OMP_NUM_THREADS) when not given."""
    ops: Literal["plain", "fast"] | None = None
    """How it is computed: plain PyTorch, or the same mathematics faster on a CPU; fast on a CPU when not given."""
    tensorboard: bool = True
    """Write TensorBoard events beside progress.csv."""
    maps: bool = False
    """MiniGrid: write maps.npz and maps.png, the agent's visits and its intrinsic reward over the grid."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)


def to_dict(config: Any) -> dict[str, Any]:
    return dataclasses.asdict(config)


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"ppo": {"gamma": 0.99}} -> {"ppo.gamma": 0.99}"""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat.update(flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat


def merge(config: T, overrides: dict[str, Any], where: str = "") -> T:
    """A copy of `config` with the nested `overrides` laid over it; unknown keys and wrong types are errors."""
    names = {f.name for f in dataclasses.fields(config)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(type(config), include_extras=True)
    changes: dict[str, Any] = {}
    for key, value in overrides.items():
        path = f"{where}{key}"
        if key not in names:
            raise unknown(f"configuration key {shortened(path)}", shortened(key).strip("'"), names)
        current = getattr(config, key)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, dict):
                raise invalid(
                    path, value, f"a mapping with the keys {', '.join(f.name for f in dataclasses.fields(current))}"
                )
            changes[key] = merge(current, value, f"{path}.")
        else:
            changes[key] = _coerce(value, hints[key], path)
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def _coerce(value: Any, hint: Any, path: str) -> Any:
    """`value` as the annotated type, or an error that names the field."""
    if hint is Count and isinstance(value, (str, float)):
        return parse_count(str(value))
    if get_origin(hint) is Annotated:
        return _coerce(value, get_args(hint)[0], path)
    if get_origin(hint) in (types.UnionType, typing.Union):
        options = [h for h in get_args(hint) if h is not type(None)]
        return None if value is None else _coerce(value, options[0], path)
    if get_origin(hint) is Literal:
        if not isinstance(value, str) or value not in get_args(hint):
            text = value if isinstance(value, str) else shortened(value)
            raise unknown(path, text, map(str, get_args(hint)))
        return value
    if hint is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)  # also of a text: YAML reads 3e-4 so
        except (ValueError, OverflowError):
            pass
    if isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise invalid(path, value, {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[hint])


def load_yaml(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(YAML_CHARACTERS + 1)
    except FileNotFoundError:
        raise invalid("config", str(path), "an existing YAML file") from None
    except (UnicodeDecodeError, IsADirectoryError) as error:
        raise UserError(f"config: {path} is not a YAML file: {error}") from None
    if len(text) > YAML_CHARACTERS:
        raise UserError(f"config: {path} is too long, expected a YAML file of at most {YAML_CHARACTERS:,} characters")
    tree = parse_yaml(text, f"config: {path}")
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise invalid("config", str(path), "a YAML mapping of configuration keys")
    return tree


def parse_yaml(text: str, where: str) -> Any:
    """Plain data of a YAML text; whatever is wrong with it is one message."""
    try:
        tree = yaml.safe_load(text)
        if _entries(tree, YAML_DEPTH) > YAML_ENTRIES:
            raise UserError(f"{where}: too large, expected at most {YAML_ENTRIES:,} entries, those of aliases included")
    except RecursionError:
        raise UserError(f"{where}: nested too deeply, expected at most {YAML_DEPTH} levels") from None
    except UserError:
        raise
    except Exception as error:  # its constructors let Python's own errors through, such as those of a wrong date
        raise UserError(f"{where} is not a YAML file: {shortened(str(error))[1:-1]}") from None
    return tree


def _entries(tree: Any, depth: int) -> int:
    """How many values a tree has once its aliases are written out; stops counting where it is too many."""
    if not isinstance(tree, (dict, list, set, tuple)):
        return 1
    if depth == 0:
        raise RecursionError
    total = 1
    for entry in tree.values() if isinstance(tree, dict) else tree:
        total += _entries(entry, depth - 1)
        if total > YAML_ENTRIES:
            break
    return total
