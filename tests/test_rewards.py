"""Every method: what all have in common, and each formula against a naive loop over steps and environments."""

import copy
import itertools
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from builders import ACTIONS, SPACE, random_episodes, walk
from deir.algorithm.networks import GridEncoder
from deir.algorithm.rewards import METHODS, make_reward
from deir.algorithm.rewards.base import between_rollouts
from deir.config import Config, merge
from deir.errors import UserError
from deir.runs import checkpoint
from deir.runs.presets import resolve

ENVS = 3
LEARNING = [name for name in METHODS if name not in ("none", "count")]
EPISODIC = ["deir", "deir-no-mi", "deir-no-rnn-no-mi", "deir-inverse", "deir-forward", "deir+rnd", "noveld", "count"]
WITH_RND = ["rnd", "noveld", "ngu", "deir+rnd"]


def make(method, **reward):
    torch.manual_seed(3)
    policy_encoder = GridEncoder((7, 7, 3), 64, "batch").eval()
    config = merge(resolve(merge(Config(), {"method": method})), {"reward": reward})
    return make_reward(config, SPACE, ACTIONS, policy_encoder).eval()


@torch.no_grad()
def policy_embedding(model, rollout, view):
    """As RND reads it: in deviations from the mean of the rollout's next observations, five at most."""
    encoder = model.rnd.policy_encoder[0]
    seen = encoder.plain(rollout.table.distinct[rollout.next_ids.flatten()])
    return ((encoder.plain(view[None])[0] - seen.mean(0)) / (seen.std(0, correction=0) + 1e-5)).clamp(-5, 5)


def trained(model, rollout, epochs=6, learning_rate=1e-3):
    """Losses of a model that learns from one rollout."""
    rewards, carry = model.compute(rollout, model.initial_carry(rollout.shape[1]))
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
    carry = model.initial_carry(ENVS)
    for rollout in itertools.islice(random_episodes(8, ENVS, 0.3, seed=1, late_resets=late_resets), 3):
        rewards, carry = model.compute(rollout, carry)
        assert rewards.shape == (8, ENVS) and rewards.dtype == torch.float32
        assert rewards.isfinite().all()
        assert (rewards[~rollout.valid] == 0).all()
        assert (rewards >= 0).all()
        assert (rewards > 0).any() == (method != "none")
        carry = between_rollouts(carry)


@pytest.mark.parametrize("method", METHODS)
def test_a_new_episode_forgets_the_one_before(method):
    """Lifelong statistics held still, what came before an episode's start cannot matter."""
    still = {"rnd": {"error_momentum": 1.0}, "ngu": {"distance_momentum": 1.0}}
    first, second = itertools.islice(random_episodes(10, ENVS, 0.1, seed=2), 2)
    second = replace(second, starts=torch.cat([torch.ones(1, ENVS, dtype=torch.bool), second.starts[1:]]))
    rewards = []
    for history in ([], [first]):
        model = make(method, **still)
        if method == "ngu":
            model.distance_mean.load_state_dict({"mean": 1.0, "count": 1})
        carry = model.initial_carry(ENVS)
        for rollout in history:
            _, carry = model.compute(rollout, carry)
        rewards.append(model.compute(second, carry)[0])
    if method == "count":  # the lifelong count differs, the first visits do not
        rewards = [r > 0 for r in rewards]
    torch.testing.assert_close(*rewards)


@pytest.mark.parametrize("method", EPISODIC)
def test_within_an_episode_a_novel_observation_earns_more_than_a_repeated_one(method):
    model = make(method)
    rollout = next(random_episodes(40, 2, 0.0, seed=2, kinds=24))
    rewards, _ = model.compute(rollout, model.initial_carry(2))
    keys = rollout.states if method == "count" else rollout.ids
    seen = torch.tensor([[keys[t + 1, n] in keys[:t, n] for n in range(2)] for t in range(40)])
    assert rewards[seen].max() < 1e-6
    assert rewards[2:][~seen[2:]].mean() > 1e-4


