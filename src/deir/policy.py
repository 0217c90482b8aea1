"""The recurrent actor-critic: one encoder and GRU for policy and value, a head for each."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from deir.config import NetworkConfig
from deir.networks import encoder_kind, head, make_encoder
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
        return self.heads(self.encoder(observations), hidden)

    def heads(self, embeddings: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings [B, F], memory before the step [B, H] -> logits [B, A], values [B], memory after it [B, H]"""
        hidden = self.gru(embeddings, hidden)
        return self.actor(hidden), self.critic(hidden)[:, 0], hidden


def sample_actions(logits: Tensor, generator: torch.Generator) -> Tensor:
    """[B, A] -> [B], by the Gumbel-max trick, which draws a fixed number of random numbers whatever the logits are."""
    noise = torch.rand(logits.shape, generator=generator, device=generator.device).to(logits.device)
    return (logits - torch.log(-torch.log(noise.clamp(1e-20, 1 - 1e-7)))).argmax(-1)
