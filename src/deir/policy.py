"""The recurrent actor-critic: one encoder and GRU for policy and value, a head for each."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from deir.config import NetworkConfig
from deir.kernels import gru_update
from deir.networks import encoder_kind, gru_gates, gru_memory, head, make_encoder
from deir.patches import Rows


class Policy(nn.Module):
    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], config: NetworkConfig
    ) -> None:
        super().__init__()
        assert isinstance(action_space, spaces.Discrete) and observation_space.shape is not None
        self.observation_dims = len(observation_space.shape)
        kind = encoder_kind(config.encoder, observation_space, images="impala")
        self.encoder = make_encoder(kind, observation_space, config.features, config.norm)
        self.gru = nn.GRUCell(config.features, config.hidden)
        self.actor = head(config.norm, [config.hidden, config.mlp, int(action_space.n)])
        self.critic = head(config.norm, [config.hidden, config.mlp, 1])

    @property
    def hidden_size(self) -> int:
        return self.gru.hidden_size

    def initial_hidden(self, n_envs: int, device: torch.device | str = "cpu") -> Tensor:
        return torch.zeros(n_envs, self.hidden_size, device=device)

    def forward(self, observations: Tensor | Rows, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, *obs], memory before the step [B, H] -> logits [B, A], values [B], memory after it [B, H]"""
        gates = gru_gates(self.gru, self.encoder, observations)
        hidden = gru_update(gates, gru_memory(self.gru, hidden), hidden)
        return self.actor(hidden), self.critic(hidden)[:, 0], hidden


def gumbel_noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Noise whose addition makes the largest logit a draw from the softmax."""
    return -torch.log(-torch.log(torch.rand(shape, generator=generator).clamp(1e-20, 1 - 1e-7)))


def sample_actions(logits: Tensor, generator: torch.Generator) -> Tensor:
    """[B, A] -> [B]"""
    return (logits + gumbel_noise(tuple(logits.shape), generator).to(logits.device)).argmax(-1)