def test_ngu_pays_a_novel_observation_several_times_a_repeated_one():
    model = make("ngu", ngu={"lifelong": False})
    rollout = next(random_episodes(40, 2, 0.0, seed=2, kinds=24))
    rewards, _ = model.compute(rollout, model.initial_carry(2))
    seen = torch.tensor([[rollout.ids[t + 1, n] in rollout.ids[: t + 1, n] for n in range(2)] for t in range(40)])
    assert rewards[~seen].min() > 2 * rewards[seen].max()
    assert rewards[seen].max() <= 1


@pytest.mark.parametrize("embeddings", ["policy", "own"])
def test_rnd_pays_unknown_observations_more_than_learned_ones(embeddings):
    model = make("rnd", embeddings=embeddings)
    learned, unknown = walk(60, 4), next(random_episodes(60, 4, 0.05, seed=9, kinds=200))
    trained(model, learned, epochs=20)
    familiar, strange = (model.compute(rollout, {})[0] for rollout in (learned, unknown))
    assert strange.mean() > 2 * familiar.mean()


def test_icm_pays_unforeseen_consequences_more_than_foreseen_ones():
    model = make("icm")
    lawful, lawless = walk(60, 4), next(random_episodes(60, 4, 0.0, seed=9, kinds=10))
    for _ in range(10):  # the memories are stored with the rollout: renew them as the model changes
        trained(model, lawful, epochs=4)
    foreseen, unforeseen = (model.compute(rollout, model.initial_carry(4))[0] for rollout in (lawful, lawless))
    assert unforeseen.mean() > 2 * foreseen.mean()


