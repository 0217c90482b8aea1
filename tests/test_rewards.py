"""Every method: what all have in common, and each formula against a naive loop over steps and environments."""

import copy
import itertools
from collections import Counter
from dataclasses import replace

import pytest
import torch

from builders import ACTIONS, SPACE, observation, random_episodes, walk
from deir.algorithm.networks import GridEncoder
from deir.algorithm.quasimetric import quasimetric
from deir.algorithm.rewards import METHODS, make_reward
from deir.algorithm.rewards.base import Context
from deir.algorithm.rewards.deir import Deir
from deir.config import Config, merge
from deir.errors import UserError
from deir.fast.ops import FastOps
from deir.fast.patches import tabulate
from deir.runs import checkpoint
from deir.runs.presets import resolve
from oracles import embed
from reward_oracles import (
    ORACLES,
    Naive,
    disagreement_loss,
    etd_loss,
    forward_loss,
    icm_loss,
    inverse_loss,
    rnd_loss,
    trajectories,
)

ENVS = 3
LEARNING = [name for name in METHODS if name not in ("none", "count", "re3")]
EPISODIC = [
    "deir", "deir-no-mi", "deir-no-rnn-no-mi", "deir-inverse", "deir-forward", "deir+rnd", "deir+visits", "noveld",
    "etd", "count",
]  # fmt: skip
WITH_RND = ["rnd", "noveld", "ngu", "deir+rnd"]


def make(method, **reward):
    torch.manual_seed(3)
    policy_encoder = GridEncoder((7, 7, 3), 64, "batch").eval()
    config = merge(resolve(merge(Config(), {"method": method})), {"reward": reward})
    return make_reward(Context(SPACE, ACTIONS, config, FastOps(), policy_encoder)).eval()


def trained(model, rollout, epochs=6, learning_rate=1e-3):
    """Losses of a model that learns from one rollout."""
    rewards, carry = model.compute(rollout, model.initial_state(rollout.shape[1]))
    model.remember(rollout, rewards, 0.0)
    optimizer = torch.optim.Adam(model.parameters(), learning_rate)
    losses = []
    model.train()
    for batch in model.batches(rollout, carry, epochs, 60, torch.Generator().manual_seed(0)):
        loss, _ = model.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    model.eval()
    return losses


# what all methods have in common


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("late_resets", [False, True])
def test_rewards_are_finite_have_the_shape_of_the_rollout_and_skip_dummy_steps(method, late_resets):
    model = make(method)
    carry = model.initial_state(ENVS)
    for rollout in itertools.islice(random_episodes(8, ENVS, 0.3, seed=1, late_resets=late_resets), 3):
        rewards, carry = model.compute(rollout, carry)
        assert rewards.shape == (8, ENVS) and rewards.dtype == torch.float32
        assert rewards.isfinite().all()
        assert (rewards[~rollout.valid] == 0).all()
        assert (rewards >= 0).all()
        assert (rewards > 0).any() == (method != "none")
        carry = carry.after_update()


@pytest.mark.parametrize(
    ("method", "options"), [*((name, {}) for name in METHODS), ("rnd", {"embeddings": "own"})], ids=str
)
def test_nothing_that_compute_gives_requires_gradients(method, options):
    model = make(method, **options)
    carry = model.initial_state(ENVS)
    for rollout in itertools.islice(random_episodes(6, ENVS, 0.3, seed=1), 2):
        rewards, carry = model.compute(rollout, carry)
        kept = {**carry.tensors(), **vars(carry.for_update), "rewards": rewards}
        assert not [name for name, value in kept.items() if value is not None and value.requires_grad]


@pytest.mark.parametrize("method", METHODS)
def test_a_rollout_of_dummy_steps_alone_earns_nothing_and_spoils_nothing(method):
    model = make(method)
    empty, after = itertools.islice(random_episodes(2, ENVS, 0.0, seed=1), 2)
    empty = replace(empty, valid=torch.zeros_like(empty.valid))
    rewards, carry = model.compute(empty, model.initial_state(ENVS))
    assert torch.equal(rewards, torch.zeros(2, ENVS))
    assert model.compute(after, carry.after_update())[0].isfinite().all()


