"""Whole updates as compiled programs: against the plain loop, with any number of threads, and what they refuse."""

import copy
import threading

import numpy as np
import pytest
import torch

from deir.algorithm.functional import EmaMoments
from deir.algorithm.metrics import Timer
from deir.algorithm.ops import PlainOps
from deir.algorithm.ppo import advantages_and_returns, normalized_advantages, update_policy
from deir.algorithm.rewards.icm import Icm
from deir.compiled import compiled
from deir.errors import TrainingDiverged
from deir.fast import model_updates, program, threads, updates
from deir.fast.addresses import exponential
from deir.fast.ops import FastOps
from deir.fast.threads import use_threads
from deir.runs.run import configure
from deir.runs.training import make_trainer
from small import small

CASES = {
    "views": {},
    "small views": {"env": {"view_size": 3}},
    "clipped values": {"ppo": {"clip_range_value": 0.05, "advantage_norm": "minibatch"}},
    "small network": {"network": {"encoder": "mlp", "features": 16, "hidden": 24, "mlp": 40}},
    "wide": {"network": {"features": 96, "hidden": 64, "mlp": 128}},
    "pairs": {"method": "deir-no-mi", "reward": {"deir": {"features": 32, "mlp": 48}}},
    "without memory": {"method": "deir-no-rnn-no-mi"},
    "deir-inverse": {"method": "deir-inverse"},
    "deir-forward": {"method": "deir-forward"},
    "deir+rnd": {"method": "deir+rnd"},
    "rnd": {"method": "rnd"},
    "noveld, noise": {"method": "noveld", "env": {"noise": 0.1}},
    "icm": {"method": "icm"},
    "ngu": {"method": "ngu"},
    "pseudo-counts": {"method": "pseudo-counts"},
    "ride": {"method": "ride", "reward": {"ride": {"forward_weight": 0.3}}},
    "e3b": {"method": "e3b"},
    "e3b, small network": {"method": "e3b", "network": {"encoder": "mlp", "features": 16, "hidden": 24, "mlp": 40}},
    "disagreement": {"method": "disagreement"},
    "disagreement, noise": {"method": "disagreement", "env": {"noise": 0.1}},
    "disagreement, inverse": {"method": "disagreement", "reward": {"disagreement": {"features": "inverse"}}},
    "etd": {"method": "etd"},
    "etd, odd": {"method": "etd", "network": {"features": 31}},
    "etd, small network": {"method": "etd", "network": {"encoder": "mlp", "features": 16, "hidden": 24, "mlp": 40}},
}


def trained(ops, double=True, threads=1, **changes):
    """A trainer whose policy and model have learned from one rollout with `ops`, and the figures."""
    torch.set_default_dtype(torch.float64 if double else torch.float32)
    try:
        config = configure(small(**{"method": "deir", "seed": 3, "threads": threads, **changes}))
        trainer = make_trainer(config)
        trainer.iterate()  # the policy's last layers begin at zero: now they do not
        use_threads(threads, False)
        policy, model = trainer.policy, trainer.model
        policy.ops = model.ops = model.reward.ops = ops
        rollout, trace, *_ = collected(trainer)
        raw = model.compute(rollout, 0.0, policy.encoder)
        rewards = rollout.rewards + 0.01 * raw
        advantages, returns = advantages_and_returns(rollout, trace, rewards, config.ppo)
        advantages = normalized_advantages(advantages, rollout.valid, config.ppo, EmaMoments(0.9))
        generator = torch.Generator().manual_seed(5)
        figures = update_policy(policy, trainer.optimizer, rollout, trace, advantages, returns, config.ppo, generator)
        return trainer, {**figures, **model.update()}
    finally:
        torch.set_default_dtype(torch.float32)


def collected(trainer):
    return trainer._collect(Timer()) if trainer.ahead is None else trainer.ahead.collected


def learned(trainer):
    """Everything an update changes."""
    networks = {"policy": trainer.policy, "reward": trainer.model.reward}
    tensors = {f"{name} {key}": value for name, net in networks.items() for key, value in net.state_dict().items()}
    for name, optimizer in (("policy", trainer.optimizer), ("reward", trainer.model.optimizer)):
        state = {} if optimizer is None else optimizer.state_dict()
        tensors |= {f"{name} {key}": value for key, value in state.items()}
    return tensors


@pytest.mark.parametrize("case", CASES)
def test_an_update_is_the_plain_one(case, monkeypatch):
    used = []

    def noted(name, whole):
        return lambda *given: used.append(name) or whole(*given)

    monkeypatch.setattr(updates, "train_policy", noted("policy", updates.train_policy))
    monkeypatch.setattr(
        model_updates, "UPDATES", {loss: noted("model", update) for loss, update in model_updates.UPDATES.items()}
    )
    monkeypatch.setattr("deir.runs.training.make_ops", lambda config: FastOps())
    fast, fast_figures = trained(FastOps(), **CASES[case])
    programs = ["model"] if "noise" in case else ["policy", "model"]  # these models encode nothing
    assert used == 2 * programs
    plain, plain_figures = trained(OneByOne(), **CASES[case])
    assert used == 3 * programs, "the plain update must not be a program"
    expected = learned(plain)
    for name, tensor in learned(fast).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-7, atol=1e-9, msg=name)
    guessed = fast_figures.pop("contrastive_accuracy", 0), plain_figures.pop("contrastive_accuracy", 0)
    assert fast_figures == pytest.approx(plain_figures, rel=1e-7, abs=1e-9)
    assert guessed[0] == pytest.approx(guessed[1], abs=0.05)  # which of equal observations is named is rounding


