"""The whole run in one typed, frozen tree. The command line, `config.yaml` and the docs are all made from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from deir.config.counts import Count

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class EnvConfig:
    """The task and its variants."""

    id: Annotated[str, tyro.conf.arg(aliases=["--env"])] = "DoorKey-8x8"
    """Task: a name of `deir list envs`, any Gymnasium id, or module:factory."""
    n_envs: int = 16
    """Environments stepped side by side (Table A1: PPO workers)."""
    view_size: int | None = None
    """MiniGrid: side of the agent's square view (odd, 3 or more; the task's own is 7)."""
    full_view: bool = False
    """MiniGrid: the agent sees the whole grid with itself in it (Farama's FullyObsWrapper)."""
    fixed_layout: int | None = None
    """MiniGrid: the seed of the one layout of every episode and environment; a new layout each time when not given."""
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

    encoder: str = "auto"
    """Encoder of the policy: grid, impala, dqn, mlp or package.module:Class; auto: grid for small images, impala for
    others, mlp for vectors. mlp takes views too."""
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
    """NGU (its Algorithm 1), and pseudo-counts, which have its kernel."""

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
class EtdConfig:
    """What only ETD has."""

    gamma: float = 0.99
    """How far apart in time two observations of a pair are: P(j) ∝ γ^j."""


@dataclass(frozen=True)
class E3bConfig:
    """What only E3B has."""

    ridge: float = 0.1
    """λ of the covariance before the first observation of an episode."""


@dataclass(frozen=True)
class RideConfig:
    """What only RIDE has."""

    forward_weight: float = 0.2
    """Weight of the forward loss; the inverse loss has the rest."""


@dataclass(frozen=True)
class Re3Config:
    """What only RE3 has."""

    neighbours: int = 3
    """The distance to which of the nearest observations is paid (k)."""


@dataclass(frozen=True)
class DisagreementConfig:
    """What only Disagreement has."""

    models: int = 5
    """Forward models in the ensemble."""
    features: Literal["random", "inverse"] = "random"
    """What they foretell: features of a fixed random encoder, or of an inverse model."""


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
    encoder: str = "auto"
    """Encoder of the reward model: as the policy's; auto: grid for small images, dqn for others, mlp for vectors."""
    embeddings: Literal["policy", "own"] = "policy"
    """What RND, NGU's and deir+rnd's lifelong factor and NovelD read: the policy's embeddings or an encoder's own."""
    deir: DeirConfig = field(default_factory=DeirConfig)
    icm: IcmConfig = field(default_factory=IcmConfig)
    rnd: RndConfig = field(default_factory=RndConfig)
    ngu: NguConfig = field(default_factory=NguConfig)
    noveld: NoveldConfig = field(default_factory=NoveldConfig)
    etd: EtdConfig = field(default_factory=EtdConfig)
    e3b: E3bConfig = field(default_factory=E3bConfig)
    ride: RideConfig = field(default_factory=RideConfig)
    re3: Re3Config = field(default_factory=Re3Config)
    disagreement: DisagreementConfig = field(default_factory=DisagreementConfig)


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
    precision: Precision = "fp32"
    """Of encoders' products where nothing repeats (noise, layer norm, images); bf16: faster with avx512_bf16."""
    loggers: str = "csv,tensorboard"
    """Where figures go beside progress.csv: names of `deir list loggers` or package.module:Class, between commas."""
    maps: bool = False
    """MiniGrid: write maps.npz and maps.png, the agent's visits and its intrinsic reward over the grid."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
