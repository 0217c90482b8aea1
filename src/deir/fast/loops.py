"""Loops that NumPy and PyTorch would need a dozen passes over memory for, compiled by Numba and kept on disk.

Arrays in, arrays out, no gradients: `kernels.py` makes differentiable functions of them. They run on the CPU, without
Python's lock, in the type of their first argument, and give the same bits every time.
"""

from __future__ import annotations

import numpy as np

from deir.compiled import Array, compiled


@compiled
def gather_norm(
    table: Array,  # [M, C]
    rows: Array,  # [P, K]
    share: Array,  # [P]
    weight: Array,  # [C]
    bias: Array,  # [C]
    eps: float,
    floor: float,
) -> tuple[Array, Array, Array, Array, Array]:
    """y_p = Σ_k table[rows[p, k]], normalised by the moments of a batch of which row p is share[p]; at least `floor`.

    Gives the output and the normalised y [P, C], and the mean, the (biased) variance and 1/σ [C].
    """
    (count, terms), width, number = rows.shape, table.shape[1], table.dtype.type
    normal, out = np.empty((count, width), table.dtype), np.empty((count, width), table.dtype)
    mean, variance = np.zeros(width, table.dtype), np.zeros(width, table.dtype)
    for p in range(count):
        y, part, term = normal[p], number(share[p]), table[rows[p, 0]]
        for c in range(width):
            y[c] = term[c]
        for k in range(1, terms):
            term = table[rows[p, k]]
            for c in range(width):
                y[c] += term[c]
        for c in range(width):
            mean[c] += part * y[c]
    for p in range(count):
        y, part = normal[p], number(share[p])
        for c in range(width):
            y[c] -= mean[c]
            variance[c] += part * y[c] * y[c]
    inverse = number(1) / np.sqrt(variance + number(eps))
    lowest = number(floor)
    for p in range(count):
        y, result = normal[p], out[p]
        for c in range(width):
            y[c] *= inverse[c]
            value = y[c] * weight[c] + bias[c]
            result[c] = lowest if value < lowest else value
    return out, normal, mean, variance, inverse


@compiled
def gather_norm_gradient(
    grad: Array,  # [P, C] of the output
    out: Array,  # [P, C]
    normal: Array,  # [P, C]
    rows: Array,  # [P, K]
    share: Array,  # [P]
    weight: Array,  # [C]
    inverse: Array,  # [C]
    floor: float,
    size: int,  # M
) -> tuple[Array, Array, Array]:
    """The gradients of table [M, C], weight and bias [C]: dy = γ/σ (g - s (Σ g + ŷ Σ g ŷ)), with s the row's share."""
    (count, terms), width, number = rows.shape, grad.shape[1], grad.dtype.type
    grad_weight, grad_bias = np.zeros(width, grad.dtype), np.zeros(width, grad.dtype)
    grad_table, row = np.zeros((size, width), grad.dtype), np.empty(width, grad.dtype)
    lowest, zero, scale = number(floor), number(0), weight * inverse
    for p in range(count):
        g, result, y = grad[p], out[p], normal[p]
        for c in range(width):
            passed = g[c] if result[c] > lowest else zero
            grad_bias[c] += passed
            grad_weight[c] += passed * y[c]
    for p in range(count):
        g, result, y, part = grad[p], out[p], normal[p], number(share[p])
        for c in range(width):
            passed = g[c] if result[c] > lowest else zero
            row[c] = (passed - part * (grad_bias[c] + y[c] * grad_weight[c])) * scale[c]
        for k in range(terms):
            target = grad_table[rows[p, k]]
            for c in range(width):
                target[c] += row[c]
    return grad_table, grad_weight, grad_bias


@compiled
def track_moments(
    running_mean: Array,  # [C]
    running_variance: Array,  # [C]
    mean: Array,  # [C]
    variance: Array,  # [C]
    momentum: float,
    correction: float,
) -> None:
    """Running statistics in place: m ← (1-ρ) m + ρ mean, v ← (1-ρ) v + ρ variance × correction."""
    number = running_mean.dtype.type
    keep, join, join_variance = number(1 - momentum), number(momentum), number(momentum * correction)
    for c in range(len(mean)):
        running_mean[c] = keep * running_mean[c] + join * mean[c]
        running_variance[c] = keep * running_variance[c] + join_variance * variance[c]


@compiled
def gru_gates_before(from_input: Array, rows: Array, from_memory: Array) -> Array:
    """What the gates r and z of a GRU are the sigmoids of. [B, 2H]

    Row b of the batch takes row rows[b] of from_input [U, 3H], and row b mod M of from_memory [M, 3H]; likewise below.
    """
    count, memories, width = len(rows), len(from_memory), from_memory.shape[1] // 3 * 2
    gates = np.empty((count, width), from_memory.dtype)
    for b in range(count):
        result, first, second = gates[b], from_input[rows[b]], from_memory[b % memories]
        for c in range(width):
            result[c] = first[c] + second[c]
    return gates


