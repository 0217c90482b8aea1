"""What only DEIR has: its queue, its batches with fakes, its discriminator, long episodes."""

import copy
import dataclasses
import itertools
import math

import pytest
import torch
from torch.nn import functional as F

from builders import ACTIONS, SPACE, random_episodes
from deir.algorithm.rewards import reward_class
from deir.algorithm.rewards.base import Context
from deir.algorithm.rewards.deir import Deir
from deir.config import Config, merge
from deir.fast.ops import FastOps
from deir.fast.tiles import CHUNK, TILE
from reward_oracles import discriminator_logits, discriminator_loss


def make(pairing: str = "eq4", **options) -> Deir:
    torch.manual_seed(3)
    config = merge(Config(), {"reward": {"deir": {"pairing": pairing, **options}}})
    return Deir(Context(SPACE, ACTIONS, config, FastOps()))


def test_queue_takes_everything_first_then_only_what_is_not_below_average():
    model = make(queue_size=1000)
    rollout = next(random_episodes(10, 2, 0.2, seed=3))
    rewards = torch.rand(10, 2)
    model.remember(rollout, rewards, 0.0)
    assert len(model.queue) == 2 + 20
    model.remember(rollout, rewards, 0.5)
    assert len(model.queue) == 22 + int((rewards >= 0.5).sum())
    newest = model.queue.storage[len(model.queue) - 1]
    last = [rollout.next_ids[t, n] for t in range(10) for n in range(2) if rewards[t, n] >= 0.5][-1]
    assert torch.equal(newest, rollout.table.distinct[last])


@pytest.mark.parametrize("late_resets", [False, True])
def test_batches_hold_genuine_transitions_and_fakes_from_the_queue(late_resets):
    model = make()
    rollout = next(random_episodes(30, 4, 0.2, seed=4, kinds=4, late_resets=late_resets))
    rewards, state = model.compute(rollout, model.initial_state(4))
    model.remember(rollout, rewards, 0.0)
    batches = list(model.batches(rollout, state, 2, 20, torch.Generator().manual_seed(0)))
    total = int(rollout.valid.sum())
    assert sum(len(b.actions) for b in batches) == 2 * total
    pairs = {
        (rollout.table.distinct[i].numpy().tobytes(), rollout.table.distinct[j].numpy().tobytes())
        for i, j in zip(rollout.ids[:-1][rollout.valid], rollout.next_ids[rollout.valid], strict=True)
    }
    queue = {o.numpy().tobytes() for o in model.queue.storage[: len(model.queue)]}
    for batch in batches:
        now, then, fake = (rows.gather() for rows in (batch.observations, batch.next_observations, batch.fakes))
        for a, b, c, differs in zip(now, then, fake, batch.fake_differs, strict=True):
            assert (a.numpy().tobytes(), b.numpy().tobytes()) in pairs
            assert c.numpy().tobytes() in queue
            assert bool(differs) == (not torch.equal(b, c))
    rate = torch.cat([b.fake_differs for b in batches]).float().mean()
    assert 0.8 < rate < 1.0  # of four kinds one in four draws is equal, so one in sixteen after two draws


@pytest.mark.parametrize("training", [False, True])
def test_loss_is_the_mean_binary_cross_entropy_of_both_halves_without_equal_fakes(training):
    model = make()
    rollout = next(random_episodes(30, 4, 0.2, seed=4, kinds=4))
    rewards, state = model.compute(rollout, model.initial_state(4))
    model.remember(rollout, rewards, 0.0)
    batch = next(iter(model.batches(rollout, state, 1, 60, torch.Generator().manual_seed(0))))
    twin = copy.deepcopy(model.train(training))
    loss, metrics = model.loss(batch)
    views = (rows.gather() for rows in (batch.observations, batch.next_observations, batch.fakes))
    expected, figures = discriminator_loss(twin, batch.hidden, *views, batch.actions)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    for name, figure in figures.items():
        torch.testing.assert_close(metrics[name], figure)


def test_discriminator_learns_which_observations_follow():
    """Views 0..9 in a fixed cycle: the next one is certain, so the discriminator can tell nearly all fakes."""
    from builders import observation
    from deir.algorithm.types import Rollout, no_indices
    from deir.fast.patches import tabulate

    steps, envs = 60, 8
    cycle = (torch.arange(steps + 1)[:, None] + torch.arange(envs)) % 10
    views = torch.stack([torch.from_numpy(observation(int(k))) for k in cycle.flatten()])
    table, names = tabulate(views)
    starts = torch.zeros(steps + 1, envs, dtype=torch.bool)
    starts[0] = True
    no = torch.zeros(steps, envs, dtype=torch.bool)
    rollout = Rollout(
        table, names.view(steps + 1, envs), starts, torch.zeros(steps, envs, dtype=torch.int64),
        torch.zeros(steps, envs), no, no, ~no, no_indices(), no_indices(),
    )  # fmt: skip
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    rewards, state = model.compute(rollout, model.initial_state(envs))
    model.remember(rollout, rewards, 0.0)
    model.train()
    for batch in model.batches(rollout, state, 25, 120, torch.Generator().manual_seed(0)):
        optimizer.zero_grad()
        loss, metrics = model.loss(batch)
        loss.backward()
        optimizer.step()
    assert metrics["discriminator_accuracy"] > 0.97