@pytest.mark.parametrize("method", METHODS)
def test_a_new_episode_forgets_the_one_before(method):
    """Lifelong statistics held still, what came before an episode's start cannot matter."""
    still = {"rnd": {"error_momentum": 1.0}, "ngu": {"distance_momentum": 1.0}}
    first, second = itertools.islice(random_episodes(10, ENVS, 0.1, seed=2), 2)
    second = replace(second, starts=torch.cat([torch.ones(1, ENVS, dtype=torch.bool), second.starts[1:]]))
    rewards = []
    for history in ([], [first]):
        model = make(method, **still)
        if method in ("ngu", "pseudo-counts"):
            model.distance_mean.load_state_dict({"mean": 1.0, "count": 1})
        if method == "disagreement":
            model.scale.count.fill_(1e12)
        carry = model.initial_state(ENVS)
        for rollout in history:
            _, carry = model.compute(rollout, carry)
        rewards.append(model.compute(second, carry)[0])
    if method == "count":  # what is counted in a lifetime differs, the first visits do not
        rewards = [r > 0 for r in rewards]
    torch.testing.assert_close(*rewards)


@pytest.mark.parametrize("method", EPISODIC)
def test_within_an_episode_a_novel_observation_earns_more_than_a_repeated_one(method):
    model = make(method)
    rollout = next(random_episodes(40, 2, 0.0, seed=2, kinds=24))
    rewards, _ = model.compute(rollout, model.initial_state(2))
    keys = rollout.states if method == "count" else rollout.ids
    seen = torch.tensor([[keys[t + 1, n] in keys[:t, n] for n in range(2)] for t in range(40)])
    assert rewards[seen].max() < 1e-6
    assert rewards[2:][~seen[2:]].mean() > 1e-4


@pytest.mark.parametrize("method", ["ngu", "pseudo-counts"])
def test_a_novel_observation_earns_several_times_a_repeated_one(method):
    model = make(method, ngu={"lifelong": False})
    rollout = next(random_episodes(40, 2, 0.0, seed=2, kinds=24))
    rewards, _ = model.compute(rollout, model.initial_state(2))
    seen = torch.tensor([[rollout.ids[t + 1, n] in rollout.ids[: t + 1, n] for n in range(2)] for t in range(40)])
    assert rewards[~seen].min() > 2 * rewards[seen].max()
    assert rewards[seen].max() <= 1


def test_ngu_pays_nothing_for_what_is_too_similar_to_the_episode():
    """With every neighbour the same, the similarity is √k + c; without any it is c."""
    model = make("ngu", ngu={"max_similarity": 2.0, "pseudo_count": 0.001})
    same, no = 0.0, torch.inf
    distances = torch.tensor([[[same] * 3 + [no] * 7, [same] * 5 + [no] * 5, [no] * 10]])
    found = model.inverse_similarity(distances, torch.ones(1))
    torch.testing.assert_close(found, torch.tensor([[1 / (3**0.5 + 0.001), 0.0, 1000.0]]))


def test_where_nothing_repeats_every_step_is_a_first_visit_and_earns_the_root_of_what_deir_pays():
    model, deir = make("deir+visits"), make("deir")
    deir.load_state_dict(model.state_dict())
    states = [model.initial_state(ENVS), deir.initial_state(ENVS)]
    for number, rollout in enumerate(itertools.islice(random_episodes(12, ENVS, 0.1, seed=3, kinds=2), 3)):
        count = 13 * ENVS + len(rollout.final_ids)
        table, names = tabulate(torch.stack([torch.from_numpy(observation(1000 * number + k)) for k in range(count)]))
        rollout = replace(rollout, table=table, ids=names[: 13 * ENVS].view(13, ENVS), final_ids=names[13 * ENVS :])
        found, states[0] = model.compute(rollout, states[0])
        expected, states[1] = deir.compute(rollout, states[1])
        assert torch.equal(found, expected.sqrt()) and (found > 0).any()


