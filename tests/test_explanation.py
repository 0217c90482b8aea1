"""Why a step earned its reward: every method's explanation gives the very reward that the method computes."""

import pytest
import torch

from builders import random_episodes
from deir.algorithm.explanation import Explanation
from deir.algorithm.rewards import METHODS
from deir.experiments.replay.recording import left_as_it_was
from oracles import embed
from reward_oracles import ORACLES, NaiveEpisodicDistance, temporal_distance
from test_rewards import CASES, ENVS, make

PAIRINGS = ["eq4", "a1", "published"]


def told(model, rollout, env):
    """What the model tells, and leaves it as it was."""
    with left_as_it_was(model):
        return model.explain(rollout, env)


def episodes(done_rate=0.2, late_resets=False, steps=24, kinds=14):
    return next(random_episodes(steps, ENVS, done_rate, seed=5, kinds=kinds, late_resets=late_resets))


@pytest.mark.parametrize(
    ("method", "options"),
    [*CASES, ("rnd", {"rnd": {"normalize_error": True}}), *[("deir", {"deir": {"pairing": p}}) for p in PAIRINGS]],
    ids=lambda x: x if isinstance(x, str) else "".join(map(str, x.values())),
)
@pytest.mark.parametrize("late_resets", [False, True])
def test_the_figures_of_every_method_give_its_reward(method, options, late_resets):
    model, rollout = make(method, **options), episodes(late_resets=late_resets)
    explanations = [told(model, rollout, env) for env in range(ENVS)]
    naive = ORACLES[method](model, ENVS).rewards(rollout)
    rewards, _ = model.compute(rollout, model.initial_state(ENVS))
    for env, explanation in enumerate(explanations):
        assert explanation.equation and explanation.rewards is not None
        torch.testing.assert_close(explanation.rewards.to(rewards), rewards[:, env], rtol=1e-5, atol=1e-7)
        if "normalize_error" not in str(options):  # the loop takes errors as they are
            torch.testing.assert_close(explanation.rewards.to(naive), naive[:, env], rtol=5e-3, atol=1e-5)
        assert not explanation.rewards.requires_grad
        for figure in explanation.figures.values():
            assert figure.shape == rewards[:, env].shape and not figure.requires_grad


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("method", ["deir", "deir-no-mi", "deir-inverse"])
def test_the_row_of_distances_and_the_step_of_the_minimum_are_those_of_a_plain_loop(method, pairing):
    model, rollout = make(method, deir={"pairing": pairing}), episodes()
    compared = told(model, rollout, 1).compared
    seen = RecordedRows(model, ENVS)
    rewards = seen.rewards(rollout)[:, 1]
    begin = 0
    for t, row in enumerate(seen.rows[1]):
        begin = t if rollout.starts[t, 1] else begin
        there = compared.scores[t].isfinite().nonzero()[:, 0].tolist()
        assert there == list(range(begin, begin + len(row)))
        if not row:
            assert compared.nearest[t, 0] == -1 and rewards[t] == 0
            continue
        torch.testing.assert_close(compared.scores[t, there].float(), torch.stack(row), rtol=5e-3, atol=1e-5)
        chosen = int(compared.nearest[t, 0])
        assert float(compared.scores[t, chosen]) == float(compared.scores[t, there].min())
        assert float(row[chosen - begin]) == pytest.approx(float(rewards[t]), rel=5e-3, abs=1e-5)


class RecordedRows(NaiveEpisodicDistance):
    """The naive loop, which keeps what it takes the minimum of."""

    def __init__(self, model, envs):
        super().__init__(model, envs)
        self.rows = [[] for _ in range(envs)]

    def transition(self, t, n, now, then):
        obs, next_obs, before = self.embed(now), self.embed(then), self.hidden[n]
        traj = self.recur(obs, before)
        pairing = self.model.options.pairing
        keys = self.seen[n] if pairing == "eq4" else [*self.seen[n], (obs, before if pairing == "published" else traj)]
        query = self.recur(next_obs, traj) if pairing == "a1" else traj
        if self.model.mutual_information:
            eps = self.model.options.eps
            self.rows[n].append([(next_obs - o).square().sum() / ((query - j).norm() + eps) for o, j in keys])
        else:
            self.rows[n].append([(next_obs - o).norm() for o, _ in keys])
        return super().transition(t, n, now, then)


def test_the_nearest_of_ngu_are_the_k_smallest_of_the_row():
    model, rollout = make("ngu", ngu={"neighbours": 3}), episodes(done_rate=0.0)
    explanation = told(model, rollout, 0)
    compared = explanation.compared
    assert compared.nearest.shape == (24, 3)
    torch.testing.assert_close(explanation.figures["nearest dist²"].to(compared.scores), compared.scores.amin(1))
    for t, row in enumerate(compared.scores.tolist()):
        expected = sorted(range(t + 1), key=lambda i: row[i])[:3]
        assert compared.nearest[t].tolist() == expected + [-1] * (3 - len(expected))


@pytest.mark.parametrize("normalized", [False, True])
def test_rnd_tells_whether_its_error_is_normalised(normalized):
    explanation = told(make("rnd", rnd={"normalize_error": normalized}), episodes(), 0)
    assert ("μ" in explanation.equation) == normalized
    same = torch.equal(explanation.figures["prediction error"], explanation.rewards)
    assert same != normalized


