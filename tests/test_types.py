"""What flows between the stages, on rows small enough to be read."""

import pytest
import torch

from deir.algorithm.types import Batch, ObservationTable, PolicyTrace, Rollout, Rows, Shared, concatenate, no_indices


def test_rows_are_gathered_from_their_table():
    rows = ObservationTable(torch.tensor([[1, 2], [3, 4], [5, 6]])).rows(torch.tensor([2, 0, 0, 1]))
    assert isinstance(rows, Rows) and len(rows) == 4
    assert rows.gather().tolist() == [[5, 6], [1, 2], [1, 2], [3, 4]]


def test_batches_of_one_table_are_joined_as_rows_and_others_as_tensors():
    table, other = ObservationTable(torch.tensor([[1], [2], [3]])), ObservationTable(torch.tensor([[7], [8], [9]]))
    first, second = table.rows(torch.tensor([2, 1])), table.rows(torch.tensor([0, 0, 2]))
    joined = concatenate([first, second])
    assert isinstance(joined, Rows) and joined.table is table and joined.ids.tolist() == [2, 1, 0, 0, 2]
    alone = concatenate([second])
    assert isinstance(alone, Rows) and alone.table is table and alone.ids.tolist() == [0, 0, 2]
    elsewhere, plain = other.rows(torch.tensor([2])), torch.tensor([[5], [6]])
    for parts, expected in [
        ([first, elsewhere], [3, 2, 9]),
        ([elsewhere, first], [9, 3, 2]),
        ([first, second, elsewhere], [3, 2, 1, 1, 3, 9]),
        ([first, plain], [3, 2, 5, 6]),
        ([plain, first, second], [5, 6, 3, 2, 1, 1, 3]),
        ([plain, plain], [5, 6, 5, 6]),
    ]:
        joined = concatenate(parts)
        assert isinstance(joined, torch.Tensor) and joined[:, 0].tolist() == expected


@pytest.mark.parametrize("rows", [None, [2, 0, 2, 1, 0]])
def test_shared_vectors_are_gathered_and_split(rows):
    values = torch.arange(15.0).view(5, 3) if rows is None else torch.arange(9.0).view(3, 3)
    shared = Shared(values) if rows is None else Shared(values, torch.tensor(rows))
    expected = [values[k].tolist() for k in (rows or range(5))]
    assert shared.gather().tolist() == expected
    first, second, third = shared.split([2, 0, 3])
    assert first.gather().tolist() == expected[:2]
    assert second.gather().shape == (0, 3)
    assert third.gather().tolist() == expected[2:]


@pytest.mark.parametrize("width", [(), (2,)], ids=["one number", "vectors"])
def test_a_rollout_tells_its_ends_and_the_true_next_observations(width):
    steps, envs = 3, 2
    terminated = torch.tensor([[0, 1], [0, 0], [0, 0]]).bool()
    truncated = torch.tensor([[0, 0], [1, 0], [0, 0]]).bool()
    rollout = Rollout(
        ObservationTable(torch.arange(20)[:, None]),
        torch.tensor([[0, 1], [2, 3], [4, 5], [6, 7]]),
        torch.zeros(steps + 1, envs).bool(),
        torch.zeros(steps, envs, *width),
        torch.zeros(steps, envs),
        terminated,
        truncated,
        torch.tensor([[1, 1], [1, 0], [0, 1]]).bool(),
        torch.tensor([1, 2]),
        torch.tensor([11, 12]),
    )
    ids = rollout.ids.clone()
    assert rollout.shape == (steps, envs)
    assert rollout.dones.tolist() == [[False, True], [True, False], [False, False]]
    assert rollout.next_ids.tolist() == [[2, 11], [12, 5], [6, 7]]
    assert torch.equal(rollout.ids, ids)
    assert rollout.valid_indices().tolist() == [0, 1, 2, 5]
    assert rollout.states is None and rollout.positions is None


def test_a_batch_and_a_trace_hold_what_they_are_given_and_nothing_else():
    rows = ObservationTable(torch.zeros(2, 1)).rows(torch.tensor([0, 1]))
    batch, given = Batch(rows, torch.ones(2), rows, indices=torch.tensor([5, 6])), {"observations", "actions"}
    kept = {name for name, value in vars(batch).items() if value is not None}
    assert kept == given | {"next_observations", "indices"} and batch.indices.tolist() == [5, 6]
    trace = PolicyTrace(*torch.arange(4.0))
    assert [float(trace.hidden), float(trace.log_probs), float(trace.values), float(trace.next_values)] == [0, 1, 2, 3]
    assert trace.choices is None


def test_no_indices_can_index():
    assert no_indices().tolist() == [] and torch.arange(3)[no_indices()].tolist() == []
