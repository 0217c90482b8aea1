"""Each method's formula and loss, plainly: rewards one step of one environment at a time, losses of one whole batch."""

from collections import Counter

import torch
from torch import Tensor
from torch.nn import functional as F

from deir.algorithm.actions import BoxActions, MultiDiscreteActions
from oracles import embed, through


class Naive:
    """Steps through rollouts that follow each other; a subclass says what one transition earns."""

    def __init__(self, model, envs):
        self.model = model
        width = model.gru.hidden_size if getattr(model, "gru", None) is not None else 0
        self.hidden = [torch.zeros(width) for _ in range(envs)]
        self.seen = [[] for _ in range(envs)]

    def embed(self, view):
        return embed(self.model.encoder, view[None])[0]

    def recur(self, embedding, hidden):
        return self.model.gru(embedding[None], hidden[None])[0] if self.model.gru is not None else embedding

    @torch.no_grad()
    def rewards(self, rollout):
        """[T, N]; leaves the model's memory before each step [T, N, H] in `memories`."""
        steps, envs = rollout.shape
        self.model.eval()
        self.rollout = rollout
        self.before(rollout)
        views, next_ids = rollout.table.distinct, rollout.next_ids
        earned, self.memories = torch.zeros(rollout.shape), torch.zeros(*rollout.shape, len(self.hidden[0]))
        for t in range(steps):
            for n in range(envs):
                if rollout.starts[t, n]:
                    self.hidden[n], self.seen[n] = torch.zeros_like(self.hidden[n]), []
                self.memories[t, n] = self.hidden[n]
            self.step(t)
            for n in range(envs):
                now, then = views[rollout.ids[t, n]], views[next_ids[t, n]]
                value = self.transition(t, n, now, then)
                earned[t, n] = float(value) if rollout.valid[t, n] else 0.0
        return earned

    def before(self, rollout):
        pass

    def step(self, t):
        pass

    def transition(self, t, n, now, then):
        return 0.0

    def ended_elsewhere(self, t, n):
        """The backend tells nothing of this transition's next state: a new episode's has taken its place."""
        return t * self.rollout.shape[1] + n in self.rollout.final_indices


class NaiveIcm(Naive):
    def transition(self, t, n, now, then):
        traj = self.recur(self.embed(now), self.hidden[n])
        next_traj = self.recur(self.embed(then), traj)
        self.hidden[n] = traj
        action = self.model.actions.vector(self.rollout.actions[t, n])
        predicted = through(self.model.forward_model.head, torch.cat([traj, action])[None])[0]
        return 0.5 * (predicted - next_traj).square().sum()


class NaiveEpisodicDistance(Naive):
    """Equation 4, or the distance alone; the pairings of Algorithm A1 and of the published code."""

    def transition(self, t, n, now, then):
        obs, next_obs, before = self.embed(now), self.embed(then), self.hidden[n]
        traj = self.recur(obs, before)
        if self.model.gru is not None:
            self.hidden[n] = traj
        pairing = self.model.options.pairing
        own = (obs, before if pairing == "published" else traj)
        keys = self.seen[n] if pairing == "eq4" else [*self.seen[n], own]
        if self.model.mutual_information:
            query = self.recur(next_obs, traj) if pairing == "a1" else traj
            eps = self.model.options.eps
            values = [(next_obs - o).square().sum() / ((query - j).norm() + eps) for o, j in keys]
        else:
            values = [(next_obs - o).norm() for o, _ in keys]
        self.seen[n].append(own)
        return min(values) if values else 0.0


class NaiveRnd(Naive):
    def before(self, rollout):
        """As RND reads the policy's embeddings: in deviations from the mean of the rollout's next observations."""
        if self.model.rnd.encoder is None:
            seen = embed(self.model.rnd.policy_encoder[0].eval(), rollout.table.distinct[rollout.next_ids.flatten()])
            self.centre, self.scale = seen.mean(0), seen.std(0, correction=0) + 1e-5

    def inputs(self, view):
        """What the predictor and the target read of a view."""
        rnd = self.model.rnd
        if rnd.encoder is None:
            read = ((embed(rnd.policy_encoder[0], view[None])[0] - self.centre) / self.scale).clamp(-5, 5)
            return read, read
        return embed(rnd.encoder, view[None])[0], embed(rnd.target_encoder, view[None])[0]

    def error(self, view):
        read, target_read = self.inputs(view)
        rnd = self.model.rnd
        return (through(rnd.predictor, read[None]) - through(rnd.target, target_read[None])).square().sum()

    def transition(self, t, n, now, then):
        return self.error(then)


