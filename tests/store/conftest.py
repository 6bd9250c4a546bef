"""Stores of both kinds: a file, and a database of a PostgreSQL that the tests start."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import postgres_started
import pytest


@pytest.fixture(scope="session")
def postgres_socket(needs_postgres: None) -> Iterator[str]:
    with postgres_started.postgres() as folder:
        yield folder


@pytest.fixture
def new_database(postgres_socket: str) -> Callable[[], str]:
    """Makes an empty schema, which costs less than a database, and returns the URL that goes by it."""

    import psycopg  # slow to load, and every process collects these tests

    def make() -> str:
        name = f"t{secrets.token_hex(6)}"
        with psycopg.connect(host=postgres_socket, user="postgres", autocommit=True) as db:
            db.execute(f"CREATE SCHEMA {name}".encode())
        return f"postgresql://postgres@/postgres?host={postgres_socket}&options=-csearch_path%3D{name}"

    return make


@pytest.fixture
def team(home: object, new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store of a team, which ztune goes by."""
    url = new_database()
    monkeypatch.setenv("ZTUNE_STORE", url)
    return url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def stored(request: pytest.FixtureRequest) -> None:
    """The store that ztune goes by, of either kind."""
    if request.param == "postgresql":
        request.getfixturevalue("team")
