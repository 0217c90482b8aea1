"""Runs programs: lists of layers that threads work through together, without Python's lock.

A program is one gradient step, from a batch to Adam. Its operands are registers: columns of a table of integers (sizes
and addresses) that has a row for each batch. A whole update is then one call: the program, run for each row in turn.

Each operation is divided into jobs, whatever the number of threads, and `schedule` puts them into tasks and stages. A
thread takes the next task that is free, and goes on to the next stage once all tasks of this one are done. So any
thread may join at any time, and none waits for another that the system has put aside, unless that one holds a task.
"""

from __future__ import annotations

import numpy as np

from deir.compiled import Array, compiled, compiled_part
from deir.fast import kernels, losses, model_machine, norm_kernels
from deir.fast.addresses import add, await_count, look, matrix, multiply_at, part, vector

OPERANDS = 16
(
    FILL, PRODUCT, NORMALISE, NORMALISE_GRADIENT, MOMENTS_OF_ROWS, NORMALISE_ROWS, GRADIENT_SUMS,
    NORMALISE_ROWS_GRADIENT, STANDARDISE, RELU, RELU_GRADIENT, GRU, GRU_GRADIENT, BY_CORNER, NOT_BY_CORNER, BY_POSITION,
    NOT_BY_POSITION, PLACED, PLACED_GRADIENT, SCATTER, COLUMN_SUMS, PPO, DISCRIMINATION, SQUARES, ADAM, SCALE_COLUMNS,
    UNSCALE_COLUMNS,
) = range(27)  # fmt: skip


@compiled_part
def _network(code: int, x: Array, f: Array, job: int, jobs: int, units: Array, gemm: int) -> None:
    """One job of a layer. x: operands [16], f: settings, units: 0 and 1"""
    like, whole, real = units[0], np.int64(0), np.float64(0)
    if code == FILL:  # out, rows, columns, with: a row for all; 0 for zeros
        out = matrix(x[0], x[1], x[2], like)
        lo, hi = part(x[1], job, jobs)
        if x[3]:
            out[lo:hi] = vector(x[3], x[2], like)
        else:
            out[lo:hi] = 0
    elif code == PRODUCT:  # c, ldc, a, lda, flip a, b, ldb, flip b, m, n, k, joins
        size = np.int64(f[0])  # bytes of a number
        lo, hi = part(x[8], job, jobs)
        a, c = x[2] + size * (lo if x[4] else lo * x[3]), x[0] + size * lo * x[1]
        multiply_at(gemm, a, x[3], x[4] != 0, x[5], x[6], x[7] != 0, c, x[1], hi - lo, x[9], x[10], units[x[11]])
    elif code == NORMALISE:  # table, M, rows, K, share, P, C, gain, shift, out, normal, moments, running x 2, bias, n
        lo, hi = part(x[6], job, jobs)
        moments = matrix(x[11], 3, x[6], like)
        norm_kernels.normalise(
            matrix(x[0], x[1], x[6], like), matrix(x[2], x[5], x[3], whole), vector(x[4], x[5] if x[4] else 0, real),
            vector(x[7], x[6], like), vector(x[8], x[6], like), f[0], f[1], matrix(x[9], x[5], x[6], like),
            matrix(x[10], x[5], x[6], like), moments, lo, hi,
        )  # fmt: skip
        bias = vector(x[14], x[6] if x[14] else 0, like)
        running = vector(x[12], x[6], like), vector(x[13], x[6], like)
        norm_kernels.follow_moments(running[0], running[1], moments, bias, x[15], f[2], lo, hi)
    elif (
        code == NORMALISE_GRADIENT
    ):  # grad, out, normal, rows, K, share, P, C, gain, moments, by table, M, by gain, shift
        lo, hi = part(x[7], job, jobs)
        norm_kernels.normalise_gradient(
            matrix(x[0], x[6], x[7], like), matrix(x[1], x[6], x[7], like), matrix(x[2], x[6], x[7], like),
            matrix(x[3], x[6], x[4], whole), vector(x[5], x[6] if x[5] else 0, real), vector(x[8], x[7], like),
            matrix(x[9], 3, x[7], like)[2], f[1], matrix(x[10], x[11], x[7], like), vector(x[12], x[7], like),
            vector(x[13], x[7], like), lo, hi,
        )  # fmt: skip
    elif code == STANDARDISE:  # x (bytes if f[3]), P, C, share, out, moments, running x 2, n
        lo, hi = part(x[2], job, jobs)
        moments, out = matrix(x[5], 3, x[2], like), matrix(x[4], x[1], x[2], like)
        share = vector(x[3], x[1] if x[3] else 0, real)
        if f[3]:
            norm_kernels.standardise(matrix(x[0], x[1], x[2], np.uint8(0)), share, f[0], out, moments, lo, hi)
        else:
            norm_kernels.standardise(matrix(x[0], x[1], x[2], like), share, f[0], out, moments, lo, hi)
        running = vector(x[6], x[2], like), vector(x[7], x[2], like)
        norm_kernels.follow_moments(running[0], running[1], moments, vector(0, 0, like), x[8], f[2], lo, hi)
    elif code == GRU:  # from input, U, rows, B, from memory, hidden, M, H, gates, new, out
        lo, hi = part(x[3], job, jobs)
        kernels.gru(
            matrix(x[0], x[1], 3 * x[7], like), vector(x[2], x[3], whole), matrix(x[4], x[6], 3 * x[7], like),
            matrix(x[5], x[6], x[7], like), matrix(x[8], x[3], 2 * x[7], like), matrix(x[9], x[3], x[7], like),
            matrix(x[10], x[3], x[7], like), lo, hi,
        )  # fmt: skip
    elif code == GRU_GRADIENT:  # grad, B, from memory, hidden, M, H, gates, new, by rows, by memory, by hidden
        lo, hi = part(x[4], job, jobs)
        kernels.gru_gradient(
            matrix(x[0], x[1], x[5], like), matrix(x[2], x[4], 3 * x[5], like), matrix(x[3], x[4], x[5], like),
            matrix(x[6], x[1], 2 * x[5], like), matrix(x[7], x[1], x[5], like), matrix(x[8], x[1], 3 * x[5], like),
            matrix(x[9], x[4], 3 * x[5], like), matrix(x[10], x[4] if x[10] else 0, x[5], like), lo, hi,
        )  # fmt: skip


