"""Networks: the distinct-patch path equals the plain one, shapes are the appendix's, memory resets where it should."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional as F

from deir.algorithm.layers import MapNorm, head
from deir.algorithm.networks import (
    GridEncoder,
    PartsEncoder,
    RunningNorm,
    VectorEncoder,
    encoder_kind,
    make_encoder,
)
from deir.algorithm.ops import PlainOps
from deir.algorithm.policy import Policy
from deir.algorithm.types import Shared
from deir.config import NetworkConfig
from deir.envs.spaces import PackedBox
from deir.fast.acting import ActingOnRepeats, FrozenPolicy
from deir.fast.gru import gru_scan
from deir.fast.ops import FastOps
from deir.fast.patches import tabulate


def embed(encoder, rows):
    return FastOps().embed(encoder, rows).gather()


def few_kinds_of_views(count: int, size: int, seed: int = 0) -> torch.Tensor:
    """Views that repeat, of few kinds of cells, as MiniGrid's do. [count, size, size, 3] uint8"""
    rng = np.random.default_rng(seed)
    kinds = np.array([[0, 0, 0], [1, 0, 0], [2, 5, 0], [4, 3, 1], [8, 1, 0]], np.uint8)
    pool = kinds[rng.choice(5, (count // 3, size, size), p=[0.4, 0.3, 0.2, 0.05, 0.05])]
    return torch.from_numpy(pool[rng.integers(0, len(pool), count)])


@pytest.mark.parametrize("size", [3, 5, 7, 9])
@pytest.mark.parametrize("norm", ["batch", "none"])
@pytest.mark.parametrize("training", [True, False])
def test_distinct_patches_give_the_outputs_and_gradients_of_the_plain_path(size, norm, training):
    views = few_kinds_of_views(300, size)
    table, names = tabulate(views)
    assert torch.equal(table.distinct[names], views)
    torch.manual_seed(0)
    plain = GridEncoder((size, size, 3), 64, norm).double().train(training)
    fast = copy.deepcopy(plain)
    ids = torch.randint(0, 300, (500,))
    target = torch.randn(500, 64, dtype=torch.float64)
    expected, actual = plain(views[ids]), embed(fast, table.rows(names[ids]))
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    (expected * target).sum().backward()
    (actual * target).sum().backward()
    for (name, a), b in zip(fast.named_parameters(), plain.parameters(), strict=True):
        ours = torch.zeros_like(a) if a.grad is None else a.grad  # a bias before batch normalisation has none
        torch.testing.assert_close(ours, b.grad, rtol=1e-8, atol=1e-8, msg=name)
    for (name, a), b in zip(fast.named_buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10, msg=name)


def test_layer_norm_and_images_take_rows_too():
    views = few_kinds_of_views(60, 7)
    table, names = tabulate(views)
    encoder = GridEncoder((7, 7, 3), 64, "layer")
    torch.testing.assert_close(embed(encoder, table.rows(names)), encoder(views))
    images = torch.randint(0, 255, (4, 64, 64, 3), dtype=torch.uint8)
    table, names = PlainOps().tabulate(images, False)
    encoder = make_encoder("dqn", spaces.Box(0, 255, (64, 64, 3), np.uint8), 256, "layer")
    torch.testing.assert_close(embed(encoder, table.rows(names)), encoder(images))


def test_many_kinds_of_patches_do_not_overflow_their_keys():
    views = torch.randint(0, 11, (4000, 7, 7, 3), dtype=torch.uint8)
    table, names = tabulate(views)
    assert len(table.levels[1].children) > 2**15
    encoder = GridEncoder((7, 7, 3), 8, "batch").eval()
    torch.testing.assert_close(embed(encoder, table.rows(names)), encoder(views), rtol=1e-4, atol=1e-4)


def linear_sizes(module: nn.Module) -> list[tuple[int, int]]:
    return [(m.in_features, m.out_features) for m in module.modules() if isinstance(m, nn.Linear)]


@pytest.mark.parametrize(("size", "flat"), [(7, 1024), (3, 256)])
def test_grid_encoder_has_the_shapes_of_appendix_a5(size, flat):
    encoder = GridEncoder((size, size, 3), 64, "batch")
    assert [(c.in_channels, c.out_channels) for c in encoder.convs] == [(3, 32), (32, 64), (64, 64)]
    assert linear_sizes(encoder) == [(flat, 64)]


def test_image_encoders_have_the_shapes_of_appendix_a5():
    space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
    assert linear_sizes(make_encoder("impala", space, 256, "layer")) == [(2048, 256)]
    assert linear_sizes(make_encoder("dqn", space, 256, "layer")) == [(576, 256)]
    assert encoder_kind("auto", space, "impala") == "impala"
    assert encoder_kind("auto", spaces.Box(0, 255, (7, 7, 3), np.uint8), "dqn") == "grid"
    assert encoder_kind("auto", spaces.Box(-1, 1, (4,), np.float32), "dqn") == "mlp"
    assert linear_sizes(head("batch", [135, 128, 128, 1])) == [(135, 128), (128, 128), (128, 1)]


@pytest.mark.parametrize(
    ("shape", "policy", "model"),
    [
        ((2, 3, 1), "grid", "grid"),
        ((20, 20, 3), "grid", "grid"),
        ((36, 36, 1), "impala", "impala"),  # too narrow for the DQN network
        ((20, 60, 3), "impala", "impala"),
        ((44, 44, 1), "impala", "dqn"),
        ((84, 84, 4), "impala", "dqn"),
        ((210, 160, 3), "impala", "dqn"),
        ((1,), "mlp", "mlp"),
    ],
)
def test_an_encoder_for_every_shape(shape, policy, model):
    space = spaces.Box(0, 255, shape, np.uint8 if len(shape) == 3 else np.float32)
    assert (encoder_kind("auto", space, "impala"), encoder_kind("auto", space, "dqn")) == (policy, model)
    seen = torch.from_numpy(space.sample()[None].repeat(2, 0))
    for kind in {policy, model}:
        assert make_encoder(kind, space, 16, "batch")(seen).shape == (2, 16)


def test_running_norm_is_by_the_moments_of_all_it_was_trained_on():
    batches = [torch.randn(n, 3) * torch.tensor([1e-3, 1.0, 1e4]) + 7 for n in (20, 5, 100)]
    norm = RunningNorm(3)
    for batch in batches:
        out = norm(batch)
    everything = torch.cat(batches)
    torch.testing.assert_close(norm.mean, everything.mean(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(norm.variance, everything.var(0, unbiased=False), rtol=1e-3, atol=1e-8)
    norm.eval()
    torch.testing.assert_close(norm(batches[-1]), out)
    assert float(norm(torch.full((1, 3), 1e9)).max()) == 10


def test_map_norm_is_layer_normalisation_in_either_order_of_memory():
    torch.manual_seed(0)
    ours, theirs = MapNorm((4, 5, 3)).double(), nn.LayerNorm((4, 5, 3)).double()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        p.data.normal_()
        q.data.copy_(p.data)
    for order in (torch.contiguous_format, torch.channels_last):
        maps = torch.randn(6, 4, 5, 3, dtype=torch.float64).contiguous(memory_format=order).requires_grad_()
        out, expected = ours(maps), theirs(maps)
        torch.testing.assert_close(out, expected)
        assert out.is_contiguous(memory_format=order)
        slope = torch.randn_like(expected)
        found = torch.autograd.grad((out * slope).sum(), [maps, *ours.parameters()])
        wanted = torch.autograd.grad((expected * slope).sum(), [maps, *theirs.parameters()])
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b)


def test_layer_normalisation_keeps_the_size_of_vectors():
    torch.manual_seed(0)
    encoder = VectorEncoder(2, 8, "layer")
    small, large = torch.tensor([[0.1, 0.2]]), torch.tensor([[1.0, 2.0]])
    assert not torch.allclose(encoder.eval()(small), encoder(large))


def packed_views(count: int, size: int = 7) -> tuple[PackedBox, torch.Tensor]:
    view, way = spaces.Box(0, 255, (size, size, 3), np.uint8), spaces.Box(0, 1, (4,), np.uint8)
    space = PackedBox({"image": view, "direction": way, "speed": spaces.Box(-9, 9, (2,), np.float32)})
    rng = np.random.default_rng(0)
    views = few_kinds_of_views(count, size).numpy()
    ways, speeds = np.eye(4, dtype=np.uint8)[rng.integers(0, 4, count)], rng.integers(-2, 3, (count, 2))
    return space, torch.from_numpy(space.pack({"image": views, "direction": ways, "speed": speeds}))


@pytest.mark.parametrize("norm", ["batch", "layer", "none"])
def test_an_encoder_of_parts_reads_each_exactly_and_shares_the_patches_of_views(norm):
    torch.manual_seed(0)
    space, rows = packed_views(90)
    kind = encoder_kind("auto", space, "impala")
    assert kind == "grid+mlp+mlp"
    plain = make_encoder(kind, space, 16, norm)
    assert isinstance(plain, PartsEncoder)
    fast = copy.deepcopy(plain)
    parts = {name: torch.from_numpy(part) for name, part in space.unpack(rows.numpy()).items()}
    together = torch.cat([e(part) for e, part in zip(copy.deepcopy(plain).encoders, parts.values(), strict=True)], 1)
    expected = plain(rows)
    torch.testing.assert_close(copy.deepcopy(fast).together(together), expected)
    alone = copy.deepcopy(plain).eval()  # a row by itself, wherever it lies in memory
    torch.testing.assert_close(torch.cat([alone(row[None]) for row in rows[:3]]), alone(rows[:3]), rtol=1e-4, atol=1e-4)
    table, names = tabulate(rows, (7, 7, 3))
    assert torch.equal(table.distinct[names], rows) and table.levels
    torch.testing.assert_close(embed(fast, table.rows(names)), expected, rtol=1e-4, atol=1e-4)


def test_gru_scan_equals_a_step_by_step_forward_that_forgets_at_episode_starts():
    torch.manual_seed(0)
    cell = nn.GRUCell(5, 6)
    inputs, hidden = torch.randn(9, 3, 5), torch.randn(3, 6)
    starts = torch.rand(9, 3) < 0.3
    gates = Shared(F.linear(inputs.flatten(0, 1), cell.weight_ih, cell.bias_ih))
    before, after = gru_scan(cell, gates, hidden, starts)
    for n in range(3):
        h = hidden[n]
        for t in range(9):
            h = torch.zeros(6) if starts[t, n] else h
            torch.testing.assert_close(before[t, n], h)
            h = cell(inputs[t, n][None], h[None])[0]
            torch.testing.assert_close(after[t, n], h)


@pytest.mark.parametrize("size", [3, 7])
@pytest.mark.parametrize("norm", ["batch", "layer", "none"])
def test_the_frozen_policy_is_the_policy_in_evaluation_mode(size, norm):
    torch.manual_seed(0)
    space = spaces.Box(0, 255, (size, size, 3), np.uint8)
    policy = Policy(space, spaces.Discrete(7), NetworkConfig(norm=norm), FastOps())
    policy.train()
    views, hidden = few_kinds_of_views(40, size), torch.randn(40, 64)
    policy(views, hidden)  # gives batch normalisation something to fold
    frozen = FrozenPolicy(policy)
    with torch.no_grad():
        logits, memory = frozen.step(frozen.gates(views), torch.arange(40), hidden)
        expected_logits, _, expected_memory = policy(views, hidden)
        torch.testing.assert_close(logits, expected_logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(memory, expected_memory, rtol=1e-4, atol=1e-4)
        table, _names = tabulate(views[:20])
        cache = ActingOnRepeats(policy, table)
        found = cache.lookup(views.numpy())
        torch.testing.assert_close(cache.gates[found], frozen.gates(views), rtol=1e-4, atol=1e-4)
        assert torch.equal(found, cache.lookup(views.numpy()))
