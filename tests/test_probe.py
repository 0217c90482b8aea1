"""Labels against Farama's own objects, probes against closed forms, and the data that the models share."""

import csv
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from minigrid.core.world_object import Door, Goal, Key
from torch.nn import functional as F

from deir.algorithm.rewards.base import RewardState
from deir.algorithm.rewards.shared import TrajectoryModel
from deir.config import Config, EnvConfig, merge
from deir.envs import make_envs
from deir.envs.minigrid.catalogue import resolve
from deir.envs.minigrid.layouts import layout_seed
from deir.errors import UserError
from deir.experiments.paper import probe
from deir.experiments.paper.probe import MODELS, Probe, Probes, Student, constant_losses, losses, summary, teach
from deir.experiments.paper.state_labels import LABELS, labelled, labels_of
from deir.experiments.paper.trajectories import Labelled, of_run, while_training
from deir.runs.options import parse
from small import WORDS, small

TINY = small(method="none", steps=384, reward={"overlap": False})


def farama_labels(env) -> list[float]:
    """The same five figures from MiniGrid's objects."""
    places = {type(env.grid.get(x, y)): (x, y) for x in range(env.width) for y in range(env.height)}
    held = isinstance(env.carrying, Key)
    places[Key] = tuple(env.agent_pos) if held else places[Key]

    def distance(kind) -> float:
        return sum(abs(int(a) - int(b)) for a, b in zip(env.agent_pos, places[kind], strict=True)) / (
            env.width + env.height
        )

    is_open = env.grid.get(*places[Door]).is_open
    return [float(held), float(is_open), distance(Key), distance(Door), distance(Goal)]


@pytest.mark.parametrize("name", ["DoorKey-5x5", "DoorKey-8x8"])
def test_labels_equal_those_read_from_faramas_objects(name):
    seed, n_envs = 11, 3
    rng = np.random.default_rng(0)
    envs = make_envs(EnvConfig(name, n_envs=n_envs, layout_worker=False), seed)
    envs.reset()
    tasks = [resolve(name).build() for _ in range(n_envs)]
    episodes = [0] * n_envs
    for n, task in enumerate(tasks):
        task.reset(seed=layout_seed(seed, n, 0))
    seen = []
    for _ in range(400):
        seen.append(labels_of(envs.states()))
        np.testing.assert_allclose(seen[-1], [farama_labels(task) for task in tasks], atol=1e-6)
        # mostly forward, pick up whatever lies ahead, toggle: keys are found, doors opened and shut, keys dropped
        actions = rng.choice(7, n_envs, p=[0.18, 0.18, 0.3, 0.14, 0.02, 0.17, 0.01])
        envs.step(actions)
        for n, task in enumerate(tasks):
            _, _, terminated, truncated, _ = task.step(actions[n])
            if terminated or truncated:
                episodes[n] += 1
                task.reset(seed=layout_seed(seed, n, episodes[n]))
    kinds = np.concatenate(seen)
    if name == "DoorKey-5x5":
        assert 0 < kinds[:, 0].mean() < 1 and 0 < kinds[:, 1].mean() < 1  # both answers occurred
    envs.close()


def test_states_are_a_copy():
    envs = make_envs(EnvConfig("DoorKey-5x5", n_envs=2, layout_worker=False), 0)
    envs.reset()
    states = envs.states()
    states.cells[:] = 0
    assert (envs.states().cells != 0).any()
    envs.close()


@pytest.mark.parametrize("task", ["FourRooms", "KeyCorridorS4R3", "CartPole-v1"])
def test_tasks_without_key_door_and_goal_are_refused(task):
    envs = make_envs(EnvConfig(task, n_envs=2, layout_worker=False), 0)
    with pytest.raises(UserError, match="one key, one door and one goal"):
        labelled(envs, task).reset()
    envs.close()