class NaiveNoveld(NaiveRnd):
    def transition(self, t, n, now, then):
        if self.model.options.visits == "state":
            states = self.rollout.states
            key, next_key = int(states[t, n]), None if self.ended_elsewhere(t, n) else int(states[t + 1, n])
        else:
            key, next_key = now.numpy().tobytes(), then.numpy().tobytes()
        self.seen[n].append(key)
        gain = self.error(then).sqrt() - 0.5 * self.error(now).sqrt()
        return gain.clamp(min=0) if next_key is not None and next_key not in self.seen[n] else 0.0


class NaiveLifelong(NaiveRnd):
    """Mean and deviation over every genuine step of all rollouts so far, this one included."""

    errors = ()

    def before(self, rollout):
        if self.model.rnd is None:
            return
        super().before(rollout)
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
        for n in range(rollout.shape[1]):
            obs, then = (self.embed(views[ids[t, n]]) for ids in (rollout.ids, rollout.next_ids))
            self.hidden[n] = self.recur(obs, self.hidden[n])
            self.seen[n].append(obs)
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


class NaivePseudoCounts(NaiveNgu):
    def transition(self, t, n, now, then):
        normalized = [max(d / self.mean - 0.008, torch.tensor(0.0)) for d in self.distances[n]]
        return (sum(1e-3 / (d + 1e-3) for d in normalized) + 1e-3) ** -0.5


class NaiveEtd(Naive):
    def transition(self, t, n, now, then):
        self.seen[n].append(self.embed(now))
        return min(temporal_distance(obs, self.embed(then)) for obs in self.seen[n])


class NaiveE3b(Naive):
    """The covariance of the episode, inverted anew at every step."""

    def transition(self, t, n, now, then):
        self.seen[n].append(self.embed(now).double())
        covariance = 0.1 * torch.eye(self.model.width, dtype=torch.float64)
        for obs in self.seen[n]:
            covariance += torch.outer(obs, obs)
        query = self.embed(then).double()
        return query @ torch.linalg.inv(covariance) @ query


class NaiveRide(Naive):
    def transition(self, t, n, now, then):
        self.seen[n].append(now.numpy().tobytes())
        visits = self.seen[n].count(then.numpy().tobytes()) + 1
        return (self.embed(then) - self.embed(now)).norm() / visits**0.5


class NaiveRe3(Naive):
    """Distances to every other genuine next observation of the rollout, sorted."""

    def before(self, rollout):
        views = rollout.table.distinct
        self.others = {
            (t, n): self.embed(views[rollout.next_ids[t, n]]).double() for t, n in rollout.valid.nonzero().tolist()
        }

    def transition(self, t, n, now, then):
        if (t, n) not in self.others:
            return 0.0
        own = self.others[t, n]
        distances = sorted((own - other).norm() for place, other in self.others.items() if place != (t, n))
        nearest = distances[: self.model.neighbours]
        return (1 + nearest[-1]).log() if nearest else 0.0


class NaiveDisagreement(Naive):
    seen_so_far = ()

    def before(self, rollout):
        """Moments of every genuine next observation so far; the loss of this iteration reads them too."""
        if self.model.inverse_model is not None:
            return
        views = rollout.table.distinct[rollout.next_ids[rollout.valid]]
        self.seen_so_far = [*self.seen_so_far, *(self.embed(view) for view in views)]
        everything = torch.stack(self.seen_so_far).double()
        self.model.scale.mean.copy_(everything.mean(0))
        self.model.scale.variance.copy_(everything.var(0, correction=0))
        self.model.scale.count.fill_(len(everything))

    def transition(self, t, n, now, then):
        action = self.model.actions.vector(self.rollout.actions[t, n])
        seen = self.embed(now) if self.model.inverse_model is not None else scaled(self.model, self.embed(now))
        read = torch.cat([seen, action])[None]
        guesses = [through(model.head, read)[0] for model in self.model.models]
        mean = sum(guesses) / len(guesses)
        return (sum((guess - mean).square() for guess in guesses) / len(guesses)).mean()


