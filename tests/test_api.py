"""The package from Python."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

import deir
from deir.algorithm.policy import Policy
from deir.config import Config, EnvConfig, NetworkConfig
from deir.fast import acting, whole_images
from deir.fast.ops import FastOps
from deir.runs import checkpoint
from deir.runs.evaluate import evaluate
from small import small


def test_the_package_tells_its_version_and_its_names():
    from importlib.metadata import version

    assert deir.__version__ == version("deir")
    assert {"train", "load", "make_reward", "register_reward", "__version__", "__doc__"} <= set(dir(deir))
    assert all(hasattr(deir, name) for name in dir(deir))
    assert "importlib" not in dir(deir)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return deir.train(steps=256, out=tmp_path_factory.mktemp("api") / "run", **small())


def test_train_load_act(trained):
    assert trained.final["frames"] == 256
    agent = deir.load(trained.path)
    envs = deir.make_envs(EnvConfig("DoorKey-5x5", n_envs=3, layout_worker=False), seed=7)
    observations = envs.reset()
    actions, state = agent.act(observations)
    assert actions.shape == (3,)
    one, one_state = agent.act(observations[0], greedy=True)
    assert one.shape == ()
    greedy, _ = agent.act(observations, greedy=True)
    assert greedy[0] == one
    again, _ = agent.act(observations[0], one_state, greedy=True)
    assert again in range(7)
    assert not torch.equal(state, torch.zeros_like(state))
    envs.close()


def test_acting_step_by_step_is_the_policy_of_training(trained):
    """The memory carried by the caller gives the logits a scan over the whole episode gives."""
    agent = deir.load(trained.path)
    rng = np.random.default_rng(0)
    views = rng.integers(0, 3, (6, 7, 7, 3)).astype(np.uint8)
    state = None
    hidden = agent.policy.initial_hidden(1)
    for view in views:
        action, state = agent.act(view, state, greedy=True)
        with torch.no_grad():
            logits, _, hidden = agent.policy(torch.from_numpy(view)[None], hidden)
        assert action == logits.argmax()
        torch.testing.assert_close(state, hidden)


def test_embeddings_are_those_of_the_reward_model_step_by_step(trained):
    agent = deir.load(trained.path)
    rng = np.random.default_rng(0)
    views = rng.integers(0, 3, (6, 2, 7, 7, 3)).astype(np.uint8)
    starts = np.zeros((6, 2), bool)
    starts[3, 1] = True
    found = agent.embed(views, starts)
    model = agent.reward.model.reward.eval()
    for n in range(2):
        memory = torch.zeros(1, model.width)
        for t in range(6):
            with torch.no_grad():
                embedding = model.encoder(torch.from_numpy(views[t, n])[None])
                memory = model.gru(embedding, torch.zeros_like(memory) if starts[t, n] else memory)
            np.testing.assert_allclose(found.observations[t, n], embedding[0], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(found.trajectories[t, n], memory[0], rtol=1e-4, atol=1e-5)
    again = agent.embed(torch.from_numpy(views), torch.from_numpy(starts))
    assert np.array_equal(again.trajectories.numpy(), found.trajectories)


def test_the_reward_of_a_run_goes_on_in_another_loop(trained):
    reward = deir.load_reward(trained.path)
    state = checkpoint.load_latest(trained.path / "checkpoints")[0]
    assert reward.scale.moments.state_dict() == state["reward_moments"]
    assert torch.equal(reward.model.reward.gru.weight_ih, state["stage"]["reward"]["gru.weight_ih"])
    no = np.zeros((3, 4), bool)
    views = np.random.default_rng(0).integers(0, 3, (4, 4, 7, 7, 3)).astype(np.uint8)
    assert reward.compute(views, no.astype(int), no, no).shape == (3, 4)
    assert reward.update()["model_loss"] > 0
    fewer = deir.load_reward(trained.path, n_envs=2)
    assert fewer.compute(views[:, :2], no[:, :2].astype(int), no[:, :2], no[:, :2]).shape == (3, 2)


def test_an_agent_that_sees_images_lays_its_parameters_out_once_while_it_is_frozen(monkeypatch):
    laid, lay_out = [], whole_images.laid_out
    for module in (whole_images, acting):
        monkeypatch.setattr(module, "laid_out", lambda encoder: laid.append(encoder) or lay_out(encoder))
    torch.manual_seed(0)
    space = spaces.Box(0, 255, (16, 16, 3), np.uint8)
    agent = deir.Agent(
        Policy(space, spaces.Discrete(7), NetworkConfig(norm="layer", encoder="impala"), FastOps()), Config()
    )
    agent.policy.actor[-1].weight.data.normal_()  # a fresh policy prefers no action
    images, before = np.random.default_rng(0).integers(0, 256, (9, 5, 16, 16, 3)).astype(np.uint8), torch.ones(5, 64)
    expected = [agent.act(seen, before, greedy=True) for seen in images]
    laid.clear()
    with agent.frozen():
        found = [agent.act(seen, before, greedy=True) for seen in images]
        assert len(laid) == 1
    for (actions, memory), (expected_actions, expected_memory) in zip(found, expected, strict=True):
        assert np.array_equal(actions, expected_actions)
        torch.testing.assert_close(memory, expected_memory)
    agent.policy.gru.weight_ih.data.zero_()
    assert not torch.allclose(agent.act(images[0], before)[1], expected[0][1])


def test_evaluation_freezes_the_agent(trained, monkeypatch):
    agent, frozen = deir.load(trained.path), []
    act = agent.act
    monkeypatch.setattr(agent, "act", lambda *given: frozen.append(agent._frozen is not None) or act(*given))
    evaluate(agent, 1)
    assert frozen and all(frozen)
    assert agent._frozen is None


def test_evaluation_plays_the_asked_number_of_episodes_reproducibly(trained):
    agent = deir.load(trained.path)
    first, second = evaluate(agent, 9, seed=1), evaluate(agent, 9, seed=1)
    assert len(first.returns) == 9
    assert np.array_equal(first.returns, second.returns)
    assert np.array_equal(first.lengths, second.lengths)
    figures = first.figures()
    assert figures["return_stderr"] == pytest.approx(first.returns.std(ddof=1) / 3)