def test_a_linear_probe_recovers_linear_labels():
    """Distances are linear in the embedding, so least squares has error 0; the signs are separable."""
    torch.manual_seed(0)
    embeddings = 100 * torch.randn(2048, 16) + 7  # neither scale nor place of an embedding may matter
    weights = torch.randn(16, 5) / 400
    values = (embeddings - 7) @ weights
    labels = torch.cat([(values[:, :2] > 0).float(), values[:, 2:]], 1)
    probes, order = Probes(16, 0), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(probes.parameters(), 3e-2)
    for _ in range(60):
        teach(probes, optimizer, embeddings[:1536], labels[:1536], 512, order)
    with torch.no_grad():
        found = losses(probes.eval()(embeddings[1536:]), labels[1536:])
    blind = constant_losses(labels[:1536], labels[1536:])
    assert (found[:2] < 0.25 * blind[:2]).all()
    assert (found[2:] < 0.002 * blind[2:]).all()


def test_losses_are_cross_entropy_and_squared_error():
    torch.manual_seed(1)
    predicted, labels = torch.randn(50, 5), torch.rand(50, 5).round()
    found = losses(predicted, labels)
    for k in range(5):
        naive = F.binary_cross_entropy_with_logits if k < 2 else F.mse_loss
        assert found[k] == pytest.approx(float(naive(predicted[:, k], labels[:, k])))


def test_the_constant_answers_with_entropy_and_variance_on_its_own_data():
    labels = torch.tensor(
        [[1.0, 0, 0.1, 0.2, 0.3], [0, 0, 0.3, 0.2, 0.5], [1, 1, 0.2, 0.2, 0.1], [0, 0, 0.2, 0.6, 0.1]]
    )
    found = constant_losses(labels, labels)
    assert found[0] == pytest.approx(np.log(2))
    assert found[1] == pytest.approx(-(0.25 * np.log(0.25) + 0.75 * np.log(0.75)))
    np.testing.assert_allclose(found[2:], labels[:, 2:].var(0, unbiased=False), rtol=1e-5)


@pytest.fixture(scope="module")
def samples():
    return list(while_training(merge(Config(), TINY)))


def test_labels_belong_to_the_observations(samples):
    """With the key in hand MiniGrid shows it at the agent's own place in the view."""
    for sample, data in itertools.product(samples, ("training", "validation")):
        rollout, labels = getattr(sample, data)
        views = rollout.table.distinct[rollout.ids[:-1]]  # [T, N, 7, 7, 3]
        assert labels.shape == (*rollout.shape, len(LABELS))
        assert ((views[..., 3, 6, 0] == 5).float() == labels[..., 0]).all()
    assert [sample.frames for sample in samples] == [128, 256, 384]


def test_validation_is_on_other_episodes(samples):
    for sample in samples:
        states = [getattr(sample, data).rollout.states for data in ("training", "validation")]
        assert not torch.equal(*states)
    layouts = [
        {layout_seed(seed, n, k) for n in range(4) for k in range(50)}
        for seed in (0, probe.derive(0, "probe", "validation") % 2**31)
    ]
    assert not layouts[0] & layouts[1]


def test_models_begin_alike_and_learn_from_the_same_minibatches(samples, monkeypatch):
    config, drawn = merge(Config(), TINY), {}
    plain = TrajectoryModel.batches

    def overheard(self, *arguments):
        for batch in plain(self, *arguments):
            drawn.setdefault(type(self).__name__, []).append(batch.next_ids)
            yield batch

    monkeypatch.setattr(TrajectoryModel, "batches", overheard)
    students = [Student(model, config, samples[0].spaces, Probe()) for model in MODELS]
    for part in ("encoder", "gru"):
        states = [getattr(student.model, part).state_dict() for student in students]
        for name, tensor in states[0].items():
            assert all(torch.equal(tensor, state[name]) for state in states)
    for lesson, sample in enumerate(samples):
        for student in students:
            student.study(sample.training, sample.validation, lesson)
    first, second, third = drawn.values()
    assert len(first) == len(second) == len(third) == 3 * 2 * config.reward.epochs
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(first, second, third, strict=True))


