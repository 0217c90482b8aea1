"""The recurrent actor-critic: one encoder and GRU for policy and value, a head for each."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from deir.algorithm.actions import actions_of
from deir.algorithm.layers import head
from deir.algorithm.networks import encoder_kind, make_encoder
from deir.algorithm.ops import Ops, PlainOps
from deir.algorithm.types import Rows
from deir.config import NetworkConfig


class Policy(nn.Module):
    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: NetworkConfig,
        ops: Ops | None = None,
    ) -> None:
        """`ops`: how it is computed; plainly when not given."""
        super().__init__()
        self.ops: Ops = ops or PlainOps()
        self.actions = actions_of(action_space, config.box_policy)
        self.observation_space = observation_space
        kind = encoder_kind(config.encoder, observation_space, images="impala")
        self.encoder = make_encoder(kind, observation_space, config.features, config.norm)
        self.gru = nn.GRUCell(config.features, config.hidden)
        self.actor = head(config.norm, [config.hidden, config.mlp, self.actions.outputs])
        self.critic = head(config.norm, [config.hidden, config.mlp, 1])
        for parameter in (*self.actor[-1].parameters(), *self.critic[-1].parameters()):
            nn.init.zeros_(parameter)  # a fresh policy prefers no action and expects nothing
        free = self.actions.free
        self.free = nn.Parameter(torch.full((free,), config.log_std)) if free else None  # a Gaussian's log-deviations

    @property
    def hidden_size(self) -> int:
        return self.gru.hidden_size

    @property
    def device(self) -> torch.device:
        return self.gru.weight_hh.device

    def initial_hidden(self, n_envs: int, device: torch.device | str = "cpu") -> Tensor:
        return torch.zeros(n_envs, self.hidden_size, device=device)

    def forward(self, observations: Tensor | Rows, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, *obs], memory before the step [B, H] -> outputs [B, A], values [B], memory after it [B, H]"""
        hidden = self.advance(observations, hidden)
        return self.complete(self.ops.head(self.actor, hidden)), self.values(hidden), hidden

    def act(self, observations: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The same without values."""
        hidden = self.advance(observations, hidden)
        return self.complete(self.ops.head(self.actor, hidden)), hidden

    def advance(self, observations: Tensor | Rows, hidden: Tensor) -> Tensor:
        """The memory after the observations. [B, H]"""
        embedded = self.ops.embed(self.encoder, observations)
        return self.ops.gru_step(self.gru, self.ops.gru_inputs(self.gru, embedded), hidden)

    def values(self, hidden: Tensor) -> Tensor:
        """V of the memory after an observation. [B, H] -> [B]"""
        return self.ops.head(self.critic, hidden)[:, 0]

    def complete(self, outputs: Tensor) -> Tensor:
        """The actor's outputs with those that do not depend on what the policy sees. [B, A] -> [B, A + free]"""
        if self.free is None:
            return outputs
        return torch.cat([outputs, self.free.expand(*outputs.shape[:-1], -1)], -1)