def test_where_views_repeat_first_visits_earn_the_root_of_what_deir_pays_and_standing_still_nothing():
    model, deir = make("deir+visits"), make("deir")
    deir.load_state_dict(model.state_dict())
    rollout = next(random_episodes(200, 2, 0.0, seed=2, kinds=12))
    found, alone = (reward.compute(rollout, reward.initial_state(2))[0] for reward in (model, deir))
    first = torch.tensor([[rollout.ids[t + 1, n] not in rollout.ids[: t + 1, n] for n in range(2)] for t in range(200)])
    assert torch.equal(found, torch.where(first, alone.sqrt(), 0.0)) and (found > 0).any()
    paid_twice = (alone > 1e-6) & ~first
    assert paid_twice.any() and (rollout.ids[1:] == rollout.ids[:-1])[paid_twice].all()


def test_e3b_counts_what_points_one_way_and_pays_more_for_what_does_not():
    """r = |φ|²/(λ + n |φ|²) after n visits of one observation; the episode goes on over rollouts."""
    model = make("e3b")
    rollout = next(random_episodes(8, 2, 0.0, seed=2, kinds=1))
    seen = model.encoder(rollout.table.distinct)[0].double().square().sum()
    state = model.initial_state(2)
    for begin in (0, 8):
        rewards, state = model.compute(rollout, state)
        rollout = replace(rollout, starts=torch.zeros_like(rollout.starts))
        visits = torch.arange(begin + 1, begin + 9)[:, None].expand(8, 2)
        torch.testing.assert_close(rewards.double(), seen / (0.1 + visits * seen), rtol=1e-4, atol=1e-7)
    novel = next(random_episodes(8, 2, 0.0, seed=3, kinds=60))
    novel = replace(novel, starts=torch.zeros_like(novel.starts))
    assert model.compute(novel, state)[0][0].min() > 2 * rewards.max()


def test_the_ellipsoid_of_a_long_episode_is_still_its_inverse():
    """1,000 rank-one steps over five rollouts, against one inversion."""
    model = make("e3b")
    state, seen = model.initial_state(2), []
    for number, rollout in enumerate(itertools.islice(random_episodes(200, 2, 0.0, seed=4, kinds=300), 5)):
        assert bool(rollout.starts[:-1].any()) == (number == 0)
        rewards, state = model.compute(rollout, state)
        embedded = embed(model.encoder, rollout.table.distinct).detach().double()
        seen.append(embedded[rollout.ids[:-1]])  # [T, N, F]
    visited = torch.cat(seen)
    covariance = torch.einsum("tnf,tng->nfg", visited, visited) + 0.1 * torch.eye(model.width, dtype=torch.float64)
    torch.testing.assert_close(state.inverse, torch.linalg.inv(covariance), rtol=1e-3, atol=1e-6)
    last = embedded[rollout.next_ids[-1]]
    expected = torch.einsum("nf,nfg,ng->n", last, torch.linalg.inv(covariance), last)
    torch.testing.assert_close(rewards[-1].double(), expected, rtol=1e-3, atol=1e-7)


def test_ride_pays_the_nth_visit_of_an_observation_one_over_the_root_of_n():
    model = make("ride")
    rollout = walk(60, 2)
    rewards, _ = model.compute(rollout, model.initial_state(2))
    embedded = model.encoder(rollout.table.distinct)
    for n in range(2):
        visits = Counter([int(rollout.ids[0, n])])
        for t, name in enumerate(rollout.ids[1:, n].tolist()):
            visits[name] += 1
            impact = (embedded[name] - embedded[rollout.ids[t, n]]).norm()
            torch.testing.assert_close(rewards[t, n], impact / visits[name] ** 0.5, rtol=1e-3, atol=1e-5)


def test_re3_pays_what_few_have_seen_and_nothing_for_what_more_than_k_have():
    model = make("re3")
    rollout = next(random_episodes(60, 4, 0.0, seed=2, kinds=100))
    rewards, _ = model.compute(rollout, model.initial_state(4))
    names, counts = rollout.next_ids.unique(return_counts=True)
    often = torch.isin(rollout.next_ids, names[counts > 3])
    assert rewards[often].max() == 0
    assert rewards[~often].min() > 0.01


