"""Several tuners on one study: one at a time decides what is tried next."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock

PATIENCE = 600  # seconds MySQL waits for another tuner


@contextmanager
def alone(storage: str, name: str) -> Iterator[None]:
    """Holds the study `name` of a database for this process. The database lets go when a process dies.

    Optuna hands each trial that waits to one asker only, but to count the trials and then ask for one more are two
    steps, as are to make a study and to fill its queue: two tuners at once would begin one trial too many.
    """
    from sqlalchemy import create_engine, make_url, text
    from sqlalchemy.pool import NullPool

    url = make_url(storage)
    kind, key = url.get_backend_name(), zlib.crc32(f"deir tune {name}".encode())
    if kind == "sqlite":
        with _file_held(url.database):
            yield
        return
    ask = {
        "postgresql": f"SELECT pg_advisory_lock({key})",
        "mysql": f"SELECT GET_LOCK('deir tune {key}', {PATIENCE})",
        "mariadb": f"SELECT GET_LOCK('deir tune {key}', {PATIENCE})",
    }.get(kind)
    if ask is None:
        yield
        return
    engine = create_engine(url, poolclass=NullPool)  # a connection of its own, whose end is the end of the lock
    try:
        with engine.connect() as connection:
            connection.execute(text(ask))
            yield
    finally:
        engine.dispose()


@contextmanager
def _file_held(database: str | None) -> Iterator[None]:
    if database in (None, "", ":memory:"):
        yield
        return
    with FileLock(f"{database}.lock"):
        yield
