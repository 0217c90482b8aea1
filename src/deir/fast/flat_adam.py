"""Adam over one flat vector: a network of forty small tensors steps as fast as one large one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from deir.algorithm.optimizer import diverged
from deir.config import PPOConfig


class FlatAdam:
    """Adam with clipping by the global norm. The parameters and their gradients become views of two flat vectors.

    Build it once the network is on its device; `load_state_dict` of the network copies in place, so it stays valid.
    """

    def __init__(self, network: nn.Module, config: PPOConfig, name: str) -> None:
        self.network, self.name, self.max_norm = network, name, config.max_grad_norm
        parameters = [p for p in network.parameters() if p.requires_grad]
        self.flat = nn.Parameter(torch.cat([p.detach().flatten() for p in parameters]))
        self.flat.grad = torch.zeros_like(self.flat)
        begin = 0
        for parameter in parameters:
            part = slice(begin, begin + parameter.numel())
            parameter.data = self.flat.data[part].view_as(parameter)
            parameter.grad = self.flat.grad[part].view_as(parameter)
            begin += parameter.numel()
        betas = (config.adam_beta1, config.adam_beta2)
        self.adam = torch.optim.Adam([self.flat], config.learning_rate, betas=betas, eps=config.adam_eps, fused=True)

    def step(self, loss: Tensor) -> None:
        """One clipped step; a loss or gradient that is not finite stops the run before it can spoil the parameters."""
        assert self.flat.grad is not None
        self.flat.grad.zero_()
        loss.backward()
        norm = torch.linalg.vector_norm(self.flat.grad)
        if not torch.isfinite(loss + norm):
            diverged(self.network, self.name, loss)
        self.flat.grad.mul_((self.max_norm / (norm + 1e-6)).clamp(max=1.0))
        self.adam.step()

    def state_dict(self) -> dict[str, Any]:
        """Adam's moments; its settings come from the configuration."""
        return dict(self.adam.state_dict()["state"].get(0, {}))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        groups = self.adam.state_dict()["param_groups"]
        self.adam.load_state_dict({"state": {0: state} if state else {}, "param_groups": groups})
