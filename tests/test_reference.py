"""docs/configuration.md is made from the configuration, so it can be out of date but never wrong by hand."""

import dataclasses
from pathlib import Path
from typing import Literal

from deir.cli import reference
from deir.config import Config, Count

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"


def keys(config, path=""):
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        yield from keys(value, f"{path}{field.name}.") if dataclasses.is_dataclass(value) else [f"{path}{field.name}"]


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == reference.reference(), f"docs/configuration.md is stale; type: {reference.COMMAND}"


def test_every_option_has_one_row_with_a_meaning():
    lines = reference.reference().partition("## Only on the command line")[0].splitlines()
    for key in keys(Config()):
        flag = "`--" + key.replace("_", "-") + "`"
        (row,) = [line for line in lines if line.startswith("| `--") and flag in line.split(" | ")[0]]
        assert row.split(" | ")[3].strip(" |"), flag


def test_types_and_values_are_told_in_plain_words():
    assert reference.type_name(Count) == "number of frames"
    assert reference.type_name(int | None) == "integer or none"
    assert reference.type_name(Literal["a", "b"]) == "`a`, `b`"
    assert [reference.shown(value) for value in (None, True, False, 0.01)] == ["none", "on", "off", "`0.01`"]


def test_a_table_keeps_bars_within_their_cell():
    assert reference.table(["a"], [["x|y"]]) == "| a |\n| --- |\n| x\\|y |\n"
