"""Every tensor names its device: training is the same while PyTorch's default device is one that holds no data.

Under `torch.device("meta")` whatever is made without a device is empty, and an iteration that used it would fail. So on
a GPU nothing is left behind on the host by accident.
"""

import pytest
import torch

from deir.algorithm.rewards import METHODS
from deir.runs.run import configure
from deir.runs.training import make_trainer
from small import small

TASKS = {
    "views": {"id": "DoorKey-5x5", "n_envs": 4, "max_steps": 20, "layout_worker": False},
    "noise": {"id": "DoorKey-5x5", "n_envs": 4, "max_steps": 20, "noise": 0.1, "layout_worker": False},
    "vectors": {"id": "Pendulum-v1", "n_envs": 4},
}


def parameters_after(env: dict, method: str, default: str) -> list[torch.Tensor]:
    trainer = make_trainer(configure(small(env=env, method=method, reward={"overlap": False})))
    with torch.device(default):
        trainer.iterate()
        trainer.iterate()
    trainer.close()
    return [parameter.detach() for parameter in trainer.policy.parameters()]


@pytest.mark.parametrize(
    ("task", "method"),
    [*(("views", name) for name in METHODS), ("noise", "deir"), ("noise", "noveld"), ("vectors", "deir")],
)
def test_the_default_device_makes_no_difference(task, method):
    expected, found = (parameters_after(TASKS[task], method, default) for default in ("cpu", "meta"))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
