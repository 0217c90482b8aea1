"""The episodic history and the observation queue."""

import numpy as np
import torch

from deir.algorithm.memory import EpisodicHistory, LifelongCounts, ObservationQueue


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
    history = history.advanced(
        {"x": history.extended("x", rows)}, torch.tensor([0, 2, 0]), torch.tensor([False, False, True])
    )
    assert history.lengths.tolist() == [4, 2, 0]
    assert history.depth == 4
    again = EpisodicHistory.from_tensors(history.tensors())
    again = again.advanced(
        {"x": again.extended("x", rows + 100)}, torch.tensor([0, 5, 7]), torch.zeros(3, dtype=torch.bool)
    )
    assert again.lengths.tolist() == [8, 3, 1]
    assert again.rows["x"][-3:, 1, 0].tolist() == [104.0, 107.0, 110.0]
    assert again.rows["x"][:, 0, 0].tolist() == [0.0, 3.0, 6.0, 9.0, 100.0, 103.0, 106.0, 109.0]


def test_history_lets_go_of_rows_that_no_episode_needs():
    """Few rows are copied, so that the others can be freed; many stay where they are."""
    extended = torch.arange(8.0).view(8, 1, 1)
    for depth, copied in ((1, True), (3, True), (4, False), (6, False)):
        history = EpisodicHistory.empty(1, {"x": 1})
        history = history.advanced({"x": extended}, torch.tensor([8 - depth]), torch.tensor([False]))
        assert history.rows["x"].flatten().tolist() == list(range(8 - depth, 8))
        own = history.rows["x"].untyped_storage().data_ptr() != extended.untyped_storage().data_ptr()
        assert own == copied


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