@pytest.mark.parametrize(
    ("method", "embeddings"), [*((name, "policy") for name in LEARNING), *((name, "own") for name in WITH_RND)]
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
    rewards, carry = model.compute(rollout, model.initial_carry(4))
    model.remember(rollout, rewards, 0.0)

    def names(now, actions, then):
        return [(a.numpy().tobytes(), int(b), c.numpy().tobytes()) for a, b, c in zip(now, actions, then, strict=True)]

    valid, views = rollout.valid, rollout.table.distinct
    expected = names(views[rollout.ids[:-1][valid]], rollout.actions[valid], views[rollout.next_ids[valid]])
    found = []
    for batch in model.batches(rollout, carry, 2, 20, torch.Generator().manual_seed(0)):
        found += names(batch.observations.gather(), batch.actions, batch.next_observations.gather())
        if method in WITH_RND:
            embeddings = batch.embeddings[batch.next_ids]
            for view, embedding in zip(batch.next_observations.gather(), embeddings, strict=True):
                torch.testing.assert_close(embedding, policy_embedding(model, rollout, view), rtol=1e-3, atol=1e-3)
    assert Counter(found) == Counter(expected * 2)


@pytest.mark.parametrize("method", METHODS)
def test_a_checkpoint_goes_on_where_the_method_was(method, tmp_path):
    model = make(method)
    rollouts = list(itertools.islice(random_episodes(12, ENVS, 0.1, seed=5), 3))
    carry = model.initial_carry(ENVS)
    for rollout in rollouts[:2]:
        rewards, carry = model.compute(rollout, carry)
        model.remember(rollout, rewards, 0.0)
        carry = between_rollouts(carry)
    if model.learns:
        trained(model, rollouts[0], epochs=1)
    state = {"model": model.state_dict(), "extra": model.extra_state(), "carry": carry}
    checkpoint.save(state, tmp_path / "1.safetensors")
    loaded = checkpoint.load(tmp_path / "1.safetensors")
    again = make(method)
    for parameter in again.parameters():
        torch.nn.init.zeros_(parameter)
    again.load_state_dict(loaded["model"])
    again.load_extra_state(loaded["extra"])
    expected, _ = model.compute(rollouts[2], carry)
    found, after = again.compute(rollouts[2], loaded["carry"])
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
    rewards, carry = model.compute(rollout, model.initial_carry(4))
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
        make_reward(config, SPACE, ACTIONS)
    make_reward(merge(config, {"reward": {"embeddings": "own"}}), SPACE, ACTIONS)


# each formula, one step of one environment at a time


class Naive:
    """Steps through rollouts; a subclass says what one transition earns."""

    def __init__(self, model):
        self.model = model
        width = model.gru.hidden_size if getattr(model, "gru", None) is not None else 0
        self.hidden = [torch.zeros(width) for _ in range(ENVS)]
        self.seen = [[] for _ in range(ENVS)]

    def embed(self, view):
        return self.model.encoder.plain(view[None])[0]

    def recur(self, embedding, hidden):
        return self.model.gru(embedding[None], hidden[None])[0] if self.model.gru is not None else embedding

    @torch.no_grad()
    def rewards(self, rollout):
        steps, _ = rollout.shape
        self.rollout = rollout
        self.before(rollout)
        views, next_ids = rollout.table.distinct, rollout.next_ids
        earned = torch.zeros(rollout.shape)
        for t in range(steps):
            for n in range(ENVS):
                if rollout.starts[t, n]:
                    self.hidden[n], self.seen[n] = torch.zeros_like(self.hidden[n]), []
            self.step(t)
            for n in range(ENVS):
                now, then = views[rollout.ids[t, n]], views[next_ids[t, n]]
                value = self.transition(t, n, now, then)
                earned[t, n] = float(value) if rollout.valid[t, n] else 0.0
        return earned

    def before(self, rollout):
        pass

    def step(self, t):
        pass


class NaiveIcm(Naive):
    def transition(self, t, n, now, then):
        traj = self.recur(self.embed(now), self.hidden[n])
        next_traj = self.recur(self.embed(then), traj)
        self.hidden[n] = traj
        action = F.one_hot(self.rollout.actions[t, n], 7).float()
        predicted = self.model.forward_model.head(torch.cat([traj, action])[None])[0]
        return 0.5 * (predicted - next_traj).square().sum()


class NaiveEpisodicDistance(Naive):
    """Equation 4, or the distance alone."""

    def transition(self, t, n, now, then):
        obs, next_obs = self.embed(now), self.embed(then)
        traj = self.recur(obs, self.hidden[n])
        self.hidden[n] = traj if self.model.gru is not None else self.hidden[n]
        if self.model.mutual_information:
            eps = self.model.options.eps
            values = [(next_obs - o).square().sum() / ((traj - j).norm() + eps) for o, j in self.seen[n]]
        else:
            values = [(next_obs - o).norm() for o, _ in self.seen[n]]
        self.seen[n].append((obs, traj))
        return min(values) if values else 0.0


class NaiveRnd(Naive):
    def error(self, view):
        rnd = self.model.rnd
        if rnd.encoder is None:
            inputs = target_inputs = policy_embedding(self.model, self.rollout, view)
        else:
            inputs, target_inputs = rnd.encoder.plain(view[None])[0], rnd.target_encoder.plain(view[None])[0]
        return (rnd.predictor(inputs[None]) - rnd.target(target_inputs[None])).square().sum()

    def transition(self, t, n, now, then):
        return self.error(then)


class NaiveNoveld(NaiveRnd):
    def transition(self, t, n, now, then):
        rollout = self.rollout
        if self.model.options.visits == "state":
            known = t * ENVS + n not in rollout.final_indices
            key, next_key = int(rollout.states[t, n]), int(rollout.states[t + 1, n]) if known else None
        else:
            key, next_key = now.numpy().tobytes(), then.numpy().tobytes()
        self.seen[n].append(key)
        gain = self.error(then).sqrt() - 0.5 * self.error(now).sqrt()
        return gain.clamp(min=0) if next_key is not None and next_key not in self.seen[n] else 0.0


class NaiveLifelong(NaiveRnd):
    """Mean and deviation over every genuine step of all rollouts so far, this one included."""

    errors = ()

    def before(self, rollout):
        views = rollout.table.distinct
        self.errors = [*self.errors, *(self.error(views[k]) for k in rollout.next_ids[rollout.valid])]
        everything = torch.stack(self.errors).double()
        self.moments = everything.mean(), everything.std(unbiased=False)

    def factor(self, view):
        mean, deviation = self.moments
        return (1 + (self.error(view) - mean) / deviation).clamp(1, 5)


class NaiveNgu(NaiveLifelong):
    """Algorithm 1 of its paper; the running mean takes the mean over the environments' neighbours at each step."""

    mean = None

    def step(self, t):
        rollout, views = self.rollout, self.rollout.table.distinct
        self.distances, found = [], []
        for n in range(ENVS):
            self.seen[n].append(self.embed(views[rollout.ids[t, n]]))
            then = self.embed(views[rollout.next_ids[t, n]])
            self.distances.append(sorted((then - o).square().sum() for o in self.seen[n])[:10])
            found += self.distances[n] if rollout.valid[t, n] else []
        if found:
            new = sum(found) / len(found)
            self.mean = new if self.mean is None else 0.997 * self.mean + 0.003 * new

    def transition(self, t, n, now, then):
        normalized = [max(d / self.mean - 0.008, torch.tensor(0.0)) for d in self.distances[n]]
        similarity = sum(1e-3 / (d + 1e-3) for d in normalized) ** 0.5 + 1e-3
        episodic = 0.0 if similarity > 8 else 1 / similarity
        return episodic * (self.factor(then) if self.model.rnd is not None else 1)


class NaiveDeirRnd(NaiveLifelong, NaiveEpisodicDistance):
    def transition(self, t, n, now, then):
        return NaiveEpisodicDistance.transition(self, t, n, now, then) * self.factor(then)


class NaiveCount(Naive):
    def __init__(self, model):
        super().__init__(model)
        self.arrivals = Counter()

    def transition(self, t, n, now, then):
        rollout = self.rollout
        self.seen[n].append(int(rollout.states[t, n]))
        if t * ENVS + n in rollout.final_indices or not rollout.valid[t, n]:
            return 0.0
        state = int(rollout.states[t + 1, n])
        self.arrivals[state] += 1
        return 0.0 if state in self.seen[n] else self.arrivals[state] ** -0.5


ORACLES = [
    ("icm", {}, NaiveIcm),
    ("rnd", {}, NaiveRnd),
    ("rnd", {"embeddings": "own"}, NaiveRnd),
    ("noveld", {}, NaiveNoveld),
    ("noveld", {"noveld": {"visits": "state"}}, NaiveNoveld),
    ("ngu", {}, NaiveNgu),
    ("deir-no-mi", {}, NaiveEpisodicDistance),
    ("deir-no-rnn-no-mi", {}, NaiveEpisodicDistance),
    ("deir-inverse", {}, NaiveEpisodicDistance),
    ("deir-forward", {}, NaiveEpisodicDistance),
    ("deir+rnd", {}, NaiveDeirRnd),
    ("count", {}, NaiveCount),
]


@pytest.mark.parametrize(("method", "options", "oracle"), ORACLES, ids=lambda x: str(x) if isinstance(x, str) else "")
@pytest.mark.parametrize(("done_rate", "late_resets"), [(0.0, False), (0.2, False), (0.2, True)])
def test_rewards_equal_a_naive_loop_across_rollouts_and_episodes(method, options, oracle, done_rate, late_resets):
    model = make(method, **options)
    naive = oracle(model)
    carry = model.initial_carry(ENVS)
    rollouts = random_episodes(7, ENVS, done_rate, seed=5, kinds=14, late_resets=late_resets)
    for rollout in itertools.islice(rollouts, 3):
        rewards, carry = model.compute(rollout, carry)
        torch.testing.assert_close(rewards, naive.rewards(rollout), rtol=5e-3, atol=1e-5)


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
        torch.testing.assert_close(model.compute(rollout, {})[0].double(), expected, rtol=1e-3, atol=1e-4)


def losses_of(method, **options):
    """The loss of one batch, its metrics, and the batch's embeddings computed plainly."""
    model = make(method, **options)
    rollout = next(random_episodes(20, 4, 0.2, seed=4))
    rewards, carry = model.compute(rollout, model.initial_carry(4))
    model.remember(rollout, rewards, 0.0)
    batch = next(iter(model.batches(rollout, carry, 1, 60, torch.Generator().manual_seed(0))))
    loss, metrics = model.loss(batch)
    if not hasattr(model, "gru"):
        return model, batch, loss, metrics, None, None
    now = model.gru(model.encoder.plain(batch.observations.gather()), batch.hidden)
    then = model.gru(model.encoder.plain(batch.next_observations.gather()), now)
    return model, batch, loss, metrics, now, then


def inverse_loss(model, batch, now, then):
    return F.cross_entropy(model.inverse_model.head(torch.cat([now, then], 1)), batch.actions)


def forward_loss(model, batch, now, then):
    predicted = model.forward_model.head(torch.cat([now, F.one_hot(batch.actions, 7).float()], 1))
    return (0.5 * (predicted - then).square().sum(1)).mean()


def rnd_loss(model, batch):
    if model.rnd.encoder is not None:
        views = batch.next_observations.gather()
        inputs, target_inputs = model.rnd.encoder.plain(views), model.rnd.target_encoder.plain(views)
    else:
        inputs = target_inputs = batch.embeddings[batch.next_ids]
    return F.mse_loss(model.rnd.predictor(inputs), model.rnd.target(target_inputs))


def test_the_losses_of_inverse_and_forward_models():
    model, batch, loss, metrics, now, then = losses_of("icm")
    parts = inverse_loss(model, batch, now, then), forward_loss(model, batch, now, then)
    torch.testing.assert_close(loss, 0.8 * parts[0] + 0.2 * parts[1], rtol=1e-4, atol=1e-5)
    assert set(metrics) == {"inverse_loss", "inverse_accuracy", "forward_loss"}
    model, batch, loss, _, now, then = losses_of("deir-inverse")
    torch.testing.assert_close(loss, inverse_loss(model, batch, now, then), rtol=1e-4, atol=1e-5)
    model, batch, loss, _, now, then = losses_of("deir-forward")
    torch.testing.assert_close(loss, forward_loss(model, batch, now, then), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("embeddings", ["policy", "own"])
@pytest.mark.parametrize("training", [False, True])
def test_the_loss_of_random_distillation_over_distinct_observations_is_that_of_the_batch(embeddings, training):
    model, batch, *_ = losses_of("rnd", embeddings=embeddings)
    model.train(training)
    twin = copy.deepcopy(model)
    loss, expected = model.loss(batch)[0], rnd_loss(twin, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-3, atol=1e-6)
    for tensor, twin_tensor in zip(model.buffers(), twin.buffers(), strict=True):  # running statistics
        torch.testing.assert_close(tensor, twin_tensor, rtol=1e-3, atol=1e-5)


def test_the_losses_with_random_distillation():
    model, batch, loss, metrics, now, then = losses_of("ngu")
    expected = inverse_loss(model, batch, now, then) + rnd_loss(model, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    assert set(metrics) == {"inverse_loss", "inverse_accuracy", "rnd_loss"}
    model, batch, loss, metrics, _, _ = losses_of("ngu", ngu={"lifelong": False})
    assert "rnd_loss" not in metrics and batch.embeddings is None


def test_ngus_memory_advances_and_stays_bounded_by_the_episode():
    model = make("ngu")
    carry = model.initial_carry(2)
    for k, rollout in enumerate(itertools.islice(random_episodes(10, 2, 0.0, seed=6), 3)):
        _, carry = model.compute(rollout, carry)
        assert carry["history.lengths"].tolist() == [10 * (k + 1)] * 2
        assert (carry["hidden"] != 0).any()