@pytest.mark.parametrize("visits", ["observation", "state"])
@pytest.mark.parametrize("kinds", [14, 3])
def test_noveld_tells_where_an_observation_was_seen_before(visits, kinds):
    model, rollout = make("noveld", noveld={"visits": visits}), episodes(done_rate=0.1, kinds=kinds)
    explanation = told(model, rollout, 2)
    compared, begin, places = explanation.compared, 0, set()
    assert compared.scores.shape == (24, 24) and compared.scores.isinf().all()  # there is nothing to weigh
    for t, (first, seen_at) in enumerate(
        zip(explanation.figures["first visit"], compared.nearest[:, 0].tolist(), strict=True)
    ):
        begin = t if rollout.starts[t, 2] else begin
        if visits == "observation":
            earlier = [i for i in range(begin, t + 1) if rollout.ids[i, 2] == rollout.next_ids[t, 2]]
            assert seen_at == (earlier[0] if earlier else -1) and first == (not earlier)
            places.add("now" if seen_at == t else "before" if earlier else "never")
        elif seen_at >= 0:
            assert begin <= seen_at <= t and not first
    assert kinds == 14 or visits == "state" or places == {"now", "before", "never"}


def test_noveld_never_pays_for_what_is_less_novel():
    model, rollout = make("noveld", noveld={"alpha": 1.5}), episodes()
    explanation = told(model, rollout, 1)
    gain = explanation.figures["novelty now"] - 1.5 * explanation.figures["novelty before"]
    assert (gain[explanation.figures["first visit"]] < 0).any() and (explanation.rewards >= 0).all()


def test_the_lengths_that_e3b_tells_are_those_of_the_next_embeddings():
    model, rollout = make("e3b"), episodes()
    for env in range(ENVS):
        embedded = embed(model.encoder, rollout.table.distinct[rollout.next_ids[:, env]])
        found = told(model, rollout, env).figures["|φ|²"]
        torch.testing.assert_close(found, embedded.square().sum(1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("done_rate", [0.0, 0.2])
def test_etd_tells_every_distance_from_the_episode_and_the_step_of_the_least(done_rate):
    model, rollout = make("etd"), episodes(done_rate)
    for env in range(ENVS):
        explanation, begin = told(model, rollout, env), 0
        now, then = embedded(model, rollout, env)
        for t, row in enumerate(explanation.compared.scores):
            begin = t if rollout.starts[t, env] else begin
            expected = torch.full((24,), torch.inf)
            expected[begin : t + 1] = torch.tensor([temporal_distance(x, then[t]) for x in now[begin : t + 1]])
            torch.testing.assert_close(row.float(), expected, rtol=5e-3, atol=1e-5)
            chosen = int(explanation.compared.nearest[t, 0])
            assert begin <= chosen <= t and row[chosen] == row.min() == explanation.figures["d"][t]


def test_ride_tells_the_change_and_the_visits():
    model, rollout = make("ride"), episodes(kinds=4)
    for env in range(ENVS):
        figures, seen = told(model, rollout, env).figures, []
        now, then = embedded(model, rollout, env)
        torch.testing.assert_close(figures["impact"], (then - now).norm(dim=1), rtol=1e-3, atol=1e-5)
        for t, name in enumerate(rollout.next_ids[:, env].tolist()):
            seen = [] if rollout.starts[t, env] else seen
            seen.append(int(rollout.ids[t, env]))
            assert figures["visits"][t] == seen.count(name) + 1
        assert figures["visits"].max() > 2


def test_re3_tells_the_distance_to_the_kth_neighbour_of_the_rollout():
    model, rollout = make("re3"), episodes(done_rate=0.0, kinds=60)
    rows = embed(model.encoder, rollout.table.distinct[rollout.next_ids.flatten()])
    distances = (rows[:, None] - rows).norm(dim=2).sort(1).values[:, 3].view(24, ENVS)  # the first is the row itself
    for env in range(ENVS):
        found = told(model, rollout, env).figures["distance to neighbour 3"]
        torch.testing.assert_close(found, distances[:, env], rtol=5e-3, atol=1e-4)


def test_pseudo_counts_tell_the_nearest_and_no_lifelong_factor():
    explanation = told(make("pseudo-counts"), episodes(), 0)
    assert set(explanation.figures) == {"nearest dist²", "mean dist²", "episodic reward"}
    assert explanation.compared.nearest.shape == (24, 10)


@pytest.mark.parametrize("kinds", [3, 3000])
def test_deir_with_first_visits_tells_what_deir_alone_would_have_paid(kinds):
    """Next to it the first visits, which earn its root; where no view comes twice every step is one."""
    model, deir, rollout = make("deir+visits"), make("deir"), episodes(done_rate=0.0, steps=24, kinds=kinds)
    deir.load_state_dict(model.state_dict())
    alone = told(deir, rollout, 1)
    explanation = told(model, rollout, 1)
    torch.testing.assert_close(explanation.figures["DEIR"], alone.rewards)
    torch.testing.assert_close(explanation.compared.scores, alone.compared.scores)
    first = explanation.figures["first visit"]
    assert first.any() and torch.equal(explanation.rewards, torch.where(first, alone.rewards.sqrt(), 0.0))
    assert torch.equal(explanation.rewards, alone.rewards.sqrt()) == (kinds == 3000)


@torch.no_grad()
def embedded(model, rollout, env):
    """Of o_t and of o_{t+1}. [T, F] each"""
    names = rollout.ids[:-1, env], rollout.next_ids[:, env]
    return [embed(model.encoder, rollout.table.distinct[ids]) for ids in names]


def test_a_method_that_says_nothing_explains_nothing():
    assert make("none").explain(episodes(), 0) == Explanation()
    assert set(ORACLES) == set(METHODS)
