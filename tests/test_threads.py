"""Who computes with how many threads."""

import sys
import threading

import pytest
import torch

from deir.fast.threads import another_party, available_threads, in_parallel, one_party_less, use_threads

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def alone():
    before = torch.get_num_threads()
    yield
    use_threads(1, overlap=False)
    torch.set_num_threads(before)


def meet(count: int) -> list[str]:
    """The names of the threads of `count` jobs that each wait for all others."""
    barrier = threading.Barrier(count, timeout=10)

    def job(_: int) -> str:
        barrier.wait()
        return threading.current_thread().name

    return in_parallel(job, range(count))


def test_results_come_in_order():
    use_threads(3, overlap=False)
    assert in_parallel(lambda x: x * x, range(20)) == [x * x for x in range(20)]


def test_two_parties_share_the_threads_until_one_of_them_waits():
    def names() -> set[str]:
        return set(in_parallel(lambda _: threading.current_thread().name, range(2)))

    use_threads(2, overlap=True)
    assert torch.get_num_threads() == 1
    assert len(set(meet(2))) == 2
    interval = sys.getswitchinterval()
    with another_party():
        assert names() == {"MainThread"} and sys.getswitchinterval() < interval
        with one_party_less():
            assert len(set(meet(2))) == 2
        assert names() == {"MainThread"}
    assert len(set(meet(2))) == 2 and sys.getswitchinterval() == interval


def test_jobs_compute_with_one_thread_each_and_know_whether_gradients_are_wanted():
    use_threads(2, overlap=False)
    assert in_parallel(lambda _: torch.get_num_threads(), range(4)) == [1] * 4
    with torch.no_grad():
        assert in_parallel(lambda _: torch.is_grad_enabled(), range(4)) == [False] * 4


def test_an_error_in_a_job_is_the_callers():
    use_threads(2, overlap=False)
    with pytest.raises(ZeroDivisionError):
        in_parallel(lambda x: 1 // x, [1, 0, 1])


def test_all_threads_are_shared_out(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert available_threads(None) == 3 and available_threads(5) == 5
    for threads in range(1, 9):
        use_threads(threads, overlap=True)
        assert 1 <= torch.get_num_threads() <= max(1, threads / 2)
        use_threads(threads, overlap=False)
        assert torch.get_num_threads() == threads
