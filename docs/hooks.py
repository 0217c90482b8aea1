"""What joins the site beside docs/: the targets of links that leave it (the README, examples, experiment files), and
the page of Figures 3 and 6, made of the committed curves."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
SHOWN = ("*.md", "examples/*.py", "experiments/*.yaml")
PLACE = "repository"  # where they are on the site
FIGURES = "results/figures-3-and-6.html"
CURVES = ("standard", "noisy-tasks", "advanced", "ablations-keycorridor")  # folders of docs/results
_LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))|(<img src=\")([^\"]+)(\")")


def on_files(files: Files, config: Any) -> Files:
    """Code becomes a page that shows it."""
    for pattern in SHOWN:
        for path in sorted(ROOT.glob(pattern)):
            inside = path.relative_to(ROOT).as_posix()
            text = path.read_text()
            if path.suffix != ".md":
                text = f"# {inside}\n\n```{path.suffix[1:]}\n{text}```\n"
            files.append(File.generated(config, site_name(inside), content=text))
    listing = "\n".join(f"- [{p.name}]({p.name}.md)" for p in sorted((ROOT / "experiments").glob("*.yaml")))
    files.append(File.generated(config, f"{PLACE}/experiments/README.md", content=f"# Experiments\n\n{listing}\n"))
    files.append(File.generated(config, FIGURES, content=report()))
    return files


def report() -> str:
    """The page that `deir report` writes of these curves."""
    from deir.experiments.report.analysis import Study
    from deir.experiments.report.curves import read_all
    from deir.experiments.report.page import render

    tables = [path for folder in CURVES for path in sorted((ROOT / "docs/results" / folder).glob("*.csv"))]
    curves, notes = read_all([path for path in tables if path.read_text().startswith("env,method,seed,frames,")])
    return render(Study(curves, 1000, notes), "Figures 3 and 6 of the paper, in our runs")


def site_name(inside: str) -> str:
    """The page of a file of the repository."""
    return f"{PLACE}/{inside if inside.endswith('.md') else f'{inside}.md'}"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links of a page, as they hold in the repository, turned into those of the site."""
    source = page.file.src_uri
    home = posixpath.dirname(source.removeprefix(f"{PLACE}/") if source.startswith(PLACE) else f"docs/{source}")

    def rewritten(match: re.Match[str]) -> str:
        before, link, after = match.group(1, 2, 3) if match[2] else match.group(4, 5, 6)
        target = posixpath.normpath(posixpath.join(home, link))
        if link.startswith(("http", "/")) or not (ROOT / target).exists():
            return match[0]  # mkdocs tells what is not there
        return before + posixpath.relpath(_site_path(target), posixpath.dirname(source) or ".") + after

    return _LINK.sub(rewritten, markdown)


def _site_path(target: str) -> str:
    if target.startswith("docs/"):
        return target.removeprefix("docs/") + ("/README.md" if os.path.isdir(ROOT / target) else "")
    return f"{PLACE}/{target}/README.md" if (ROOT / target).is_dir() else site_name(target)
