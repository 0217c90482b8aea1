"""Networks: the distinct-patch path equals the plain one, shapes are the appendix's, memory resets where it should."""

import copy
import itertools

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional as F

from deir.algorithm.layers import MapNorm, head, norm_image, norm_vector
from deir.algorithm.networks import (
    ConvEncoder,
    FlatEncoder,
    GridEncoder,
    ImpalaEncoder,
    PartsEncoder,
    RunningNorm,
    VectorEncoder,
    encoder_kind,
    grid_padding,
    make_encoder,
)
from deir.algorithm.ops import PlainOps
from deir.algorithm.policy import Policy
from deir.algorithm.types import Shared
from deir.config import NetworkConfig
from deir.envs.spaces import PackedBox
from deir.errors import UserError
from deir.fast.acting import ActingOnAnything, ActingOnRepeats, FrozenPolicy
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


def test_patches_are_named_only_where_they_are_used():
    table, names = tabulate(torch.randint(0, 3, (20, 7, 7, 3), dtype=torch.uint8))
    embed(GridEncoder((7, 7, 3), 64, "layer"), table.rows(names))
    assert "patches" not in vars(table)
    embed(GridEncoder((7, 7, 3), 64, "batch"), table.rows(names))
    assert "patches" in vars(table)


def test_many_kinds_of_patches_do_not_overflow_their_keys():
    views = torch.randint(0, 11, (4000, 7, 7, 3), dtype=torch.uint8)
    table, names = tabulate(views)
    assert len(table.patches.levels[1].children) > 2**15
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


def plain_grid(weights, x, padding):
    for layer in range(3):
        x = F.relu(F.conv2d(x, next(weights), next(weights), padding=padding if layer == 0 else 0))
    return x


def plain_dqn(weights, x):
    for stride in (4, 2, 1):
        x = F.relu(F.conv2d(x, next(weights), next(weights), stride))
    return x


def plain_impala(weights, x):
    def conv(x):
        return F.conv2d(x, next(weights), next(weights), padding=1)

    for _ in range(3):
        x = F.max_pool2d(conv(x), 3, 2, 1)
        for _ in range(2):
            x = x + conv(F.relu(conv(F.relu(x))))
    return F.relu(x)


@pytest.mark.parametrize(
    ("cls", "shape", "plain"),
    [
        (GridEncoder, (6, 5, 3), lambda weights, x: plain_grid(weights, x, 0)),
        (GridEncoder, (5, 3, 3), lambda weights, x: plain_grid(weights, x, 1)),
        (ConvEncoder, (53, 60, 2), plain_dqn),
        (ImpalaEncoder, (13, 22, 3), plain_impala),
    ],
)
def test_encoders_without_normalisation_are_their_layers_written_out(cls, shape, plain):
    torch.manual_seed(0)
    encoder = cls(shape, 8, "none")
    for images in (torch.randint(0, 256, (4, *shape), dtype=torch.uint8), torch.randn(4, *shape)):
        weights, x = iter(encoder.parameters()), images.permute(0, 3, 1, 2).float()
        if images.dtype == torch.uint8 and cls is not GridEncoder:
            x = x / 255
        x = plain(weights, x).flatten(1)
        expected = F.relu(F.linear(x, next(weights), next(weights)))
        assert next(weights, None) is None and (expected > 0).any()
        torch.testing.assert_close(encoder(images), expected)
    for norm in ("batch", "layer"):  # one that is of another shape than its maps refuses them
        assert cls(shape, 8, norm)(images).shape == (4, 8)


def test_the_kernels_of_the_image_encoders():
    def kernels(encoder):
        return [tuple(p.shape) for p in encoder.parameters() if p.ndim == 4]

    assert kernels(ConvEncoder((64, 64, 3), 8, "none")) == [(32, 3, 8, 8), (64, 32, 4, 4), (64, 64, 4, 4)]
    widths = [(16, 3), *[(16, 16)] * 4, (32, 16), *[(32, 32)] * 4, (32, 32), *[(32, 32)] * 4]
    assert kernels(ImpalaEncoder((64, 64, 3), 8, "none")) == [(*pair, 3, 3) for pair in widths]
    assert kernels(GridEncoder((7, 7, 3), 8, "none")) == [(32, 3, 2, 2), (64, 32, 2, 2), (64, 64, 2, 2)]


def test_views_are_padded_where_three_convolutions_would_leave_nothing():
    found = {shape: grid_padding((*shape, 3)) for shape in [(3, 7), (7, 3), (2, 2), (4, 4), (4, 9), (9, 4), (7, 7)]}
    assert found == {(3, 7): 1, (7, 3): 1, (2, 2): 1, (4, 4): 0, (4, 9): 0, (9, 4): 0, (7, 7): 0}


@pytest.mark.parametrize(("shape", "fits"), [((44, 44, 1), True), ((43, 60, 1), False), ((60, 43, 1), False)])
def test_an_image_too_small_for_the_dqn_network_is_told(shape, fits):
    if fits:
        ConvEncoder(shape, 8, "none")
    else:
        with pytest.raises(UserError, match=f"at least 44x44, got {shape[0]}x{shape[1]}"):
            ConvEncoder(shape, 8, "none")