def test_the_ensemble_agrees_on_what_it_has_learned_and_not_on_the_unknown():
    model = make("disagreement")
    learned, unknown = walk(60, 4), next(random_episodes(60, 4, 0.05, seed=9, kinds=200))
    trained(model, learned, epochs=10)
    familiar, strange = (model.compute(rollout, model.initial_state(4))[0] for rollout in (learned, unknown))
    assert strange.mean() > 2 * familiar.mean()


def test_temporal_distances_grow_with_the_steps_between():
    """In a ring where every step leads on, one step is nearer than five, and back is farther than forth."""
    model = make("etd")
    rollout = walk(60, 4, kinds=20)
    ring = torch.arange(61)[:, None] + torch.arange(4) * 5
    _, views = (rollout.ids, torch.stack([torch.from_numpy(observation(k)) for k in range(20)]))
    table, names = tabulate(views[ring.flatten() % 20])
    rollout = replace(rollout, table=table, ids=names.view(61, 4))
    trained(model, rollout, epochs=160)
    embedded = model.encoder(views)
    distances = quasimetric(embedded, embedded).detach()
    forth = torch.stack([distances[torch.arange(20), (torch.arange(20) + k) % 20].mean() for k in range(10)])
    back = torch.stack([distances[torch.arange(20), (torch.arange(20) - k) % 20].mean() for k in range(10)])
    assert forth[0] == 0 and forth[1] < forth[3] < forth[6]
    assert back[1] > 1.05 * forth[1]


def test_pairs_of_etd_stay_within_the_episode_and_reach_its_true_end():
    """j from 1 to the steps left, P(j) ∝ γ^j; never across the end of an episode."""
    model = make("etd", etd={"gamma": 0.8})
    for late_resets in (False, True):
        rollout = next(random_episodes(12, 3, 0.2, seed=4, kinds=3000, late_resets=late_resets))
        _, state = model.compute(rollout, model.initial_state(3))
        found = Counter()
        for batch in model.batches(rollout, state, 400, 50, torch.Generator().manual_seed(0)):
            found.update(zip(batch.indices.tolist(), batch.later.ids.tolist(), strict=True))
        for t, n in rollout.valid.nonzero().tolist():
            chain = []  # the ids that follow t within the episode
            for k in range(t, 12):
                chain.append(int(rollout.next_ids[k, n]))
                if rollout.dones[k, n]:
                    break
            weights = [0.8**j for j in range(len(chain))]
            drawn = {name: count for (index, name), count in found.items() if index == t * 3 + n}
            assert set(drawn) <= set(chain) and sum(drawn.values()) == 400
            for name, weight in zip(chain, weights, strict=True):
                assert abs(drawn.get(name, 0) / 400 - weight / sum(weights)) < 0.1


@pytest.mark.parametrize("embeddings", ["policy", "own"])
def test_rnd_pays_unknown_observations_more_than_learned_ones(embeddings):
    model = make("rnd", embeddings=embeddings)
    learned, unknown = walk(60, 4), next(random_episodes(60, 4, 0.05, seed=9, kinds=200))
    trained(model, learned, epochs=20)
    familiar, strange = (model.compute(rollout, model.initial_state(4))[0] for rollout in (learned, unknown))
    assert strange.mean() > 2 * familiar.mean()


def test_icm_pays_unforeseen_consequences_more_than_foreseen_ones():
    model = make("icm")
    lawful, lawless = walk(60, 4), next(random_episodes(60, 4, 0.0, seed=9, kinds=10))
    for _ in range(10):  # the memories are stored with the rollout: renew them as the model changes
        trained(model, lawful, epochs=4)
    foreseen, unforeseen = (model.compute(rollout, model.initial_state(4))[0] for rollout in (lawful, lawless))
    assert unforeseen.mean() > 2 * foreseen.mean()


