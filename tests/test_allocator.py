"""Freed memory is kept for the next operation, and none is spent on what is not used."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from deir.fast.allocator import keep_freed_memory
torch.set_num_threads(1)
if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit(3)
for repeats in (2, 10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(repeats):
        torch.ones(10_000_000).mul(2).add(1)  # blocks that glibc always maps anew by default
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_large_blocks_are_reused_without_page_faults():
    faults = {}
    for how in ("keep", "default"):
        done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
        faults[how] = int(done.stdout)
    assert faults["keep"] < 0.5 * faults["default"]  # the system may take idle pages back meanwhile


def test_a_gradient_that_is_handed_on_is_exact_and_loads_no_compiler():
    """PyTorch loads its compiler, and sympy with it, where `backward` itself is given a gradient."""
    code = """
import sys, torch
from deir.fast.arrays import with_gradient
weight = torch.randn(5, 3, requires_grad=True)
gradient = torch.randn(5, 3) * 1e-3
with_gradient(weight * 1.0, gradient).backward()
assert torch.equal(weight.grad, gradient)
assert "sympy" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
