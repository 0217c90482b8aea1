"""Writes programs for `machine.run`, and runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from deir.compiled import Array, compiled
from deir.fast import machine
from deir.fast.addresses import address_of_yield
from deir.fast.blas import product
from deir.fast.schedule import Operation, Plan, plan_of
from deir.fast.threads import join_in

WIDE = 32  # columns of a job at least, where there are as many
ROWS = 4  # jobs of a large product
SETTINGS = 6
LINE = 128  # bytes that two threads must not both write to: what a core reads from another's cache at a time


class Register(int):
    """A column of the table: a number or an address that may differ from batch to batch."""


Operand = Register | int  # an int stands for itself
SUM, ROOM = range(2)  # what fills a register that no batch gives: a sum, or the address of a buffer


@dataclass
class Program:
    dtype: Any  # PyTorch's, of all numbers
    operations: list[Operation] = field(default_factory=list)
    settings: list[tuple[float, ...]] = field(default_factory=list)
    registers: int = 0
    constants: dict[int, Register] = field(default_factory=dict)
    names: dict[str, Register] = field(default_factory=dict)
    derived: list[tuple[int, int, int, int, int]] = field(default_factory=list)  # as `derive` takes them
    views: dict[int, int] = field(default_factory=dict)  # registers of parts of a buffer, and the buffer's
    reached: set[int] = field(default_factory=set)  # addresses of gradients that others may join
    kept: list[Any] = field(default_factory=list)  # alive as long as the program

    def __post_init__(self) -> None:
        self._of(0)  # the first register, as `schedule` takes it

    @property
    def kind(self) -> Any:
        """NumPy's type of all numbers."""
        return np.float32 if self.dtype.itemsize == 4 else np.float64

    def _register(self) -> Register:
        self.registers += 1
        return Register(self.registers - 1)

    def given(self, name: str) -> Register:
        """What each batch gives under this name."""
        if name not in self.names:
            self.names[name] = self._register()
        return self.names[name]

    def plus(self, base: Operand, register: Register, factor: int) -> Register:
        """base + register * factor: a number, or where a part of some memory begins that no other part reaches into"""
        result = self._register()
        whole = base if isinstance(base, Register) else register if factor == 1 else None
        if whole is not None:
            self.views[result] = self.views.get(whole, whole)

        self.derived.append((SUM, result, self._of(base), register, factor))
        return result

    def buffer(self, rows: Operand, columns: int, kind: Any = None) -> Register:
        """The address of a matrix that lives as long as a run, large enough for every batch."""
        result, size = self._register(), np.dtype(kind or self.kind).itemsize
        self.derived.append((ROOM, result, self._of(rows), 0, columns * size))
        return result

    def at(self, tensor: Tensor | None) -> int:
        """The address of a tensor, 0 of none."""
        if tensor is None:
            return 0
        self.kept.append(tensor)
        return tensor.data_ptr()

    def emit(self, code: int, jobs: int, *operands: Operand, settings: Sequence[float] = ()) -> None:
        self.operations.append(Operation(code, jobs, tuple(self._of(operand) for operand in operands)))
        self.settings.append(tuple(settings))

    def _of(self, operand: Operand) -> int:
        if isinstance(operand, Register):
            return operand
        if operand not in self.constants:
            self.constants[operand] = self._register()
        return self.constants[operand]

    def product(
        self,
        c: Operand,
        a: Operand,
        b: Operand,
        sizes: tuple[Operand, Operand, Operand],  # m, n, k
        flip: str = "",  # a, b: of the transposed
        joins: bool = False,
        apart: tuple[Operand | None, ...] = (None, None, None),  # rows of a, b and c, if not next to each other
        jobs: int = ROWS,
    ) -> None:
        """c [m, n] = a b, or c + a b."""
        m, n, k = sizes
        lda = apart[0] if apart[0] is not None else m if "a" in flip else k
        ldb = apart[1] if apart[1] is not None else k if "b" in flip else n
        ldc = apart[2] if apart[2] is not None else n
        size = self.dtype.itemsize
        self.emit(
            machine.PRODUCT, jobs, c, ldc, a, lda, int("a" in flip), b, ldb, int("b" in flip), m, n, k, int(joins),
            settings=(size,),
        )  # fmt: skip

    @cached_property
    def written(self) -> tuple[Array, Array, Plan]:
        """The operations, their settings and when they run, as `machine.run` takes them; nothing may follow."""
        code = np.zeros((len(self.operations), 2 + machine.OPERANDS), np.int64)
        settings = np.zeros((len(self.operations), SETTINGS))
        for op, (operation, numbers) in enumerate(zip(self.operations, self.settings, strict=True)):
            code[op, :2] = operation[:2]
            code[op, 2 : 2 + len(operation.operands)] = operation.operands
            settings[op, : len(numbers)] = numbers
        return code, settings, plan_of(tuple(self.operations), frozenset(self.views.items()))

    def run(self, batches: Sequence[dict[str, int]]) -> bool:
        """One step for each batch; False if a gradient was not finite, after which nothing more was done."""
        return Ready(self, batches).run(0, len(batches))


@compiled
def derive(table: Array, derived: Array, place: int) -> int:
    """Fills the registers of all batches that no batch gives, in turn. Buffers begin at `place`; gives where they end.

    table: [M, R], derived: [D, 5] what it is, the register, and of what: a + b * factor, or the address of as many rows
    as the largest `a` of `factor` bytes each
    """
    for d in range(len(derived)):
        kind, result, a, b, factor = derived[d]
        if kind == SUM:
            for batch in range(len(table)):
                table[batch, result] = table[batch, a] + table[batch, b] * factor
        else:
            table[:, result] = place
            place += -(-table[:, a].max() * factor // LINE) * LINE
    return place


class Ready:
    """A program with the registers of its batches."""

    def __init__(self, program: Program, batches: Sequence[dict[str, int]], owner: Any = None) -> None:
        """owner: of the memory that the batches' numbers point to"""
        self.program, self.owner = program, owner
        self.code, self.settings, self.plan = program.written
        self.table = table = np.empty((len(batches), program.registers), np.int64)
        table[:, list(program.constants.values())] = list(program.constants)
        table[:, list(program.names.values())] = [[batch[name] for name in program.names] for batch in batches]
        derived = np.array(program.derived, np.int64).reshape(-1, 5)
        self.room = np.empty(derive(table, derived, 0) + LINE, np.uint8)
        derive(table, derived, -(-address(self.room) // LINE) * LINE)

    def give(self, batch: int, **numbers: int) -> None:
        """What was not known of a batch; sizes may only shrink, and nothing may be derived from them."""
        for name, number in numbers.items():
            self.table[batch, self.program.names[name]] = number

    def run(self, first: int, last: int) -> bool:
        """The steps first … last; False if a gradient was not finite, after which nothing more was done."""
        counters, team = np.zeros((last - first) * self.plan.stages[-1, 1], np.int64), np.zeros(2, np.int64)
        units, gemm = np.array([0, 1], self.program.kind), product(self.program.dtype)
        given = (
            self.code, self.settings, tuple(self.plan), self.table[first:last], counters, team, units, gemm,
            address_of_yield(),
        )  # fmt: skip

        def work(kept: Any = self) -> None:
            machine.run(*given)

        join_in(work)
        return not team[1]


def columns(width: int) -> int:
    """Jobs of an operation that is divided by columns."""
    return max(2, width // WIDE) if width >= WIDE else 1


def address(array: Array) -> int:
    return int(array.ctypes.data)
