"""The connection beside the pool: when it is opened, and what it says of what goes wrong."""

import pytest
from sqlalchemy import URL

from app.db.database import parse_url
from app.db.own_connection import OwnConnection, numbered

_SAME = "SELECT * FROM unnest($1::text[], $2::bytea[]) AS made (name, value)"


@pytest.fixture
def url(database_url: str) -> URL:
    return parse_url(database_url)


async def test_it_has_the_settings_of_the_pool_and_its_own(url: URL) -> None:
    connection = OwnConnection(url, synchronous_commit="off")
    names = ("TimeZone", "statement_timeout", "application_name", "synchronous_commit")
    rows = await connection.execute("SELECT " + ", ".join(f"current_setting('{name}')" for name in names))
    assert rows is not None
    assert [*rows[0]] == ["UTC", "15s", "learnloop", "off"]
    await connection.close()
    assert await connection.execute(_SAME, ["a", "b"], [b"\0", None])  # it is opened again
    await connection.close()


async def test_what_the_database_does_not_take_is_the_callers_alone(url: URL) -> None:
    connection = OwnConnection(url)
    assert await connection.execute(_SAME, ["a\0"], [b""]) is None
    rows = await connection.execute(_SAME, ["a"], [b"b"])
    assert rows is not None
    assert [tuple(row) for row in rows] == [("a", b"b")]
    await connection.close()


@pytest.mark.parametrize("more", [{"channel_binding": "require"}, {"options": "-c search_path=other"}])
async def test_parameters_that_it_does_not_know_are_left_to_the_pool(url: URL, more: dict[str, str]) -> None:
    assert await OwnConnection(url.update_query_dict(more)).execute("SELECT 1") is None


async def test_waiting_times_of_the_url_are_no_obstacle(url: URL) -> None:
    connection = OwnConnection(url.update_query_dict({"connect_timeout": "3", "keepalives_idle": "5"}))
    assert await connection.execute("SELECT 1")
    await connection.close()


async def test_a_database_that_cannot_be_reached_is_left_to_the_pool(url: URL) -> None:
    connection = OwnConnection(url.update_query_dict({"host": "/nowhere"}))
    assert await connection.execute("SELECT 1") is None
    await connection.close()


def test_a_name_becomes_the_number_of_its_column() -> None:
    named = "SELECT %(b)s::text[], %(a)b::bytea[] WHERE x = ANY (%(b)s) AND y LIKE 'a%%'"
    assert numbered(named, ("a", "b")) == "SELECT $2::text[], $1::bytea[] WHERE x = ANY ($2) AND y LIKE 'a%'"
