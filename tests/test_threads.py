"""Who computes with how many threads."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import torch

from deir.algorithm.networks import ConvEncoder, ImpalaEncoder, VectorEncoder
from deir.algorithm.ops import PlainOps
from deir.errors import UserError
from deir.fast.ops import FastOps
from deir.fast.overlap import Beside
from deir.fast.threads import (
    another_party,
    aside,
    available_threads,
    in_parallel,
    one_party_less,
    one_thread,
    use_threads,
)
from deir.runs.run import configure
from deir.runs.training import has_large_operations, make_trainer
from small import small

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def alone():
    before = torch.get_num_threads()
    yield
    use_threads(1, large=False)
    torch.set_num_threads(before)


def meet(count: int) -> list[str]:
    """The names of the threads of `count` jobs that each wait for all others."""
    barrier = threading.Barrier(count, timeout=10)

    def job(_: int) -> str:
        barrier.wait()
        return threading.current_thread().name

    return in_parallel(job, range(count))


def test_results_come_in_order():
    use_threads(3, large=True)
    assert in_parallel(lambda x: x * x, range(20)) == [x * x for x in range(20)]


def test_two_parties_share_the_threads_until_one_of_them_waits():
    def names() -> set[str]:
        return set(in_parallel(lambda _: threading.current_thread().name, range(2)))

    use_threads(2, large=False)
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
    use_threads(2, large=True)
    assert in_parallel(lambda _: torch.get_num_threads(), range(4)) == [1] * 4
    assert torch.get_num_threads() == 2
    with torch.no_grad():
        assert in_parallel(lambda _: torch.is_grad_enabled(), range(4)) == [False] * 4


def test_an_error_in_a_job_is_the_callers():
    use_threads(2, large=True)
    with pytest.raises(ZeroDivisionError):
        in_parallel(lambda x: 1 // x, [1, 0, 1])


def test_little_work_goes_to_a_free_thread_and_is_done_at_once_without_one():
    def name() -> str:
        return threading.current_thread().name

    use_threads(2, large=False)
    waiting = threading.Event()
    late = aside(lambda: waiting.wait(10) and name())
    waiting.set()  # a caller that had to do it would have waited for this
    assert late().startswith("deir")
    failing = aside(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failing()
    with another_party():
        assert aside(name)() == "MainThread"
    use_threads(1, large=False)
    done: list[int] = []
    aside(lambda: done.append(1))
    assert done == [1]


def test_all_threads_are_shared_out(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert available_threads(None) == 3 and available_threads(5) == 5
    for threads in range(1, 9):
        use_threads(threads, large=False)
        assert torch.get_num_threads() == 1
        use_threads(threads, large=True)
        assert torch.get_num_threads() == threads


def test_one_thread_for_a_while():
    torch.set_num_threads(3)
    with one_thread(alone=False):
        assert torch.get_num_threads() == 3
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize(
    ("large", "changes"),
    [
        (False, {}),
        (False, {"env": {"noise": 0.1}}),
        (False, {"env": {"id": "CartPole-v1"}}),
        (True, {"ops": "plain"}),
        (True, {"network": {"encoder": "impala"}}),
    ],
)
def test_only_convolutions_of_pytorch_use_its_threads(large, changes):
    trainer = make_trainer(configure(small(threads=2, **changes)))
    trainer.close()
    assert torch.get_num_threads() == (2 if large else 1)


@pytest.mark.parametrize("own", [None, "ACTIVE"])
def test_threads_wait_passively_unless_the_user_says_otherwise(own):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    asked = "import os, sys, deir; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    environment.update({} if own is None else {"OMP_WAIT_POLICY": own})
    done = subprocess.run([sys.executable, "-c", asked], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [own or "PASSIVE", "False"]


def test_a_party_keeps_its_threads_whatever_others_set_before_it_computes():
    use_threads(2, large=True)
    party = Beside()
    try:
        assert party.ask(lambda: True).result()  # it is there, and has computed nothing
        in_parallel(lambda _: torch.set_num_threads(1), range(2))
        assert party.ask(torch.get_num_threads).result() == 2 == torch.get_num_threads()
    finally:
        party.close()


def in_a_fork(work: Callable[[], bool]) -> bool:
    """What the work says in a fork; a fork that hangs is killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = int(not work())
        finally:
            os._exit(code)
    killer = threading.Timer(60, os.kill, (child, 9))
    killer.start()
    try:
        return os.waitpid(child, 0)[1] == 0
    finally:
        killer.cancel()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_has_threads_of_its_own():
    use_threads(2, large=False)
    assert len(set(meet(2))) == 2
    with another_party():  # a fork in the middle of an update
        assert in_a_fork(lambda: len(set(meet(2))) == 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_is_refused_the_threads_of_pytorch_that_it_lost():
    def refused(threads: int, large: bool) -> bool:
        try:
            use_threads(threads, large)
        except UserError as mistake:
            return "in a fork of a process that has computed with several threads" in str(mistake)
        return False

    use_threads(2, large=True)
    assert not refused(2, True)  # here they are
    assert in_a_fork(lambda: refused(2, True) and refused(4, True))
    assert in_a_fork(lambda: not refused(1, True) and not refused(2, False))
    assert in_a_fork(lambda: in_a_fork(lambda: refused(2, True)))


@pytest.mark.parametrize(
    ("ops", "norm", "large"),
    [(FastOps(), "layer", False), (FastOps(), "none", False), (FastOps(), "batch", True), (PlainOps(), "layer", True)],
)
def test_pytorch_has_the_threads_where_it_computes_convolutions_itself(ops, norm, large):
    """The fast encoders of images are jobs, whose threads small operations would only wait for."""
    encoders = ImpalaEncoder((16, 16, 3), 16, norm), ConvEncoder((48, 48, 3), 16, norm)
    assert [has_large_operations(ops, encoder) for encoder in encoders] == [large, large]
    assert has_large_operations(ops, VectorEncoder(4, 16, norm), *encoders) == large
    assert not has_large_operations(ops, VectorEncoder(4, 16, norm))