@compiled_part
def _relu(code: int, x: Array, job: int, jobs: int, like: float) -> None:
    """One job of a ReLU without a normalisation before it."""
    lo, hi = part(x[1], job, jobs)
    if code == RELU:  # x, P, C
        kernels.relu(matrix(x[0], x[1], x[2], like), lo, hi)
    else:  # grad, P, C, out
        kernels.relu_gradient(matrix(x[0], x[1], x[2], like), matrix(x[3], x[1], x[2], like), lo, hi)


@compiled_part
def _rows(code: int, x: Array, f: Array, job: int, jobs: int, like: float) -> None:
    """One job of a normalisation of rows that stand for themselves."""
    lo, hi = part(x[1], job, jobs)
    given, width = matrix(x[0], x[1], x[2], like), x[2]
    parts = vector(x[3], jobs * 2 * width, like).reshape((jobs, 2, width))
    if code == MOMENTS_OF_ROWS:  # x, P, C, parts
        norm_kernels.moments_of_rows(given, parts[job], lo, hi)
    elif code == NORMALISE_ROWS:  # x, P, C, parts, gain, shift, out, normal, moments, running x 2, bias
        moments = matrix(x[8], 3, width, like)
        norm_kernels.normalise_rows(
            given, parts, vector(x[4], width, like), vector(x[5], width, like), f[0], matrix(x[6], x[1], width, like),
            matrix(x[7], x[1], width, like), moments, job,
        )  # fmt: skip
        if job == 0:
            bias, mean, variance = vector(x[11], width, like), vector(x[9], width, like), vector(x[10], width, like)
            norm_kernels.follow_moments(mean, variance, moments, bias, x[1], f[2], 0, width)
    elif code == GRADIENT_SUMS:  # grad, P, C, parts, out, normal
        norm_kernels.gradient_sums(
            given, matrix(x[4], x[1], width, like), matrix(x[5], x[1], width, like), parts[job], lo, hi
        )
    else:  # grad, P, C, parts, out, normal, gain, moments, by x, by gain, by shift
        norm_kernels.normalise_rows_gradient(
            given, matrix(x[4], x[1], width, like), matrix(x[5], x[1], width, like), parts, vector(x[6], width, like),
            matrix(x[7], 3, width, like)[2], matrix(x[8], x[1], width, like), vector(x[9], width, like),
            vector(x[10], width, like), job,
        )  # fmt: skip