@compiled
def gru_new_before(from_input: Array, rows: Array, from_memory: Array, gates: Array) -> Array:
    """What the new memory n is the tanh of. [B, H]"""
    count, memories, width = len(rows), len(from_memory), from_memory.shape[1] // 3
    new = np.empty((count, width), from_memory.dtype)
    for b in range(count):
        result, first, second, gate = new[b], from_input[rows[b]], from_memory[b % memories], gates[b]
        for c in range(width):
            result[c] = first[2 * width + c] + gate[c] * second[2 * width + c]
    return new


@compiled
def gru_mix(gates: Array, new: Array, hidden: Array) -> Array:
    """h' = n + z (h - n).   gates: [B, 2H], new: [B, H], hidden: [M, H] -> [B, H]"""
    (count, width), memories = new.shape, len(hidden)
    out = np.empty((count, width), hidden.dtype)
    for b in range(count):
        result, gate, n, h = out[b], gates[b], new[b], hidden[b % memories]
        for c in range(width):
            result[c] = n[c] + gate[width + c] * (h[c] - n[c])
    return out


@compiled
def gru_gradient(
    grad: Array,  # [B, H] of h'
    gates: Array,  # [B, 2H]
    new: Array,  # [B, H]
    rows: Array,  # [B]
    from_memory: Array,  # [M, 3H]
    hidden: Array,  # [M, H]
    size: int,  # U
) -> tuple[Array, Array, Array]:
    """The gradients of from_input [U, 3H], from_memory [M, 3H] and hidden [M, H]."""
    (memories, width), one = hidden.shape, grad.dtype.type(1)
    grad_input = np.zeros((size, 3 * width), grad.dtype)
    grad_memory, grad_hidden = np.zeros((memories, 3 * width), grad.dtype), np.zeros((memories, width), grad.dtype)
    for b in range(len(rows)):
        m = b % memories
        g, gate, n, memory, h = grad[b], gates[b], new[b], from_memory[m], hidden[m]
        to_memory, to_hidden, to_input = grad_memory[m], grad_hidden[m], grad_input[rows[b]]
        for c in range(width):
            reset, update = gate[c], gate[width + c]
            to_new = g[c] * (one - update) * (one - n[c] * n[c])  # through the tanh
            to_reset = to_new * memory[2 * width + c] * reset * (one - reset)
            to_update = g[c] * (h[c] - n[c]) * update * (one - update)
            to_hidden[c] += g[c] * update
            to_memory[c] += to_reset
            to_memory[width + c] += to_update
            to_memory[2 * width + c] += to_new * reset
            to_input[c] += to_reset
            to_input[width + c] += to_update
            to_input[2 * width + c] += to_new
    return grad_input, grad_memory, grad_hidden


@compiled
def rows_differ(storage: Array, slots: Array, table: Array, ids: Array) -> Array:
    """Whether storage[slots[b]] and table[ids[b]] differ anywhere. storage: [S, K], table: [U, K] -> [B] bool"""
    differs = np.zeros(len(slots), np.bool_)
    for b in range(len(slots)):
        first, second = storage[slots[b]], table[ids[b]]
        for k in range(len(first)):
            if first[k] != second[k]:
                differs[b] = True
                break
    return differs


@compiled
def _affine(x: Array, weight: Array, bias: Array, out: Array) -> None:
    """out = x weight + bias.   x: [I], weight: [I, O], bias, out: [O]"""
    out[:] = bias
    for i in range(len(x)):
        factor, row = x[i], weight[i]
        for o in range(len(out)):
            out[o] += factor * row[o]


@compiled
def gru_row(x: Array, h: Array, weight: Array, bias: Array, memory: Array, after: Array) -> None:
    """h' of one row. x: [3H] W x + b, h: [H], weight [H, 3H] and bias [3H] of the memory; memory: [3H] scratch."""
    width, one = len(h), h.dtype.type(1)
    _affine(h, weight, bias, memory)
    for c in range(width):
        reset = one / (one + np.exp(-(x[c] + memory[c])))
        update = one / (one + np.exp(-(x[width + c] + memory[width + c])))
        new = np.tanh(x[2 * width + c] + reset * memory[2 * width + c])
        after[c] = new + update * (h[c] - new)


@compiled
def gru_scan(
    gates: Array,  # [U, 3H] W x + b
    rows: Array,  # [T, N] which of them each step has
    hidden: Array,  # [N, H] the memory before the first step
    starts: Array,  # [T, N] bool: an episode begins, without memory
    weight: Array,  # [H, 3H]
    bias: Array,  # [3H]
) -> tuple[Array, Array]:
    """A GRU over time: the memory before each step and after it, [T, N, H] each."""
    (steps, envs), width = rows.shape, hidden.shape[1]
    before, after = np.zeros((steps, envs, width), hidden.dtype), np.empty((steps, envs, width), hidden.dtype)
    memory = np.empty(3 * width, hidden.dtype)
    for t in range(steps):
        for n in range(envs):
            if not starts[t, n]:
                before[t, n] = after[t - 1, n] if t else hidden[n]
            gru_row(gates[rows[t, n]], before[t, n], weight, bias, memory, after[t, n])
    return before, after


