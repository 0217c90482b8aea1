"""A reward for any loop: the numbers of `deir train`, whatever arrays it is fed."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import deir
from builders import ACTIONS, SPACE, random_episodes
from deir.algorithm.ops import PlainOps
from deir.algorithm.reward_model import RewardModel, RewardScale
from deir.algorithm.rewards import METHODS
from deir.errors import TrainingDiverged, UserError
from deir.fast.ops import FastOps
from deir.plugin.reward import Reward
from deir.runs.presets import BEYOND_THE_PAPER
from deir.runs.run import configure
from deir.runs.training import make_trainer
from small import MODEL, small

T, N = 12, 3
VECTOR = spaces.Box(-1, 1, (5,), np.float32)


def made(method="deir", space=SPACE, n_envs=N, **options):
    return deir.make_reward(method, space, ACTIONS, n_envs, **{**MODEL, **options})


def arrays(rollout, finals="dense"):
    """The rollout as a user's loop has it."""
    distinct = rollout.table.distinct.numpy()
    arguments = {
        "observations": distinct[rollout.ids],
        "actions": rollout.actions.numpy(),
        "terminated": rollout.terminated.numpy(),
        "truncated": rollout.truncated.numpy(),
    }
    if finals == "dense":
        arguments["final_observations"] = distinct[rollout.next_ids]
    elif finals == "mapping":
        at = [divmod(int(i), rollout.shape[1]) for i in rollout.final_indices]
        arguments["final_observations"] = dict(zip(at, distinct[rollout.final_ids], strict=True))
    return arguments


def vectors(seed=0, steps=T, envs=N):
    rng = np.random.default_rng(seed)
    done = rng.random((2, steps, envs)) < 0.1
    observations = rng.uniform(-1, 1, (steps + 1, envs, 5)).astype(np.float32)
    return observations, rng.integers(0, 7, (steps, envs)), done[0], done[1] & ~done[0]


class Recording(RewardScale):
    """Keeps what a trainer's policy was paid."""

    def __init__(self, config):
        super().__init__(config)
        self.paid = []

    def __call__(self, raw, valid):
        self.paid.append(super().__call__(raw, valid))
        return self.paid[-1]


def recorded_run(config, iterations):
    """Of each iteration: the rollout, the policy encoder's parameters before it, what was paid; and the spaces."""
    trainer = make_trainer(config)
    trainer.scale = Recording(config.reward)
    compute, seen = trainer.model.compute, []

    def recording(rollout, average, encoder):
        seen.append((rollout, copy.deepcopy(encoder)))
        return compute(rollout, average, encoder)

    trainer.model.compute = recording
    try:
        for _ in range(iterations):
            trainer.iterate()
        spaces = trainer.envs.observation_space, trainer.envs.action_space
    finally:
        trainer.close()
    return seen, trainer.scale.paid, spaces


@pytest.mark.parametrize(
    ("method", "env"),
    [
        ("deir", "DoorKey-5x5"),
        ("deir", "CartPole-v1"),
        ("rnd", "DoorKey-5x5"),
        ("noveld", "DoorKey-5x5"),
        ("ngu", "CartPole-v1"),
        ("count", "Empty-5x5"),
        *((name, "DoorKey-5x5") for name in BEYOND_THE_PAPER),
        *((name, "CartPole-v1") for name in BEYOND_THE_PAPER),
    ],
)
def test_compute_on_the_rollouts_of_a_run_gives_its_rewards_to_the_last_bit(method, env):
    grid = {} if env == "CartPole-v1" else {"layout_worker": False, "max_steps": 30}
    config = configure(
        {
            "env": {"id": env, "n_envs": 4, **grid},
            "method": method,
            "threads": 1,
            "seed": 3,
            "ppo": {"rollout_steps": 24, "minibatch_size": 48, "epochs": 1},
            "reward": {"minibatch_size": 48, "epochs": 2},
        }
    )
    seen, paid, (observation_space, action_space) = recorded_run(config, 4)
    encoder = copy.deepcopy(seen[0][1]) if method in ("rnd", "noveld", "ngu") else None
    reward = Reward(config, observation_space, action_space, encoder=encoder)
    for (rollout, policy_encoder), expected in zip(seen, paid, strict=True):
        if encoder is not None:
            encoder.load_state_dict(policy_encoder.state_dict())
        states = rollout.states.numpy() if method == "count" else None
        found = reward.compute(**arrays(rollout), states=states)
        assert found.tobytes() == expected.numpy().tobytes()
        reward.update()
    assert sum(int(rollout.dones.sum()) for rollout, _ in seen) > 0
    assert np.abs(expected.numpy()).max() > 0


