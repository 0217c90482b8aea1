"""Adam over one flat vector: a network of forty small tensors steps as fast as one large one."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from deir.algorithm.optimizer import diverged
from deir.config import PPOConfig
from deir.fast.program import Program


class FlatAdam:
    """Adam with clipping by the global norm. The parameters and their gradients become views of two flat vectors.

    Build it once the network is on its device; `load_state_dict` of the network copies in place, so it stays valid.
    """

    def __init__(self, network: nn.Module, config: PPOConfig, name: str) -> None:
        self.network, self.config, self.name = network, config, name
        parameters = [p for p in network.parameters() if p.requires_grad]
        self.values = torch.cat([p.detach().flatten() for p in parameters])
        self.gradients = torch.zeros_like(self.values)
        begin = 0
        for parameter in parameters:
            part = slice(begin, begin + parameter.numel())
            parameter.data = self.values[part].view_as(parameter)
            parameter.grad = self.gradients[part].view_as(parameter)
            begin += parameter.numel()
        self.load_state_dict({})

    def step(self, loss: Tensor) -> None:
        """One clipped step; a loss or gradient that is not finite stops the run before it can spoil the parameters."""
        self.gradients.zero_()
        loss.backward()
        norm = torch.linalg.vector_norm(self.gradients)
        if not torch.isfinite(loss + norm):
            diverged(self.network, self.name, loss)
        self.gradients.mul_((self.config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        # The function, not the class: to make a torch.optim.Adam loads PyTorch's compiler, a second at every start.
        adam(
            [self.values], [self.gradients], [self.exp_avg], [self.exp_avg_sq], [], [self.steps], fused=True,
            amsgrad=False, maximize=False, weight_decay=0.0, lr=self.config.learning_rate,
            beta1=self.config.adam_beta1, beta2=self.config.adam_beta2, eps=self.config.adam_eps,
        )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """Adam's moments; its settings come from the configuration."""
        return {"step": self.steps, "exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq} if self.steps else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing stands for no step taken yet."""
        self.programs: dict[Hashable, Program] = {}  # of `updates.written`; they know where the moments are
        self.steps = torch.tensor(float(state.get("step", 0)), device=self.values.device)
        zeros = torch.zeros_like(self.values)
        self.exp_avg = state.get("exp_avg", zeros).to(zeros, copy=True)
        self.exp_avg_sq = state.get("exp_avg_sq", zeros).to(zeros, copy=True)
