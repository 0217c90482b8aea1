"""Names of distinct things, against NumPy's, and the order of a program's operations."""

import numpy as np
import pytest

from deir.fast import machine, model_machine, naming
from deir.fast.schedule import DIVISIONS, Operation, plan_of, stages_of, touched


def test_rows_are_named_in_the_order_of_their_first_occurrence():
    rows = np.random.default_rng(0).integers(0, 3, (500, 4)).astype(np.uint8)
    distinct, names = naming.distinct_rows(rows)
    assert np.array_equal(distinct[names], rows)
    assert len(distinct) == len(np.unique(rows, axis=0)) < 500
    first = [names.tolist().index(name) for name in range(len(distinct))]
    assert first == sorted(first)


def test_new_rows_get_the_next_names_and_old_ones_keep_theirs():
    rows = np.random.default_rng(1).integers(0, 2, (60, 5)).astype(np.uint8)
    places, stored = naming.free_places(len(rows)), np.empty_like(rows)
    one, known = naming.name_rows(places, stored, 0, rows[:20])
    two, more = naming.name_rows(places, stored, known, rows)
    assert np.array_equal(two[:20], one) and more > known
    assert np.array_equal(stored[two], rows)


def test_no_rows_have_no_names():
    distinct, names = naming.distinct_rows(np.empty((0, 7), np.uint8))
    assert len(distinct) == len(names) == 0


@pytest.mark.parametrize("most", [10, 2**60])
def test_numbers_are_named_as_numpy_does(most):
    numbers = np.random.default_rng(2).integers(-most, most, 400)
    numbers = np.concatenate([numbers, numbers[::2]])
    first, names = naming.distinct_numbers(numbers)
    assert np.array_equal(numbers[first][names], numbers)
    assert len(first) == len(np.unique(numbers))
    assert np.array_equal(names[first], np.arange(len(first)))


def test_pairs_of_a_position_and_a_patch():
    patches = np.random.default_rng(3).integers(0, 6, (30, 4))
    pairs, of_pairs, begins = naming.distinct_pairs(patches, 6)
    assert np.array_equal(of_pairs[pairs], patches)
    for position in range(4):
        own = np.arange(begins[position], begins[position + 1])
        assert sorted(of_pairs[own]) == sorted(set(patches[:, position]))
        assert np.isin(pairs[:, position], own).all()


ROWS, WIDTH, OTHER = 1, 2, 3  # registers of sizes


def product(to, a, b, jobs=4, flip=0):
    """to [ROWS, WIDTH] = a b"""
    return Operation(machine.PRODUCT, jobs, (to, WIDTH, a, WIDTH, flip, b, WIDTH, 0, ROWS, WIDTH, WIDTH, 0))


def sums(of, to):
    return Operation(machine.COLUMN_SUMS, 2, (of, ROWS, WIDTH, to, 0))


def test_every_operation_but_the_last_two_says_what_it_touches():
    own = set(range(machine.UNSCALE_COLUMNS + 1)) - {machine.SQUARES, machine.ADAM}
    assert set(DIVISIONS) == own | set(range(model_machine.GATHER, model_machine.DISTANCES_GRADIENT + 1))


def test_operations_on_the_same_rows_go_in_step():
    assert stages_of([product(10, 11, 12), product(13, 10, 12)], {}) == [[[0, 1]]]


def test_an_operation_waits_for_all_of_what_it_reads_whole():
    assert stages_of([product(10, 11, 12), product(13, 11, 10)], {}) == [[[0]], [[1]]]
    assert stages_of([product(10, 11, 12), product(13, 10, 12, flip=9)], {}) == [[[0]], [[1]]]  # columns, not rows
    assert stages_of([product(10, 11, 12), product(13, 10, 12, jobs=2)], {}) == [[[0]], [[1]]]


def test_what_is_read_is_not_overwritten_before():
    assert stages_of([sums(10, 20), product(10, 11, 12)], {}) == [[[0]], [[1]]]


def test_independent_operations_share_a_stage():
    assert stages_of([product(10, 11, 12), product(13, 11, 12), sums(10, 20), sums(13, 21)], {}) == [
        [[0], [1]],
        [[2], [3]],
    ]


def test_parts_of_a_buffer_are_apart_and_the_buffer_waits_for_all():
    views = {30: 40, 31: 40}
    assert stages_of([product(30, 11, 12), product(31, 11, 12), sums(40, 20)], views) == [[[0], [1]], [[2]]]
    assert stages_of([product(30, 11, 12), product(30, 12, 11)], views) == [[[0, 1]]]


def test_adam_waits_for_everything():
    operations = [product(10, 11, 12), sums(13, 20), Operation(machine.SQUARES, 4, (50,)), sums(14, 21)]
    assert stages_of(operations, {}) == [[[0], [1]], [[2]], [[3]]]


def test_any_order_of_random_operations_keeps_what_depends_on_what():
    rng = np.random.default_rng(4)
    for _ in range(50):
        draw = lambda: int(rng.integers(10, 16))  # noqa: E731
        operations = [product(draw(), draw(), draw(), int(rng.choice([1, 4]))) for _ in range(12)]
        stages = stages_of(operations, {})
        place = {n: (s, c) for s, chains in enumerate(stages) for c, chain in enumerate(chains) for n in chain}
        assert sorted(place) == list(range(12))
        for late in range(12):
            for early in range(late):
                pairs = [
                    (one, other)
                    for memory, one in touched(operations[early], {})
                    for also, other in touched(operations[late], {})
                    if memory == also and (one.writes or other.writes)
                ]
                if not pairs:
                    continue
                single = operations[early].jobs == operations[late].jobs == 1
                if place[early] == place[late]:
                    assert single or all(one.divided == other.divided is not None for one, other in pairs)
                else:
                    assert place[early][0] < place[late][0]


def test_a_plan_holds_each_job_of_each_operation_once():
    operations = (product(10, 11, 12), product(13, 10, 12), sums(13, 20), product(14, 11, 13, jobs=1))
    steps, tasks, stages = plan_of(operations, frozenset())
    found = [(int(steps[step]), int(job)) for begin, end, job in tasks for step in range(begin, end)]
    assert sorted(found) == [(n, job) for n, operation in enumerate(operations) for job in range(operation.jobs)]
    assert stages[-1, 0] == len(tasks)
    counters = np.diff(stages[:, 1])
    assert (counters > np.diff(stages[:, 0])).all()  # one more than there are tasks
