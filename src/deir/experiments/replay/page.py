"""The page: one HTML file with its data, style and script inside. It asks the network for nothing."""

from __future__ import annotations

import gzip
import html
import json
from base64 import b64encode
from importlib.resources import files
from typing import Any

SCRIPTS = ("data.js", "grid.js", "lanes.js", "why.js", "maps.js", "player.js")


def render(contents: dict[str, Any]) -> str:
    """All that comes from the user is text: the title is escaped, the rest is data that the script writes as text."""
    templates = files("deir.experiments.replay") / "templates"
    text = json.dumps(contents, allow_nan=False, separators=(",", ":"))
    parts = {
        "TITLE": html.escape(contents["title"]),
        "STYLE": (templates / "replay.css").read_text(),
        "SCRIPT": "\n".join((templates / name).read_text() for name in SCRIPTS),
        "DATA": b64encode(gzip.compress(text.encode(), mtime=0)).decode(),
    }
    page = (templates / "replay.html").read_text()
    for name, part in parts.items():
        page = page.replace(f"<!--{name}-->", part)
    return page
