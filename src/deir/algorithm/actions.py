"""What a policy can do: how actions of each kind are drawn, judged, and shown to the reward models.

A policy's head gives `outputs` numbers. A *choice* is what is drawn from them and judged by `log_prob`; the *action*
is what the environment takes and what `Rollout.actions` holds. They differ for a Box alone, whose choice is a Gaussian
draw.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional as F

from deir.errors import UserError

BoxPolicy = Literal["squashed", "clipped"]
LOG_STD_LIMITS = (-5.0, 2.0)
_NODES = 24  # of the quadrature behind a squashed policy's entropy
_LOG_2PI = math.log(2 * math.pi)


class Actions:
    """The interface; B stands for any leading dimensions."""

    shape: tuple[int, ...]  # of one action
    outputs: int  # numbers the policy's head gives
    free: int = 0  # further ones that are parameters of the policy, whatever it sees
    width: int  # of `vector`, and of what an inverse model predicts

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Randomness for `choose`, a fixed number of draws whatever the policy says. [*shape, …]"""
        raise NotImplementedError

    def choose(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """[B, outputs + free] and the noise of each -> choices [B, *shape]"""
        raise NotImplementedError

    def mode(self, outputs: Tensor) -> Tensor:
        """The likeliest choices. [B, *shape]"""
        raise NotImplementedError

    def taken(self, choices: Tensor) -> Tensor:
        """What the environment is given. [B, *shape]"""
        return choices

    def judge(self, outputs: Tensor, choices: Tensor) -> tuple[Tensor, Tensor]:
        """log π(choice) and the entropy of π, [B] each."""
        raise NotImplementedError

    def vector(self, actions: Tensor) -> Tensor:
        """Actions as the reward models read them. [B, *shape] -> [B, width]"""
        raise NotImplementedError

    def inverse_loss(self, predicted: Tensor, actions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """How badly an inverse model's outputs [B, width] tell the actions, and metrics to log."""
        raise NotImplementedError

    def log_prob(self, outputs: Tensor, choices: Tensor) -> Tensor:
        return self.judge(outputs, choices)[0]

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """Choices drawn from the policy. [B, *shape]"""
        return self.choose(outputs, self.noise(tuple(outputs.shape[:-1]), generator).to(outputs.device))


def gumbel_noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Noise whose addition makes the largest logit a draw from the softmax."""
    return -torch.log(-torch.log(torch.rand(shape, generator=generator, device="cpu").clamp(1e-20, 1 - 1e-7)))


class DiscreteActions(Actions):
    """One choice out of n: a categorical distribution."""

    shape = ()

    def __init__(self, n: int) -> None:
        self.outputs = self.width = n

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return gumbel_noise((*shape, self.outputs), generator)

    def choose(self, outputs: Tensor, noise: Tensor) -> Tensor:
        return (outputs + noise).argmax(-1)

    def mode(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(-1)

    def judge(self, outputs: Tensor, choices: Tensor) -> tuple[Tensor, Tensor]:
        log_pi = F.log_softmax(outputs, -1)
        return log_pi.gather(-1, choices[..., None])[..., 0], -(log_pi.exp() * log_pi).sum(-1)

    def log_prob(self, outputs: Tensor, choices: Tensor) -> Tensor:
        return F.log_softmax(outputs, -1).gather(-1, choices[..., None])[..., 0]

    def vector(self, actions: Tensor) -> Tensor:
        return F.one_hot(actions, self.width).to(torch.get_default_dtype())

    def inverse_loss(self, predicted: Tensor, actions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """-log p(a)"""
        loss = F.cross_entropy(predicted, actions)
        accuracy = (predicted.detach().argmax(1) == actions).float().mean()
        return loss, {"inverse_loss": loss, "inverse_accuracy": accuracy}


class MultiDiscreteActions(Actions):
    """Several choices at once, independent given what the policy sees: a product of categorical distributions."""

    def __init__(self, sizes: list[int]) -> None:
        self.parts = [DiscreteActions(n) for n in sizes]
        self.sizes = sizes
        self.shape = (len(sizes),)
        self.outputs = self.width = sum(sizes)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return gumbel_noise((*shape, self.outputs), generator)

    def choose(self, outputs: Tensor, noise: Tensor) -> Tensor:
        return self.mode(outputs + noise)

    def mode(self, outputs: Tensor) -> Tensor:
        return torch.stack([logits.argmax(-1) for logits in outputs.split(self.sizes, -1)], -1)

    def judge(self, outputs: Tensor, choices: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the parts."""
        judged = [part.judge(*pair) for part, pair in self._by_part(outputs, choices)]
        log_probs, entropies = zip(*judged, strict=True)
        return torch.stack(log_probs).sum(0), torch.stack(entropies).sum(0)

    def _by_part(self, outputs: Tensor, choices: Tensor) -> list[tuple[DiscreteActions, tuple[Tensor, Tensor]]]:
        return list(zip(self.parts, zip(outputs.split(self.sizes, -1), choices.unbind(-1), strict=True), strict=True))

    def vector(self, actions: Tensor) -> Tensor:
        """One-hot vectors side by side."""
        return torch.cat([part.vector(a) for part, a in zip(self.parts, actions.unbind(-1), strict=True)], -1)

    def inverse_loss(self, predicted: Tensor, actions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """-log p(a), a cross-entropy for each part; the accuracy is the mean over parts."""
        metrics = [part.inverse_loss(*pair)[1] for part, pair in self._by_part(predicted, actions)]
        loss = torch.stack([m["inverse_loss"] for m in metrics]).sum()
        return loss, {
            "inverse_loss": loss,
            "inverse_accuracy": torch.stack([m["inverse_accuracy"] for m in metrics]).mean(),
        }


class BoxActions(Actions):
    """A vector of numbers: Gaussian choices u with a deviation that does not depend on the observation.

    The scaled action is tanh(u) (squashed) or u cut at ±1 (clipped), and -1 … 1 stands for the Box's low … high; an
    entry without both bounds is u itself. Probabilities are densities of the scaled action, or of u when clipped.
    """

    def __init__(self, space: spaces.Box, policy: BoxPolicy) -> None:
        bounded = np.isfinite(space.low) & np.isfinite(space.high) & (space.high > space.low)
        low, high = (np.where(bounded, bound, 0.0) for bound in (space.low, space.high))
        self.bounded = torch.from_numpy(bounded)
        self.middle = torch.from_numpy((low + high) / 2).float()
        self.reach = torch.from_numpy(np.where(bounded, (high - low) / 2, 1.0)).float()
        self.low, self.high = torch.from_numpy(space.low).float(), torch.from_numpy(space.high).float()
        self.squashed = policy == "squashed"
        self.shape = space.shape
        self.outputs = self.free = self.width = space.shape[0]
        nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
        self.nodes = torch.from_numpy(nodes).float()  # of a standard normal variable
        self.weights = torch.from_numpy(weights / weights.sum()).float()

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.randn((*shape, self.outputs), generator=generator, device="cpu")

    def choose(self, outputs: Tensor, noise: Tensor) -> Tensor:
        mean, log_std = self._parameters(outputs)
        return mean + log_std.exp() * noise

    def mode(self, outputs: Tensor) -> Tensor:
        return self._parameters(outputs)[0]

    def _parameters(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = outputs.chunk(2, -1)
        return mean, log_std.clamp(*LOG_STD_LIMITS)

    def taken(self, choices: Tensor) -> Tensor:
        bounded, middle, reach, low, high = self._on(choices.device)
        scaled = choices.tanh() if self.squashed else choices.clamp(-1, 1)
        scaled = torch.where(bounded, scaled, choices)
        return (middle + reach * scaled).clamp(low, high)  # rounding must not leave the Box

    def _on(self, device: torch.device) -> tuple[Tensor, ...]:
        return tuple(x.to(device) for x in (self.bounded, self.middle, self.reach, self.low, self.high))

    def judge(self, outputs: Tensor, choices: Tensor) -> tuple[Tensor, Tensor]:
        """log N(u; μ, σ) - Σ log(1 - tanh² u), and H(N) + E Σ log(1 - tanh² u); the second terms if squashed."""
        mean, log_std = self._parameters(outputs)
        standard = (choices - mean) * (-log_std).exp()
        log_prob = -0.5 * (standard.square() + _LOG_2PI) - log_std
        entropy = 0.5 * (1 + _LOG_2PI) + log_std
        if self.squashed:
            bounded = self.bounded.to(outputs.device)
            log_prob = log_prob - torch.where(bounded, log_slope(choices), 0.0)
            entropy = entropy + torch.where(bounded, self._expected_log_slope(mean, log_std), 0.0)
        return log_prob.sum(-1), entropy.sum(-1)

    def _expected_log_slope(self, mean: Tensor, log_std: Tensor) -> Tensor:
        """E log(1 - tanh² u) by Gauss-Hermite quadrature. [B, A]"""
        points = mean[..., None] + log_std.exp()[..., None] * self.nodes.to(mean)
        return log_slope(points) @ self.weights.to(mean)

    def vector(self, actions: Tensor) -> Tensor:
        """Scaled to -1 … 1 where the Box has bounds."""
        _, middle, reach, _, _ = self._on(actions.device)
        return (actions.to(torch.get_default_dtype()) - middle) / reach

    def inverse_loss(self, predicted: Tensor, actions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean squared error of the scaled action."""
        loss = F.mse_loss(predicted, self.vector(actions))
        return loss, {"inverse_loss": loss}


def log_slope(u: Tensor) -> Tensor:
    """log(1 - tanh² u) = 2 (log 2 - u - log(1 + e^{-2u})), which loses nothing where tanh is flat."""
    return 2 * (math.log(2) - u - F.softplus(-2 * u))


def actions_of(space: spaces.Space[Any], box: BoxPolicy = "squashed") -> Actions:
    """The kind of actions of one environment's action space."""
    if isinstance(space, spaces.Discrete):
        return DiscreteActions(int(space.n))
    if isinstance(space, spaces.MultiDiscrete) and len(space.nvec.shape) == 1:
        return MultiDiscreteActions([int(n) for n in space.nvec])
    if isinstance(space, spaces.MultiBinary) and isinstance(space.n, (int, np.integer)):
        return MultiDiscreteActions([2] * int(space.n))
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return BoxActions(space, box)
    expected = "Discrete, MultiDiscrete, MultiBinary or Box, of one dimension"
    raise UserError(f"action space: got {space}, expected {expected}")
