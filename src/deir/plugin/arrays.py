"""A user's arrays, checked, as a `Rollout`: what any training loop has, in NumPy or PyTorch, with time first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import Tensor

from deir.algorithm.ops import Ops
from deir.algorithm.types import ObservationTable, Rollout
from deir.envs.spaces import PackedBox
from deir.errors import UserError, invalid

LARGEST_CODE = 31  # small images without a larger value are codes of cells, which repeat, rather than colours


def autoreset_mode(given: AutoresetMode | str) -> AutoresetMode:
    """Gymnasium's modes, by themselves or by name: SAME_STEP, same-step and SameStep are one."""
    names = {mode.name.replace("_", "").lower(): mode for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP)}
    name = given.name if isinstance(given, AutoresetMode) else str(given)
    key = name.replace("_", "").replace("-", "").lower()
    if key not in names:
        raise invalid(
            "autoreset_mode", name, "'same-step' (also where your loop resets by itself) or 'next-step', as Gymnasium's"
        )
    return names[key]


@dataclass
class Episodes:
    """Where the environments stand between two rollouts."""

    starts: Tensor  # [N] bool: the next observation is the first of an episode
    pending: Tensor  # [N] bool: the next step is a dummy, which only brings the first observation (next-step resets)

    @classmethod
    def beginning(cls, n_envs: int) -> Episodes:
        return cls(torch.ones(n_envs, dtype=torch.bool), torch.zeros(n_envs, dtype=torch.bool))

    def follow(self, dones: Tensor, mode: AutoresetMode) -> tuple[Tensor, Tensor, Episodes]:
        """dones: [T, N] -> episode starts [T+1, N], genuine steps [T, N], and where the environments stand then."""
        if mode is AutoresetMode.SAME_STEP:
            starts = torch.cat([self.starts[None], dones])
            return starts, torch.ones_like(dones), Episodes(starts[-1], torch.zeros_like(self.pending))
        dummy = [self.pending]
        for done in dones:
            dummy.append(done & ~dummy[-1])
        starts = torch.stack([self.starts, *dummy[:-1]])  # a dummy step brings the first observation
        return starts, ~torch.stack(dummy[:-1]), Episodes(starts[-1], dummy[-1])


class ObservationFormat:
    """How observations come, and how the encoders want them: images in height-width-channel order."""

    def __init__(self, space: spaces.Space[Any], channels_first: bool | None = None) -> None:
        if not isinstance(space, spaces.Box) or not 1 <= len(space.shape) <= 3:
            raise invalid(
                "observation_space",
                space,
                "a vector [K] or an image [H, W], [H, W, C] or [C, H, W] (Box), or a Dict of them",
            )
        self.given = space
        image = len(space.shape) == 3
        looks_first = image and space.shape[0] < min(space.shape[1:])
        if channels_first and not image:
            raise invalid("channels_first", channels_first, f"None for observations of shape {space.shape}")
        self.channels_first = looks_first if channels_first is None else channels_first
        self.whole = bool(np.issubdtype(space.dtype, np.integer))
        self.dtype = torch.from_numpy(np.zeros(0, space.dtype)).dtype if self.whole else torch.float32
        self.space = spaces.Box(self._ordered(space.low), self._ordered(space.high), dtype=space.dtype.type)

    def _ordered(self, array: Any) -> Any:
        """[…, *given] -> […, *obs]"""
        if len(self.given.shape) == 2:
            return array[..., None]
        if not self.channels_first:
            return array
        return array.movedim(-3, -1) if isinstance(array, Tensor) else np.moveaxis(array, -3, -1)

    def as_given(self, observations: Tensor) -> Tensor:
        """[B, *obs] -> [B, *given]"""
        if len(self.given.shape) == 2:
            return observations[..., 0]
        return observations.movedim(-1, -3) if self.channels_first else observations

    def read(self, field: str, value: Any, leading: tuple[int | str, ...]) -> Tensor:
        """[*leading, *given] -> [*leading, *obs], integers in their own dtype; a size with a name may be any."""
        tensor = as_tensor(field, value)
        check_shape(field, tensor, (*leading, *self.given.shape))
        tensor = as_whole(field, tensor, self.dtype) if self.whole else as_float(field, tensor)
        return self._ordered(tensor).contiguous()

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
        self.space = PackedBox({name: self._box(form) for name, form in self.parts.items()})

    @staticmethod
    def _box(form: ObservationFormat) -> spaces.Box:
        return form.space if form.dtype == torch.uint8 else spaces.Box(-np.inf, np.inf, form.space.shape, np.float32)

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


