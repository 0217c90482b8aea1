"""The documentation as a site: every link leads somewhere, and nothing is asked of the network."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`((?:src|tests|docs|examples|experiments|benchmarks)/[\w./+-]+)`")
WRITTEN_LATER = ("docs/results/",)  # commands of documents name what they write
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> tuple[Path, str]:
    """The built pages, and what the builder said."""
    place = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    return place, f"{done.returncode}\n{done.stderr}"


def test_every_link_of_every_page_leads_somewhere(site):
    code, said = site[1].split("\n", 1)
    assert "WARNING" not in said and "ERROR" not in said, said
    assert code == "0", said


def test_the_pages_are_there_and_ask_nothing_of_the_network(site):
    place, _ = site
    assert (place / "index.html").is_file()
    for page in ("configuration", "methods/index", "results/index", "repository/examples/quickstart.py"):
        text = (place / f"{page}.html").read_text()
        asked = re.findall(r'<(?:script|img|iframe)[^>]* src="(?:https?:)?//[^"]+"', text)
        asked += re.findall(r'<link[^>]* rel="(?:stylesheet|preconnect)"[^>]* href="(?:https?:)?//[^"]+"', text)
        assert not asked


def test_the_citation_is_of_this_version_and_of_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["version"] == project["version"] and citation["license"] == project["license"]
    assert citation["type"] == "software" and citation["preferred-citation"]["year"] == 2023
    assert citation["preferred-citation"]["title"].startswith("DEIR: Efficient and Robust Exploration")


def test_ranges_take_in_the_pinned_versions_and_pin_nothing():
    from packaging.requirements import Requirement

    pinned = dict(line.split("==") for line in (ROOT / "requirements.txt").read_text().splitlines())
    versions = {name.lower().replace("_", "-"): version for name, version in pinned.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in map(Requirement, project["dependencies"]):
        assert requirement.specifier.contains(versions[requirement.name.lower()]), requirement
        assert not any(part.operator in ("==", "===") for part in requirement.specifier), requirement


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page):
    named = {name.rstrip(".") for name in NAMED.findall(page.read_text())}
    missing = {name for name in named if not (ROOT / name).exists() and not name.startswith(WRITTEN_LATER)}
    if page.name == "extending.md":
        missing -= {"src/deir/algorithm/rewards/surprise.py", "src/deir/algorithm/rewards/novelty.py"}  # to be written
    assert page.name == "CHANGELOG.md" or not missing
