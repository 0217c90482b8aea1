"""A user's callable as the encoder that a reward reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from deir.algorithm.networks import Encoder
from deir.errors import invalid
from deir.plugin.observations import ObservationFormat, PartsFormat


class GivenEncoder(Encoder):
    """A user's callable in the place of the policy's encoder. It sees observations as the user has them."""

    def __init__(
        self, function: Callable[[Any], Tensor], form: ObservationFormat | PartsFormat, device: torch.device
    ) -> None:
        super().__init__()
        self.function, self.form = (function,), form  # in a tuple: no part of this module
        probe = torch.zeros(2, *form.space.shape, dtype=form.dtype, device=device)
        with torch.no_grad():
            embeddings = self(probe)
        if not isinstance(embeddings, Tensor) or embeddings.dim() != 2 or len(embeddings) != len(probe):
            shape = getattr(embeddings, "shape", type(embeddings).__name__)
            raise invalid("encoder", shape, f"embeddings (2, F) of two observations of {form.given}")
        self.features = embeddings.shape[1]

    def forward(self, observations: Tensor) -> Tensor:
        (function,) = self.function
        given = self.form.as_given(observations)
        if not isinstance(function, nn.Module):
            return function(given)
        training = function.training
        try:
            return function.eval()(given)
        finally:
            function.train(training)
