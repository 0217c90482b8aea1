"""Stable-Baselines3 with our reward."""

import io

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecNormalize

from deir.errors import UserError
from deir.experiments.bench import sb3_comparison
from deir.plugin.stable_baselines3 import ENTRY, add_reward, load
from small import MODEL

N, STEPS = 3, 20


class Line(gymnasium.Env):
    """Walk along a line; the end of it ends the episode, and so does a limit. Each observation tells step and place."""

    LENGTH = 5

    def __init__(self, limit=8):
        self.observation_space = spaces.Box(0, 100, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.limit = limit

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = 0, 0
        return self.seen(), {}

    def step(self, action):
        self.steps += 1
        self.place = max(0, self.place + (1 if action else -1))
        arrived = self.place == self.LENGTH
        return self.seen(), float(arrived), arrived, self.steps >= self.limit and not arrived, {}

    def seen(self):
        return np.array([self.place, self.steps], np.float32)


class Picture(Line):
    """The same as an image in height-width-channel order."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (6, 6, 3), np.uint8)

    def seen(self):
        image = np.zeros((6, 6, 3), np.uint8)
        image[self.place % 6, self.steps % 6] = (3, 1, self.steps % 4)
        return image


def small(cls=PPO, env=Line, wrap=lambda envs: envs, seed=0, **options):
    envs = wrap(DummyVecEnv([env] * N))
    policy = "MlpLstmPolicy" if cls is RecurrentPPO else "MlpPolicy"
    sizes = {} if cls is A2C else {"batch_size": 30, "n_epochs": 1}
    return cls(policy, envs, n_steps=STEPS, seed=seed, device="cpu", **sizes, **options)


class Snapshots(BaseCallback):
    """Copies of the buffer at the end of each rollout, when returns and advantages stand."""

    def __init__(self):
        super().__init__()
        self.taken = []

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        buffer = self.model.rollout_buffer
        names = ("observations", "actions", "rewards", "returns", "advantages", "values", "episode_starts")
        self.taken.append({name: getattr(buffer, name).copy() for name in names})


def spied(reward):
    """The rewards that `compute` gave and what it was given, call by call."""
    compute, calls = reward.compute, []

    def spy(*args, **named):
        result = compute(*args, **named)
        calls.append((args, named, result))
        return result

    reward.compute = spy
    return calls


@pytest.mark.parametrize("cls", [PPO, A2C, RecurrentPPO])
def test_the_reward_enters_before_returns_and_advantages(cls):
    """Against the same rollout without it, advantages differ by Σ (γλ)^k r_{t+k} up to the episode's end."""
    before, after = Snapshots(), Snapshots()
    small(cls).learn(N * STEPS, callback=before)
    rewarded = small(cls)
    calls = spied(add_reward(rewarded, "deir", beta=0.5, **MODEL))
    rewarded.learn(N * STEPS, callback=after)
    without, with_ = before.taken[0], after.taken[0]
    assert np.array_equal(without["observations"], with_["observations"])
    (_, _, intrinsic), *_ = calls
    assert np.abs(intrinsic).max() > 0.01
    np.testing.assert_allclose(with_["rewards"], without["rewards"] + intrinsic, rtol=1e-6)
    dones = np.concatenate([with_["episode_starts"][1:], calls[0][0][2][-1:] | calls[0][0][3][-1:]])
    decay = rewarded.gamma * rewarded.gae_lambda
    expected = np.zeros_like(intrinsic)
    for t in range(STEPS):
        for n in range(N):
            weight = 1.0
            for k in range(t, STEPS):
                expected[t, n] += weight * intrinsic[k, n]
                if dones[k, n]:
                    break
                weight *= decay
    np.testing.assert_allclose(with_["advantages"] - without["advantages"], expected, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(with_["returns"] - without["returns"], expected, rtol=1e-3, atol=1e-5)


def test_it_is_given_what_happened_with_the_true_last_observations():
    model = small()
    calls = spied(add_reward(model, "deir", **MODEL))
    model.learn(3 * N * STEPS)
    assert len(calls) == 3
    last = None
    for (observations, actions, terminated, truncated), named, _ in calls:
        finals, dones = named["final_observations"], terminated | truncated
        assert observations.shape == (STEPS + 1, N, 2) and actions.shape == (STEPS, N)
        assert set(finals) == {(int(t), int(n)) for t, n in np.argwhere(dones)}
        for t, n in np.argwhere(dones):
            place, steps = finals[t, n]
            assert steps == observations[t, n, 1] + 1  # not the first observation of the next episode
            assert (place == Line.LENGTH) == terminated[t, n]
            assert (observations[t + 1, n] == 0).all()
        if last is not None:
            assert np.array_equal(observations[0], last)
        last = observations[-1]
    assert dones.any()


def test_a_second_call_of_learn_begins_new_episodes():
    model = small()
    reward = add_reward(model, "deir", **MODEL)
    model.learn(N * STEPS)
    calls = spied(reward)
    begun = []
    reset = reward.reset
    reward.reset = lambda envs=None: (begun.append(np.array(envs)), reset(envs))
    model.learn(N * STEPS)  # resets the environments
    model.learn(N * STEPS, reset_num_timesteps=False)  # goes on
    assert begun[0].all()
    assert (calls[0][0][0][0] == 0).all()
    assert np.array_equal(begun[1], (calls[1][0][0][0] == 0).all(-1))


@pytest.mark.parametrize("method", ["rnd", "noveld", "icm", "ngu", "none"])
def test_other_methods_and_the_logger(method):
    class Sink(KVWriter):
        def write(self, values, excluded, step=0):
            logged.update(values)

    logged, model = {}, small()
    model.set_logger(Logger(None, [Sink()]))
    add_reward(model, method, **MODEL)
    model.learn(2 * N * STEPS)
    assert "deir/intrinsic_reward_mean" in logged
    assert ("deir/model_loss" in logged) == (method != "none")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda envs: VecNormalize(envs),
        lambda envs: VecNormalize(envs, norm_obs=False),
        lambda envs: VecFrameStack(envs, 3),
        lambda envs: VecFrameStack(VecNormalize(envs), 2),
    ],
)
@pytest.mark.parametrize("env", [Line, Picture])
def test_wrapped_environments(wrap, env):
    if env is Picture:
        model = small(env=env, wrap=wrap, policy_kwargs={"normalize_images": False})
    else:
        model = small(env=env, wrap=wrap)
    calls = spied(add_reward(model, "deir", **MODEL))
    model.learn(2 * N * STEPS)
    assert np.isfinite(calls[1][2]).all() and calls[1][2].any()
    for observation in calls[1][1]["final_observations"].values():
        assert observation.shape == model.observation_space.shape


