"""`learnloop migrate` against a real, empty database."""

from pathlib import Path

import psycopg
import pytest
from sqlalchemy import URL
from ulid import ULID

from learnloop_service.app.db import migration
from tests.integration.cli.conftest import Learnloop


@pytest.fixture(autouse=True)
def _nothing_of_the_developer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def empty(postgres: URL) -> str:
    """The URL of a database without tables."""
    name = f"t{ULID()}".lower()
    with psycopg.connect(_plain(postgres), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    return _plain(postgres.set(database=name))


def _plain(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def test_an_empty_database_gets_the_schema_and_a_second_call_changes_nothing(
    learnloop: Learnloop, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", empty)
    for _ in range(2):
        migrated = learnloop("migrate")
        assert (migrated.exit_code, migrated.stdout) == (0, "the database has the schema of this version\n"), (
            migrated.stderr
        )
    with psycopg.connect(empty) as connection:
        assert connection.execute("SELECT count(*) FROM run").fetchone() == (0,)


def test_a_database_of_a_newer_version_stays_as_it_is(
    learnloop: Learnloop, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(empty) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num text)")
        connection.execute("INSERT INTO alembic_version VALUES ('9999')")
    monkeypatch.setenv("DATABASE_URL", empty)
    refused = learnloop("migrate")
    assert refused.exit_code == 1
    assert "newer version of learnloop" in refused.stderr


def test_without_a_url_it_says_who_migrates(learnloop: Learnloop) -> None:
    refused = learnloop("migrate")
    assert refused.exit_code == 1
    assert "DATABASE_URL is not set" in refused.stderr


def test_a_database_that_is_down_is_named_with_what_to_do(
    learnloop: Learnloop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "_START_S", 0.0)
    monkeypatch.setenv("DATABASE_URL", "postgresql://somebody@127.0.0.1:9/learnloop")
    refused = learnloop("migrate")
    assert refused.exit_code == 1
    (line,) = [text_line for text_line in refused.stderr.splitlines() if text_line.startswith("learnloop:")]
    assert "127.0.0.1" in line
    assert "Connection refused; start it, or correct DATABASE_URL" in line
    assert "Errno" not in line