def test_embeddings_are_read_from_the_beginning_of_the_episode(samples):
    """What a probe reads equals one GRU step after another, memories carried from rollout to rollout."""
    config = merge(Config(), TINY)
    student = Student("untrained", config, samples[0].spaces, Probe())
    hidden = torch.zeros(4, config.network.hidden)
    carry = student.model.initial_state(4)
    for sample in samples:
        rollout = sample.training.rollout
        found = student.embeddings(sample.training, carry)
        for t in range(rollout.shape[0]):
            hidden = hidden * ~rollout.starts[t][:, None]
            with torch.no_grad():
                hidden = student.model.gru(student.model.encoder(rollout.table.distinct[rollout.ids[t]]), hidden)
            torch.testing.assert_close(found[t], hidden, atol=1e-4, rtol=1e-4)
        carry = RewardState(found[-1])


def test_the_untrained_control_does_not_learn(samples):
    student = Student("untrained", merge(Config(), TINY), samples[0].spaces, Probe())
    before = [p.clone() for p in student.model.parameters()]
    student.study(samples[0].training, samples[0].validation, 0)
    assert all(torch.equal(a, b) for a, b in zip(before, student.model.parameters(), strict=True))


def test_summary_is_the_mean_of_the_last_rows_over_seeds():
    rows = [
        {"seed": seed, "model": "inverse", "frames": k, **{name: float(k + seed) for name in LABELS}}
        for seed in (0, 2)
        for k in range(10)
    ]
    assert summary(rows, last=2).splitlines()[-1] == "| inverse |" + " 9.5000 ± 1.0000 |" * 5


def test_command_writes_a_table_and_a_picture_and_overwrites_nothing(tmp_path, capsys):
    (tmp_path / "options.yaml").write_text(f"hidden: 8\nseeds: 0,3\nout: {tmp_path / 'out'}\n")
    probe.main([*WORDS, "--config", str(tmp_path / "options.yaml")])
    printed = capsys.readouterr().out
    assert "| discriminator |" in printed and "2 seeds" in printed
    with (tmp_path / "out" / "probe.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 5  # seeds, iterations, models with the two controls
    assert {row["seed"] for row in rows} == {"0", "3"}
    assert all(float(row[name]) >= 0 for row in rows for name in LABELS)
    assert (tmp_path / "out" / "probe.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(UserError, match="new or empty"):
        probe.main([*WORDS, "--config", str(tmp_path / "options.yaml")])


def test_options_that_a_run_decides_itself_are_refused(tmp_path):
    from deir.runs.run import configure, start

    start(configure({**TINY, "steps": 128}), tmp_path / "run")
    for words, name in ((["--env", "DoorKey-6x6"], "env.id"), (["--ppo.gamma", "0.5"], "ppo.gamma")):
        with pytest.raises(UserError, match=rf"{name}: got .*, expected nothing beside --run"):
            probe.main(["--run", str(tmp_path / "run"), "--out", str(tmp_path / "out"), *words])
    assert not (tmp_path / "out").exists()


def test_a_trained_run_can_collect(tmp_path):
    from deir.runs.run import start

    config = merge(Config(), {**TINY, "steps": 128})
    start(config, tmp_path / "run")
    again = replace(config, seed=5, steps=256)
    rollouts = [sample.training for sample in of_run(tmp_path / "run", again, trust=False)]
    assert len(rollouts) == 2 and isinstance(rollouts[0], Labelled)
    options = parse(Probe, ["--run", str(tmp_path / "run"), "--steps", "256"], "deir probe", {"method": "none"})
    assert probe.agent_config(options, 5).env.id == "DoorKey-5x5"
    assert len(probe.probe_seed(options, 5)) == 2 * 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--run", "nowhere"], "run directory"),
        (["--seeds", "2-1"], "seeds"),
        (["--hidden", "-1"], "hidden"),
        (["--probe-rate", "0"], "probe_rate"),
        (["--jobs", "0"], "jobs"),
        (["--env", "FourRooms"], "one key, one door and one goal"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(words, message, tmp_path):
    with pytest.raises(UserError, match=message):
        probe.check(parse(Probe, [*words, "--out", str(tmp_path / "x")], "deir probe", {"method": "none"}))
    assert not Path(tmp_path / "x").exists()
