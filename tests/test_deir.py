"""The DEIR reward against a naive loop over steps and environments, and its discriminator."""

import itertools

import pytest
import torch

from builders import ACTIONS, SPACE, random_episodes
from deir.algorithm.episodic import CHUNK, TILE
from deir.algorithm.rewards.deir import Deir
from deir.config import Config, merge


def make(pairing: str = "eq4", **options) -> Deir:
    torch.manual_seed(3)
    return Deir(SPACE, ACTIONS, merge(Config(), {"reward": {"deir": {"pairing": pairing, **options}}}))


class NaiveDeir:
    """Algorithm A1, one step of one environment at a time."""

    def __init__(self, model: Deir, envs: int) -> None:
        self.model = model.eval()
        self.pairing = model.options.pairing
        self.hidden = [torch.zeros(model.gru.hidden_size) for _ in range(envs)]
        self.history: list[list[tuple]] = [[] for _ in range(envs)]

    @torch.no_grad()
    def step(self, n, obs, next_obs, start):
        if start:
            self.hidden[n] = torch.zeros_like(self.hidden[n])
            self.history[n] = []
        before = self.hidden[n]
        e = self.model.encoder.plain(obs[None])[0]
        e_next = self.model.encoder.plain(next_obs[None])[0]
        traj = self.model.gru(e[None], before[None])[0]
        traj_next = self.model.gru(e_next[None], traj[None])[0]
        self.hidden[n] = traj
        own = (e, before if self.pairing == "published" else traj)
        keys = self.history[n] if self.pairing == "eq4" else [*self.history[n], own]
        query = traj_next if self.pairing == "a1" else traj
        ratios = [(e_next - k).square().sum() / ((query - kt).norm() + self.model.options.eps) for k, kt in keys]
        self.history[n].append(own)
        return min(ratios) if ratios else torch.tensor(0.0)


@pytest.mark.parametrize("pairing", ["eq4", "a1", "published"])
@pytest.mark.parametrize("done_rate", [0.0, 0.15, 0.6, 1.0])
@pytest.mark.parametrize("late_resets", [False, True])
def test_reward_equals_a_naive_loop_across_rollouts_and_episodes(pairing, done_rate, late_resets):
    envs = 3
    model = make(pairing)
    naive = NaiveDeir(model, envs)
    carry = model.initial_carry(envs)
    rollouts = random_episodes(7, envs, done_rate, seed=5, late_resets=late_resets)
    for rollout in itertools.islice(rollouts, 4):
        rewards, carry = model.compute(rollout, carry)
        views, next_ids = rollout.table.distinct, rollout.next_ids
        for t in range(7):
            for n in range(envs):
                expected = naive.step(n, views[rollout.ids[t, n]], views[next_ids[t, n]], rollout.starts[t, n])
                expected = expected if rollout.valid[t, n] else torch.tensor(0.0)
                torch.testing.assert_close(rewards[t, n], expected, rtol=2e-3, atol=1e-5)


def test_model_memories_are_those_of_a_step_by_step_forward():
    model = make()
    rollout = next(random_episodes(9, 2, 0.3, seed=1))
    _, carry = model.compute(rollout, model.initial_carry(2))
    memories = model.memories(carry)
    assert (memories[rollout.starts[:-1]] == 0).all()
    assert (memories[~rollout.starts[:-1]] != 0).any(-1).all()


def test_a_novel_observation_earns_more_than_a_repeated_one():
    model = make()
    rollout = next(random_episodes(40, 2, 0.0, seed=2, kinds=12))
    rewards, _ = model.compute(rollout, model.initial_carry(2))
    seen_before = torch.zeros_like(rollout.valid)
    for n in range(2):
        for t in range(1, 40):
            seen_before[t, n] = rollout.next_ids[t, n] in rollout.ids[:t, n]
    assert rewards[seen_before].max() < 1e-6
    later = torch.zeros_like(seen_before)
    later[1:] = ~seen_before[1:]
    assert rewards[later].min() > 1e-4


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
    rewards, carry = model.compute(rollout, model.initial_carry(4))
    model.remember(rollout, rewards, 0.0)
    batches = list(model.batches(rollout, carry, 2, 20, torch.Generator().manual_seed(0)))
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


