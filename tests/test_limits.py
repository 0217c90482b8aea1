"""Values nobody means: one short message that names the field, before anything is made of them."""

import datetime
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import yaml
from gymnasium import spaces

from deir import cli
from deir.config import Config, EnvConfig, load_yaml, merge, parse_count, parse_yaml
from deir.envs.gymnasium import GymnasiumEnvs
from deir.errors import UserError, invalid, shortened
from deir.experiments.sweep.grid import make_grid
from deir.experiments.sweep.jobs import parse_seeds
from deir.experiments.tune.study import make_plan
from deir.runs.ranges import DEVICES, LARGEST, LARGEST_OF_COMMANDS, LARGEST_WHOLE, check, check_device
from deir.runs.run import configure, validate
from made_runs import make_run
from test_gymnasium import Shown

LONGEST_MESSAGE = 1500  # characters


def told(words: list[str], monkeypatch, capsys) -> str:
    """The message of a command line that must be refused."""
    monkeypatch.setattr(sys, "argv", ["deir", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    shown = capsys.readouterr()
    text = shown.err + shown.out
    assert "Traceback" not in text
    return text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--ppo.adam-beta1", "1"], "ppo.adam_beta1: got 1.0, expected 0 or more and below 1"),
        (["train", "--device", "meta"], "device: got 'meta', expected a device PyTorch can use here"),
        (["train", "--device", "hpu"], "device: got 'hpu'"),
        (["train", "--device", "cpu:99999999999999999999"], "device: got"),
        (["train", "--threads", "100000"], "threads: got 100000, expected at most 1,024"),
        (["train", "--network.hidden", "1" + "0" * 6], "network.hidden: got 1000000, expected at most 8,192"),
        (["train", "--network.mlp", "1" + "0" * 30], "network.mlp: got 1000000000000000000000000000000, expected at"),
        (["train", "--env.n-envs", "1" + "0" * 9], "env.n_envs: got 1000000000, expected at most"),
        (["train", "--env.n-envs", "65536", "--ppo.rollout-steps", "1000000"], "ppo.rollout_steps: got 1000000"),
        (["train", "--ppo.rollout-steps", "1" + "0" * 18], "ppo.rollout_steps: got"),
        (["train", "--reward.deir.queue-size", "1" + "0" * 15], "reward.deir.queue_size: got"),
        (["train", "--steps", "1e30"], "steps: got"),
        (["train", "--steps", "9" * 5000], "steps: got"),
        (["train", "--seed", "1" + "0" * 30], "seed: got"),
        (["train", "--ppo.learning-rate", "inf"], "ppo.learning_rate: got inf, expected a finite number"),
        (["train", "--reward.beta", "nan"], "reward.beta: got nan, expected a finite number"),
        (["train", "--target-return", "nan"], "target_return: got nan, expected a finite number"),
        (["train", "--seeds", "0-99999999999"], "seeds: got '0-99999999999', expected at most 10,000"),
        (["train", "--seeds", "1-2-3"], "seeds: got '1-2-3', expected whole numbers"),
        (["evaluate", "nowhere", "--seed", "-1"], "seed: got -1, expected a whole number from 0"),
        (["evaluate", "nowhere", "--video-episodes", "0"], "video_episodes: got 0, expected a whole number from 1"),
        (["evaluate", "nowhere", "--episodes", "1" + "0" * 30], "episodes: got"),
        (["report", "nowhere", "--out", "out", "--resamples", "1" + "0" * 12], "resamples: got"),
        (["distances", "--bins", "1" + "0" * 12], "bins: got"),
        (["probe", "--hidden", "1" + "0" * 12], "hidden: got"),
        (["bench", "--settings", "ppo.epochs=!!int \"abc\""], "settings: ppo.epochs is not a YAML file"),
        (["sweep", "nowhere.yaml", "--grace", "nan"], "nowhere.yaml"),
    ],
)  # fmt: skip
def test_values_beyond_sense_are_told(words, message, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    begin = time.monotonic()
    assert message in told(words, monkeypatch, capsys)
    assert time.monotonic() - begin < 60
    assert list(tmp_path.iterdir()) == []


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)
YAMLS = {
    "a date that is none": "seed: 2024-13-45\n",
    "a date": "seed: 2024-01-01\n",
    "no number": 'seed: !!int "abc"\n',
    "digits": f"seed: {'9' * 5000}\n",
    "hexadecimal digits": f"seed: 0x{'f' * 5000}\n",
    "steps of digits": f"steps: 0x{'f' * 5000}\n",
    "a rate of digits": f"ppo: {{learning_rate: 0x{'f' * 5000}}}\n",
    "deep nesting": "env: " + "[" * 5000,
    "deep nesting that ends": "env: " + "[" * 200 + "]" * 200 + "\n",
    "aliases": BOMB + "env: *j\n",
    "aliases in a value": BOMB.replace("j:", "method:").replace("&j", "&method"),
    "itself": "env: &a {id: *a}\n",
    "itself in a list": "env: &a [*a]\n",
    "a tag of Python": "env: !!python/object/apply:os.system ['true']\n",
    "a long text": f"device: {'x' * 100_000}\n",
    "a long key": f"{'x' * 100_000}: 1\n",
    "an odd key": "? [1, 2]\n: 3\n",
    "a key that is a number": "1: 2\n",
    "a set": "env: !!set {a, b}\n",
    "bytes": "env: {id: !!binary aGVsbG8=}\n",
    "not a number": "ppo: {gamma: .nan}\n",
    "infinity": "ppo: {learning_rate: .inf}\n",
    "a choice that is a list": "ppo: {truncation: [a]}\n",
    "no mapping": "- 1\n",
    "control characters": "env: {id: \"a\\0b\"}\n",
    "too long": "# " + "x" * 3_000_000,
}  # fmt: skip


