"""Each fast verb against its plain twin, outputs and gradients; and whole iterations of the one against the other."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from deir.algorithm.actions import DiscreteActions
from deir.algorithm.layers import head
from deir.algorithm.networks import GridEncoder
from deir.algorithm.ops import PlainOps
from deir.algorithm.policy import Policy
from deir.algorithm.rewards import METHODS
from deir.algorithm.types import Shared
from deir.config import NetworkConfig, PPOConfig
from deir.errors import UserError
from deir.fast import acting as fast_acting
from deir.fast import discriminator_update, gru, model_updates, playing, program, tail_update, updates
from deir.fast import ops as fast_ops
from deir.fast.ops import FastOps
from deir.runs import training
from deir.runs.presets import BEYOND_THE_PAPER
from deir.runs.run import configure
from deir.runs.training import make_ops, make_trainer
from small import small

SPACE = spaces.Box(0, 255, (7, 7, 3), np.uint8)
TASKS = {
    "views": {"id": "DoorKey-5x5", "n_envs": 4, "max_steps": 20, "layout_worker": False},
    "whole": {"id": "DoorKey-5x5", "n_envs": 4, "max_steps": 20, "full_view": True, "layout_worker": False},
    "noise": {"id": "DoorKey-5x5", "n_envs": 4, "max_steps": 20, "noise": 0.1, "layout_worker": False},
    "vectors": {"id": "Pendulum-v1", "n_envs": 4},
    "numbers": {"id": "CartPole-v1", "n_envs": 4},
}


@pytest.fixture
def double():
    """In double precision rounding stays small, whatever normalisation makes of it."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def numbers():
    return torch.Generator().manual_seed(0)


def views(count: int, kinds: int, numbers: torch.Generator) -> torch.Tensor:
    pool = torch.randint(0, 4, (kinds, 7, 7, 3), generator=numbers, dtype=torch.uint8)
    return pool[torch.randint(0, kinds, (count,), generator=numbers)]


def embed(ops, network, numbers):
    table, names = ops.tabulate(views(60, 20, numbers), True)
    return ops.embed(network, table.rows(names[torch.randint(0, 60, (90,), generator=numbers)])).gather()


def gru_step(ops, network, numbers):
    inputs = Shared(network[0].weight[:5] * 1.0, torch.randint(0, 5, (12,), generator=numbers))
    return ops.gru_step(network[1], ops.gru_inputs(network[1], inputs), network[2].weight[:6] * 1.0)


def gru_scan(ops, network, numbers):
    embedded = Shared(torch.randn(7, 8, generator=numbers), torch.randint(0, 7, (15,), generator=numbers))
    starts = torch.rand(5, 3, generator=numbers) < 0.3
    hidden = torch.randn(3, 6, generator=numbers)
    inputs = ops.gru_inputs(network[1], embedded)
    return torch.stack(ops.gru_scan(network[1], inputs, hidden, starts))


def run_head(ops, network, numbers):
    return ops.head(network, torch.randn(30, 8, generator=numbers))


def head_of_parts(ops, network, numbers):
    first = Shared(torch.randn(5, 3, generator=numbers), torch.randint(0, 5, (20,), generator=numbers))
    return ops.head_of_parts(network, [first, Shared(torch.randn(20, 5, generator=numbers))])


def prediction_loss(ops, network, numbers):
    rows, targets = torch.randint(0, 9, (40,), generator=numbers), torch.randn(9, 4, generator=numbers)
    return ops.prediction_loss(network, Shared(torch.randn(9, 8, generator=numbers), rows), targets, rows)


def ppo_loss(ops, network, numbers):
    outputs = network(torch.randn(30, 8, generator=numbers))
    choices = torch.randint(0, 3, (30,), generator=numbers)
    old = torch.randn(4, 30, generator=numbers) - torch.tensor([[1.0], [0], [0], [0]])
    config = PPOConfig(clip_range_value=0.3)
    loss, metrics = ops.ppo_loss(outputs[:, :3], outputs[:, 3], choices, *old, config, DiscreteActions(3))
    return torch.stack([loss, *(metric.detach() for metric in metrics.values())])


def distances(ops, network, numbers):
    queries, keys = torch.randn(2, 9, 3, 4, generator=numbers), torch.randn(2, 12, 3, 4, generator=numbers)
    first, last = torch.randint(0, 12, (9, 3), generator=numbers), torch.arange(9) + 2
    ratios = ops.min_ratio(*queries, *([rows] for rows in keys), first, last, 1e-6)
    return torch.cat([ratios[..., None], ops.nearest(queries[0], keys[0], first, last, 2)], -1)