def as_tensor(field: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.clone() if value.is_inference() else value.detach()  # the former cannot be learned from
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise UserError(f"{field}: got {type(value).__name__} of {array.dtype}, expected an array or tensor of numbers")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)  # as other machines write it
    if array.dtype.itemsize > 8:
        raise UserError(f"{field}: got {array.dtype}, expected numbers of at most 64 bits")
    array = array.view(np.int64) if array.dtype == np.uint64 else array
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def check_shape(field: str, tensor: Tensor, expected: tuple[int | str, ...], why: str = "") -> None:
    """Named sizes may be anything above 0."""
    shape = tuple(tensor.shape)
    fits = [size > 0 if isinstance(want, str) else size == want for size, want in zip(shape, expected, strict=False)]
    if len(shape) != len(expected) or not all(fits):
        raise UserError(f"{field}: got shape {shape}, expected ({', '.join(map(str, expected))}){why}")


def as_finite(field: str, tensor: Tensor) -> Tensor:
    if tensor.is_floating_point() and not tensor.isfinite().all():
        bad = (~tensor.isfinite()).nonzero()
        where = f"the first at index {tuple(bad[0].tolist())}"
        raise UserError(f"{field}: got {len(bad)} values that are not finite (NaN or infinite), {where}")
    return tensor


def as_float(field: str, tensor: Tensor) -> Tensor:
    """float32, as the networks compute; what is beyond its range is refused rather than made infinite."""
    numbers = as_finite(field, tensor).float()
    if not numbers.isfinite().all():
        index = tuple((~numbers.isfinite()).nonzero()[0].tolist())
        raise UserError(
            f"{field}: got {tensor[index].item():g} at index {index}, expected numbers within float32's range (3.4e38)"
        )
    return numbers


