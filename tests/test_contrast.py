"""ETD's compiled loss, of the distinct rows of a batch, against the formula on the whole batch in double precision."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from deir.algorithm.quasimetric import quasimetric
from deir.compiled import compiled
from deir.fast import contrast_kernels as kernels
from deir.fast.contrast_program import prepare_pairs
from deir.fast.updates import Given


@compiled
def whole_loss(x, y, columns, potentials, shares, own, first, jobs, by_x, by_y, by_potentials, figures):
    """As a program does it, each step in `jobs` parts; gives the logits' gradient."""
    shape = len(x), len(y)
    rises, lengths, largest = np.empty(shape), np.empty(shape), np.empty(shape, np.int32)
    logits, by_logits, pulls = np.empty(shape), np.empty(shape), np.empty(shape)
    totals, half = (np.empty(len(x)), np.empty(len(y))), x.shape[1] // 2
    rows = [(len(x) * job // jobs, len(x) * (job + 1) // jobs) for job in range(jobs)]
    cols = [(len(y) * job // jobs, len(y) * (job + 1) // jobs) for job in range(jobs)]
    for lo, hi in rows:
        kernels.distances(x, columns, rises, lengths, largest, lo, hi)
    for job in range(jobs):
        lo, hi = rows[job]
        found = figures[job, :3]
        kernels.contrast_rows(rises, lengths, potentials, shares, own, first, logits, totals[0], found, lo, hi)
    for job in range(jobs):
        kernels.contrast_columns(logits, shares, own, totals[1], figures[job, 3:], cols[job][0], cols[job][1])
    for lo, hi in rows:
        kernels.contrast_gradient(logits, shares, own, totals, lengths, by_logits, pulls, lo, hi)
    by_x[:, half:] = pulls @ np.ascontiguousarray(y[:, half:])
    by_y[:, half:] = pulls.T @ np.ascontiguousarray(x[:, half:])
    for job in range(jobs):
        kernels.distances_gradient(x, y, by_logits, pulls, largest, by_x, by_y, rows[job], cols[job])
    by_potentials[:] = by_logits.sum(0)


@pytest.mark.parametrize("jobs", [1, 4])
@pytest.mark.parametrize("width", [6, 7])
def test_the_loss_of_distinct_rows_is_that_of_the_whole_batch(width, jobs):
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(9, width, generator=generator, dtype=torch.float64, requires_grad=True)
    table = before.relu()  # as embeddings are: nothing comes back to what equals 0 on both sides
    inverse = torch.randint(0, 9, (40,), generator=generator)
    inverse[0] = inverse[20] = inverse[1]  # a pair of equal rows, at distance 0
    potentials = torch.randn(9, generator=generator, dtype=torch.float64, requires_grad=True)
    earlier, later = inverse.chunk(2)

    distances = quasimetric(table[earlier], table[later])  # [B, B]
    logits, own = potentials[later] - distances, torch.arange(20)
    expected = 0.5 * (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own))
    expected.backward()

    given = Given()
    prepare_pairs(inverse.numpy(), given)
    rows_x, share_x, own_x, rows_y, share_y, own_y, first = given.kept
    x, y = table.detach().numpy()[rows_x], table.detach().numpy()[rows_y]
    by_x, by_y, by_potentials, figures = np.ones_like(x), np.ones_like(y), np.ones(len(y)), np.ones((jobs, 4))
    c = potentials.detach().numpy()[rows_y]
    given_rows = (share_x, share_y), (own_x, own_y), first
    whole_loss(x, y, np.ascontiguousarray(y.T), c, *given_rows, jobs, by_x, by_y, by_potentials, figures)

    found = figures.sum(0)
    assert found[0] + found[3] == pytest.approx(expected.item(), rel=1e-12)
    assert found[1] == pytest.approx((logits.argmax(1) == own).double().mean().item())
    assert found[2] == pytest.approx(distances.diagonal().mean().item(), rel=1e-12)
    by_table = np.zeros_like(table.detach().numpy())
    by_table[rows_x] += by_x
    by_table[rows_y] += by_y
    np.testing.assert_allclose(by_table * (table.detach().numpy() > 0), before.grad.numpy(), atol=1e-14)
    np.testing.assert_allclose(by_potentials, potentials.grad.numpy()[rows_y], atol=1e-14)