@compiled_part
def _maps(code: int, x: Array, job: int, jobs: int, like: float, gemm: int) -> None:
    """One job of what only feature maps have."""
    whole = np.int64(0)
    if code in (BY_CORNER, NOT_BY_CORNER):  # weight, inputs, outputs, by corner
        lo, hi = part(x[1], job, jobs)
        weight, other = matrix(x[0], x[2], 4 * x[1], like), matrix(x[3], x[1], 4 * x[2], like)
        if code == BY_CORNER:
            kernels.by_corner(weight, other, lo, hi)
        else:
            kernels.not_by_corner(other, weight, lo, hi)
    elif code in (BY_POSITION, NOT_BY_POSITION):  # weight, C, F, positions, by position, apart
        lo, hi = part(x[1], job, jobs)
        weight, other = matrix(x[0], x[2], x[1] * x[3], like), matrix(x[4], x[3], x[5], like)
        if code == BY_POSITION:
            kernels.by_position(weight, other, x[3], lo, hi)
        else:
            kernels.not_by_position(other, weight, x[3], lo, hi)
    elif code == PLACED:  # x, P, C, patches, S, bounds, positions, kernels, apart, rows, out, F
        lo, hi = part(x[6], job, jobs)
        kernels.placed_products(
            gemm, matrix(x[0], x[1], x[2], like), vector(x[3], x[4], whole), vector(x[5], x[6] + 1, whole),
            matrix(x[7], x[6], x[8], like), matrix(x[9], x[4], x[2], like), matrix(x[10], x[4], x[11], like), lo, hi,
        )  # fmt: skip
    elif code == PLACED_GRADIENT:  # by out, S, F, rows, C, bounds, positions, kernels, apart, by rows, by kernels
        lo, hi = part(x[6], job, jobs)
        kernels.placed_gradient(
            gemm, matrix(x[0], x[1], x[2], like), matrix(x[3], x[1], x[4], like), vector(x[5], x[6] + 1, whole),
            matrix(x[7], x[6], x[8], like), matrix(x[9], x[1], x[4], like), matrix(x[10], x[6], x[8], like), lo, hi,
        )  # fmt: skip
    elif code == SCATTER:  # values, S, C, rows, out, M, joins
        lo, hi = part(x[2], job, jobs)
        rows, out = vector(x[3], x[1], whole), matrix(x[4], x[5], x[2], like)
        kernels.scatter_sum(matrix(x[0], x[1], x[2], like), rows, out, x[6] != 0, lo, hi)


