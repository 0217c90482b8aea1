"""Replays: what is recorded is what happened, and what the page is given is what the methods computed."""

import base64
import copy
import gzip
import json
import re
from pathlib import Path

import gymnasium
import imageio.v3 as iio
import numpy as np
import pytest
import torch

import deir
from deir.agent import load
from deir.envs.minigrid.layouts import layout_seed
from deir.errors import UserError
from deir.experiments.replay.cameras import FrameCamera, make_camera, repeated
from deir.experiments.replay.command import MARK, Replay, run
from deir.experiments.replay.contents import episode, shortened
from deir.experiments.replay.film import NARROWEST, Told, drawn, record_video
from deir.experiments.replay.maps import Map, map_of
from deir.experiments.replay.players import Choices, make_page, make_player, tell_apart
from deir.experiments.replay.recording import environments, explained, generator_of, paid, record
from deir.runs.evaluate import record_video as plain
from deir.runs.evaluate import write_film
from deir.runs.presets import BEYOND_THE_PAPER
from deir.seeding import derive
from small import small

FEW = Choices(episodes=2, max_steps=40, map_episodes=4)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One short run of each kind that replays differ in."""
    root = tmp_path_factory.mktemp("runs")
    kinds = {
        "deir": {"checkpoint": {"every": 1, "keep": 9}},
        "noveld": {"method": "noveld"},
        "ngu": {"method": "ngu"},
        "none": {"method": "none"},
        **{name: {"method": name} for name in BEYOND_THE_PAPER},
        "short": {"env": {"max_steps": 12}},
        "noisy": {"env": {"noise": 0.1}},
        "cart": {"env": {"id": "CartPole-v1", "n_envs": 4}, "method": "rnd"},
    }
    for name, changes in kinds.items():
        options = small(**changes)
        deir.train(steps=256, seed=3, out=root / name, **options)
    return root


@pytest.fixture(scope="module")
def agents(runs):
    return {path.name: load(path) for path in runs.iterdir()}


def play(agent, choices=FEW, shown=2):
    envs = environments(agent, 4, choices.seed, choices.env)
    camera = make_camera(envs, shown)
    played = record(agent, envs, camera, envs.reset(), generator_of(choices.seed), choices.greedy, choices.max_steps)
    envs.close()
    return played


def data_of(page):
    return json.loads(gzip.decompress(base64.b64decode(re.search(r'id="data">([^<]*)<', page)[1])))


def floats(text):
    """The page's 16 bits as numbers."""
    return (np.frombuffer(base64.b64decode(text), np.uint16).astype(np.uint32) << 15).view(np.float32)


def test_a_recording_is_what_the_environments_do_with_its_actions(agents):
    """Played again in Farama's own task: the same views, rewards, endings, and the agent at the same places."""
    played = play(agents["deir"], Choices(max_steps=300))
    rollout, views = played.rollout, played.rollout.table.distinct.numpy()
    for env in range(3):
        task = gymnasium.make("MiniGrid-DoorKey-5x5-v0")
        seen, _ = task.reset(seed=layout_seed(derive(0, "replay") % 2**31, env, 0))
        length = int(played.lengths[env])
        states = played.camera.states(env, length)
        for t in range(length + 1):
            x, y = task.unwrapped.agent_pos
            assert (states.x[t], states.y[t], states.directions[t]) == (x, y, task.unwrapped.agent_dir)
            ids = rollout.ids[t, env] if t < length else rollout.next_ids[t - 1, env]
            np.testing.assert_array_equal(views[ids], seen["image"])
            if t < length:
                seen, reward, terminated, truncated, _ = task.step(int(rollout.actions[t, env]))
                assert reward == pytest.approx(float(rollout.rewards[t, env]))
                assert (terminated or truncated) == (t == length - 1 and played.ended[env])