@pytest.mark.parametrize(
    ("method", "embeddings"),
    [
        ("deir", "policy"),
        ("icm", "policy"),
        ("rnd", "policy"),
        ("rnd", "own"),
        ("ngu", "own"),
        *((name, "own") for name in ("etd", "e3b", "ride", "disagreement", "pseudo-counts")),
    ],
)
def test_the_loss_falls(method, embeddings):
    model = make(method, embeddings=embeddings)
    losses = trained(model, walk(60, 4), epochs=12)
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])


@pytest.mark.parametrize("method", LEARNING)
@pytest.mark.parametrize("late_resets", [False, True])
def test_batches_hold_the_genuine_transitions_of_every_epoch(method, late_resets):
    model = make(method)
    rollout = next(random_episodes(30, 4, 0.2, seed=4, late_resets=late_resets))
    rewards, carry = model.compute(rollout, model.initial_state(4))
    model.remember(rollout, rewards, 0.0)

    def names(now, actions, then):
        return [(a.numpy().tobytes(), int(b), c.numpy().tobytes()) for a, b, c in zip(now, actions, then, strict=True)]

    valid, views = rollout.valid, rollout.table.distinct
    expected = names(views[rollout.ids[:-1][valid]], rollout.actions[valid], views[rollout.next_ids[valid]])
    found, naive = [], ORACLES.get(method, Naive)(model, 4)
    with torch.no_grad():
        naive.before(rollout)
    for batch in model.batches(rollout, carry, 2, 20, torch.Generator().manual_seed(0)):
        found += names(batch.observations.gather(), batch.actions, batch.next_observations.gather())
        if method in WITH_RND:
            for view, embedding in zip(batch.next_observations.gather(), read_of(model, batch)[0], strict=True):
                torch.testing.assert_close(embedding, naive.inputs(view)[0], rtol=1e-3, atol=1e-3)
    assert Counter(found) == Counter(expected * 2)


@pytest.mark.parametrize("method", METHODS)
def test_what_a_method_remembers_of_episodes_ends_with_them(method):
    """However many there were: never more than the longest needs."""
    model = make(method)
    carry, sizes = model.initial_state(ENVS), []
    for number, rollout in enumerate(itertools.islice(random_episodes(6, ENVS, 0.0, seed=5), 9)):
        starts = torch.zeros_like(rollout.starts)
        starts[0], starts[-1] = number % 3 == 0, number % 3 == 2  # episodes of 18 steps
        _, carry = model.compute(replace(rollout, starts=starts), carry)
        carry = carry.after_update()
        sizes.append(sum(tensor.nbytes for tensor in carry.tensors().values()))
    assert sizes[2] == sizes[5] == sizes[8] == sum(t.nbytes for t in model.initial_state(ENVS).tensors().values())
    assert sizes[:3] == sizes[3:6] == sizes[6:]


@pytest.mark.parametrize("method", METHODS)
def test_a_checkpoint_goes_on_where_the_method_was(method, tmp_path):
    model = make(method)
    rollouts = list(itertools.islice(random_episodes(12, ENVS, 0.1, seed=5), 3))
    carry = model.initial_state(ENVS)
    for rollout in rollouts[:2]:
        rewards, carry = model.compute(rollout, carry)
        model.remember(rollout, rewards, 0.0)
        carry = carry.after_update()
    if model.learns:
        trained(model, rollouts[0], epochs=1)
    state = {"model": model.state_dict(), "extra": model.extra_state(), "carry": carry.tensors()}
    checkpoint.save(state, tmp_path / "1.safetensors")
    loaded = checkpoint.load(tmp_path / "1.safetensors")
    again = make(method)
    for parameter in again.parameters():
        torch.nn.init.zeros_(parameter)
    again.load_state_dict(loaded["model"])
    again.load_extra_state(loaded["extra"])
    expected, _ = model.compute(rollouts[2], carry)
    found, after = again.compute(rollouts[2], again.initial_state(ENVS).restored(loaded["carry"]))
    assert torch.equal(expected, found)
    if model.learns:
        batches = again.batches(rollouts[2], after, 1, 30, torch.Generator().manual_seed(1))
        assert all(again.loss(batch)[0].isfinite() for batch in batches)