@pytest.mark.parametrize("name", YAMLS)
def test_yaml_of_every_kind_is_read_or_refused_in_one_short_message(name, tmp_path):
    file = tmp_path / "file.yaml"
    file.write_text(YAMLS[name])
    begin = time.monotonic()
    with pytest.raises(UserError) as caught:
        validate(configure(load_yaml(file)))
    assert len(str(caught.value)) < LONGEST_MESSAGE
    assert time.monotonic() - begin < 30  # minutes, or all memory, for those that were written out


def test_yaml_is_measured_with_its_aliases_written_out():
    """Whatever copies or walks a tree later takes time and memory for each of them."""
    with pytest.raises(UserError, match="too large, expected at most 100,000 entries, those of aliases included"):
        parse_yaml(BOMB, "file")
    with pytest.raises(UserError, match="nested too deeply"):
        parse_yaml("a: " + "[" * 200 + "]" * 200, "file")
    assert parse_yaml("a: &a [1, 2]\nb: [*a, *a]", "file") == {"a": [1, 2], "b": [[1, 2], [1, 2]]}


def test_yaml_of_an_endless_file_is_refused():
    with pytest.raises(UserError, match="too long"):
        load_yaml(Path("/dev/zero"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_yaml_of_a_pipe_that_nobody_writes_is_refused(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write() -> None:
        with suppress(BrokenPipeError):
            pipe.write_text("seed: 3\n")

    threading.Thread(target=write, daemon=True).start()  # so that a reader does not hang
    with pytest.raises(UserError, match="a YAML file, not a named pipe"):
        load_yaml(pipe)
    os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))  # lets the writer go


def test_yaml_of_a_shells_pipe_is_read():
    read, write = os.pipe()
    with os.fdopen(write, "w") as file:
        file.write("seed: 3\n")
    try:
        assert load_yaml(Path(f"/dev/fd/{read}")) == {"seed": 3}
    finally:
        os.close(read)


def test_files_of_sweeps_and_studies_are_no_way_round():
    sweep = {"envs": ["Empty-5x5"], "methods": ["none"], "seeds": 0, "steps": 512}
    study = {
        "env": "Empty-5x5",
        "method": "none",
        "seeds": 0,
        "steps": 512,
        "n_trials": 1,
        "search": {"ppo.gamma": [0.9]},
    }
    huge = 16**5000
    for changes in (
        {"seeds": huge}, {"seeds": [huge]}, {"seeds": "0-99999999999"}, {"seeds": None}, {"seeds": -1}, {"seeds": True},
        {"steps": huge}, {"steps": datetime.date(2024, 1, 1)}, {"name": "a\0b"}, {"name": "x" * 300}, {"name": "a\nb"},
        {"envs": ["x" * 300]}, {"envs": [{"\x1b[31m": {}}]}, {"cells": [{"env": {}, "steps": 1}]}, {1: 2},
        {"cells": [{"env": 16**5000, "steps": 1}]}, {"envs": [[1]]}, {"overrides": {"seed": 1}},
    ):  # fmt: skip
        with pytest.raises(UserError) as caught:
            make_grid({**sweep, **changes}, "file")
        assert len(str(caught.value)) < LONGEST_MESSAGE, changes
    many = {f"ppo.{name}": [k / 1000 for k in range(1, 200)] for name in ("gamma", "gae_lambda", "clip_range")}
    for changes in (
        {"n_trials": huge}, {"n_trials": True}, {"search": {1: [2]}}, {"search": {"ppo.gamma": [[1]]}}, {"sampler": {}},
        {"sampler": "grid", "search": many}, {"pruner": {"kind": [], "factor": 3}}, {"pruner": {"factor": huge}},
        {"search": {"ppo.epochs": {"low": 1, "high": huge}}}, {"search": {"ppo.gamma": {"low": {}, "high": 1}}},
        {"search": {"ppo.gamma": {"low": 0.1, "high": 0.9, "step": "x"}}}, {"objective": ["area"]},
    ):  # fmt: skip
        with pytest.raises(UserError) as caught:
            make_plan({**study, **changes}, "file")
        assert len(str(caught.value)) < LONGEST_MESSAGE, changes


def test_messages_repeat_values_only_in_part():
    assert shortened([1, "a", None]) == "[1, 'a', None]"
    for value in (
        "x" * 10**6,
        list(range(10**6)),
        16**5000,
        -(16**5000),
        {"a": {"b": {"c": {"d": {"e": 1}}}}},
        [[[[[[1]]]]]],
    ):
        assert len(shortened(value)) <= 600
        assert len(str(invalid("field", value, "less"))) < 700
    assert "a whole number of 20001 bits" in shortened(16**5000)


def test_limits_are_data_of_fields_there_are():
    from deir.config import flatten, to_dict

    fields = flatten(to_dict(Config()))
    assert set(LARGEST) <= set(fields)
    for field, most in LARGEST.items():
        tree: dict = {}
        *sections, name = field.split(".")
        inner = tree
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = most + 2  # an odd number stays odd
        with pytest.raises(UserError, match=f"^{field}: got .*at most {most:,}"):
            check(merge(Config(), tree))
    assert all(0 < most <= LARGEST_WHOLE for most in LARGEST_OF_COMMANDS.values())
    assert parse_count(10**12) == 10**12 and parse_seeds("0-2,7") == [0, 1, 2, 7]
    check_device("cpu")
    assert "meta" not in DEVICES
    assert parse_yaml("a: [1, {b: 2}]", "x") == {"a": [1, {"b": 2}]}


class Spoilt(Shown):
    """Gives what it is told in the third step."""

    def __init__(self, space, observation=None, reward=0.0):
        super().__init__(space, spaces.Discrete(2))
        self.observation, self.reward, self.count = observation, reward, 0

    def step(self, action):
        observation, reward, *rest = super().step(action)
        self.count += 1
        return (observation, reward, *rest) if self.count < 3 else (self.observation, self.reward, *rest)


VECTOR = spaces.Box(-1, 1, (2,), np.float32)
WIDE = spaces.Box(-np.inf, np.inf, (2,), np.float64)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            lambda: Spoilt(VECTOR, np.array([0, np.nan], np.float32)),
            r"gave an observation that is not finite: nan at \(1,\)",
        ),
        (lambda: Spoilt(VECTOR, np.array([-np.inf, 0], np.float32)), r"that is not finite: -inf at \(0,\)"),
        (lambda: Spoilt(WIDE, np.array([0, 1e300])), r"that is not finite: 1e\+300 at \(1,\)"),
        (lambda: Spoilt(VECTOR, np.zeros(2, np.float32), float("nan")), "gave the reward nan in environment 0"),
        (lambda: Spoilt(VECTOR, np.zeros(2, np.float32), float("-inf")), "gave the reward -inf in environment 0"),
        (
            lambda: Spoilt(spaces.Dict({"a": VECTOR}), {"a": np.array([np.nan, 0], np.float32)}),
            r"gave an observation 'a' that is not finite: nan at \(0,\)",
        ),
    ],
)
def test_nan_and_infinity_of_an_environment_are_named(env, message):
    envs = GymnasiumEnvs(EnvConfig(id="spoilt", n_envs=2), factory=env)
    envs.reset()
    for _ in range(2):
        envs.step(np.zeros(2, np.int64))
    with pytest.raises(UserError, match=message):
        envs.step(np.zeros(2, np.int64))