@pytest.mark.parametrize("name", ["deir", "noveld", "ngu", "noisy", "cart", "none", *BEYOND_THE_PAPER])
def test_the_explained_reward_is_the_one_of_the_reward_stage_and_nothing_changes(agents, name):
    agent = agents[name]
    method = agent.reward.model.reward
    before, learned = copy.deepcopy(method.extra_state()), copy.deepcopy(method.state_dict())
    played = play(agent)
    for env in range(2):
        told = explained(agent, played.rollout, env)
        if name == "none":
            assert told.rewards is None and not played.raw.any()
        else:
            torch.testing.assert_close(told.rewards.float(), played.raw[:, env], rtol=1e-4, atol=1e-6)
    assert str(method.extra_state()) == str(before)
    assert all(torch.equal(tensor, learned[key]) for key, tensor in method.state_dict().items())
    raw, _ = method.compute(played.rollout, method.initial_state(4))
    method.load_extra_state(before)
    method.load_state_dict(learned)
    torch.testing.assert_close(raw, played.raw, rtol=0, atol=0)


def test_values_and_probabilities_are_those_of_the_policy_step_by_step(agents):
    agent = agents["deir"]
    played, hidden = play(agent), torch.zeros(1, agent.policy.hidden_size)
    with torch.no_grad():
        for t in range(int(played.lengths[1])):
            view = played.rollout.table.distinct[played.rollout.ids[t, 1]][None]
            outputs, value, hidden = agent.policy(view, hidden)
            torch.testing.assert_close(outputs.softmax(-1)[0], played.probabilities[t, 1], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(value[0], played.values[t, 1], rtol=1e-4, atol=1e-5)


def test_two_runs_meet_the_same_layouts_and_another_seed_others(agents):
    first, second = (play(agents[name]).camera.states(0, 1) for name in ("deir", "noveld"))
    other = play(agents["deir"], Choices(seed=1, max_steps=5)).camera.states(0, 1)
    np.testing.assert_array_equal(first.cells[0], second.cells[0])
    assert (first.x[0], first.y[0]) == (second.x[0], second.y[0])
    same = (other.cells[0] == first.cells[0]).all() and (other.x[0], other.y[0]) == (first.x[0], first.y[0])
    assert not same or other.directions[0] != first.directions[0]


def test_the_page_holds_the_rows_that_the_method_computed(agents):
    agent = agents["deir"]
    played = play(agent)
    content, told = episode(agent, played, 1), explained(agent, played.rollout, 1)
    length, why = int(played.lengths[1]), content["why"]
    rows = {kind["name"]: floats(kind["values"]) for kind in why["rows"]}
    at = 0
    for t in range(length):
        begin, end = why["begin"][t], why["end"][t]
        assert (begin, end) == (0, t)  # Equation 4: all steps before t
        row = slice(at, at + end - begin)
        np.testing.assert_allclose(rows["score"][row], told.compared.scores[t, begin:end].float(), rtol=2.1e-3)
        assert content["intrinsic"][t] == pytest.approx(float(played.raw[t, 1]), rel=1e-4, abs=1e-9)
        if end > begin:
            chosen = why["nearest"][t][0]
            assert rows["score"][row][chosen] == rows["score"][row].min()
            obs, traj = (figure["values"][t] for figure in why["figures"])
            ratio = obs**2 / (traj + agent.config.reward.deir.eps)
            assert content["intrinsic"][t] == pytest.approx(ratio, rel=1e-3, abs=1e-9)
        at += end - begin
    assert content["paid"] == pytest.approx(paid(agent, played.raw[:length, 1]).tolist(), rel=1e-4, abs=1e-7)


def test_sixteen_bits_keep_two_thousandths():
    values = torch.cat([torch.rand(1000) * 10.0 ** torch.randint(-20, 20, (1000,)), torch.zeros(1)])
    back = (shortened(values).astype(np.uint32) << 15).view(np.float32)
    np.testing.assert_allclose(back, values.numpy(), rtol=2e-3)


def test_the_grid_of_the_page_is_that_of_the_engine(agents):
    played = play(agents["deir"], Choices(max_steps=200))
    for env in range(2):
        scene, states = episode(agents["deir"], played, env)["scene"], played.camera.states(env, played.lengths[env])
        cells = list(scene["cells"])
        for t in range(len(states.x)):
            for when, where, code in scene["changes"]:
                if when == t:
                    cells[where] = code
            assert cells == states.cells[t].ravel().tolist()


def test_maps_are_sums_over_the_episodes(agents):
    played = play(agents["deir"])
    found = map_of(played, relative=True).data()
    assert found["episodes"] == 4 and sum(found["visits"]) == played.lengths.sum()
    start = [i for i, cell in enumerate(zip(found["x"], found["y"], strict=True)) if cell == (0, 0)]
    assert len(start) == 1 and found["visits"][start[0]] >= 4
    by_hand = Map()
    by_hand.add(np.array([[1, 1], [2, 1], [1, 1]]), np.array([1.0, 3.0]), np.array([5.0, 7.0]))
    assert by_hand.data() == {
        "episodes": 1, "x": [1, 2], "y": [1, 1], "visits": [1, 1], "value": [1.0, 3.0], "intrinsic": [7.0, 5.0]
    }  # fmt: skip


def test_one_layout_in_every_environment(agents):
    envs = environments(agents["deir"], 3, 0)
    envs.reset()
    before = envs.states()
    seen = repeated(envs, 2)
    after = envs.states()
    for env in range(3):
        np.testing.assert_array_equal(after.cells[env], before.cells[2])
        assert (after.x[env], after.y[env], after.directions[env]) == (before.x[2], before.y[2], before.directions[2])
        np.testing.assert_array_equal(seen[env], seen[0])
    envs.close()


def test_any_gymnasium_environment_is_shown_in_frames(agents):
    player = make_player(agents["cart"], FEW)
    first = player["episodes"][0]
    assert len(first["scene"]["frames"]) == first["steps"] + 1
    assert first["pictures"][first["scene"]["frames"][0]].startswith("data:image/")
    assert player["actions"] == ["action 0", "action 1"]
    assert len(first["view"]["vectors"][0]) == 4 and player["maps"] == {"relative": None, "layout": None}
    assert len(first["view"]["ids"]) == first["steps"] + 1


def test_the_last_picture_of_a_grid_is_that_of_its_end(agents):
    """The engine has begun the next episode by then, but the camera was told in time."""
    agent = agents["deir"]
    envs = environments(agent, 1, 0)
    camera = FrameCamera(envs, 1)
    played = record(agent, envs, camera, envs.reset(), generator_of(0), False, 300)
    length = int(played.lengths[0])
    pictures = camera.pictures(0, 0, length, begun=True)
    assert played.ended[0] and played.rollout.starts[length, 0] and len(pictures) == length + 1
    assert (pictures[-1] != camera.frames[0][length]).any()  # which shows the next layout
    envs.close()


def test_names_of_players_differ():
    players = [{"name": "deir", "frames": f, "task": t} for f, t in ((10, "A"), (2000, "A"), (2000, "B"), (2000, "B"))]
    tell_apart(players)
    assert [p["name"] for p in players] == [
        "deir, 10 frames", "deir, 2,000 frames, A", "deir, 2,000 frames, B (3)", "deir, 2,000 frames, B (4)"
    ]  # fmt: skip


def test_the_command_writes_a_page_of_each_checkpoint_and_replaces_only_its_own(runs, tmp_path):
    out = tmp_path / "page.html"
    few = {"episodes": 1, "max_steps": 20, "map_episodes": 2}
    run(Replay((runs / "deir",), out, checkpoint=(1, 2), **few))
    players = data_of(out.read_text())["players"]
    assert [p["frames"] for p in players] == [128, 256] and players[0]["name"] == "deir, 128 frames"
    run(Replay((runs / "deir", runs / "none"), out, title="<b>mine</b>", **few))
    text = out.read_text()
    assert MARK in text and "&lt;b&gt;mine&lt;/b&gt;" in text and "<b>mine</b>" not in text
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", text)
    out.write_text("something else")
    with pytest.raises(UserError, match=r"out: .*a new file, or an earlier replay"):
        run(Replay((runs / "deir",), out, **few))
    assert out.read_text() == "something else"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runs": ()}, "runs: got none"),
        ({"runs": (Path("zoo:DoorKey-8x8"),)}, "runs: got 'zoo:DoorKey-8x8', expected a run directory: .*--video"),
        ({"checkpoint": (7,)}, "checkpoint: got 7, expected one that the run kept: 1, 2"),
        ({"env": "FourRoms"}, "env: unknown name 'FourRoms'"),
        ({"env": "CartPole-v1"}, "env: CartPole-v1 has the observations"),
        ({"episodes": 0}, "episodes: got 0"),
        ({"episodes": 1000}, "episodes: got 1000, expected a whole number from 1 to 100"),
        ({"out": "page"}, "out: .*page.html"),
        ({"out": "missing/page.html"}, "out: .*existing directory"),
    ],
)
def test_mistakes_are_told(runs, tmp_path, options, message):
    given = {"runs": (runs / "deir",), "out": tmp_path / "page.html", **options}
    with pytest.raises(UserError, match=message):
        run(Replay(**{**given, "out": tmp_path / Path(given["out"])}))
    assert not (tmp_path / "page.html").exists()