@pytest.mark.parametrize("method", WITH_RND)
def test_the_policys_encoder_is_read_but_neither_trained_nor_saved(method):
    model = make(method)
    (encoder,) = model.rnd.policy_encoder
    assert not {id(p) for p in encoder.parameters()} & {id(p) for p in model.parameters()}
    assert not any("policy" in name for name in model.state_dict())
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    target = {name: tensor.clone() for name, tensor in model.rnd.target.state_dict().items()}
    trained(model, next(random_episodes(20, 4, 0.05, seed=2)), epochs=2)
    assert all(torch.equal(before[name], tensor) for name, tensor in encoder.state_dict().items())
    assert all(torch.equal(target[name], tensor) for name, tensor in model.rnd.target.state_dict().items())


@pytest.mark.parametrize("method", WITH_RND)
def test_the_models_update_does_not_depend_on_the_policys(method):
    """The policy learns at the same time: its embeddings are taken once, before."""
    model = make(method)
    rollout = next(random_episodes(20, 4, 0.05, seed=2))
    rewards, carry = model.compute(rollout, model.initial_state(4))
    model.remember(rollout, rewards, 0.0)
    batch = next(iter(model.batches(rollout, carry, 1, 60, torch.Generator().manual_seed(0))))
    before = model.loss(batch)[0].item()
    torch.nn.init.zeros_(model.rnd.policy_encoder[0].linear.weight)
    assert model.loss(batch)[0].item() == before


def test_methods_refuse_what_they_cannot_serve():
    for model in (make("count"), make("noveld", noveld={"visits": "state"})):
        model.check(True)
        with pytest.raises(UserError, match="full state"):
            model.check(False)
    for method in METHODS:
        if method != "count":
            make(method).check(False)
    config = resolve(merge(Config(), {"method": "rnd"}))
    with pytest.raises(UserError, match=r"reward\.embeddings"):
        make_reward(Context(SPACE, ACTIONS, config, FastOps()))
    make_reward(Context(SPACE, ACTIONS, merge(config, {"reward": {"embeddings": "own"}}), FastOps()))


# each formula, one step of one environment at a time


CASES = [
    ("deir", {}),
    ("deir", {"deir": {"pairing": "a1"}}),
    ("deir", {"deir": {"pairing": "published"}}),
    ("icm", {}),
    ("rnd", {}),
    ("rnd", {"embeddings": "own"}),
    ("noveld", {}),
    ("noveld", {"noveld": {"visits": "state"}}),
    ("ngu", {}),
    ("ngu", {"ngu": {"lifelong": False}}),
    ("deir-no-mi", {}),
    ("deir-no-rnn-no-mi", {}),
    ("deir-inverse", {}),
    ("deir-forward", {}),
    ("deir+rnd", {}),
    ("deir+visits", {}),
    ("count", {}),
    ("etd", {}),
    ("e3b", {}),
    ("ride", {}),
    ("re3", {}),
    ("re3", {"re3": {"neighbours": 40}}),
    ("disagreement", {}),
    ("disagreement", {"disagreement": {"features": "inverse"}}),
    ("pseudo-counts", {}),
]


@pytest.mark.parametrize(
    ("method", "options"), CASES, ids=lambda x: x if isinstance(x, str) else "".join(map(str, x.values()))
)
@pytest.mark.parametrize(
    ("done_rate", "late_resets"), [(0.0, False), (0.2, False), (0.2, True), (0.6, False), (1.0, False), (1.0, True)]
)
def test_rewards_and_memories_equal_a_naive_loop_across_rollouts_and_episodes(method, options, done_rate, late_resets):
    model = make(method, **options)
    naive = ORACLES[method](model, ENVS)
    carry = model.initial_state(ENVS)
    rollouts = random_episodes(7, ENVS, done_rate, seed=5, kinds=14, late_resets=late_resets)
    for rollout in itertools.islice(rollouts, 3):
        rewards, carry = model.compute(rollout, carry)
        torch.testing.assert_close(rewards, naive.rewards(rollout), rtol=5e-3, atol=1e-5)
        memories = carry.for_update.memories
        assert (memories is None) == (naive.memories.shape[-1] == 0)
        if memories is not None:
            torch.testing.assert_close(memories, naive.memories, rtol=1e-4, atol=1e-5)
            assert (memories != 0).any() == (done_rate < 1 or late_resets)