def temporal(ops, network, numbers):
    """The quasimetric of shared rows, equal ones among them, and its least value in an episode."""
    values = network[0].weight[:6] * 1.0
    x, y = (Shared(values, torch.randint(0, 6, (count,), generator=numbers)) for count in (7, 9))
    whole = ops.quasimetric(x, Shared(network[2].weight * 1.0))
    queries, keys = torch.randn(9, 3, 5, generator=numbers), torch.randn(12, 3, 5, generator=numbers)
    first, last = torch.randint(0, 12, (9, 3), generator=numbers), torch.arange(9) + 2
    repeated = torch.rand(9, 3, generator=numbers) < 0.2
    least = ops.min_quasimetric(queries, keys, first, last, repeated)
    return torch.cat([ops.quasimetric(x, y).flatten(), whole.flatten(), least.flatten()])


def queue(ops, network, numbers):
    """Which differ, and what the table holds of the queue."""
    table, names = ops.tabulate(views(40, 12, numbers), True)
    storage, slots = views(30, 12, numbers), torch.randint(0, 30, (2, 40), generator=numbers)
    differ = ops.differ(storage, slots[0], table.rows(names))
    extended, renamed, offered = ops.extend(table, storage, list(slots))
    assert torch.equal(extended.distinct[renamed], table.distinct)
    gathered = [part if isinstance(part, torch.Tensor) else part.gather() for part in offered]
    assert torch.equal(torch.stack(gathered), storage[slots])
    return differ.double()


def acting(ops, network, numbers):
    network.eval()
    network.ops, seen = ops, views(30, 8, numbers).view(3, 10, 7, 7, 3).numpy()
    known, hidden, found = None, torch.randn(10, 64, generator=numbers), []
    for _ in range(2):  # the second time it knows what it saw
        played = ops.acting(network, True, known)
        with torch.no_grad():
            for observations in seen[:2]:
                outputs, hidden = played.step(observations, hidden)
                found.append(torch.cat([outputs, hidden], 1))
        table, ids, finals = played.table(seen[2], seen[0][:3])
        assert torch.equal(table.distinct[ids], torch.from_numpy(seen))
        assert torch.equal(table.distinct[finals], torch.from_numpy(seen[0][:3]))
        known = played.known
    return torch.stack(found)


def optimizer(ops, network, numbers):
    """Three steps, a third of them after the state went through the other kind's."""
    config = PPOConfig(learning_rate=0.01, max_grad_norm=0.1)
    other = PlainOps() if isinstance(ops, FastOps) else FastOps()
    adam, x = ops.optimizer(network, config, "test"), torch.randn(30, 8, generator=numbers)
    for step in range(3):
        adam.step(network(x).square().mean())
        if step == 1:
            twin = other.optimizer(copy.deepcopy(network), config, "twin")
            twin.load_state_dict(adam.state_dict())
            adam.load_state_dict(twin.state_dict())
    return torch.cat([parameter.flatten() for parameter in network.parameters()])


def mlp() -> nn.Module:
    return head("batch", [8, 16, 16, 4])


VERBS = {
    "embed batch": (embed, lambda: GridEncoder((7, 7, 3), 8, "batch")),
    "embed layer": (embed, lambda: GridEncoder((7, 7, 3), 8, "layer")),
    "embed none": (embed, lambda: GridEncoder((7, 7, 3), 8, "none")),
    "gru_step": (gru_step, lambda: nn.ModuleList([nn.Linear(8, 5), nn.GRUCell(8, 6), nn.Linear(6, 6)])),
    "gru_scan": (gru_scan, lambda: nn.ModuleList([nn.Linear(8, 5), nn.GRUCell(8, 6)])),
    "head": (run_head, mlp),
    "head_of_parts": (head_of_parts, mlp),
    "prediction_loss": (prediction_loss, mlp),
    "ppo_loss": (ppo_loss, mlp),
    "distances": (distances, mlp),
    "queue": (queue, mlp),
    "temporal": (temporal, lambda: nn.ModuleList([nn.Linear(8, 6), nn.Identity(), nn.Linear(8, 6)])),
    "acting": (acting, lambda: Policy(SPACE, spaces.Discrete(5), NetworkConfig())),
    "optimizer": (optimizer, mlp),
}


@pytest.mark.parametrize("verb", VERBS)
def test_each_fast_verb_is_its_plain_twin(verb, double):
    compute, make = VERBS[verb]
    torch.manual_seed(0)
    network, found = make(), []
    for ops in (PlainOps(), FastOps()):
        twin = copy.deepcopy(network)
        outputs = compute(ops, twin, torch.Generator().manual_seed(1))
        if outputs.requires_grad:
            weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(2))
            (outputs * weights).sum().backward()
        # a bias before batch normalisation has no gradient, or one of rounding errors
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in twin.parameters()]
        found.append([outputs.detach(), *gradients, *(b.double() for b in twin.buffers())])
    for plain, fast in zip(*found, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("task", "method"),
    [*(("views", name) for name in METHODS), *(("noise", name) for name in METHODS), ("vectors", "deir"),
     ("vectors", "ngu"), ("numbers", "deir"), ("numbers", "noveld"),
     *(("vectors", name) for name in BEYOND_THE_PAPER), ("whole", "deir"), ("whole", "noveld"), ("whole", "etd")],
)  # fmt: skip
def test_two_iterations_give_the_same_figures(task, method, double):
    assert_same_figures(figures_of(task, method, "fast"), figures_of(task, method, "plain"))