def test_loss_is_the_mean_binary_cross_entropy_of_both_halves_without_equal_fakes():
    model = make().eval()
    rollout = next(random_episodes(30, 4, 0.2, seed=4, kinds=4))
    rewards, carry = model.compute(rollout, model.initial_carry(4))
    model.remember(rollout, rewards, 0.0)
    batch = next(iter(model.batches(rollout, carry, 1, 60, torch.Generator().manual_seed(0))))
    loss, metrics = model.loss(batch)
    true_terms, fake_terms = [], []
    for k in range(len(batch.actions)):
        e, e_next, e_fake = (
            model.encoder.plain(rows.gather()[k][None])
            for rows in (batch.observations, batch.next_observations, batch.fakes)
        )
        traj = model.gru(e, batch.hidden[k][None])
        action = torch.nn.functional.one_hot(batch.actions[k][None], 7).float()
        for embedding, terms, label in ((e_next, true_terms, 1.0), (e_fake, fake_terms, 0.0)):
            logit = model.discriminator(torch.cat([traj, model.gru(embedding, traj), action], 1))
            if label or batch.fake_differs[k]:
                bce = torch.nn.functional.binary_cross_entropy_with_logits(logit, torch.full_like(logit, label))
                terms.append(bce)
    expected = 0.5 * (torch.stack(true_terms).mean() + torch.stack(fake_terms).mean())
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    assert 0 <= metrics["discriminator_accuracy"] <= 1


def test_discriminator_learns_which_observations_follow():
    """Views 0..9 in a fixed cycle: the next one is certain, so the discriminator can tell nearly all fakes."""
    from builders import observation
    from deir.algorithm.types import Rollout, no_indices
    from deir.fast.patches import tabulate

    steps, envs = 60, 8
    cycle = (torch.arange(steps + 1)[:, None] + torch.arange(envs)) % 10
    views = torch.stack([torch.from_numpy(observation(int(k))) for k in cycle.flatten()])
    table, names = tabulate(views, True)
    starts = torch.zeros(steps + 1, envs, dtype=torch.bool)
    starts[0] = True
    no = torch.zeros(steps, envs, dtype=torch.bool)
    rollout = Rollout(
        table, names.view(steps + 1, envs), starts, torch.zeros(steps, envs, dtype=torch.int64),
        torch.zeros(steps, envs), no, no, ~no, no_indices(), no_indices(),
    )  # fmt: skip
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    rewards, carry = model.compute(rollout, model.initial_carry(envs))
    model.remember(rollout, rewards, 0.0)
    model.train()
    for batch in model.batches(rollout, carry, 25, 120, torch.Generator().manual_seed(0)):
        optimizer.zero_grad()
        loss, metrics = model.loss(batch)
        loss.backward()
        optimizer.step()
    assert metrics["discriminator_accuracy"] > 0.97


def test_a_five_thousand_step_episode_is_computed_in_bounded_memory(monkeypatch):
    sizes = []
    matmul = torch.Tensor.__matmul__

    def recorded(a, b):
        product = matmul(a, b)
        if product.dtype == torch.float64:  # the distances
            sizes.append(product.numel() * product.element_size())
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", recorded)
    model = make()
    carry = model.initial_carry(2)
    for rollout in itertools.islice(random_episodes(1250, 2, 0.0, seed=6), 4):
        rewards, carry = model.compute(rollout, carry)
    assert int(carry["history.lengths"].max()) == 5000
    assert rewards.isfinite().all()
    assert max(sizes) <= CHUNK * TILE * 8