@pytest.mark.parametrize("momentum", [None, 0.9])
def test_error_normalisation_is_by_the_moments_of_all_steps_or_moving_ones(momentum):
    raw, model = make("rnd"), make("rnd", rnd={"normalize_error": True, "error_momentum": momentum})
    collected, mean, variance = [], 0.0, 1.0
    for rollout in itertools.islice(random_episodes(9, ENVS, 0.2, seed=6, late_resets=True), 3):
        errors = raw.compute(rollout, {})[0].double()
        collected.append(errors[rollout.valid])
        if momentum is None:
            mean, variance = torch.cat(collected).mean(), torch.cat(collected).var(unbiased=False)
        else:
            mean = 0.9 * mean + 0.1 * collected[-1].mean()
            variance = 0.9 * variance + 0.1 * (collected[-1] - mean).square().mean()
        expected = (errors - mean) / (variance**0.5 + 1e-8) * rollout.valid
        torch.testing.assert_close(
            model.compute(rollout, model.initial_state(4))[0].double(), expected, rtol=1e-3, atol=1e-4
        )


def learning(method, **options):
    """A model, a batch of it, and the same batch as plain tensors: memories, o_t, o_{t+1}."""
    model = make(method, **options)
    rollout = next(random_episodes(20, 4, 0.2, seed=4))
    rewards, carry = model.compute(rollout, model.initial_state(4))
    model.remember(rollout, rewards, 0.0)
    batch = next(iter(model.batches(rollout, carry, 1, 60, torch.Generator().manual_seed(0))))
    return model, batch, (batch.hidden, batch.observations.gather(), batch.next_observations.gather())


def read_of(model, batch):
    """What predictor and target of random distillation read of o_{t+1}."""
    if model.rnd.encoder is None:
        return (batch.embeddings[batch.next_ids],) * 2
    views = batch.next_observations.gather()
    return embed(model.rnd.encoder, views), embed(model.rnd.target_encoder, views)


def assert_same_loss(model, batch, expected):
    loss, metrics = model.loss(batch)
    torch.testing.assert_close(loss, expected[0], rtol=1e-4, atol=1e-5)
    assert set(metrics) == set(expected[1])
    for name, value in expected[1].items():
        torch.testing.assert_close(metrics[name], value, rtol=1e-4, atol=1e-5)


def test_the_losses_of_inverse_and_forward_models():
    model, batch, plain = learning("icm")
    assert_same_loss(model, batch, icm_loss(model, *plain, batch.actions))
    model, batch, plain = learning("deir-inverse")
    assert_same_loss(model, batch, inverse_loss(model, *trajectories(model, *plain), batch.actions))
    model, batch, plain = learning("deir-forward")
    assert_same_loss(model, batch, forward_loss(model, *trajectories(model, *plain), batch.actions))
    model, batch, plain = learning("ride")
    assert_same_loss(model, batch, icm_loss(model, *plain, batch.actions))
    for method in ("e3b", "pseudo-counts"):
        model, batch, plain = learning(method)
        assert_same_loss(model, batch, inverse_loss(model, *trajectories(model, *plain), batch.actions))


@pytest.mark.parametrize("training", [False, True])
def test_the_contrastive_loss_over_distinct_observations_is_that_of_the_batch(training):
    model, batch, (_, now, _) = learning("etd")
    model.train(training)
    twin = copy.deepcopy(model)
    assert_same_loss(model, batch, etd_loss(twin, now, batch.later.gather()))


@pytest.mark.parametrize("features", ["random", "inverse"])
def test_only_an_inverse_model_shapes_the_features_of_the_ensemble(features):
    model = make("disagreement", disagreement={"features": features})
    assert (model.inverse_model is not None) == (features == "inverse")
    assert all(p.requires_grad == (features == "inverse") for p in model.encoder.parameters())


