"""Inputs nobody means: values, trees and files for the kinds that fuzz, and a judge of what became of them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import signal
import sys
import time
import traceback
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from deir import cli
from deir.config import Config, flatten, to_dict
from deir.errors import UserError

from .base import Budget, Tally

PATIENCE, TICK = 300, 5  # seconds after which a case hangs, and between two looks
LONGEST = 60_000  # characters of output; a message that repeats a value does not reach it
EVIL = """
import pathlib
pathlib.Path(__file__).with_name("executed").touch()
def make(**_):
    raise SystemExit(0)
X = make
"""


class Hangs(BaseException):
    """A case waits for something that does not come."""


@contextlib.contextmanager
def patience() -> Iterator[None]:
    """Ends a case that hangs. Seconds are counted one tick after the other: those in which all is stopped are none."""
    ticks = 0

    def tick(*_: Any) -> None:
        nonlocal ticks
        ticks += 1
        if ticks * TICK >= PATIENCE:
            raise Hangs

    before = signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, TICK, TICK)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Began(BaseException):
    """Everything was accepted, and the work would begin here."""


def begin(*_: Any, **__: Any) -> Any:
    raise Began


WORK = (
    "deir.runs.run.make_trainer",
    "deir.experiments.sweep.scheduler.advance",
    "deir.experiments.tune.command.search",
    "deir.experiments.bench.command.in_own_process",
    "deir.experiments.paper.probe.all_seeds",
    "deir.experiments.paper.distances.gather",
    "deir.experiments.watch.server.Server.serve_forever",
)


@contextlib.contextmanager
def without_work() -> Iterator[None]:
    """Commands do all but their work."""
    with contextlib.ExitStack() as stack:
        for name in WORK:
            stack.enter_context(mock.patch(name, begin))
        yield


def judge(what: str, action: Callable[[], Any], tally: Tally, trace: Path | None = None) -> None:
    """Runs one case in this process. Whatever is no answer and no clear error is a fault."""
    output = io.StringIO()
    code: Any = 0
    try:
        with patience(), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            action()
    except Began:
        pass
    except UserError as mistake:
        code = 2
        output.write(str(mistake))
    except SystemExit as end:
        code = end.code or 0
    except Hangs:
        tally.loss(f"{what}: hangs: {traceback.format_exc()[-1500:]}")
        return
    except BaseException:
        tally.traceback(f"{what}: {traceback.format_exc()[-1500:]}")
        return
    text = output.getvalue()
    if trace is not None and trace.exists():
        trace.unlink()
        tally.loss(f"{what}: code that nobody asked for was run")
    elif "Traceback (most recent call last)" in text:
        tally.traceback(f"{what}: {text[-1500:]}")
    elif code not in (0, 2):
        tally.loss(f"{what}: ended with {code!r}: {text[-300:]}")
    elif code and len(text) > LONGEST:
        tally.loss(f"{what}: a message of {len(text):,} characters")
    elif code:
        tally.clear_error() if text.strip() else tally.loss(f"{what}: refused without a word")
    else:
        tally.exactly()


def command(words: list[str]) -> None:
    with mock.patch.object(sys, "argv", ["deir", *words]):
        cli.main()


def drawn(budget: Budget, strategy: st.SearchStrategy[Any], try_one: Callable[[Any], None]) -> None:
    """Hypothesis draws the cases; they are counted, not shrunk."""
    end = time.monotonic() + budget.seconds

    @seed(budget.seed)
    @settings(
        max_examples=budget.cases, database=None, deadline=None, phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def cases(case: Any) -> None:
        if time.monotonic() < end:
            try_one(case)

    cases()


@contextlib.contextmanager
def working_in(place: Path) -> Iterator[Path]:
    """A working directory with a module that leaves a trace when it is imported."""
    before, path = os.getcwd(), list(sys.path)
    place.mkdir(parents=True, exist_ok=True)
    (place / "evil.py").write_text(EVIL)
    os.chdir(place)
    sys.path.append(str(place))
    try:
        yield place / "executed"
    finally:
        os.chdir(before)
        sys.path[:] = path
        sys.modules.pop("evil", None)


ODD_TEXTS = (
    "", " ", ":", "a:", ":b", "..", "../..", "/", "\\", "~", "-", "--", "=", "%s", "{}", "\n", "\t", "é",
    "\u202e", "\ud7ff", "x" * 500, "none", "null", "True", "auto", "deir", "Empty-5x5", "CartPole-v1",
    "procgen:", "procgen:x", "cpu", "cuda:99", "meta", "nan", "inf", "-inf", "1e400", "1e-400", "0x10", "0-3",
    "3-0", "0-9999999999999", "1,1", "200k", "-5k", "2M", "1e30", "9" * 40, "9" * 5000, "-1", "0", "1", "2",
    "7", "0.5", "-0.0", "1.0", "1_0", "١٢",
)  # fmt: skip
characters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
texts = st.one_of(st.sampled_from(ODD_TEXTS), st.text(characters, max_size=20))
words = st.one_of(texts, st.integers().map(str), st.floats().map(str))


def _flags() -> tuple[str, ...]:
    fields = flatten(to_dict(Config()))
    return tuple(f"--{name.replace('_', '-')}" for name in fields)


FLAGS = _flags()
values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.dates(), st.binary(max_size=8), texts,
        st.sampled_from((10**6, 10**30, 16**3000, -1, 0)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(texts, st.integers()), inner, max_size=4)
    ),
    max_leaves=8,
)  # fmt: skip


@st.composite
def trees(draw: Any, config: type = Config) -> dict[str, Any]:
    """Configurations with a few values that may be anything."""
    names = [field.name for field in dataclasses.fields(config)]
    hints = typing.get_type_hints(config)
    tree: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(names), max_size=4)):
        nested = dataclasses.is_dataclass(hints[name]) and draw(st.integers(0, 3))
        tree[name] = draw(trees(hints[name])) if nested else draw(values)
    if not draw(st.integers(0, 9)):
        tree[draw(texts)] = draw(values)
    return tree