@pytest.mark.parametrize("method", METHODS)
def test_every_method_in_both_kinds_of_array(method):
    rollouts = random_episodes(T, N, 0.15, seed=1)
    one, other = made(method), made(method)
    for _ in range(3):
        rollout = next(rollouts)
        given = arrays(rollout)
        if method == "count":
            given["states"] = rollout.states.numpy()
        found = one.compute(**given)
        tensors = other.compute(**{name: torch.from_numpy(array) for name, array in given.items()})
        assert isinstance(found, np.ndarray) and found.shape == (T, N) and found.dtype == np.float32
        assert isinstance(tensors, torch.Tensor) and np.array_equal(tensors.numpy(), found)
        assert np.isfinite(found).all() and found.any() == (method != "none")
        metrics = one.update()
        assert other.update() == metrics
        assert ("model_loss" in metrics) == (method not in ("none", "count", "re3"))


def test_episodes_go_on_over_calls():
    """One call with 2T steps and two with T give the same; a reset in between does not."""
    rollout = next(random_episodes(2 * T, N, 0.05, seed=2))
    given = arrays(rollout, finals="mapping")
    whole = made(normalize=False).compute(**given)

    def part(begin):
        cut = {k: v[begin : begin + T] for k, v in given.items() if k not in ("observations", "final_observations")}
        finals = {(t - begin, n): o for (t, n), o in given["final_observations"].items() if begin <= t < begin + T}
        return {**cut, "observations": given["observations"][begin : begin + T + 1], "final_observations": finals}

    halves, interrupted = made(normalize=False), made(normalize=False)
    first = halves.compute(**part(0))
    np.testing.assert_allclose(first, whole[:T], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(halves.compute(**part(T)), whole[T:], rtol=1e-5, atol=1e-7)
    interrupted.compute(**part(0))
    interrupted.reset()
    assert not np.allclose(interrupted.compute(**part(T)), whole[T:])
    assert interrupted.compute(**part(T)).shape == (T, N)


@pytest.mark.parametrize("calls", [1, 3])
def test_both_ways_to_reset_earn_the_same(calls):
    """The same episodes as same-step and as next-step data: genuine steps earn alike, dummy steps nothing."""
    rng = np.random.default_rng(0)
    late = [
        rollout for rollout, _ in zip(random_episodes(T, 1, 0.2, seed=4, late_resets=True), range(calls), strict=False)
    ]
    given = [arrays(rollout, finals=None) for rollout in late]
    reward = made(n_envs=1, normalize=False, autoreset_mode=AutoresetMode.NEXT_STEP)
    found = np.concatenate([reward.compute(**rollout) for rollout in given])[:, 0]
    valid = torch.cat([rollout.valid for rollout in late])[:, 0].numpy()
    assert not found[~valid].any() and (~valid).any()

    steps, observations, finals = [], [], {}
    for rollout, arrayed in zip(late, given, strict=True):
        for t in range(T):
            if not rollout.valid[t, 0]:
                continue
            done = bool(rollout.dones[t, 0])
            if done:
                finals[len(steps), 0] = arrayed["observations"][t + 1, 0]
            observations.append(arrayed["observations"][t])
            steps.append((arrayed["actions"][t], done))
    observations.append(given[-1]["observations"][-1])
    same = made(n_envs=1, normalize=False, autoreset_mode="same-step")
    ended = np.array([[done] for _, done in steps])
    expected = same.compute(
        np.stack(observations), np.stack([a for a, _ in steps]), ended, ended & (rng.random(ended.shape) < 0), finals
    )
    np.testing.assert_allclose(found[valid], expected[:, 0], rtol=1e-4, atol=1e-6)


def test_without_its_last_observation_the_end_of_an_episode_earns_nothing():
    rollout = next(random_episodes(T, N, 0.2, seed=3))
    reward, ended = made(), rollout.dones.numpy()
    with pytest.warns(UserWarning, match="final_observations was not given"):
        found = reward.compute(**arrays(rollout, finals=None))
    assert ended.any() and not found[ended].any() and found[~ended].all()
    assert reward.model.rollout.valid.numpy().sum() == (~ended).sum()
    both = made().compute(**arrays(rollout, "dense")), made().compute(**arrays(rollout, "mapping"))
    assert np.array_equal(*both) and both[0][ended].any()


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_model_learns_from_two_genuine_steps_or_more(steps):
    """Batch normalisation needs two."""
    config = configure(small(env={"n_envs": N}))
    model = RewardModel(config, SPACE, ACTIONS)
    assert type(model.ops) is PlainOps
    rollout = next(random_episodes(1, N, 0.0, seed=5))
    assert model.update() == {}
    before = copy.deepcopy(model.reward.state_dict())
    model.compute(replace(rollout, valid=torch.arange(N)[None] < steps), 0.0)
    assert ("model_loss" in model.update()) == (steps > 1)
    changed = [name for name, tensor in model.reward.state_dict().items() if not torch.equal(tensor, before[name])]
    assert bool(changed) == (steps > 1)


def test_a_method_without_a_model_learns_nothing():
    ops = FastOps()
    model = RewardModel(configure(small(env={"n_envs": N}, method="none")), SPACE, ACTIONS, ops)
    assert model.ops is ops
    model.compute(next(random_episodes(T, N, 0.0, seed=5)), 0.0)
    assert model.update() == {}


def test_beta_and_normalisation_are_options():
    rollout = arrays(next(random_episodes(T, N, 0.1, seed=5)))
    raw = made(normalize=False, beta=1.0).compute(**rollout)
    np.testing.assert_allclose(made(normalize=False, beta=0.25).compute(**rollout), 0.25 * raw, rtol=1e-6)
    expected = 2 * (raw - raw.mean()) / (raw.std() + 1e-5)  # the first rollout counts alone: corrected moments
    np.testing.assert_allclose(made(beta=2.0).compute(**rollout), expected, rtol=1e-4, atol=1e-5)
    assert made("ngu").config.reward.beta == 1e-3  # the method's own preset
    assert made("deir", preset="procgen").config.reward.beta == 5e-2


@pytest.mark.parametrize("method", METHODS)
def test_a_saved_reward_goes_on_exactly(method, tmp_path):
    rollouts = random_episodes(T, N, 0.1, seed=6)
    one = made(method)

    def play(*rewards):
        rollout = next(rollouts)
        given = arrays(rollout) | ({"states": rollout.states.numpy()} if method == "count" else {})
        return [(reward.compute(**given).tobytes(), reward.update()) for reward in rewards]

    play(one), play(one)
    one.save(tmp_path / "reward.safetensors")
    state = one.state_dict()
    loaded, restored = made(method, seed=9), made(method, seed=8)
    loaded.load(tmp_path / "reward.safetensors")
    for _ in range(2):
        first, second = play(one, loaded)
        assert first == second
    restored.load_state_dict(state)  # the snapshot did not follow the one it was taken of
    assert restored.scale.moments.state_dict() == state["moments"] != one.scale.moments.state_dict()


def test_what_cannot_be_loaded_is_said(tmp_path):
    made().save(tmp_path / "a.safetensors")
    with pytest.raises(UserError, match="method: got 'rnd', expected 'deir'"):
        made("rnd").load(tmp_path / "a.safetensors")
    with pytest.raises(UserError, match="n_envs: got 4, expected 3"):
        made(n_envs=4).load(tmp_path / "a.safetensors")
    with pytest.raises(UserError, match=r"other options than this one: network\.features \d+ \(here 8\)"):
        made(network={"features": 8}).load(tmp_path / "a.safetensors")
    with pytest.raises(UserError, match=r"state: got \[\], expected what Reward.state_dict\(\) gave"):
        made().load_state_dict({})
    with pytest.raises(UserError, match=r"missing\.safetensors"):
        made().load(tmp_path / "missing.safetensors")
    (tmp_path / "b.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"b\.safetensors"):
        made().load(tmp_path / "b.safetensors")


def test_images_in_either_order_are_the_same():
    rollout = arrays(next(random_episodes(T, N, 0.1, seed=7)))
    first = spaces.Box(0, 255, (3, 7, 7), np.uint8)
    moved = rollout | {k: np.moveaxis(rollout[k], -1, -3) for k in ("observations", "final_observations")}
    assert np.array_equal(made().compute(**rollout), made(space=first).compute(**moved))


def test_float_buffers_of_whole_numbers_are_welcome():
    rollout = arrays(next(random_episodes(T, N, 0.1, seed=7)))
    floats = {name: array.astype(np.float32) for name, array in rollout.items()}
    assert np.array_equal(made().compute(**rollout), made().compute(**floats))


def test_a_callers_encoder_stands_in_for_the_policys():
    layers = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Dropout(0.5))
    reward, again = made("rnd", VECTOR, encoder=layers), made("rnd", VECTOR, encoder=layers)
    found = reward.compute(*vectors())
    assert layers.training and np.array_equal(found, again.compute(*vectors()))  # evaluated without its dropout
    assert "model_loss" in reward.update()
    with torch.no_grad():
        layers[0].weight.mul_(-2)
    assert not np.array_equal(reward.compute(*vectors(1)), made("rnd", VECTOR, encoder=layers).compute(*vectors(1)))


def test_the_callers_random_numbers_are_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    reward = made("deir", VECTOR)
    reward.compute(*vectors())
    reward.update()
    assert torch.equal(torch.rand(3), expected)


def test_a_long_loop_learns_to_tell_true_from_fake():
    """Vectors in a ring: the discriminator learns what follows what."""
    rng, ring = np.random.default_rng(0), np.random.default_rng(1).normal(size=(8, 5)).astype(np.float32)
    reward = made("deir", VECTOR, n_envs=4, epochs=4, learning_rate=3e-3)
    begin, accuracy = np.zeros((1, 4), int), []
    for _ in range(30):
        actions = rng.integers(0, 7, (32, 4))
        places = (np.concatenate([begin, begin + actions.cumsum(0)])) % 8
        no = np.zeros((32, 4), bool)
        reward.compute(ring[places], actions, no, no)
        accuracy.append(reward.update()["discriminator_accuracy"])
        begin = places[-1:]
    assert np.mean(accuracy[-3:]) > 0.85 > np.mean(accuracy[:2])


def complaint(change, space=VECTOR, method="deir", **options):
    names = ("observations", "actions", "terminated", "truncated")
    given = dict(zip(names, vectors(), strict=True))
    reward = made(method, space, **options)
    with pytest.raises(UserError) as caught:
        reward.compute(**{**given, **change(given)})
    return str(caught.value)


def test_wrong_input_is_told_by_argument():
    assert "observations: got shape (13, 3, 4), expected (T+1, 3, 5)" in complaint(
        lambda g: {"observations": g["observations"][..., :4]}
    )
    assert "actions: got shape (13, 3), expected (12, 3)" in complaint(lambda g: {"actions": np.zeros((13, 3), int)})
    assert "terminated: got shape (12,), expected (12, 3)" in complaint(lambda g: {"terminated": np.zeros(12, bool)})
    assert "truncated: got torch.int64 with values other than 0 and 1" in complaint(
        lambda g: {"truncated": g["actions"]}
    )
    assert (
        "observations: got 2 values that are not finite (NaN or infinite), the first at index (0, 0, 0)"
        in complaint(
            lambda g: {"observations": np.where(np.arange(195).reshape(13, 3, 5) < 2, np.nan, g["observations"])}
        )
    )
    assert "actions: got values from 0 to 7, expected those of Discrete(7)" in complaint(
        lambda g: {"actions": np.arange(36).reshape(12, 3) % 8}
    )
    assert "actions: got torch.float32 with values that torch.int64 cannot hold" in complaint(
        lambda g: {"actions": g["actions"].astype(np.float32) + 0.5}
    )
    assert "observations: got str of <U1" in complaint(lambda g: {"observations": "x"})
    assert "final_observations: got shape (12, 3, 4)" in complaint(
        lambda g: {"final_observations": np.zeros((12, 3, 4))}
    )
    assert "final_observations: key: got (12, 0), expected (t, n) with t below 12 and n below 3" in complaint(
        lambda g: {"final_observations": {(12, 0): np.zeros(5)}}
    )
    assert "final_observations: with next-step resets" in complaint(
        lambda g: {"final_observations": {}}, autoreset_mode="next-step"
    )
    assert "states: method 'deir' reads none" in complaint(lambda g: {"states": np.zeros((13, 3), int)})
    assert "states: method 'count' is made from full states" in complaint(lambda g: {}, method="count")
    grid = spaces.Box(0, 255, (7, 7, 3), np.uint8)
    assert "observations: got torch.float32 with values that torch.uint8 cannot hold" in complaint(
        lambda g: {"observations": np.full((13, 3, 7, 7, 3), 0.5, np.float32)}, grid
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "dier"}, "method: unknown name 'dier'. Did you mean 'deir'?"),
        ({"bta": 0.1}, "option: unknown name 'bta'. Did you mean 'beta'?"),
        ({"extrinsic_coef": 2.0}, "option: 'extrinsic_coef' is an option of `deir train` only"),
        ({"device": "cuda:77"}, "device: got 'cuda:77', expected a device PyTorch can use here"),
        ({"deir": {"queue": 3}}, "configuration key 'reward.deir.queue'"),
        ({"beta": "large"}, "reward.beta: got 'large', expected a number"),
        ({"epochs": 0}, "reward.epochs: got 0, expected a number above 0"),
        ({"n_envs": 0}, "env.n_envs: got 0"),
        ({"autoreset_mode": "disabled"}, "autoreset_mode: got 'disabled', expected 'same-step'"),
        ({"method": "rnd", "embeddings": "policy"}, "encoder: method 'rnd' with embeddings='policy'"),
        ({"encoder": lambda x: x}, "encoder: method 'deir' with these options reads no embeddings but its own"),
        ({"method": "rnd", "encoder": lambda x: x[0]}, "encoder: got torch.Size([5])"),
        ({"space": spaces.Discrete(4)}, "observation_space: got Discrete(4)"),
    ],
)
def test_wrong_options_are_told(change, message):
    with pytest.raises(UserError) as caught:
        made(**{"space": VECTOR, **change})
    assert message in str(caught.value)


