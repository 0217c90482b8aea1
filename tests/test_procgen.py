"""ProcGen through EnvPool: every game, its dummy steps, its true final observations."""

from __future__ import annotations

import base64
import importlib
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np
import pytest
from numpy.typing import NDArray

from deir import Agent, load, train
from deir.config import EnvConfig
from deir.envs import check_env, make_envs
from deir.envs.base import EnvStep
from deir.envs.procgen import GAMES, ProcgenEnvs, _import_envpool, _threads, hash_images
from deir.errors import UserError
from deir.experiments.replay.players import Choices, make_page, make_player
from deir.experiments.replay.recording import environments

try:
    _import_envpool()
except UserError:
    pytest.skip("the extra `procgen` is not installed", allow_module_level=True)

NOOP = 4


def make(game: str, n_envs: int = 8, seed: int = 0, generation: int = 0, **options: Any) -> ProcgenEnvs:
    envs = make_envs(EnvConfig(id=f"procgen:{game}", n_envs=n_envs, **options), seed, generation)
    assert isinstance(envs, ProcgenEnvs)
    return envs


def run(envs: ProcgenEnvs, steps: int, seed: int = 0) -> tuple[NDArray[np.uint8], list[EnvStep]]:
    rng = np.random.default_rng(seed)
    return envs.reset(), [envs.step(rng.integers(0, 15, envs.n_envs)) for _ in range(steps)]