def figures_of(task: str, method: str, ops: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What two iterations print, and the policy's parameters after them."""
    trainer = make_trainer(configure(small(env=TASKS[task], method=method, ops=ops)))
    rows = [trainer.iterate() for _ in range(2)]
    trainer.close()
    printed = [[row[name] for name in row if not name.startswith("seconds")] for row in rows]
    numbers = torch.tensor([[float("nan") if x is None else x for x in row] for row in printed])
    return numbers, torch.cat([p.detach().flatten() for p in trainer.policy.parameters()])


def assert_same_figures(found: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize(("task", "method"), [("views", "deir"), ("noise", "deir"), ("vectors", "none")])
def test_without_products_by_name_the_figures_are_the_same(task, method, double, monkeypatch):
    """As where PyTorch's library does not offer its matrix products by name."""
    expected = figures_of(task, method, "plain")
    for module in (fast_acting, gru, model_updates, fast_ops, playing, tail_update, updates, program):
        monkeypatch.setattr(module, "product", lambda dtype: None)
    assert_same_figures(figures_of(task, method, "fast"), expected)


def test_whole_grids_share_their_patches_too(monkeypatch):
    """Reward and update of a grid of 19 cells a side: every view goes through the distinct patches."""
    embedded, views = [], []
    patched, whole = fast_ops.embed_patches, fast_ops.embed_whole
    monkeypatch.setattr(fast_ops, "embed_patches", lambda *given: (embedded.append(1), patched(*given))[1])
    monkeypatch.setattr(fast_ops, "embed_whole", lambda *given: (views.append(1), whole(*given))[1])
    plan = updates.plan
    for module in (updates, discriminator_update):
        monkeypatch.setattr(module, "plan", lambda *given: (embedded.append(2), plan(*given))[1])
    trainer = make_trainer(configure(small(env={**TASKS["whole"], "id": "FourRooms"})))
    trainer.iterate()
    trainer.close()
    assert trainer.policy.encoder.convs[0].in_channels == 3 and not views
    assert embedded.count(1) >= 1 and embedded.count(2) == 4  # the reward; two mini-batches of each network


def test_single_precision_too():
    rows = []
    for ops in ("plain", "fast"):
        trainer = make_trainer(configure(small(env=TASKS["noise"], ops=ops)))
        rows.append([trainer.iterate() for _ in range(2)][1])
        trainer.close()
    for name in ("intrinsic_reward_mean", "model_loss", "entropy", "value_loss"):
        assert rows[0][name] == pytest.approx(rows[1][name], rel=1e-3)


def test_the_plain_table_has_each_view_once_or_each_observation_as_it_is():
    observations = torch.tensor([[[3]], [[1]], [[3]]])
    table, names = PlainOps().tabulate(observations, True)
    assert table.distinct.tolist() == [[[1]], [[3]]] and names.tolist() == [1, 0, 1]
    table, names = PlainOps().tabulate(observations, False)
    assert table.distinct is observations and names.tolist() == [0, 1, 2]


def test_who_is_chosen():
    assert isinstance(make_ops(configure({})), FastOps)
    assert not isinstance(make_ops(configure({"ops": "plain"})), FastOps)
    assert not isinstance(make_ops(configure({"device": "meta"})), FastOps)
    with pytest.raises(UserError, match="ops: got 'fast', expected 'plain' on meta"):
        make_ops(configure({"ops": "fast", "device": "meta"}))


def test_who_may_have_products_of_fewer_bits():
    assert make_ops(configure({})).precision == "fp32"
    assert make_ops(configure({"precision": "bf16"})).precision == "bf16"
    for other in ({"ops": "plain"}, {"device": "meta"}):
        with pytest.raises(UserError, match="precision: got 'bf16', expected 'fp32' with plain PyTorch on "):
            make_ops(configure({"precision": "bf16", **other}))
    with pytest.raises(UserError, match="precision: unknown name 'fp16'"):
        configure({"precision": "fp16"})


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, True),
        ({"env": {"noise": 0.1}}, False),
        ({"env": {"noise": 0.1}, "network": {"encoder": "mlp"}, "reward": {"encoder": "mlp"}}, True),
        ({"network": {"norm": "layer"}}, False),
    ],
)
def test_precision_that_nothing_uses_is_told(settings, told, monkeypatch, caplog):
    monkeypatch.setattr(training, "HAS_BF16", not told)
    trainer = make_trainer(configure({"precision": "bf16", **settings}))
    trainer.close()
    assert ("bf16 changes nothing here" in caplog.text) == told
    assert ("this CPU has no products of bf16 numbers" in caplog.text) != training.HAS_BF16