def test_update_needs_a_rollout_and_takes_it_once():
    reward = made("deir", VECTOR)
    with pytest.raises(UserError, match="update: nothing to learn from"):
        reward.update()
    reward.compute(*vectors())
    reward.update()
    with pytest.raises(UserError, match="update: nothing to learn from"):
        reward.update()


PARTS = spaces.Dict({"place": VECTOR, "picture": spaces.Box(0, 255, (3, 40, 40), np.uint8)})


def parts(seed=0):
    observations, *rest = vectors(seed)
    pictures = np.random.default_rng(seed).integers(0, 255, (T + 1, N, 3, 40, 40)).astype(np.uint8)
    return {"place": observations, "picture": pictures}, *rest


@pytest.mark.parametrize("method", ["deir", "icm", "rnd"])
def test_dictionaries_are_rewarded_part_by_part(method):
    reward = made(method, PARTS, normalize=False, beta=1)
    observations, *rest = parts()
    paid = reward.compute(observations, *rest)
    assert paid.shape == (T, N) and np.isfinite(paid).all() and paid.std() > 0
    assert all(np.isfinite(figure) for figure in reward.update().values())
    tensors = {name: torch.from_numpy(part) for name, part in observations.items()}
    again = made(method, PARTS, normalize=False, beta=1).compute(tensors, *map(torch.from_numpy, rest))
    assert torch.equal(again, torch.from_numpy(paid))