def scaled(model, embeddings):
    """Random features in deviations from their mean."""
    return ((embeddings - model.scale.mean) / (model.scale.variance + 1e-8).sqrt()).clamp(-10, 10)


def temporal_distance(x, y):
    """The most that a feature of the first half falls from x to y, and how far apart the second halves are."""
    half = len(x) // 2
    falls = [float(x[k] - y[k]) for k in range(half)]
    return max([*falls, 0.0]) + float((x[half:] - y[half:]).square().sum()) ** 0.5


class NaiveDeirRnd(NaiveLifelong, NaiveEpisodicDistance):
    def transition(self, t, n, now, then):
        return NaiveEpisodicDistance.transition(self, t, n, now, then) * self.factor(then)


class NaiveDeirVisits(NaiveEpisodicDistance):
    def __init__(self, model, envs):
        super().__init__(model, envs)
        self.visited = [[] for _ in range(envs)]

    def transition(self, t, n, now, then):
        if self.rollout.starts[t, n]:
            self.visited[n] = []
        self.visited[n].append(now)
        first = not any(torch.equal(then, view) for view in self.visited[n])
        return super().transition(t, n, now, then) ** 0.5 * first


class NaiveCount(Naive):
    def __init__(self, model, envs):
        super().__init__(model, envs)
        self.arrivals = Counter()

    def transition(self, t, n, now, then):
        self.seen[n].append(int(self.rollout.states[t, n]))
        if self.ended_elsewhere(t, n) or not self.rollout.valid[t, n]:
            return 0.0
        state = int(self.rollout.states[t + 1, n])
        self.arrivals[state] += 1
        return 0.0 if state in self.seen[n] else self.arrivals[state] ** -0.5


ORACLES = {
    "deir": NaiveEpisodicDistance,
    "deir-no-mi": NaiveEpisodicDistance,
    "deir-no-rnn-no-mi": NaiveEpisodicDistance,
    "deir-inverse": NaiveEpisodicDistance,
    "deir-forward": NaiveEpisodicDistance,
    "deir+rnd": NaiveDeirRnd,
    "deir+visits": NaiveDeirVisits,
    "icm": NaiveIcm,
    "rnd": NaiveRnd,
    "noveld": NaiveNoveld,
    "ngu": NaiveNgu,
    "count": NaiveCount,
    "etd": NaiveEtd,
    "e3b": NaiveE3b,
    "ride": NaiveRide,
    "re3": NaiveRe3,
    "disagreement": NaiveDisagreement,
    "pseudo-counts": NaivePseudoCounts,
    "none": Naive,
}


# losses of a batch: views [B, *obs], memories before o_t [B, H]; each gives the loss and what is logged of it


def trajectories(model, memories: Tensor, *views: Tensor) -> list[Tensor]:
    """e_traj_t, and e_traj_{t+1} for each view that may follow; all views are one batch for the normalisation."""
    now, *followers = embed(model.encoder, torch.cat(views)).split([len(part) for part in views])
    if model.gru is None:
        return [now, *followers]
    traj = model.gru(now, memories)
    return [traj, *(model.gru(follower, traj) for follower in followers)]


def inverse_loss(model, now, then, actions):
    predicted = through(model.inverse_model.head, torch.cat([now, then], 1))
    if isinstance(model.actions, BoxActions):
        loss = F.mse_loss(predicted, model.actions.vector(actions))
        return loss, {"inverse_loss": loss}
    several = isinstance(model.actions, MultiDiscreteActions)
    guesses = predicted.split(model.actions.sizes, 1) if several else [predicted]
    taken = actions.unbind(1) if several else [actions]
    loss = sum(F.cross_entropy(guess, one) for guess, one in zip(guesses, taken, strict=True))
    right = [(guess.argmax(1) == one).float().mean() for guess, one in zip(guesses, taken, strict=True)]
    return loss, {"inverse_loss": loss, "inverse_accuracy": sum(right) / len(right)}