def as_whole(field: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The same numbers as integers; loops that keep everything in float buffers are welcome."""
    if tensor.dtype == dtype:
        return tensor
    whole = as_finite(field, tensor).to(dtype)
    if not torch.equal(whole.to(tensor.dtype), tensor):
        raise UserError(
            f"{field}: got {tensor.dtype} with values that {dtype} cannot hold, expected whole numbers of that type "
            "(of scaled or normalised observations, give the Box they come from as observation_space)"
        )
    return whole


def read_flags(field: str, value: Any, shape: tuple[int, int]) -> Tensor:
    """[T, N] bool, or numbers 0 and 1"""
    tensor = as_tensor(field, value)
    check_shape(field, tensor, shape, " as (T, N)")
    if tensor.dtype != torch.bool and not ((tensor == 0) | (tensor == 1)).all():
        raise UserError(f"{field}: got {tensor.dtype} with values other than 0 and 1, expected booleans (T, N)")
    return tensor.to(device="cpu", dtype=torch.bool, copy=True)


def read_actions(value: Any, shape: tuple[int, int], space: spaces.Space[Any]) -> Tensor:
    """[T, N] for Discrete; [T, N, *action] otherwise. What is counted is counted from 0."""
    tensor = as_tensor("actions", value)
    why = " as (T, N, *action), one step fewer than observations (T+1, N, *obs)"
    check_shape("actions", tensor, (*shape, *(space.shape or ())), why)
    counts: Any = {spaces.Discrete: "n", spaces.MultiDiscrete: "nvec"}.get(type(space))
    if counts is None and not isinstance(space, spaces.MultiBinary):
        return as_float("actions", tensor) if tensor.is_floating_point() else tensor.long()
    sizes = torch.as_tensor(getattr(space, counts) if counts else 2, device=tensor.device)
    first = torch.as_tensor(getattr(space, "start", 0), device=tensor.device)
    actions = as_whole("actions", tensor, torch.int64) - first
    if bool(((actions < 0) | (actions >= sizes)).any()):
        raise UserError(f"actions: got values from {tensor.min()} to {tensor.max()}, expected those of {space}")
    return actions


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


def read_states(value: Any, shape: tuple[int, int]) -> Tensor:
    """[T+1, N] int64: names of the full states behind the observations"""
    tensor = as_tensor("states", value)
    check_shape("states", tensor, (shape[0] + 1, shape[1]), " as (T+1, N)")
    return as_whole("states", tensor, torch.int64)


@dataclass(frozen=True)
class RolloutReader:
    """Makes rollouts of a user's arrays."""

    form: ObservationFormat | PartsFormat
    action_space: spaces.Space[Any]
    n_envs: int
    mode: AutoresetMode
    device: torch.device
    ops: Ops

    def read(
        self,
        episodes: Episodes,
        observations: Any,  # [T+1, N, *obs]
        actions: Any,  # [T, N]
        terminated: Any,  # [T, N]
        truncated: Any,  # [T, N]
        final_observations: Any = None,
        states: Any = None,  # [T+1, N]
    ) -> tuple[Rollout, Episodes]:
        """The rollout, and where the environments stand after it.

        The end of an episode whose last observation is unknown counts as a dummy step: it earns nothing and nothing is
        learned from it.
        """
        seen = self.form.read("observations", observations, ("T+1", self.n_envs))
        shape = len(seen) - 1, self.n_envs
        if shape[0] < 1:
            raise UserError("observations: got 1 step, expected (T+1, N, *obs): also what followed the last action")
        taken = read_actions(actions, shape, self.action_space)
        ended = read_flags("terminated", terminated, shape), read_flags("truncated", truncated, shape)
        starts, valid, after = episodes.follow(ended[0] | ended[1], self.mode)
        final_indices, finals = torch.zeros(0, dtype=torch.int64), seen[:0, 0]
        if self.mode is AutoresetMode.SAME_STEP:
            final_indices, finals = read_finals(final_observations, starts[1:], self.form)
            valid = ~starts[1:]
            valid.view(-1)[final_indices] = True
        elif final_observations is not None:
            raise UserError("final_observations: with next-step resets they are among the observations; leave it out")
        table, ids, final_ids = self._tabulate(seen, finals)
        rollout = Rollout(
            table=table,
            ids=ids,
            starts=starts.to(self.device),
            actions=taken.to(self.device),
            rewards=torch.zeros(shape, device=self.device),
            terminated=ended[0].to(self.device),
            truncated=ended[1].to(self.device),
            valid=valid.to(self.device),
            final_indices=final_indices.to(self.device),
            final_ids=final_ids,
            states=None if states is None else read_states(states, shape).to(self.device),
        )
        return rollout, after

    def read_alone(self, observations: Any, starts: Any = None) -> Rollout:
        """Observations [T, N', *obs] of any number of environments without actions; starts: [T, N']."""
        seen = self.form.read("observations", observations, ("T", "N"))
        shape = seen.shape[0], seen.shape[1]
        begins = read_flags("starts", starts, shape) if starts is not None else torch.zeros(shape, dtype=torch.bool)
        begins[0] = True
        table, ids, no_ids = self._tabulate(seen, seen[:0, 0])
        no = torch.zeros(shape, dtype=torch.bool, device=self.device)
        return Rollout(
            table, torch.cat([ids, ids[-1:]]), torch.cat([begins.to(self.device), no[:1]]), no.long(), no.float(),
            no, no, ~no, no_ids, no_ids,
        )  # fmt: skip

    def _tabulate(self, seen: Tensor, finals: Tensor) -> tuple[ObservationTable, Tensor, Tensor]:
        """[S, N, *obs], [K, *obs] -> the table, and the names [S, N] and [K] in it"""
        everything = torch.cat([seen.flatten(0, 1).to(self.device), finals.to(self.device)])
        table, names = self.ops.tabulate(everything, self.form.codes(everything))
        ids, final_ids = names.split([seen.shape[0] * seen.shape[1], len(finals)])
        return table, ids.view(seen.shape[:2]), final_ids
