"""Runs on disk: the same seed gives the same run, a resumed run equals an uninterrupted one, nothing is lost."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from deir.algorithm.reward_model import check_finite
from deir.algorithm.trainer import Trainer
from deir.errors import TrainingDiverged, UserError
from deir.runs import checkpoint, run
from deir.runs.progress import FIRST_COLUMNS
from deir.runs.run import configure
from deir.runs.training import make_trainer
from small import laid_over
from small import small as small_settings

SMALL = small_settings(ppo={"rollout_steps": 64, "epochs": 2}, reward={"epochs": 2}, steps=4 * 64 * 6)


def small(**changes):
    return configure(laid_over(SMALL, changes))


def rows(path: Path) -> list[dict[str, str]]:
    with (path / "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def untimed(path: Path) -> list[dict[str, str]]:
    return [{k: v for k, v in row.items() if not k.startswith("seconds") and k != "fps"} for row in rows(path)]


def final_state(path: Path) -> dict:
    return checkpoint.load_latest(path / "checkpoints")[0]


def assert_same(a, b, where=""):
    assert type(a) is type(b), where
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, np.ndarray):
        assert np.array_equal(a, b), where
    else:
        assert a == b or (a != a and b != b), (where, a, b)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path):
    for name, seed in {"a": 0, "b": 0, "c": 1}.items():
        run.start(small(seed=seed), tmp_path / name)
    assert untimed(tmp_path / "a") == untimed(tmp_path / "b")
    assert untimed(tmp_path / "a") != untimed(tmp_path / "c")
    assert_same(final_state(tmp_path / "a"), final_state(tmp_path / "b"))


def test_run_directory_is_complete_and_its_config_repeats_the_run(tmp_path):
    run.start(small(loggers="csv,tensorboard"), tmp_path / "a")
    written = {p.name for p in (tmp_path / "a").iterdir()}
    assert written == {"config.yaml", "progress.csv", "checkpoints", "summary.json", "tensorboard"}
    log = rows(tmp_path / "a")
    assert tuple(log[0])[: len(FIRST_COLUMNS)] == FIRST_COLUMNS
    assert [int(r["frames"]) for r in log] == [256 * k for k in range(1, 7)]
    assert all(np.isfinite(float(value)) for row in log for value in row.values() if value)
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["seed"] == 0
    assert summary["versions"]["torch"]
    again = configure(yaml.safe_load((tmp_path / "a" / "config.yaml").read_text()))
    run.start(again, tmp_path / "b")
    assert untimed(tmp_path / "a") == untimed(tmp_path / "b")


@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"env": {"noise": 0.1}},
        {"env": {"view_size": 3, "invisible_obstacles": True}},
        {"method": "none"},
        {"method": "ngu"},
        {"method": "noveld"},
        {"method": "count"},
        {"method": "etd"},
        {"method": "e3b"},
        {"method": "disagreement", "env": {"full_view": True, "fixed_layout": 3}},
        {"ppo": {"truncation": "bootstrap"}},
    ],
    ids=["plain", "noise", "view3", "none", "ngu", "noveld", "count", "etd", "e3b", "ensemble", "bootstrap"],
)
def test_resumed_minigrid_run_equals_an_uninterrupted_one_to_the_last_bit(tmp_path, variant):
    run.start(small(**variant), tmp_path / "whole")
    run.start(small(**{**variant, "steps": 256 * 3}), tmp_path / "parts")
    run.resume(tmp_path / "parts", {"steps": 256 * 6})
    assert untimed(tmp_path / "whole") == untimed(tmp_path / "parts")
    assert_same(final_state(tmp_path / "whole"), final_state(tmp_path / "parts"))


@pytest.mark.parametrize(
    "variant",
    [{"method": "deir"}, {"method": "rnd"}, {"env": {"noise": 0.1}}, {"network": {"norm": "layer"}}],
    ids=["deir", "rnd", "noise", "layer"],
)
def test_the_model_beside_the_policy_gives_the_same_run(tmp_path, variant):
    """Each computes with one of two threads, and sums are made in the same order with any number of them."""
    run.start(small(**variant), tmp_path / "one")
    run.start(small(**variant, threads=2), tmp_path / "two")
    assert untimed(tmp_path / "one") == untimed(tmp_path / "two")
    assert_same(final_state(tmp_path / "one"), final_state(tmp_path / "two"))
    run.start(small(**variant, threads=2, steps=256 * 3), tmp_path / "parts")
    run.resume(tmp_path / "parts", {"steps": 256 * 6})
    assert untimed(tmp_path / "one") == untimed(tmp_path / "parts")


def test_a_run_of_the_time_when_models_had_processes_resumes(tmp_path):
    run.start(small(steps=256), tmp_path / "a")
    file = tmp_path / "a" / "config.yaml"
    saved = yaml.safe_load(file.read_text())
    saved["reward"]["process"] = True
    file.write_text(yaml.safe_dump(saved))
    run.resume(tmp_path / "a", {"steps": 512})
    assert int(untimed(tmp_path / "a")[-1]["frames"]) == 512


def test_where_the_model_learns_beside_the_policy():
    """Where the grid encoder is compiled code, and a method learns, with a thread to spare."""
    cases = [
        (True, {"threads": 2}),
        (False, {"threads": 1}),
        (False, {"threads": 2, "method": "none"}),
        (False, {"threads": 2, "method": "re3"}),  # its encoder stays as it is
        (False, {"threads": 2, "reward": {"overlap": False}}),
        (True, {"threads": 2, "env": {"noise": 0.1}}),
        (True, {"threads": 2, "network": {"norm": "layer"}}),
        (False, {"threads": 2, "env": {"id": "CartPole-v1"}}),
    ]
    for expected, changes in cases:
        trainer = make_trainer(small(**changes))
        trainer.close()
        assert trainer.overlap.overlaps == expected, changes


def test_hooks_see_each_rollout_before_it_is_rewarded():
    config, seen = small(), []
    made = make_trainer(config)

    def hook(rollout, model):
        seen.append((rollout, model, model.rollout is rollout))

    trainer = Trainer(config, made.envs, made.policy, made.model, hooks=[hook])
    for _ in range(2):
        trainer.iterate()
    trainer.close()
    assert [(model, rewarded) for _, model, rewarded in seen] == [(made.model, False)] * 2
    assert seen[0][0] is not seen[1][0] and not trainer.overlap.overlaps


@pytest.mark.parametrize("threads", [1, 2])
def test_beside_a_model_that_learns_the_next_rollout_is_collected_unless_there_is_none(threads):
    trainer = make_trainer(small(threads=threads, steps=256 * 2))
    assert (trainer.iteration, trainer.frames) == (0, 0)
    trainer.iterate()
    assert (trainer.iteration, trainer.frames) == (1, 256)
    assert not trainer.finished and (trainer.ahead is not None) == (threads == 2)
    row = trainer.iterate()
    assert trainer.finished and trainer.ahead is None
    assert (row["seconds_forward"] == 0) == (threads == 2)  # none was left to collect
    trainer.close()


def test_a_model_that_diverges_beside_the_policy_is_told_and_the_last_good_state_is_kept():
    trainer = make_trainer(small(threads=2))
    trainer.iterate()
    trainer.keep()
    good = {name: tensor.clone() for name, tensor in trainer.model.reward.state_dict().items()}
    with torch.no_grad():
        trainer.model.reward.discriminator[0].weight.fill_(float("nan"))  # its rewards stay what they were
    with pytest.raises(TrainingDiverged, match="reward model"):
        trainer.iterate()
    assert_same(dict(trainer.kept()["stage"]["reward"]), good)
    trainer.close()


def test_resuming_twice_from_one_checkpoint_gives_the_same_where_environments_cannot_be_saved(tmp_path):
    import shutil

    run.start(small(env={"id": "CartPole-v1"}, steps=256 * 2), tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name in ("a", "b"):
        run.resume(tmp_path / name, {"steps": 256 * 4})
    assert untimed(tmp_path / "a") == untimed(tmp_path / "b")
    assert len(untimed(tmp_path / "a")) == 4


def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used(tmp_path, capsys):
    config = small(checkpoint={"every": 2, "keep": 3})
    run.start(config, tmp_path / "a")
    whole = untimed(tmp_path / "a")
    newest = sorted((tmp_path / "a" / "checkpoints").iterdir())[-1]
    content = bytearray(newest.read_bytes())
    content[-100] ^= 255  # one flipped byte in the data
    newest.write_bytes(content)
    run.resume(tmp_path / "a")
    assert "damaged checkpoint" in capsys.readouterr().err
    assert untimed(tmp_path / "a") == whole
    for path in (tmp_path / "a" / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match="no whole checkpoint"):
        run.resume(tmp_path / "a")


def test_checkpoints_hold_any_state_and_leave_no_temporary_files(tmp_path):
    state = {
        "numbers": {"a": 1, "b": 2.5, "c": None, "d": "text", "e": True, "f": [1, 2], "g": 2**100},
        "tensor": torch.arange(5),
        "array": np.array([2**63], np.uint64),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(3.0),
    }
    checkpoint.save(state, tmp_path / "0000001.safetensors")
    assert_same(checkpoint.load(tmp_path / "0000001.safetensors"), state)
    assert [p.name for p in tmp_path.iterdir()] == ["0000001.safetensors"]


def test_only_the_last_checkpoints_are_kept(tmp_path):
    run.start(small(checkpoint={"every": 1, "keep": 2}), tmp_path / "a")
    assert [p.stem for p in sorted((tmp_path / "a" / "checkpoints").iterdir())] == ["0000005", "0000006"]


def test_an_existing_run_is_never_overwritten(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="out: got"):
        run.start(small(), tmp_path / "a")
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("threads", [1, 2])
def test_divergence_stops_with_a_message_after_saving_the_last_good_state(tmp_path, monkeypatch, threads):
    original = Trainer.iterate

    def spoil(self):
        if self.iteration == 2:
            with torch.no_grad():
                next(self.policy.critic.parameters()).fill_(float("nan"))
        return original(self)

    monkeypatch.setattr(Trainer, "iterate", spoil)
    with pytest.raises(UserError, match="training stopped at iteration 3"):
        run.start(small(threads=threads), tmp_path / "a")
    state = final_state(tmp_path / "a")
    assert state["iteration"] == 2
    assert all(t.isfinite().all() for t in state["policy"].values())
    assert "diverged" in json.loads((tmp_path / "a" / "summary.json").read_text())["status"]


def test_a_parameter_that_is_not_finite_is_named():
    layer = torch.nn.GRUCell(2, 2)
    with torch.no_grad():
        layer.weight_hh[0, 0] = float("inf")
    with pytest.raises(TrainingDiverged, match=r"reward model's parameter weight_hh"):
        check_finite(layer, "reward model")


def test_target_return_ends_a_run_early(tmp_path):
    _, row = run.start(small(target_return=-1.0, steps=256 * 50, env={"max_steps": 20}), tmp_path / "a")
    assert row["frames"] < 256 * 50
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["status"] == "target reached"


def started_process(out: Path, **changes) -> subprocess.Popen:
    config_file = out.with_suffix(".yaml")
    config_file.write_text(yaml.safe_dump({**SMALL, "steps": 256 * 400, "checkpoint": {"every": 2}, **changes}))
    process = subprocess.Popen(
        [sys.executable, "-m", "deir.cli", "train", "--config", str(config_file), "--out", str(out)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if len(list((out / "checkpoints").glob("*.safetensors"))) >= 2 and len(rows(out)) >= 5:
            return process
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    raise AssertionError("the run did not get going")


def test_kill_minus_nine_loses_only_what_came_after_the_last_checkpoint(tmp_path):
    process = started_process(tmp_path / "a")
    process.kill()
    process.wait()
    process.stderr.close()
    iteration = final_state(tmp_path / "a")["iteration"]
    target = 256 * (iteration + 4)
    run.resume(tmp_path / "a", {"steps": target})
    log = rows(tmp_path / "a")
    assert [int(r["iteration"]) for r in log] == list(range(1, iteration + 5))
    assert [int(r["frames"]) for r in log] == [256 * k for k in range(1, iteration + 5)]
    run.start(small(steps=target), tmp_path / "whole")
    assert untimed(tmp_path / "whole") == untimed(tmp_path / "a")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_write_a_checkpoint_and_say_how_to_go_on(tmp_path, number):
    process = started_process(tmp_path / "a", checkpoint={"every": 3})
    process.send_signal(number)
    message = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130
    assert "deir train --resume" in message
    assert "Traceback" not in message
    assert final_state(tmp_path / "a")["iteration"] == int(rows(tmp_path / "a")[-1]["iteration"])
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["status"] == "interrupted"