def test_environments_in_processes_earn_the_same():
    found = []
    for kind in (DummyVecEnv, SubprocVecEnv):
        envs = kind([Line] * N)
        model = PPO("MlpPolicy", envs, n_steps=STEPS, batch_size=30, n_epochs=1, seed=0, device="cpu")
        calls = spied(add_reward(model, "deir", **MODEL))
        model.learn(2 * N * STEPS)
        envs.close()
        found.append(np.stack([rewards for _, _, rewards in calls]))
    assert np.array_equal(*found)


def assert_same(a, b):
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    else:
        assert np.array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("cls", [PPO, RecurrentPPO])
def test_it_is_saved_and_loaded_with_the_model(cls, tmp_path):
    model = small(cls)
    reward = add_reward(model, "deir", beta=0.125, **MODEL)
    model.learn(2 * N * STEPS)
    model.save(tmp_path / "agent")
    assert {p.name for p in tmp_path.iterdir()} == {"agent.zip"}
    loaded = load(cls, tmp_path / "agent", env=model.env)
    saved, again = reward.state_dict(), loaded.intrinsic.state_dict()
    assert again.pop("starts").all()
    saved.pop("starts")
    assert_same(saved, again)
    loaded.learn(N * STEPS)
    buffer = io.BytesIO()
    loaded.save(buffer)
    from_file = load(cls, buffer, env=model.env)
    assert_same(from_file.intrinsic.state_dict()["stage"], loaded.intrinsic.state_dict()["stage"])
    plain = cls.load(tmp_path / "agent.zip", env=model.env)  # without us
    assert not hasattr(plain, "intrinsic")
    plain.learn(N * STEPS)