def test_vectors_are_normalised_unless_they_are_one_hot_and_views_flattened():
    numbers, one_hot, view = (
        spaces.Box(0, 9, shape, dtype) for shape, dtype in [((5,), np.float32), ((5,), np.uint8), ((3, 3, 2), np.uint8)]
    )
    for norm, first in (("batch", nn.BatchNorm1d), ("layer", RunningNorm), ("none", RunningNorm)):
        made = make_encoder("mlp", numbers, 8, norm)
        assert type(made) is VectorEncoder and type(made.body[0]) is first
        assert linear_sizes(made) == [(5, 8), (8, 8)]
    made = make_encoder("mlp", one_hot, 8, "batch")
    assert type(made) is VectorEncoder and type(made.body[0]) is nn.Identity
    made = make_encoder("mlp", view, 8, "batch")
    assert type(made) is FlatEncoder and linear_sizes(made) == [(18, 8), (8, 8)]
    assert type(made.body[0]) is nn.BatchNorm1d


@pytest.mark.parametrize(
    ("shape", "policy", "model"),
    [
        ((2, 3, 1), "grid", "grid"),
        ((20, 20, 3), "grid", "grid"),
        ((35, 35, 3), "grid", "grid"),
        ((35, 36, 3), "impala", "impala"),
        ((36, 36, 1), "impala", "impala"),  # too narrow for the DQN network
        ((43, 90, 1), "impala", "impala"),
        ((90, 43, 1), "impala", "impala"),
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
    expected = (batches[-1] - everything.mean(0)) / everything.std(0, unbiased=False)
    torch.testing.assert_close(out[:, 1:], expected[:, 1:], rtol=1e-3, atol=1e-3)
    norm.eval()
    torch.testing.assert_close(norm(batches[-1]), out)
    assert float(norm.count) == 125
    assert norm(torch.full((1, 3), 1e9)).tolist() == [[10.0] * 3]
    assert norm(torch.full((1, 3), -1e9)).tolist() == [[-10.0] * 3]
    still = RunningNorm(1)
    still(torch.zeros(5, 1))
    assert float(still.eval()(torch.tensor([[2e-4]]))) == pytest.approx(2)  # √1e-8 stands for no deviation


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


def test_which_normalisation_stands_where():
    images = {kind: norm_image(kind, (4, 5, 3)) for kind in ("batch", "layer", "none")}
    assert type(images["batch"]) is nn.BatchNorm2d and images["batch"].num_features == 4
    assert type(images["layer"]) is MapNorm and images["layer"].normalized_shape == (4, 5, 3)
    vectors = {kind: norm_vector(kind, 4) for kind in ("batch", "layer", "none")}
    assert type(vectors["batch"]) is nn.BatchNorm1d and vectors["batch"].num_features == 4
    assert type(vectors["layer"]) is nn.LayerNorm and vectors["layer"].normalized_shape == (4,)
    assert type(images["none"]) is type(vectors["none"]) is nn.Identity
    for kind, norm in (("batch", nn.BatchNorm1d), ("layer", nn.Identity), ("none", nn.Identity)):
        hidden = [nn.Linear, norm, nn.ReLU]
        assert [type(layer) for layer in head(kind, [9, 8, 7, 2])] == [*hidden, *hidden, nn.Linear]
        for widths in ([9, 2], [9, 8, 2], [9, 8, 7, 2], [9, 8, 7, 6, 2]):
            assert linear_sizes(head(kind, widths)) == list(itertools.pairwise(widths))


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
    assert torch.equal(table.distinct[names], rows) and table.patches.levels
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
        logits, memory = frozen.step(frozen.gates(views.numpy()), torch.arange(40), hidden)
        expected_logits, _, expected_memory = policy(views, hidden)
        torch.testing.assert_close(logits, expected_logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(memory, expected_memory, rtol=1e-4, atol=1e-4)
        table, _names = tabulate(views[:20])
        cache = ActingOnRepeats(policy, table)
        found = cache.lookup(views.numpy())
        torch.testing.assert_close(cache.gates[found], frozen.gates(views.numpy()), rtol=1e-4, atol=1e-4)
        assert np.array_equal(found, cache.lookup(views.numpy()))


@pytest.mark.parametrize("encoder", ["impala", "dqn"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_frozen_policy_of_images_embeds_as_it_does_while_it_learns(encoder, precision):
    torch.manual_seed(0)
    space = spaces.Box(0, 255, (48, 48, 3), np.uint8)
    ops = FastOps(precision)
    policy = Policy(space, spaces.Discrete(7), NetworkConfig(norm="layer", encoder=encoder), ops)
    for parameter in policy.encoder.parameters():  # gains and shifts that make a difference
        nn.init.normal_(parameter, 0.1, 0.1)
    images = torch.randint(0, 256, (20, 48, 48, 3), dtype=torch.uint8)
    frozen, learnt = ActingOnAnything(policy, precision).frozen, ops.embed(policy.encoder, images).gather()
    assert learnt.requires_grad and not learnt.isnan().any()
    with torch.no_grad():
        expected = F.linear(learnt, policy.gru.weight_ih, policy.gru.bias_ih)
        for some in (images, images[:5]):
            assert torch.equal(frozen.gates(some.numpy()), expected[: len(some)])
