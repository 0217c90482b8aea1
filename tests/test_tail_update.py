"""The policy's update with an encoder that is no program, and a program behind it: against the plain loop."""

import copy

import pytest
import torch

from deir.algorithm.ops import PlainOps
from deir.algorithm.ppo import update_policy
from deir.errors import TrainingDiverged
from deir.fast import tail_update, updates
from deir.fast.ops import FastOps
from deir.fast.threads import flushing, in_parallel, join_in, share_out, use_threads
from test_programs import OneByOne, collected, learned, trained

CASES = {
    "noise": {"env": {"noise": 0.1}},
    "noise, clipped values": {"env": {"noise": 0.1}, "ppo": {"clip_range_value": 0.05}},
    "noise, wide": {"env": {"noise": 0.1}, "network": {"features": 96, "hidden": 64, "mlp": 128}},
    "layer normalisation": {"network": {"norm": "layer"}},
    "layer normalisation, noise": {"env": {"noise": 0.1}, "network": {"norm": "layer"}},
    "no normalisation": {"network": {"norm": "none", "features": 48}},
    "small network": {"network": {"norm": "layer", "encoder": "mlp", "features": 16, "hidden": 24, "mlp": 40}},
    "vectors": {"env": {"id": "CartPole-v1"}, "network": {"norm": "none", "features": 16, "hidden": 24, "mlp": 40}},
}


@pytest.fixture(autouse=True)
def one_thread_afterwards():
    yield
    use_threads(1, large=False)


@pytest.mark.parametrize("case", CASES)
def test_an_update_is_the_plain_one(case, monkeypatch):
    used, train = [], tail_update.train_policy
    monkeypatch.setattr(tail_update, "train_policy", lambda *given: used.append(case) or train(*given))
    monkeypatch.setattr("deir.runs.training.make_ops", lambda config: FastOps())
    changes = {"method": "rnd", **CASES[case]}  # without rewards the gradient would be next to nothing
    fast, fast_figures = trained(FastOps(), **changes)
    assert len(used) == 2
    plain, plain_figures = trained(OneByOne(), **changes)
    assert len(used) == 3, "the plain update must not be a program"
    expected = learned(plain)
    for name, tensor in learned(fast).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-7, atol=1e-9, msg=name)
    assert fast_figures == pytest.approx(plain_figures, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("case", ["noise", "layer normalisation"])
def test_the_bits_do_not_depend_on_the_threads(case):
    results = [learned(trained(FastOps(), False, n, method="rnd", **CASES[case])[0]) for n in (1, 2, 4, 1)]
    for other in results[1:]:
        assert all(torch.equal(tensor, other[name]) for name, tensor in results[0].items())


def test_a_gradient_that_is_not_finite_stops_the_update_before_it_spoils_anything():
    trainer, _ = trained(FastOps(), double=False, method="none", env={"noise": 0.1})
    before = copy.deepcopy(trainer.policy.state_dict())
    rollout, trace, *_ = collected(trainer)
    bad = torch.full(rollout.shape, float("nan"))
    with pytest.raises(TrainingDiverged, match="policy"):
        update_policy(
            trainer.policy, trainer.optimizer, rollout, trace, bad, bad, trainer.config.ppo, torch.Generator()
        )
    for name, tensor in trainer.policy.named_parameters():
        assert torch.equal(tensor, before[name]), name


def test_others_are_not_programs():
    trainer, _ = trained(FastOps(), double=False, method="none", env={"noise": 0.1})
    policy, optimizer = trainer.policy.train(), trainer.optimizer
    assert tail_update.trains_tail(policy, optimizer)
    assert not tail_update.trains_tail(policy.eval(), optimizer)
    policy.train().gru.weight_ih.requires_grad_(False)
    assert not tail_update.trains_tail(policy, optimizer)
    plain = PlainOps().optimizer(policy.requires_grad_(True), trainer.config.ppo, "policy")
    assert not tail_update.trains_tail(policy, plain)


def vanishes() -> bool:
    return float(torch.tensor(1e-30) * torch.tensor(1e-10)) == 0


def test_every_thread_takes_numbers_too_small_for_full_precision_for_0():
    """Gradients are as small before a task has paid. Who computes what must not tell."""
    if not torch.set_flush_denormal(False):
        pytest.skip("PyTorch cannot have this CPU take such numbers for 0")
    with flushing():
        assert vanishes()
        with flushing():
            assert vanishes()
        assert vanishes()
    assert not vanishes()
    found: list[bool] = []

    def note(_: int = 0) -> None:
        found.append(vanishes())

    for threads in (1, 3):
        use_threads(threads, large=False)
        assert all(in_parallel(lambda _: vanishes(), range(8)))
        share_out(note, 8)
        join_in(note)
        assert not vanishes()
    assert len(found) >= 18 and all(found)


def test_an_iteration_does_so_too(monkeypatch):
    found, train = [], updates.train_policy
    monkeypatch.setattr(updates, "train_policy", lambda *given: found.append(vanishes()) or train(*given))
    trained(FastOps(), double=False, method="none")
    with flushing():
        expected = vanishes()
    assert found[0] == expected and not vanishes()
