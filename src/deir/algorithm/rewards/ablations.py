"""DEIR with parts taken out or exchanged: the agents of Figure 6, of which (a) is DEIR itself.

(b) `deir-no-mi`: r_t = min_i dist(e_obs_i, e_obs_{t+1}); Equation 1 without its mutual information.
(c) `deir-no-rnn-no-mi`: the same with the discriminator only: it reads observation embeddings, without an RNN.
(d) `deir-inverse`: Equation 4 on the embeddings of an inverse model.
(e) `deir-forward`: Equation 4 on the embeddings of a forward model.
"""

from __future__ import annotations

from torch import Tensor

from deir.algorithm.rewards.base import Context
from deir.algorithm.rewards.deir import Deir, EpisodicNovelty
from deir.algorithm.rewards.shared import ForwardModel, InverseModel
from deir.algorithm.types import Batch


class DeirNoMi(Deir):
    mutual_information = False


class DeirNoRnnNoMi(DeirNoMi):
    recurrent = False


class DeirInverse(EpisodicNovelty):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.inverse_model = InverseModel(context, self.width, self.actions, self.options.mlp)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return self.inverse_model.loss(*self.transitions(batch), batch.actions)


class DeirForward(EpisodicNovelty):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.forward_model = ForwardModel(context, self.width, self.actions, self.options.mlp)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        now, then = self.transitions(batch)  # [B, H]
        loss = self.forward_model.errors(now, self.actions.vector(batch.actions), then).mean()
        return loss, {"forward_loss": loss}
