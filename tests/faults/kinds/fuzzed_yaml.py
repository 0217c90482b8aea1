"""YAML that nobody means: as a configuration, as the file of a sweep and as the file of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from deir.experiments.sweep.grid import read_grid
from deir.experiments.tune.study import read_plan

from ..base import Budget, Kind, Tally
from ..inputs import command, drawn, judge, texts, trees, values, without_work, working_in

SWEEP: dict[str, Any] = {"envs": ["Empty-5x5"], "methods": ["none"], "seeds": 0, "steps": 512}
STUDY: dict[str, Any] = {
    "env": "Empty-5x5", "method": "none", "seeds": 0, "steps": 512, "n_trials": 1, "search": {"ppo.gamma": [0.9]},
}  # fmt: skip
KEYS = {"sweep": (*SWEEP, "name", "overrides", "cells"), "study": (*STUDY, "name", "overrides", "pruner", "sampler")}
SNIPPETS = (
    "a: &a [*a]", "{a: *b}", "!!int 'x'", "!!python/object:os.system {}", "2024-99-99", "!!timestamp x",
    "!!float x", "!!bool x", "!!binary '*'", "? [a]\n: b", "<<: [1]", "<<: 1", "%YAML 9.9\n---\na: 1",
    "---\na: 1\n---\nb: 2", "\t", "'", "&a", "*a", "[", "{", "|", "a: b: c", "!<x> 1", "0o9", "1:60:99",
    "!!omap [1]", "!!pairs [1]", "!!set [1]", "env: {id: evil:make}", "method: evil:X",
    "env: {id: 'evil:CartPole-v1'}", "envs: [{x: {id: 'evil:make'}}]\nmethods: [none]\nseeds: 0\nsteps: 1k",
)  # fmt: skip


@st.composite
def documents(draw: Any) -> tuple[str, str]:
    kind = draw(st.sampled_from(("config", "sweep", "study")))
    way = draw(st.integers(0, 9))
    if way == 0:
        return kind, draw(st.one_of(st.sampled_from(SNIPPETS), st.text(max_size=60)))
    if kind == "config":
        tree: Any = draw(trees())
    else:
        tree = dict(SWEEP if kind == "sweep" else STUDY)
        for _ in range(draw(st.integers(1, 2))):
            key = draw(st.one_of(st.sampled_from(KEYS[kind]), texts))
            tree[key] = draw(st.one_of(values, trees()))
    text = _hexadecimal(tree)
    if way == 1 and text:
        cut = draw(st.integers(0, len(text)))
        text = text[:cut] + draw(st.sampled_from(("", "\x00", "\x1b", ":", "-", "&x", "*x", "!", "\n"))) + text[cut:]
    return kind, text


def _hexadecimal(tree: Any) -> str:
    """Python writes no decimal numbers of thousands of digits."""

    class Dumper(yaml.SafeDumper):
        pass

    Dumper.add_representer(
        int, lambda d, n: d.represent_scalar("tag:yaml.org,2002:int", hex(n) if n > 10**40 else str(n))
    )
    return yaml.dump(tree, Dumper=Dumper)


def run_kind(budget: Budget, scratch: Path, tally: Tally) -> None:
    file = scratch / "file.yaml"
    readers = {
        "config": lambda: command(["train", "--config", str(file), "--out", "new"]),
        "sweep": lambda: read_grid(file),
        "study": lambda: read_plan(file),
    }

    def try_one(case: tuple[str, str]) -> None:
        kind, text = case
        file.write_bytes(text.encode(errors="surrogatepass"))
        judge(f"{kind} {text[:600]!r}", readers[kind], tally, trace)

    with working_in(scratch / "here") as trace, without_work():
        drawn(budget, documents(), try_one)


KIND = Kind("fuzzed-yaml", "fuzzed YAML files", run_kind, full=1500, short=60)
