"""Losses and their gradients, in one pass."""

from __future__ import annotations

import numpy as np

from deir.compiled import Array, compiled, compiled_part


@compiled
def ppo_of_categories(
    logits: Array,  # [B, A]
    values: Array,  # [B]
    choices: Array,  # [B] int64
    old_log_probs: Array,  # [B]
    old_values: Array,  # [B]
    advantages: Array,  # [B]
    returns: Array,  # [B]
    settings: Array,  # clipping of the ratio, of values (infinite: none), coefficients of value and entropy
    by_logits: Array,  # [B, A]
    by_values: Array,  # [B]
    figures: Array,  # [6] the loss and `ppo.METRICS`, this job's part of their means
    lo: int,
    hi: int,
) -> None:
    """`ppo.ppo_loss` of a categorical policy, of the rows lo … hi."""
    count, kinds = logits.shape
    clip, clip_value, value_coef, entropy_coef = settings[0], settings[1], settings[2], settings[3]
    log_pi, pi = np.empty(kinds), np.empty(kinds)
    figures[:] = 0
    for b in range(lo, hi):
        largest, total = logits[b].max(), 0.0
        for a in range(kinds):
            total += np.exp(np.float64(logits[b, a] - largest))
        log_total, entropy = np.log(total), 0.0
        for a in range(kinds):
            log_pi[a] = logits[b, a] - largest - log_total
            pi[a] = np.exp(log_pi[a])
            entropy -= pi[a] * log_pi[a]
        choice, advantage = choices[b], np.float64(advantages[b])
        log_ratio = log_pi[choice] - old_log_probs[b]
        ratio = np.exp(log_ratio)
        clipped = min(max(ratio, 1 - clip), 1 + clip)
        figures[1] -= min(ratio * advantage, clipped * advantage)
        moves = ratio == clipped or ratio * advantage < clipped * advantage  # else the clipped ratio, a constant
        by_log_prob = -ratio * advantage if moves else 0.0
        for a in range(kinds):
            by_entropy = entropy_coef * pi[a] * (log_pi[a] + entropy)
            by_logits[b, a] = (by_entropy - by_log_prob * pi[a] + (by_log_prob if a == choice else 0.0)) / count
        change = np.float64(values[b]) - old_values[b]
        error = old_values[b] + min(max(change, -clip_value), clip_value) - returns[b]
        by_values[b] = 2 * value_coef * error / count if abs(change) <= clip_value else 0.0
        figures[2] += error * error
        figures[3] += entropy
        figures[4] += ratio - 1 - log_ratio
        figures[5] += abs(ratio - 1) > clip
    figures /= count
    figures[0] = figures[1] + value_coef * figures[2] - entropy_coef * figures[3]


@compiled_part
def discrimination(
    logits: Array,  # [2B] of true transitions, then of fake ones
    differs: Array,  # [B] bytes: the fake one differs from the true one
    different: int,  # how many do
    by_logits: Array,  # [2B]
    figures: Array,  # [4] true loss, fake loss, how many of the true and of the fake ones are told, this job's part
    lo: int,
    hi: int,
) -> None:
    """½ (mean -log Dsc of the true + mean -log(1 - Dsc) of the fake that differ). Of the rows lo … hi."""
    count = len(differs)
    fakes = max(different, 1)
    figures[:] = 0
    for b in range(lo, hi):
        true, fake = np.float64(logits[b]), np.float64(logits[count + b])
        figures[0] += (np.log1p(np.exp(-abs(true))) + max(-true, 0.0)) / count
        figures[2] += (true > 0) / count
        by_logits[b] = -0.5 / (1 + np.exp(true)) / count
        by_logits[count + b] = 0
        if differs[b]:
            figures[1] += (np.log1p(np.exp(-abs(fake))) + max(fake, 0.0)) / fakes
            figures[3] += (fake < 0) / fakes
            by_logits[count + b] = 0.5 / (1 + np.exp(-fake)) / fakes


@compiled_part
def categories(
    logits: Array,  # [B, A]
    choices: Array,  # [B] int64
    weight: float,  # of this loss beside others
    by_logits: Array,  # [B, A]
    figures: Array,  # [2] mean of -log p(choice), and how many are the likeliest, this job's part
    lo: int,
    hi: int,
) -> None:
    """`DiscreteActions.inverse_loss`, of the rows lo … hi."""
    count, kinds = logits.shape
    parts = np.empty(kinds)
    figures[:] = 0
    for b in range(lo, hi):
        likeliest, total = logits[b].argmax(), 0.0
        largest = np.float64(logits[b, likeliest])
        for a in range(kinds):
            parts[a] = np.exp(logits[b, a] - largest)
            total += parts[a]
        figures[0] += (np.log(total) + largest - logits[b, choices[b]]) / count
        figures[1] += (likeliest == choices[b]) / count
        for a in range(kinds):
            by_logits[b, a] = weight * (parts[a] / total - (1.0 if a == choices[b] else 0.0)) / count


@compiled_part
def squared_errors(
    guesses: Array,  # [P, C]
    targets: Array,  # [M, C]
    rows: Array,  # [P] of the targets; empty: row p
    share: Array,  # [P] of the batch; empty: each is one of it
    factor: float,
    weight: float,  # of this loss beside others
    by_guesses: Array,  # [P, C]
    by_targets: Array,  # [P, C], joined; empty: not wanted
    figures: Array,  # [1] Σ_p share_p factor |guess_p - target_p|², this job's part
    lo: int,
    hi: int,
) -> None:
    """The mean over a batch of factor |guess - target|², of the rows lo … hi."""
    count, number = len(guesses), guesses.dtype.type
    figures[:] = 0
    for p in range(lo, hi):
        guess, target, by = guesses[p], targets[rows[p] if len(rows) else p], by_guesses[p]
        part = factor * (share[p] if len(share) else 1 / count)
        scale, total = number(2 * part * weight), number(0)
        for c in range(guesses.shape[1]):
            error = guess[c] - target[c]
            total += error * error
            by[c] = scale * error
        figures[0] += part * total
        if len(by_targets):
            away = by_targets[p]
            for c in range(guesses.shape[1]):
                away[c] -= by[c]