def test_last_observations_of_dictionaries_by_step_and_by_part():
    observations, actions, terminated, truncated = parts()
    finals = {name: part[1:] for name, part in parts(1)[0].items()}
    ended = [tuple(map(int, place)) for place in np.argwhere(terminated | truncated)]
    listed = {(t, n): {name: part[t, n] for name, part in finals.items()} for t, n in ended}
    given = [finals, listed]
    paid = [made("deir", PARTS).compute(observations, actions, terminated, truncated, final) for final in given]
    assert ended
    np.testing.assert_array_equal(*paid)


def test_wrong_dictionaries_are_told_by_part():
    observations, *rest = parts()
    with pytest.raises(UserError, match=r"observations: got \['place'\].*picture, place"):
        made("deir", PARTS).compute({"place": observations["place"]}, *rest)
    with pytest.raises(UserError, match=r"observations\['picture'\]: got shape"):
        made("deir", PARTS).compute({**observations, "picture": observations["picture"][..., :20]}, *rest)
    with pytest.raises(UserError, match=r"observation_space\['word'\]: got Text"):
        made("deir", spaces.Dict({"word": spaces.Text(5)}))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda reward: pickle.loads(pickle.dumps(reward))])
def test_a_copy_goes_on_as_the_original_does(copied):
    """With parameters, optimiser and memories of its own."""
    reward = made(space=VECTOR)
    reward.compute(*vectors(0))
    reward.update()
    other = copied(reward)
    for seed in (1, 2):
        ours, theirs = reward.compute(*vectors(seed)), other.compute(*vectors(seed))
        np.testing.assert_array_equal(ours, theirs)
        assert reward.update() == other.update()
    reward.compute(*vectors(3))
    reward.update()
    before = other.state_dict()["stage"]["reward"]
    assert all(
        torch.equal(before[name], value) for name, value in copied(other).state_dict()["stage"]["reward"].items()
    )


