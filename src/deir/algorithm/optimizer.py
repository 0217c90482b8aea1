"""Adam with clipping by the global norm."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from deir.config import PPOConfig
from deir.errors import TrainingDiverged


class ClippedAdam:
    def __init__(self, network: nn.Module, config: PPOConfig, name: str) -> None:
        self.network, self.name, self.max_norm = network, name, config.max_grad_norm
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        betas = (config.adam_beta1, config.adam_beta2)
        self.adam = torch.optim.Adam(self.parameters, config.learning_rate, betas=betas, eps=config.adam_eps)

    def step(self, loss: Tensor) -> None:
        """One clipped step; a loss or gradient that is not finite stops the run before it can spoil the parameters."""
        self.adam.zero_grad(set_to_none=False)
        loss.backward()
        if not torch.isfinite(loss):
            diverged(self.network, self.name, loss)
        try:
            nn.utils.clip_grad_norm_(self.parameters, self.max_norm, error_if_nonfinite=True)
        except RuntimeError:  # raised before it scales anything, so that the gradients that are sound still are
            diverged(self.network, self.name, loss)
        self.adam.step()

    def state_dict(self) -> dict[str, Any]:
        """Adam's moments as vectors over all parameters, whatever their division; settings are in the configuration."""
        if not self.adam.state:
            return {}
        states = [self.adam.state.get(parameter) or _fresh(parameter) for parameter in self.parameters]
        moments = ("exp_avg", "exp_avg_sq")
        return {
            "step": max(state["step"] for state in states).clone(),
            **{name: torch.cat([state[name].flatten() for state in states]) for name in moments},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.adam.state.clear()
        begin = 0
        for parameter in self.parameters if state else []:
            part = slice(begin, begin + parameter.numel())
            begin = part.stop
            moments = {name: state[name][part].view_as(parameter).to(parameter) for name in ("exp_avg", "exp_avg_sq")}
            step = torch.as_tensor(state["step"], dtype=torch.float32, device="cpu").clone()
            self.adam.state[parameter] = {"step": step, **{name: x.clone() for name, x in moments.items()}}


def _fresh(parameter: Tensor) -> dict[str, Tensor]:
    """The state of a parameter that no loss has reached."""
    zeros = torch.zeros_like(parameter)
    return {"step": torch.zeros((), device="cpu"), "exp_avg": zeros, "exp_avg_sq": zeros}


def diverged(network: nn.Module, name: str, loss: Tensor) -> NoReturn:
    if not torch.isfinite(loss):
        raise TrainingDiverged(f"the {name} loss is {float(loss.detach())}")
    spoilt = [n for n, p in network.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
    raise TrainingDiverged(f"the {name} gradient is not finite in {', '.join(spoilt[:3])}")