def difference(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> NDArray[np.float64]:
    """[N] mean absolute difference of the pixels."""
    return np.asarray(np.abs(left.astype(int) - right).mean((1, 2, 3)))


@pytest.mark.parametrize("game", GAMES)
def test_every_game_keeps_the_contract(game: str) -> None:
    envs = make(game)
    previous, steps = run(envs, 250)
    assert previous.shape == (8, 64, 64, 3)
    assert previous.dtype == np.uint8
    done = np.zeros(8, bool)
    into_end, into_reset = [], []
    for step in steps:
        assert step.observations.shape == (8, 64, 64, 3)
        assert step.observations.dtype == np.uint8
        assert step.observations.flags.c_contiguous
        assert step.rewards.dtype == np.float64
        assert np.isfinite(step.rewards).all()
        assert np.array_equal(step.valid, ~done)
        assert np.array_equal(step.starts, done)
        assert not len(step.final_indices)
        assert step.final_observations.shape == (0, 64, 64, 3)
        ended = step.terminated | step.truncated
        assert not step.rewards[done].any()
        assert not ended[done].any()
        change = difference(previous, step.observations)
        into_end += list(change[ended])
        into_reset += list(change[done])
        previous, done = step.observations, ended
    if into_reset:  # the last observation belongs to the episode it ends: the new level comes only with the dummy step
        assert np.mean(into_end) < 0.6 * np.mean(into_reset)
    assert not envs.repeats
    assert envs.state_dict() is None
    assert np.array_equal(envs.render(3), previous[3])
    envs.close()


def test_time_limit_truncates_and_shows_the_true_last_observation() -> None:
    envs = make("maze", n_envs=2)
    observations = envs.reset()
    for t in range(1, 501):
        step = envs.step(np.full(2, NOOP))
        assert np.array_equal(step.observations, observations)  # nothing moves in a maze but the agent
        assert not step.terminated.any()
        assert np.array_equal(step.truncated, np.full(2, t == 500))
    step = envs.step(np.full(2, NOOP))
    assert not step.valid.any()
    assert step.starts.all()
    assert (difference(step.observations, observations) > 0).all()
    step = envs.step(np.full(2, NOOP))
    assert step.valid.all()
    assert not step.starts.any()


def test_the_table_of_games_is_envpool_s() -> None:
    known = set(_import_envpool().list_all_envs())
    ids = {f"{g.name.capitalize()}{mode.capitalize()}-v0" for g in GAMES.values() for mode in g.modes}
    assert ids <= known
    registration = importlib.import_module("envpool.procgen.registration")
    assert len(ids) == sum(len(modes) for _, _, modes in registration.procgen_game_config)
    assert {name: timeout for name, timeout, _ in registration.procgen_game_config} == {
        g.name: g.timeout for g in GAMES.values()
    }
    assert [g.name for g in GAMES.values() if g.in_paper] == ["caveflyer", "climber", "jumper", "ninja"]


def test_same_seed_same_game() -> None:
    first, steps = run(make("ninja", seed=3), 150)
    again, others = run(make("ninja", seed=3), 150)
    assert np.array_equal(first, again)
    for step, other in zip(steps, others, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(step, other, strict=True))
    assert (~np.stack([step.valid for step in steps])).any()


def test_seed_generation_and_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    first = make("ninja", seed=3).reset()
    assert len(set(hash_images(first))) == 8
    for other in (make("ninja", seed=4).reset(), make("ninja", seed=3, generation=1).reset()):
        assert not np.isin(hash_images(other), hash_images(first)).any()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert _threads(8) == 1
    assert np.array_equal(make("ninja", seed=3).reset(), first)
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert _threads(1) == 1


def test_levels() -> None:
    one = make("ninja", n_envs=8, num_levels=1, start_level=7).reset()
    assert len(set(hash_images(one))) == 1
    assert not np.array_equal(one, make("ninja", n_envs=8, num_levels=1, start_level=8).reset())
    easy = make("ninja", n_envs=8, num_levels=1, start_level=7, distribution_mode="easy").reset()
    assert not np.array_equal(one, easy)


def test_observations_are_not_overwritten() -> None:
    envs = make("starpilot", n_envs=4)
    first, steps = run(envs, 30)
    copies = [first.copy()] + [step.observations.copy() for step in steps]
    for _ in range(30):
        envs.step(np.full(4, 7))
    for kept, copy in zip([first] + [step.observations for step in steps], copies, strict=True):
        assert np.array_equal(kept, copy)


def test_hashes_follow_the_observations() -> None:
    envs = make("maze", n_envs=4)
    envs.reset()
    start = envs.state_hashes()
    envs.step(np.full(4, NOOP))
    assert start.dtype == np.uint64
    assert np.array_equal(envs.state_hashes(), start)
    images = np.random.default_rng(0).integers(0, 256, (1, 64, 64, 3), np.uint8).repeat(2000, 0)
    flat = images.reshape(2000, -1)
    flat[np.arange(2000), np.arange(2000) * 6] ^= 0x80  # one high bit in another place of each
    swapped = images[:1].copy()
    swapped[0, 0], swapped[0, 1] = images[0, 1], images[0, 0]
    assert len(set(hash_images(np.concatenate([images, swapped])))) == 2001


@pytest.mark.parametrize(
    ("game", "options", "message"),
    [
        ("nija", {}, "Did you mean 'procgen:ninja'"),
        ("bigfish", {"distribution_mode": "memory"}, r"env\.distribution_mode.*easy, hard"),
        ("ninja", {"view_size": 3}, r"env\.view_size"),
        ("ninja", {"noise": 0.1}, r"env\.noise"),
        ("ninja", {"max_steps": 10}, r"env\.max_steps"),
        ("ninja", {"start_level": 10}, r"env\.start_level.*env\.num_levels"),
        ("ninja", {"start_level": 2**31, "num_levels": 1}, r"env\.start_level"),
    ],
)
def test_mistakes_are_told(game: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_env(EnvConfig(id=f"procgen:{game}", **options))


def test_without_the_extra_the_error_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    check_env(EnvConfig(id="procgen:ninja"))
    with pytest.raises(UserError, match=r"pip install 'deir\[procgen\]'"):
        ProcgenEnvs(EnvConfig(id="procgen:ninja", n_envs=2))


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Agent:
    """After one iteration of 64 frames."""
    out = tmp_path_factory.mktemp("procgen") / "run"
    options: dict[str, Any] = {"ppo": {"rollout_steps": 16, "minibatch_size": 32, "epochs": 1}}
    options["reward"] = {"minibatch_size": 32, "epochs": 1}
    train({"id": "procgen:bigfish", "n_envs": 4}, steps=64, out=out, threads=1, loggers="csv", **options)
    return load(out)


CHOICES = Choices(episodes=3, max_steps=150)


def test_a_replay_shows_what_the_agent_sees_to_the_last_picture(agent: Agent) -> None:
    player = make_player(agent, CHOICES)
    assert player["actions"][NOOP] == "nothing" and len(set(player["actions"])) == 15
    assert any(episode["end"] == "terminated" for episode in player["episodes"])
    for episode in player["episodes"]:
        assert episode["scene"]["frames"] == episode["view"]["ids"]
        assert len(episode["pictures"]) == len(set(episode["view"]["ids"]))  # each is kept once
    first = environments(agent, CHOICES.episodes, CHOICES.seed).reset()[0]
    kept = iio.imread(base64.b64decode(player["episodes"][0]["pictures"][0].split(",")[1]))
    assert np.abs(kept[..., :3].astype(int) - first).mean() < 10


def test_the_page_of_a_replay_draws_pictures(agent: Agent, browser: Any, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(make_page([agent], CHOICES))
    context = browser.new_context(viewport={"width": 375, "height": 800})
    tab, troubles = context.new_page(), []
    tab.on("console", lambda message: troubles.append(message.text))
    tab.on("pageerror", lambda error: troubles.append(str(error)))
    tab.goto((tmp_path / "page.html").as_uri())
    tab.wait_for_selector("html[data-ready=yes]")
    shown = []
    for step in (0, 10):
        tab.evaluate(f"goTo({step})")
        tab.wait_for_timeout(300)  # pictures are decoded in their own time
        pictures = "[...document.querySelectorAll('canvas.scene, .now canvas')].map(one => one.toDataURL())"
        shown.append(tab.evaluate(pictures))
    assert all(before != after for before, after in zip(*shown, strict=True))
    assert "nothing" in tab.locator(".acts").inner_text() and troubles == []
    tab.evaluate("goTo(longest())")
    speed, play = (tab.locator(name).bounding_box() for name in ("#speed", "#play"))
    assert tab.evaluate("document.documentElement.scrollWidth") == 375
    assert play["y"] < speed["y"] + speed["height"] / 2 < play["y"] + play["height"]  # in one line with the buttons
    context.close()