def test_another_task_that_looks_the_same(agents):
    page = make_page([agents["deir"]], Choices(episodes=1, env="DoorKey-6x6", max_steps=5, map_episodes=1))
    assert data_of(page)["players"][0]["episodes"][0]["scene"]["width"] == 6


def test_the_words_on_a_film_have_room_and_nothing_is_resized(agents, tmp_path, capfd):
    """Small pictures are drawn larger; imageio would resize and warn where sides are no multiples of 16."""
    told = Told(np.array([1.2345e-5, 0.1]), np.zeros(2), [-1, 0], 0.1)
    small = drawn(np.full((63, 61, 3), 9, np.uint8), told, 1)
    assert small.shape[1] >= NARROWEST and not (np.array(small.shape[:2]) % 2).any()
    row = small[63 * 5 : 63 * 5 + 26].astype(int).sum(-1).max(0)  # the brightest of each column of the words
    gaps = np.diff(np.flatnonzero(row > 250))
    assert (gaps > 8).sum() == 2  # step, novelty and return stand apart
    record_video(agents["cart"], tmp_path / "film.mp4", episodes=1)
    plain(agents["cart"], tmp_path / "plain.mp4", episodes=1)
    assert "WARNING" not in capfd.readouterr().err
    write_film(tmp_path / "odd.mp4", [np.full((41, 59, 3), 30 * i, np.uint8) for i in range(5)])
    assert iio.imread(tmp_path / "odd.mp4").shape[1:] == (42, 60, 3)


def test_the_film_with_an_overlay_shows_the_same_episodes(agents, tmp_path):
    count = record_video(agents["short"], tmp_path / "film.gif", episodes=2)
    frames = iio.imread(tmp_path / "film.gif")
    without = plain(agents["short"], tmp_path / "plain.gif", episodes=2)
    bare = iio.imread(tmp_path / "plain.gif")
    assert count == without + 2  # the last picture of each episode
    times = frames.shape[2] // bare.shape[2]
    high = times * bare.shape[1]
    assert frames.shape[1] > high and frames.shape[2] == times * bare.shape[2]
    close = np.abs(frames[0, :high:times, ::times].astype(int) - bare[0]).mean()
    assert close < 12  # palettes differ
    assert (frames[0, high:] != frames[5, high:]).any()