@pytest.mark.parametrize("by_trajectory", [True, False])
def test_a_five_thousand_step_episode_is_computed_in_bounded_memory(by_trajectory, monkeypatch):
    """The ratio is found pair by pair, the nearest observation in tiles."""
    sizes = [0]
    matmul = torch.Tensor.__matmul__

    def recorded(a, b):
        product = matmul(a, b)
        if product.dtype == torch.float64:  # the distances
            sizes.append(product.numel() * product.element_size())
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", recorded)
    model = make()
    model.mutual_information = by_trajectory
    state = model.initial_state(2)
    for rollout in itertools.islice(random_episodes(1250, 2, 0.0, seed=6), 4):
        rewards, state = model.compute(rollout, state)
    assert int(state.history.lengths.max()) == 5000
    assert rewards.isfinite().all()
    assert max(sizes) <= (0 if by_trajectory else CHUNK * TILE * 8)
    assert by_trajectory or len(sizes) > 1


def ready(**options):
    """A model and a batch of it."""
    model = make(**options)
    rollout = next(random_episodes(30, 4, 0.2, seed=4, kinds=4))
    rewards, state = model.compute(rollout, model.initial_state(4))
    model.remember(rollout, rewards, 0.0)
    return model, next(iter(model.batches(rollout, state, 1, 60, torch.Generator().manual_seed(0))))


def test_the_queue_begins_with_the_first_observations_and_takes_what_is_just_average():
    model, rollout = make(queue_size=1000), next(random_episodes(10, 2, 0.2, seed=3))
    rewards = torch.full((10, 2), 0.25)
    rewards[4, 1] = 0.5
    model.remember(rollout, rewards, 0.5)
    held = model.queue.storage[: len(model.queue)]
    names = [*rollout.ids[0], rollout.next_ids[4, 1]]
    assert torch.equal(held, rollout.table.distinct[torch.stack(names)])


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fakes_that_differ_are_counted_even_if_there_are_few_or_none(count):
    model, batch = ready()
    differs = torch.arange(len(batch.actions)) < count
    twin = copy.deepcopy(model)
    loss, metrics = model.loss(dataclasses.replace(batch, fake_differs=differs))
    views = (rows.gather() for rows in (batch.observations, batch.next_observations, batch.fakes))
    true, fake = discriminator_logits(twin, batch.hidden, *views, batch.actions)
    of_fakes = sum(F.softplus(logit) for logit in fake[:count]) / max(1, count)
    right = sum(float(logit < 0) for logit in fake[:count]) / max(1, count)
    torch.testing.assert_close(loss, 0.5 * (F.softplus(-true).mean() + of_fakes), rtol=1e-4, atol=1e-5)
    accuracy = 0.5 * ((true > 0).float().mean() + right)
    torch.testing.assert_close(metrics["discriminator_accuracy"], accuracy)
    assert metrics["fake_valid_rate"] == pytest.approx(count / len(batch.actions))


def test_a_discriminator_that_cannot_tell_is_never_right():
    model, batch = ready()
    for parameter in model.discriminator[-1].parameters():
        torch.nn.init.zeros_(parameter)
    loss, metrics = model.loss(batch)
    assert metrics["discriminator_accuracy"] == 0
    assert float(loss) == pytest.approx(math.log(2))
    assert model.discriminator[-1].out_features == 1


def test_a_checkpoint_holds_the_queue_up_to_the_size_that_was_asked_for():
    for size, held in ((7133, True), (7134, False)):  # of 147 bytes each, in a megabyte
        model, _ = ready(queue_size=size)
        assert model.max_queue_bytes == 256 * 2**20
        model.max_queue_bytes = 2**20
        assert (model.extra_state()["queue"] is not None) == held
    model.max_queue_bytes = model.queue.nbytes
    assert model.extra_state()["queue"] is not None


def test_which_agents_of_figure_6_weigh_by_trajectories():
    found = {name: reward_class(name).mutual_information for name in ("deir", "deir-inverse", "deir-forward")}
    assert all(found.values())
    assert not any(reward_class(name).mutual_information for name in ("deir-no-mi", "deir-no-rnn-no-mi"))
    model = make()
    rewards, _ = model.compute(next(random_episodes(5, 2, 0.2, seed=3)), model.initial_state(2))
    assert not rewards.requires_grad