@compiled
def act_recurrently(
    gates: Array,  # [U, 3H] W x + b
    rows: Array,  # [N] which of them each environment has
    hidden: Array,  # [N, H] the memory before
    from_memory: tuple[Array, Array],  # of a GRU: [H, 3H], [3H]
    features: tuple[Array, Array],  # the actor's first layer: [H, F], [F]
    last: tuple[Array, Array],  # its last: [F, A], [A]
) -> tuple[Array, Array]:
    """One step of a policy for few environments: outputs [N, A] and the memory after [N, H]."""
    count, width = hidden.shape
    after, outputs = np.empty_like(hidden), np.empty((count, len(last[1])), hidden.dtype)
    memory, first = np.empty(3 * width, hidden.dtype), np.empty(len(features[1]), hidden.dtype)
    for n in range(count):
        gru_row(gates[rows[n]], hidden[n], from_memory[0], from_memory[1], memory, after[n])
        _affine(after[n], features[0], features[1], first)
        np.maximum(first, 0, first)
        _affine(first, last[0], last[1], outputs[n])
    return outputs, after


@compiled
def by_position(weight: Array, order: Array) -> Array:
    """The kernels of positions in this order. [F, C*positions] -> [positions, C, F]"""
    features, positions = weight.shape[0], len(order)
    width = weight.shape[1] // positions
    out = np.empty((positions, width, features), weight.dtype)
    for c in range(width):
        for f in range(features):
            for place in range(positions):
                out[place, c, f] = weight[f, c * positions + order[place]]
    return out


@compiled
def not_by_position(kernels: Array, order: Array) -> Array:
    """[positions, C, F] in this order -> [F, C*positions]"""
    positions, width, features = kernels.shape
    out = np.empty((features, width * positions), kernels.dtype)
    for c in range(width):
        for f in range(features):
            for place in range(positions):
                out[f, c * positions + order[place]] = kernels[place, c, f]
    return out


@compiled
def scatter_sum(values: Array, rows: Array, size: int) -> Array:
    """out[rows[i]] += values[i].   values: [I, C], rows: [I] -> [size, C]"""
    out = np.zeros((size, values.shape[1]), values.dtype)
    for i in range(len(rows)):
        target, value = out[rows[i]], values[i]
        for c in range(len(value)):
            target[c] += value[c]
    return out


@compiled
def ppo_of_categories(
    logits: Array,  # [B, A]
    values: Array,  # [B]
    choices: Array,  # [B] int64
    old_log_probs: Array,  # [B]
    old_values: Array,  # [B]
    advantages: Array,  # [B]
    returns: Array,  # [B]
    clip: float,
    clip_value: float,  # infinite: values are not clipped
    value_coef: float,
    entropy_coef: float,
) -> tuple[Array, Array, Array]:
    """`ppo.ppo_loss` of a categorical policy: the loss and its metrics [6], and its gradients by logits and values."""
    (count, kinds), figures = logits.shape, np.zeros(6)
    grad_logits, grad_values = np.empty_like(logits), np.empty_like(values)
    log_pi, pi = np.empty(kinds), np.empty(kinds)
    for b in range(count):
        largest, total = logits[b].max(), 0.0
        for a in range(kinds):
            total += np.exp(logits[b, a] - largest)
        entropy = 0.0
        for a in range(kinds):
            log_pi[a] = logits[b, a] - largest - np.log(total)
            pi[a] = np.exp(log_pi[a])
            entropy -= pi[a] * log_pi[a]
        choice, advantage = choices[b], advantages[b]
        log_ratio = log_pi[choice] - old_log_probs[b]
        ratio = np.exp(log_ratio)
        clipped = min(max(ratio, 1 - clip), 1 + clip)
        figures[1] -= min(ratio * advantage, clipped * advantage)
        moves = ratio == clipped or ratio * advantage < clipped * advantage  # else the clipped ratio, a constant
        by_log_prob = -ratio * advantage if moves else 0.0
        for a in range(kinds):
            by_entropy = entropy_coef * pi[a] * (log_pi[a] + entropy)
            grad_logits[b, a] = (by_entropy - by_log_prob * pi[a] + (by_log_prob if a == choice else 0.0)) / count
        change = values[b] - old_values[b]
        error = old_values[b] + min(max(change, -clip_value), clip_value) - returns[b]
        grad_values[b] = 2 * value_coef * error / count if abs(change) <= clip_value else 0.0
        figures[2] += error * error
        figures[3] += entropy
        figures[4] += ratio - 1 - log_ratio
        figures[5] += abs(ratio - 1) > clip
    figures /= count
    figures[0] = figures[1] + value_coef * figures[2] - entropy_coef * figures[3]
    return figures, grad_logits, grad_values