class OneByOne(FastOps):
    """Everything fast but the updates."""

    train_policy, train_model = PlainOps.train_policy, PlainOps.train_model


@pytest.mark.parametrize("method", ["deir", "ngu", "ride", "disagreement", "etd"])
def test_the_bits_do_not_depend_on_the_threads(method):
    results = [learned(trained(FastOps(), double=False, threads=n, method=method)[0]) for n in (1, 2, 4, 1)]
    for other in results[1:]:
        assert all(torch.equal(tensor, other[name]) for name, tensor in results[0].items())


def test_a_gradient_that_is_not_finite_stops_the_update_before_it_spoils_anything():
    trainer, _ = trained(FastOps(), double=False)
    before = copy.deepcopy(trainer.policy.state_dict())
    rollout, trace, *_ = collected(trainer)
    config, generator = trainer.config.ppo, torch.Generator().manual_seed(0)
    bad = torch.full(rollout.shape, float("nan"))
    with pytest.raises(TrainingDiverged, match="policy"):
        update_policy(trainer.policy, trainer.optimizer, rollout, trace, bad, bad, config, generator)
    for name, tensor in trainer.policy.named_parameters():
        assert torch.equal(tensor, before[name]), name


def test_others_are_not_programs():
    trainer, _ = trained(FastOps(), double=False)
    table = collected(trainer)[0].table
    assert updates.trains_policy(trainer.policy.train(), table, trainer.optimizer)
    assert not updates.trains_policy(trainer.policy.eval(), table, trainer.optimizer)
    for changes in ({"network": {"norm": "layer"}}, {"env": {"noise": 0.1}}):
        other, _ = trained(FastOps(), double=False, **changes)
        assert not updates.trains_policy(other.policy.train(), collected(other)[0].table, other.optimizer)


class Shifted(Icm):
    """Someone's own: the program would not know of it."""

    def transitions(self, batch):
        now, then = super().transitions(batch)
        return now, then + 1


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "etd", "env": {"noise": 0.1}},
        {"method": "disagreement", "network": {"norm": "layer"}},
        {"method": "ngu", "reward": {"embeddings": "own"}},
        {"method": "test_programs:Shifted"},
    ],
)
def test_other_models_are_not_programs(changes):
    trainer, _ = trained(FastOps(), double=False, **changes)
    reward, table = trainer.model.reward.train(), collected(trainer)[0].table
    assert model_updates.update_of(reward, table, trainer.model.optimizer) is None


def test_a_thread_may_join_late_or_never():
    """Work that is done twice would change the parameters: a late thread must find nothing to do."""
    works = []
    alone = learned(trained(FastOps(), double=False)[0])
    begin = threads.join_in

    def late(work):
        begin(work)
        works.append(work)
        helper = threading.Thread(target=work)
        helper.start()
        helper.join(timeout=60)
        assert not helper.is_alive()

    program.join_in, original = late, program.join_in
    try:
        joined = learned(trained(FastOps(), double=False)[0])
    finally:
        program.join_in = original
    assert works and all(torch.equal(tensor, joined[name]) for name, tensor in alone.items())


def test_a_program_is_written_once_and_anew_for_moments_that_are_loaded(monkeypatch):
    trainer, _ = trained(FastOps(), double=False, method="rnd")
    optimizer, written = trainer.optimizer, []
    write = updates.after_encoder
    monkeypatch.setattr(updates, "after_encoder", lambda *given: written.append(1) or write(*given))

    def update():
        rollout, trace, *_ = collected(trainer)
        ones, generator = torch.ones(rollout.shape), torch.Generator().manual_seed(0)
        update_policy(trainer.policy, optimizer, rollout, trace, ones, ones, trainer.config.ppo, generator)

    update()
    assert not written
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    loaded = optimizer.exp_avg.clone()
    update()
    assert written == [1] and not torch.equal(optimizer.exp_avg, loaded)


def test_buffers_have_room_for_the_largest_batch_and_lines_of_their_own():
    written = program.Program(torch.float32)
    rows = written.given("rows")
    places = [written.buffer(rows, 3), written.buffer(written.plus(5, rows, 4), 2, np.float64), written.buffer(7, 1)]
    after = written.plus(places[0], rows, 12)
    ready = program.Ready(written, [{"rows": 50}, {"rows": 70}, {"rows": 0}])
    assert (ready.table[:, after] == ready.table[:, places[0]] + np.array([50, 70, 0]) * 12).all()
    begins, sizes = ready.table[0, places], [70 * 12, 285 * 16, 7 * 4]
    assert (ready.table[:, places] == begins).all() and not (begins % program.LINE).any()
    room = ready.room.ctypes.data, ready.room.ctypes.data + ready.room.nbytes
    ends = [begin + -(-size // program.LINE) * program.LINE for begin, size in zip(begins, sizes, strict=True)]
    assert room[0] <= begins[0] and ends[0] <= begins[1] and ends[1] <= begins[2] and ends[2] <= room[1]


def test_the_exponential_of_vector_code():
    @compiled
    def apply(x, out):
        for i in range(len(x)):
            out[i] = exponential(x[i])

    x = np.linspace(-87, 88, 100_001).astype(np.float32)
    out = np.empty_like(x)
    apply(x, out)
    assert np.abs(out / np.exp(x.astype(np.float64)) - 1).max() < 3e-7
    wide = x.astype(np.float64)
    apply(wide, exact := np.empty_like(wide))
    assert np.abs(exact / np.exp(wide) - 1).max() < 1e-15
    apply(np.array([-1e30, 1e30], np.float32), ends := np.empty(2, np.float32))
    assert ends[0] < 1e-37 and np.isfinite(ends).all()
