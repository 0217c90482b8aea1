"""DEIR with parts taken out or exchanged: the agents of Figure 6, of which (a) is DEIR itself.

(b) `deir-no-mi`: r_t = min_i dist(e_obs_i, e_obs_{t+1}); Equation 1 without its mutual information.
(c) `deir-no-rnn-no-mi`: the same with the discriminator only: it reads observation embeddings, without an RNN.
(d) `deir-inverse`: Equation 4 on the embeddings of an inverse model.
(e) `deir-forward`: Equation 4 on the embeddings of a forward model.
"""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from torch import Tensor

from deir.algorithm.networks import Encoder
from deir.algorithm.rewards.deir import Deir, EpisodicNovelty
from deir.algorithm.rewards.shared import ForwardModel, InverseModel
from deir.algorithm.types import Batch
from deir.config import Config


class DeirNoMi(Deir):
    mutual_information = False


class DeirNoRnnNoMi(DeirNoMi):
    recurrent = False


class DeirInverse(EpisodicNovelty):
    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Space[Any],
        config: Config,
        policy_encoder: Encoder | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, config, policy_encoder)
        self.inverse_model = InverseModel(config, self.width, self.actions, self.options.mlp)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return self.inverse_model.loss(*self.transitions(batch), batch.actions)


class DeirForward(EpisodicNovelty):
    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Space[Any],
        config: Config,
        policy_encoder: Encoder | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, config, policy_encoder)
        self.forward_model = ForwardModel(config, self.width, self.actions, self.options.mlp)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        now, then = self.transitions(batch)  # [B, H]
        loss = self.forward_model.errors(now, self.actions.vector(batch.actions), then).mean()
        return loss, {"forward_loss": loss}
