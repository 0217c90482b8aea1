"""The server: this machine only, read only, and no path of a request ever names a file."""

from __future__ import annotations

import json
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from deir.errors import UserError, invalid
from deir.experiments.watch.runs import Watched

LOOPBACK = "127.0.0.1"
HTML, JSON = "text/html; charset=utf-8", "application/json"
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' blob:; style-src "
    "'unsafe-inline'; img-src data: blob:; connect-src 'self'; frame-src 'self'; frame-ancestors 'self'",
}


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, watched: Watched, port: int) -> None:
        self.watched = watched
        try:
            super().__init__((LOOPBACK, port), Handler)
        except OSError as error:
            raise invalid("port", port, f"a free port, or 0 for any ({error.strerror})") from None

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    server: Server  # type: ignore[assignment]
    server_version, sys_version = "deir", ""

    def do_GET(self) -> None:
        if not self._from_here():
            return self._send(HTTPStatus.FORBIDDEN, message("this server answers on its own address only"), HTML)
        try:
            found = self._find(urlsplit(self.path).path)
        except UserError as error:
            return self._send(HTTPStatus.OK, message(str(error)), HTML)
        except Exception as error:  # a run may be in the middle of being written
            return self._send(HTTPStatus.SERVICE_UNAVAILABLE, message(f"not now: {error}"), HTML)
        if found is None:
            return self._send(HTTPStatus.NOT_FOUND, message("there is no such page"), HTML)
        return self._send(HTTPStatus.OK, *found)

    do_HEAD = do_GET

    def _find(self, path: str) -> tuple[str, str] | None:
        watched = self.server.watched
        if path == "/":
            return (files("deir.experiments.watch") / "templates" / "watch.html").read_text(), HTML
        if path == "/state":
            return json.dumps(watched.state()), JSON
        if path == "/report":
            return watched.report(), HTML
        kind, _, name = path.removeprefix("/").partition("/")
        page = watched.replay(name) if kind == "replay" else None
        return None if page is None else (page, HTML)

    def _from_here(self) -> bool:
        """A page of another site that has its name point here would bring that name along."""
        port = self.server.server_address[1]
        return self.headers.get("Host") in (f"{LOOPBACK}:{port}", f"localhost:{port}")

    def _send(self, status: HTTPStatus, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: requests come every second."""


def message(text: str) -> str:
    """A page that says one thing."""
    from html import escape

    style = "font:16px system-ui,sans-serif;margin:2rem;color-scheme:light dark;color:GrayText"
    return f'<!doctype html><meta charset="utf-8"><title>deir</title><p style="{style}">{escape(text)}</p>'