def test_mistakes_are_told(tmp_path):
    with pytest.raises(UserError, match="model: got 'DQN', expected an on-policy algorithm"):
        add_reward(DQN("MlpPolicy", Line(), buffer_size=100))
    model = small()
    with pytest.raises(UserError, match="Did you mean 'deir'"):
        add_reward(model, "dier")
    model.save(tmp_path / "plain")
    with pytest.raises(UserError, match="a model saved after add_reward"):
        load(PPO, tmp_path / "plain", env=model.env)
    with pytest.raises(UserError, match="'autoreset_mode' is not for Stable-Baselines3"):
        add_reward(model, "deir", autoreset_mode="next-step")
    add_reward(model, "deir", **MODEL)
    with pytest.raises(UserError, match="already"):
        add_reward(model, "rnd")
    model.save(tmp_path / "rewarded")
    with pytest.raises(UserError, match=f"env: got '1 environments', expected {N}, which the reward was saved with"):
        load(PPO, tmp_path / "rewarded", env=Line())
    assert ENTRY.endswith(".safetensors")


def test_the_comparison_skips_what_is_done_and_tells_when_it_was_solved(tmp_path, capsys, monkeypatch):
    trained = []
    monkeypatch.setattr(sb3_comparison, "train", lambda env, variant, seed, frames, beta: trained.append(variant) or [])
    for variant, returns in {"PPO": (0.0, 0.1), "PPO + DEIR": (0.5, 0.95)}.items():
        points = [sb3_comparison.Point(variant, 0, 100 * (k + 1), value) for k, value in enumerate(returns)]
        sb3_comparison.append(tmp_path / "sb3.csv", points)
        assert sb3_comparison.read(tmp_path / "sb3.csv")[-2:] == points
    sb3_comparison.main(frames=200, seeds=1, out=tmp_path)
    assert trained == []
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| PPO | 0 | 0.10 | not reached |",
        "| PPO + DEIR | 0 | 0.95 | 200 |",
    ]
    sb3_comparison.main(frames=200, seeds=2, out=tmp_path)
    assert trained == ["PPO", "PPO + DEIR"]
    assert (tmp_path / "sb3.png").is_file()
    assert "not reached" in (tmp_path / "sb3.md").read_text()


class Parts(Line):
    """The same as a dictionary of two vectors."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Dict(
            {"place": self.observation_space, "left": spaces.Box(0, 9, (1,), np.int64)}
        )

    def seen(self):
        return {"place": Line.seen(self), "left": np.array([self.limit - self.steps])}


@pytest.mark.parametrize("normalized", [False, True])
def test_dictionaries_of_observations(normalized, tmp_path):
    envs = DummyVecEnv([Parts] * N)
    envs = VecNormalize(envs, norm_obs_keys=["place"]) if normalized else envs
    model = PPO("MultiInputPolicy", envs, n_steps=STEPS, batch_size=20, n_epochs=1, seed=0)
    reward = add_reward(model, "deir", **MODEL)
    model.learn(2 * STEPS * N)
    assert reward.figures["intrinsic_reward_std"] > 0
    model.save(tmp_path / "agent")
    load(PPO, tmp_path / "agent", env=envs).learn(STEPS * N)