@pytest.mark.parametrize("features", ["random", "inverse"])
def test_the_loss_of_the_ensemble(features):
    model, batch, (_, now, then) = learning("disagreement", disagreement={"features": features})
    assert len({tuple(rows.tolist()) for rows in batch.draws}) == 5
    assert_same_loss(model, batch, disagreement_loss(model, now, then, batch.actions, batch.draws))


@pytest.mark.parametrize("embeddings", ["policy", "own"])
@pytest.mark.parametrize("training", [False, True])
def test_the_loss_of_random_distillation_over_distinct_observations_is_that_of_the_batch(embeddings, training):
    model, batch, _ = learning("rnd", embeddings=embeddings)
    model.train(training)
    twin = copy.deepcopy(model)
    loss, expected = model.loss(batch)[0], rnd_loss(twin, *read_of(twin, batch))[0]
    torch.testing.assert_close(loss, expected, rtol=1e-3, atol=1e-6)
    for tensor, twin_tensor in zip(model.buffers(), twin.buffers(), strict=True):  # running statistics
        torch.testing.assert_close(tensor, twin_tensor, rtol=1e-3, atol=1e-5)


def test_the_losses_with_random_distillation():
    model, batch, plain = learning("ngu")
    inverse, metrics = inverse_loss(model, *trajectories(model, *plain), batch.actions)
    distilled, more = rnd_loss(model, *read_of(model, batch))
    assert_same_loss(model, batch, (inverse + distilled, {**metrics, **more}))
    model, batch, _ = learning("deir+rnd")
    told, metrics = Deir.loss(model, batch)
    distilled, more = rnd_loss(model, *read_of(model, batch))
    assert_same_loss(model, batch, (told + distilled, {**metrics, **more}))
    model, batch, plain = learning("ngu", ngu={"lifelong": False})
    assert batch.embeddings is None
    assert_same_loss(model, batch, inverse_loss(model, *trajectories(model, *plain), batch.actions))


def test_the_ablations_of_figure_6_leave_out_what_they_say():
    parts = {method: make(method) for method in ("deir", "deir-no-mi", "deir-no-rnn-no-mi")}
    compared = {name: set(model.initial_state(ENVS).history.rows) for name, model in parts.items()}
    assert compared == {"deir": {"obs", "traj"}, "deir-no-mi": {"obs"}, "deir-no-rnn-no-mi": {"obs"}}
    assert {name: model.gru is not None for name, model in parts.items()} == {
        "deir": True, "deir-no-mi": True, "deir-no-rnn-no-mi": False,
    }  # fmt: skip


def test_trajectory_embeddings_are_as_wide_as_the_memory_or_without_one_as_the_features():
    config = merge(resolve(merge(Config(), {"method": "deir"})), {"network": {"features": 8, "hidden": 12}})
    widths = {}
    for method in ("ngu", "icm", "e3b", "ride"):
        model = make_reward(Context(SPACE, ACTIONS, merge(config, {"method": method}), FastOps(), encoder_of(8)))
        widths[method] = model.width, model.gru is not None
    assert widths == {method: (12, True) if has else (8, False) for method, (_, has) in widths.items()}
    assert {has for _, has in widths.values()} == {True, False}


def encoder_of(features):
    return GridEncoder((7, 7, 3), features, "batch").eval()


@pytest.mark.parametrize("embeddings", ["policy", "own"])
def test_the_target_of_random_distillation_is_wide_and_never_learns(embeddings):
    distillation = make("rnd", embeddings=embeddings).rnd
    mlp = Config().network.mlp
    assert distillation.target[0].out_features == distillation.predictor[0].out_features == 2 * mlp
    assert distillation.target[-1].out_features == distillation.predictor[-1].out_features == mlp
    learning = {name.split(".")[0] for name, parameter in distillation.named_parameters() if parameter.requires_grad}
    assert learning == {"predictor"} | ({"encoder"} if embeddings == "own" else set())
    assert distillation.train() is distillation and distillation.predictor.training
    assert not any(fixed.training for fixed in distillation.fixed())
