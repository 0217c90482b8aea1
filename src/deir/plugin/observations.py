"""A user's observations, checked, as the encoders want them: laid out as those of environments are."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from deir.envs.box_layout import BoxLayout
from deir.envs.spaces import PackedBox
from deir.errors import UserError, invalid
from deir.plugin.arrays import as_float, as_tensor, as_whole, check_shape

LARGEST_CODE = 31  # small images without a larger value are codes of cells, which repeat, rather than colours


class ObservationFormat:
    """How observations come, and how the encoders want them: images in height-width-channel order."""

    def __init__(self, space: spaces.Space[Any], channels_first: bool | None = None) -> None:
        if channels_first and len(space.shape or ()) not in (3, 4):
            raise invalid("channels_first", channels_first, f"None for observations of shape {space.shape}")
        try:
            if not isinstance(space, spaces.Box):
                raise ValueError
            self.layout = BoxLayout(space, channels_first)
        except ValueError:
            raise invalid(
                "observation_space",
                space,
                "a vector [K] or an image [H, W], [H, W, C] or [C, H, W], also of frames [K, …] (Box), or a Dict of "
                "them",
            ) from None
        self.given, self.space = space, self.layout.space
        self.whole = bool(np.issubdtype(space.dtype, np.integer))
        self.dtype = torch.uint8 if self.space.dtype == np.uint8 else torch.float32

    def as_given(self, observations: Tensor) -> Tensor:
        """[B, *obs] -> [B, *given]"""
        return self.layout.restore(observations)  # type: ignore[no-any-return]

    def read(self, field: str, value: Any, leading: tuple[int | str, ...]) -> Tensor:
        """[*leading, *given] -> [*leading, *obs]; a size with a name may be any."""
        tensor = as_tensor(field, value)
        check_shape(field, tensor, (*leading, *self.given.shape))
        own = torch.from_numpy(np.zeros(0, self.given.dtype)).dtype
        tensor = as_whole(field, tensor, own) if self.whole else as_float(field, tensor)
        before = tensor.shape[: len(leading)]
        rows = self.layout.arrange(tensor.reshape(prod(before), *self.given.shape))
        return rows.to(self.dtype).reshape(*before, *self.space.shape).contiguous()  # type: ignore[no-any-return]

    def codes(self, observations: Tensor) -> bool:
        """Whether these are views of integer cells, few of which are distinct."""
        shape = self.space.shape
        grid = observations.dtype == torch.uint8 and len(shape) == 3 and shape[2] == 3 and max(shape[:2]) < 36
        return grid and (observations.numel() == 0 or int(observations.max()) <= LARGEST_CODE)


class PartsFormat:
    """Dictionaries of vectors and images: an array for each part comes, a row of bytes goes on (`PackedBox`)."""

    dtype = torch.uint8

    def __init__(self, space: spaces.Dict) -> None:
        self.given = space
        self.parts: dict[str, ObservationFormat] = {}
        for name, part in space.spaces.items():
            try:
                self.parts[name] = ObservationFormat(part)
            except UserError as mistake:
                raise UserError(f"observation_space[{name!r}]: {str(mistake).split(': ', 1)[1]}") from None
        self.space = PackedBox({name: form.space for name, form in self.parts.items()})

    def read(self, field: str, value: Any, leading: tuple[int | str, ...]) -> Tensor:
        """{name: [*leading, *part]} -> [*leading, bytes]"""
        if not isinstance(value, Mapping) or set(value) != set(self.parts):
            got = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
            raise invalid(field, got, f"a mapping with an array for each of {', '.join(self.parts)}")
        read = {name: form.read(f"{field}[{name!r}]", value[name], leading) for name, form in self.parts.items()}
        shapes = {name: tuple(tensor.shape[: len(leading)]) for name, tensor in read.items()}
        if len(set(shapes.values())) > 1:
            raise invalid(field, shapes, "the same leading sizes for all parts")
        shape = next(iter(shapes.values()))
        rows = {name: part.reshape(-1, *self.parts[name].space.shape).cpu().numpy() for name, part in read.items()}
        return torch.from_numpy(self.space.pack(rows)).view(*shape, -1)

    def as_given(self, observations: Tensor) -> dict[str, Tensor]:
        """[B, bytes] -> {name: [B, *part]}"""
        parts = self.space.unpack(observations.cpu().numpy())
        return {
            name: self.parts[name].as_given(torch.from_numpy(part).to(observations.device))
            for name, part in parts.items()
        }

    def codes(self, observations: Tensor) -> bool:
        return False


def observation_format(space: spaces.Space[Any], channels_first: bool | None) -> ObservationFormat | PartsFormat:
    if not isinstance(space, spaces.Dict):
        return ObservationFormat(space, channels_first)
    if not space.spaces:
        raise invalid("observation_space", space, "a Dict with at least one part")
    if channels_first is not None:
        raise invalid("channels_first", channels_first, "None for dictionaries: it is seen from each part's shape")
    return PartsFormat(space)


def read_finals(value: Any, dones: Tensor, form: ObservationFormat | PartsFormat) -> tuple[Tensor, Tensor]:
    """Flat indices [K] of the ended steps whose last observation is given, and those observations [K, *obs].

    value: [T, N, *obs], of which only the rows of ended steps are read; or a mapping from (t, n) to one observation.
    """
    field, ended = "final_observations", dones.flatten().nonzero()[:, 0]
    if isinstance(form, PartsFormat) and value and set(value) == set(form.parts):
        rows = form.read(field, value, tuple(dones.shape))
        return ended, rows.flatten(0, 1)[ended]
    if value is None or isinstance(value, Mapping):
        steps, envs = dones.shape
        for key in value or {}:
            if not (isinstance(key, tuple) and len(key) == 2 and 0 <= key[0] < steps and 0 <= key[1] < envs):
                raise invalid(f"{field}: key", key, f"(t, n) with t below {steps} and n below {envs}")
        given = {t * dones.shape[1] + n: observation for (t, n), observation in (value or {}).items()}
        known = [index for index in ended.tolist() if index in given]
        listed = [form.read(field, given[index], ()) for index in known]
        finals = torch.stack(listed) if listed else torch.zeros(0, *form.space.shape, dtype=form.dtype)
        return torch.tensor(known, dtype=torch.int64), finals
    if isinstance(form, PartsFormat):
        raise invalid(field, type(value).__name__, "a mapping from (t, n) to an observation, or an array for each part")
    tensor = as_tensor(field, value)
    check_shape(field, tensor, (*dones.shape, *form.given.shape), " as (T, N, *obs)")
    return ended, form.read(field, tensor.flatten(0, 1)[ended.to(tensor.device)], (len(ended),))