def forward_loss(model, now, then, actions):
    predicted = through(model.forward_model.head, torch.cat([now, model.actions.vector(actions)], 1))
    loss = (0.5 * (predicted - then).square().sum(1)).mean()
    return loss, {"forward_loss": loss}


def rnd_loss(model, read, target_read):
    """Of what the predictor and the target read [B, F] each."""
    with torch.no_grad():
        targets = through(model.rnd.target, target_read)
    loss = F.mse_loss(through(model.rnd.predictor, read), targets)
    return loss, {"rnd_loss": loss}


def discriminator_logits(model, memories, now, then, fakes, actions) -> tuple[Tensor, Tensor]:
    """Of the true next observations and of the fakes. [B] each"""
    traj, *followers = trajectories(model, memories, now, then, fakes)
    taken = model.actions.vector(actions)
    rows = torch.cat([torch.cat([traj, follower, taken], 1) for follower in followers])
    return through(model.discriminator, rows)[:, 0].chunk(2)


def discriminator_loss(model, memories, now, then, fakes, actions):
    """Section 3.3. A fake that equals the true next observation does not count."""
    true, fake = discriminator_logits(model, memories, now, then, fakes, actions)
    differs = (then.flatten(1) != fakes.flatten(1)).any(1)
    halves = [
        F.binary_cross_entropy_with_logits(true, torch.ones_like(true)),
        F.binary_cross_entropy_with_logits(fake[differs], torch.zeros_like(fake[differs])),
    ]
    accuracy = ((true > 0).float().mean() + (fake[differs] < 0).float().mean()) / 2
    return sum(halves) / 2, {"discriminator_accuracy": accuracy, "fake_valid_rate": differs.float().mean()}


def etd_loss(model, now, later):
    """InfoNCE both ways, pair by pair."""
    x, y = embed(model.encoder, torch.cat([now, later])).chunk(2)
    half, potentials = x.shape[1] // 2, through(model.potential, y)[:, 0]
    rows = []
    for one in x:
        changes = one - y  # [B, F]
        rows.append(changes[:, :half].relu().amax(1) + changes[:, half:].square().sum(1).clamp(min=1e-12).sqrt())
    distances = torch.stack(rows)
    logits = potentials - distances
    own = torch.arange(len(x))
    by_x = -(logits.diagonal() - logits.logsumexp(1)).mean()
    by_y = -(logits.diagonal() - logits.logsumexp(0)).mean()
    accuracy = (logits.argmax(1) == own).float().mean()
    return (by_x + by_y) / 2, {"contrastive_accuracy": accuracy, "pair_distance": distances.diagonal().mean()}


def disagreement_loss(model, now, then, actions, draws):
    taken = model.actions.vector(actions)
    loss, metrics = torch.zeros(()), {}
    if model.inverse_model is None:
        model.encoder.eval()
        with torch.no_grad():
            now, then = (scaled(model, embed(model.encoder, views)) for views in (now, then))
    else:
        now, then = embed(model.encoder, torch.cat([now, then])).chunk(2)
        loss, metrics = inverse_loss(model, now, then, actions)
    errors = []
    for forward_model, rows in zip(model.models, draws, strict=True):
        guess = through(forward_model.head, torch.cat([now.detach()[rows], taken[rows]], 1))
        errors.append((0.5 * (guess - then.detach()[rows]).square().sum(1)).mean())
    return loss + sum(errors), {**metrics, "forward_loss": sum(errors) / len(errors)}


def icm_loss(model, memories, now, then, actions):
    pair = trajectories(model, memories, now, then)
    inverse, metrics = inverse_loss(model, *pair, actions)
    forward, more = forward_loss(model, *pair, actions)
    return 0.8 * inverse + 0.2 * forward, {**metrics, **more}