def test_after_a_divergence_it_says_so_until_a_sound_state_is_loaded():
    reward = made(space=VECTOR)
    sound = reward.state_dict()
    next(iter(reward.model.reward.parameters())).data.fill_(float("nan"))
    reward.compute(*vectors())
    with pytest.raises(TrainingDiverged):
        reward.update()
    with pytest.raises(TrainingDiverged, match=r"has diverged \(the reward model loss is nan\).*load_state_dict"):
        reward.compute(*vectors(1))
    with pytest.raises(TrainingDiverged, match="has diverged"):
        copy.deepcopy(reward).compute(*vectors(1))
    reward.load_state_dict(sound)
    assert np.isfinite(reward.compute(*vectors(1))).all()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_learns_whatever_mode_the_loop_is_in(mode):
    usual = made(space=VECTOR)
    expected = usual.compute(*vectors()), usual.update()
    with mode():
        reward = made(space=VECTOR)
        observations, *rest = vectors()
        found = reward.compute(torch.from_numpy(observations).clone(), *rest), reward.update()
    np.testing.assert_array_equal(found[0].numpy(), expected[0])
    assert found[1] == expected[1]


def test_odd_numbers_are_told_or_understood():
    observations, actions, *ends = vectors()
    expected = made(space=VECTOR).compute(observations, actions, *ends)
    swapped = observations.astype(">f4"), actions.astype(">i8"), *ends
    np.testing.assert_array_equal(made(space=VECTOR).compute(*swapped), expected)
    huge = observations.astype(np.float64)
    huge[2, 1, 3] = 1e300
    with pytest.raises(UserError, match=r"observations: got 1e\+300 at index \(2, 1, 3\).*float32"):
        made(space=VECTOR).compute(huge, actions, *ends)
    with pytest.raises(UserError, match=r"observations: got float128|observations: got longdouble"):
        made(space=VECTOR).compute(observations.astype(np.longdouble), actions, *ends)
    with pytest.raises(UserError, match=r"observation_space: .*at least one part"):
        made(space=spaces.Dict({}))


@pytest.mark.parametrize(
    ("space", "good", "bad"),
    [
        (spaces.MultiDiscrete([3, 2]), (0, 1), (2, 2)),
        (spaces.MultiDiscrete([3, 2], start=[1, 5]), (1, 5), (0, 5)),
        (spaces.MultiBinary(2), (0, 1), (0, 2)),
    ],
)
def test_counted_actions_out_of_range_are_told(space, good, bad):
    observations, _, *ends = vectors()
    reward = deir.make_reward("icm", VECTOR, space, N, **MODEL)
    assert np.isfinite(reward.compute(observations, np.tile(good, (T, N, 1)), *ends)).all()
    reward.update()
    with pytest.raises(UserError, match=r"actions: got values from .* expected those of Multi"):
        reward.compute(observations, np.tile(bad, (T, N, 1)), *ends)
