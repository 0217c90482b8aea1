"""Who computes with how many threads."""

import threading

import pytest
import torch

from deir.threads import available_threads, borrow_threads, in_parallel, share_threads

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def alone():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    borrow_threads(0, bool)
    torch.set_num_threads(before)


def meet(count: int) -> list[str]:
    """The names of the threads of `count` jobs that each wait for all others."""
    barrier = threading.Barrier(count, timeout=10)

    def job(_: int) -> str:
        barrier.wait()
        return threading.current_thread().name

    return in_parallel(job, range(count), CPU)


def test_results_come_in_order():
    borrow_threads(3, lambda: True)
    assert in_parallel(lambda x: x * x, range(20), CPU) == [x * x for x in range(20)]


def test_threads_are_borrowed_only_while_the_other_process_is_idle():
    idle = True
    borrow_threads(2, lambda: idle)
    assert len(set(meet(2))) == 2
    idle = False
    assert set(in_parallel(lambda _: threading.current_thread().name, range(2), CPU)) == {"MainThread"}


def test_jobs_compute_with_one_thread_each_and_know_whether_gradients_are_wanted():
    borrow_threads(2, lambda: True)
    assert in_parallel(lambda _: torch.get_num_threads(), range(4), CPU) == [1] * 4
    with torch.no_grad():
        assert in_parallel(lambda _: torch.is_grad_enabled(), range(4), CPU) == [False] * 4


def test_an_error_in_a_job_is_the_callers():
    borrow_threads(2, lambda: True)
    with pytest.raises(ZeroDivisionError):
        in_parallel(lambda x: 1 // x, [1, 0, 1], CPU)


def test_an_accelerator_takes_one_job_after_the_other():
    borrow_threads(2, lambda: True)
    names = in_parallel(lambda _: threading.current_thread().name, range(4), torch.device("meta"))
    assert set(names) == {"MainThread"}


def test_all_threads_are_shared_out(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert available_threads(None) == 3 and available_threads(5) == 5
    for threads in range(1, 9):
        assert 0 <= threads - share_threads(threads) <= share_threads(threads)