@compiled_part
def _ends(code: int, x: Array, f: Array, job: int, jobs: int, like: float) -> bool:
    """One job of a loss, of what is left of a gradient, or of Adam; False if the gradient is not finite."""
    real = np.float64(0)
    if code == COLUMN_SUMS:  # x, B, C, out, joins
        lo, hi = part(x[2], job, jobs)
        kernels.column_sums(matrix(x[0], x[1], x[2], like), vector(x[3], x[2], like), x[4] != 0, lo, hi)
    elif code == PPO:  # logits, B, A, values, choices, old log-probs, old values, advantages, returns, by x 2, figures
        lo, hi = part(x[1], job, jobs)
        losses.ppo_of_categories(
            matrix(x[0], x[1], x[2], like), vector(x[3], x[1], like), vector(x[4], x[1], np.int64(0)),
            vector(x[5], x[1], like), vector(x[6], x[1], like), vector(x[7], x[1], like), vector(x[8], x[1], like),
            f, matrix(x[9], x[1], x[2], like), vector(x[10], x[1], like), matrix(x[11], jobs, 6, real)[job], lo, hi,
        )  # fmt: skip
    elif code == DISCRIMINATION:  # logits, B, differs, how many, by logits, figures, of which a job has
        lo, hi = part(x[1], job, jobs)
        losses.discrimination(
            vector(x[0], 2 * x[1], like), vector(x[2], x[1], np.uint8(0)), x[3], vector(x[4], 2 * x[1], like),
            vector(x[5] + 8 * job * x[6], 4, real), lo, hi,
        )  # fmt: skip
    elif code == SQUARES:  # gradients, size, partial sums
        lo, hi = part(x[1], job, jobs)
        vector(x[2], jobs, real)[job] = kernels.sum_of_squares(vector(x[0], x[1], like)[lo:hi])
    elif code == ADAM:  # values, gradients, first and second moments, size, partial sums, step
        lo, hi = part(x[4], job, jobs)
        return kernels.clipped_adam(
            vector(x[0], x[4], like), vector(x[1], x[4], like), vector(x[2], x[4], like), vector(x[3], x[4], like),
            vector(x[5], jobs, real), x[6], f, lo, hi,
        )  # fmt: skip
    elif code == SCALE_COLUMNS:  # weight, rows, columns, factors, out
        lo, hi = part(x[1], job, jobs)
        out, factors = matrix(x[4], x[1], x[2], like), vector(x[3], x[2], like)
        out[lo:hi] = matrix(x[0], x[1], x[2], like)[lo:hi] * factors
    elif code == UNSCALE_COLUMNS:  # by out, rows, columns, factors, weight, by weight, by factors
        lo, hi = part(x[2], job, jobs)
        by_out, factors = matrix(x[0], x[1], x[2], like), vector(x[3], x[2], like)
        weight, by_weight, by_factors = (
            matrix(x[4], x[1], x[2], like),
            matrix(x[5], x[1], x[2], like),
            vector(x[6], x[2], like),
        )
        by_factors[lo:hi] = 0
        for row in range(x[1]):
            for c in range(lo, hi):
                by_factors[c] += by_out[row, c] * weight[row, c]
                by_weight[row, c] = by_out[row, c] * factors[c]
    return True


@compiled_part
def _job(code: int, x: Array, f: Array, job: int, jobs: int, units: Array, gemm: int) -> bool:
    """One job of an operation; False if the gradient is not finite."""
    if MOMENTS_OF_ROWS <= code <= NORMALISE_ROWS_GRADIENT:
        _rows(code, x, f, job, jobs, units[0])
    elif RELU <= code <= RELU_GRADIENT:
        _relu(code, x, job, jobs, units[0])
    elif code <= GRU_GRADIENT:
        _network(code, x, f, job, jobs, units, gemm)
    elif code <= SCATTER:
        _maps(code, x, job, jobs, units[0], gemm)
    elif code > UNSCALE_COLUMNS:
        model_machine.models(code, x, f, job, jobs, units[0])
    else:
        return _ends(code, x, f, job, jobs, units[0])
    return True


@compiled
def run(
    program: Array,  # [O, 2+16] code, jobs, registers
    settings: Array,  # [O, 6] numbers that are not whole
    plan: tuple[Array, Array, Array],  # `schedule.Plan`
    table: Array,  # [M, R] the registers of each batch
    counters: Array,  # of each stage of each batch: tasks done, and which are taken
    team: Array,  # [2] threads that have joined, batches that were not finite
    units: Array,  # 0 and 1, of the type of all numbers
    gemm: int,
    rest: int,
) -> None:
    """What each thread of the team does. The first to join prefers the first tasks of every stage, and so on: what it
    reads is then mostly what it wrote."""
    steps, tasks, stages = plan
    operands, me, size = np.empty(OPERANDS, np.int64), add(team, 0, 1), stages[-1, 1]
    for batch in range(len(table)):
        registers = table[batch]
        for stage in range(len(stages) - 1):
            begin, at = stages[stage, 0], batch * size + stages[stage, 1]
            count = stages[stage + 1, 0] - begin
            if look(counters, at) == count:
                continue
            first = (count * me + 1) // 2
            for turn in range(count):
                task = (first + turn) % count
                if add(counters, at + 1 + task, 1):
                    continue  # taken
                for step in range(tasks[begin + task, 0], tasks[begin + task, 1]):
                    op = steps[step]
                    for i in range(OPERANDS):
                        operands[i] = registers[program[op, 2 + i]]
                    code, jobs, job = program[op, 0], program[op, 1], tasks[begin + task, 2]
                    if not _job(code, operands, settings[op], job, jobs, units, gemm):
                        add(team, 1, 1)
                add(counters, at, 1)
            await_count(counters, at, count, rest)
        if look(team, 1):
            return
