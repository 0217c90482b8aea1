"""The episodic history and the observation queue."""

import numpy as np
import pytest
import torch

from deir.algorithm.memory import PART, EpisodicHistory, LifelongCounts, ObservationQueue


def test_queue_is_first_in_first_out_and_keeps_its_type():
    queue = ObservationQueue(5, (2,), torch.uint8)
    for k in range(8):
        queue.push(torch.full((1, 2), k, dtype=torch.uint8))
        assert sorted(queue.storage[: len(queue), 0].tolist()) == list(range(max(0, k - 4), k + 1))
    assert queue.storage.dtype == torch.uint8
    queue.push(torch.arange(20, dtype=torch.uint8).view(10, 2))
    assert sorted(queue.storage[:, 0].tolist()) == [10, 12, 14, 16, 18]


def test_queue_grows_with_what_it_holds():
    queue = ObservationQueue(10**6, (7, 7, 3), torch.uint8)
    queue.push(torch.zeros(10, 7, 7, 3, dtype=torch.uint8))
    assert queue.storage.nelement() < 10**6


def test_queue_round_trip_goes_on_the_same():
    queue, other = (ObservationQueue(6, (1,), torch.uint8) for _ in range(2))
    queue.push(torch.arange(9, dtype=torch.uint8)[:, None])
    other.load_state_dict(queue.state_dict())
    for q in (queue, other):
        q.push(torch.tensor([[50], [51]], dtype=torch.uint8))
    assert torch.equal(queue.storage, other.storage)
    assert (queue.head, queue.count) == (other.head, other.count)


def test_history_keeps_only_running_episodes_right_aligned():
    history = EpisodicHistory.empty(3, {"x": 1})
    rows = torch.arange(12.0).view(4, 3, 1)
    # environment 0 began at row 0, environment 1 at row 2, environment 2 begins a new episode next
    history = history.advanced({"x": rows}, torch.tensor([0, 2, 0]), torch.tensor([False, False, True]))
    assert history.lengths.tolist() == [4, 2, 0]
    assert history.depth == 4
    again = EpisodicHistory.from_tensors(history.tensors())
    again = again.advanced({"x": rows + 100}, torch.tensor([0, 5, 7]), torch.zeros(3, dtype=torch.bool))
    assert again.lengths.tolist() == [8, 3, 1]
    held = again.extended("x", rows[:0])
    assert held[-3:, 1, 0].tolist() == [104.0, 107.0, 110.0]
    assert held[:, 0, 0].tolist() == [0.0, 3.0, 6.0, 9.0, 100.0, 103.0, 106.0, 109.0]


def test_history_lets_go_of_rows_that_no_episode_needs():
    """Few rows are copied, so that the others can be freed; many stay where they are."""
    for depth, held in ((0, 0), (1, 1), (3, 3), (4, 8), (6, 8)):
        history = EpisodicHistory.empty(1, {"x": 1})
        rows = torch.arange(8.0).view(8, 1, 1)
        history = history.advanced({"x": rows}, torch.tensor([8 - depth]), torch.tensor([False]))
        (part,) = history.rows["x"]
        assert part.flatten().tolist() == list(range(8 - depth, 8))
        assert part.untyped_storage().nbytes() == 4 * held


@pytest.mark.parametrize("steps", [3, PART // 2, PART, PART + 5])
def test_history_in_parts_equals_one_array(steps):
    """Episodes that end now and then, and rows that their maker uses again."""
    numbers = torch.Generator().manual_seed(1)
    history, kept = EpisodicHistory.empty(2, {"x": 1}), torch.zeros(0, 2, 1)
    for time in range(12):
        rows = torch.randn(steps, 2, 1, generator=numbers)
        extended = history.extended("x", rows)
        assert torch.equal(extended, torch.cat([kept, rows]))
        begins = len(kept) - history.lengths if time % 5 else torch.randint(0, len(extended), (2,), generator=numbers)
        ends = torch.tensor([time % 4 == 3, time % 8 == 7])
        history = history.advanced({"x": rows}, begins, ends)
        rows.zero_()
        assert history.lengths.tolist() == torch.where(ends, 0, len(extended) - begins).tolist()
        assert history.depth == history.lengths.max()
        kept = extended[len(extended) - history.depth :]
        assert torch.equal(history.extended("x", rows[:0]), kept)
        stored = list(history.tensors().items())
        order = torch.randperm(len(stored), generator=numbers)  # a file gives them back in any order
        again = EpisodicHistory.from_tensors(dict(stored[i] for i in order))
        assert [part.tolist() for part in again.rows["x"]] == [part.tolist() for part in history.rows["x"]]


def test_what_is_kept_of_an_episode_is_not_copied_as_it_grows():
    history, rows, places = EpisodicHistory.empty(1, {"x": 1}), torch.zeros(PART // 2, 1, 1), []
    for time in range(8):
        history = history.advanced({"x": rows}, torch.tensor([0]), torch.tensor([False]))
        parts = history.rows["x"]
        assert len(parts) == time // 2 + 1  # short ones become one
        assert [part.data_ptr() for part in parts[: len(places) - 1]] == places[:-1]
        places = [part.data_ptr() for part in parts]


def test_a_history_of_older_checkpoints_was_one_tensor():
    rows = torch.arange(6.0).view(3, 2, 1)
    history = EpisodicHistory.from_tensors({"history.lengths": torch.tensor([3, 1]), "history.obs": rows})
    assert torch.equal(history.extended("obs", rows + 9), torch.cat([rows, rows + 9]))


def test_queue_grows_by_doubling_and_knows_the_bytes_it_may_take():
    queue = ObservationQueue(5000, (2, 3), torch.float32)
    assert queue.nbytes == 0
    for pushed, held in ((1000, 1024), (24, 1024), (1, 2048), (2000, 4096), (2000, 5000)):
        queue.push(torch.zeros(pushed, 2, 3))
        assert len(queue.storage) == held
    assert queue.nbytes == 5000 * 2 * 3 * 4


def test_counts_join_the_large_table_once_there_are_more_than_a_share_of_it():
    class Counts(LifelongCounts):
        SMALL, SHARE = 2, 2

    counts = Counts()
    for key, sizes in ((1, [0, 1]), (2, [0, 2]), (3, [3, 0]), (4, [3, 1]), (5, [3, 2]), (6, [6, 0]), (7, [6, 1]),
                       (8, [6, 2]), (9, [6, 3]), (10, [10, 0])):  # fmt: skip
        counts.add(np.array([key, key]))
        assert [len(table.keys) for table in counts.tables] == sizes
    assert counts.of(np.arange(1, 12)).tolist() == [2] * 10 + [0]