def test_cells_that_a_spreadsheet_would_compute_are_texts(tmp_path):
    from deir.experiments.report.command import _write_rows
    from deir.experiments.report.curves import COLUMNS, Curve, read_table, write_table
    from deir.files import as_cell, from_cell

    for text in ("=1+1", "+1", "-1", "@SUM(A1)", "\tx", "'=1", "''+", "plain", "'quoted", "a=b", ""):
        assert from_cell(as_cell(text)) == text
        assert not as_cell(text).startswith(("=", "+", "-", "@", "\t"))
    columns = {name: np.array([1.0]) for name in COLUMNS}
    columns["return_mean"] = np.array([-0.5])
    curve = Curve("=cmd|' /C calc'!A0", "@method", 0, columns, tmp_path)
    write_table([curve], tmp_path / "curves.csv")
    line = (tmp_path / "curves.csv").read_text().splitlines()[1]
    assert line.startswith("'=cmd") and ",'@method,0," in line and ",-0.5," in line  # numbers stay numbers
    (read,) = read_table(tmp_path / "curves.csv")
    assert (read.env, read.method) == (curve.env, curve.method)
    _write_rows([{"env": "+1", "mean": -1.5, "runs": 3}], tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_text() == "env,mean,runs\n'+1,-1.5,3\n"


def test_names_in_a_summary_are_text_and_nothing_else():
    from deir.experiments.report.summary_text import _plain

    assert _plain("DoorKey-8x8 view_size=3") == "DoorKey-8x8 view_size=3"
    assert _plain("a|b\nc") == "a\\|b c"
    assert _plain("![x](http://a)") == "!\\[x\\](http://a)"
    assert _plain("<img src=x>&") == "&lt;img src=x&gt;&amp;"
    assert _plain("`rm` *a* _b_ ~c~ \\|") == "\\`rm\\` \\*a\\* \\_b\\_ \\~c\\~ \\\\\\|"
    assert _plain("# heading") == "\\# heading" and _plain("- item") == "\\- item"


def test_labels_of_a_strangers_run_do_nothing_to_a_terminal(tmp_path):
    from deir.experiments.report.curves import read_run

    tree = {"env": {"id": "\x1b[31mred\x07"}, "method": "m" * 10_000, "seed": 0, "steps": 8}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    (tmp_path / "progress.csv").write_text("frames,seconds,return_mean\n8,1,0\n")
    curve = read_run(tmp_path)
    assert curve is not None and curve.env.isprintable() and len(curve.method) <= 300


@pytest.mark.parametrize("field", ["seed", "steps"])
@pytest.mark.parametrize(
    "value", [None, -1, 2**63, "", "x", "1", [], {}, 1.5, float("nan"), True, "x" * 1000, "\x1b[31m"], ids=repr
)
def test_a_report_of_a_strangers_seed_or_steps_is_one_short_message(tmp_path, monkeypatch, capsys, field, value):
    run = make_run(tmp_path / "run", [0.1, 0.2])
    tree = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**tree, field: value}))
    words = ["report", str(run), "--out", str(tmp_path / "report"), "--no-figures"]
    said = told(words, monkeypatch, capsys)
    assert f"config.yaml: {field}: got" in said and len(said) < LONGEST_MESSAGE
    assert "\x1b[31m" not in said and not (tmp_path / "report").exists()


def test_numbers_without_end_in_a_log_are_no_rows(tmp_path):
    from deir.runs.progress import frames_done, read_rows

    log = tmp_path / "progress.csv"
    for last in ("9" * 6000 + ",1", "3,-1", "3,inf", "3,nan", "3," + "9" * 200_000):
        log.write_text(f"iteration,frames\n1,8\n2,16\n{last}\n")
        assert len(read_rows(log)) == 2
        assert frames_done(log) == (16 if len(last) < 10_000 else None)  # which looks at the end of a file only
    log.write_text("a,b\n1,2\n")
    assert frames_done(log) is None
