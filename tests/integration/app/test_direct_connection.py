"""The connection outside the pool: when it is opened, and what it reports when something goes wrong."""

import pytest
from sqlalchemy import URL

from learnloop_service.app.db.database import parse_url
from learnloop_service.app.db.direct_connection import DirectConnection

_SAME = "SELECT * FROM unnest(%(names)s::text[], %(values)b::bytea[]) AS made (name, value)"


@pytest.fixture
def url(database_url: str) -> URL:
    return parse_url(database_url)


async def test_it_has_the_settings_of_the_pool_and_its_own(url: URL) -> None:
    connection = DirectConnection(url, synchronous_commit="off")
    names = ("TimeZone", "statement_timeout", "application_name", "synchronous_commit")
    rows = await connection.execute("SELECT " + ", ".join(f"current_setting('{name}')" for name in names))
    assert rows is not None
    assert [*rows[0]] == ["UTC", "15s", "learnloop", "off"]
    await connection.close()
    assert await connection.execute(_SAME, {"names": ["a", "b"], "values": [b"\0", None]})  # it is opened again
    await connection.close()


async def test_what_the_database_does_not_take_is_the_callers_alone(url: URL) -> None:
    connection = DirectConnection(url)
    assert await connection.execute(_SAME, {"names": ["a\0"], "values": [b""]}) is None
    rows = await connection.execute(_SAME, {"names": ["a"], "values": [b"b"]})
    assert rows is not None
    assert [tuple(row) for row in rows] == [("a", b"b")]
    await connection.close()


async def test_waiting_times_of_the_url_are_no_obstacle(url: URL) -> None:
    connection = DirectConnection(url.update_query_dict({"connect_timeout": "3", "keepalives_idle": "5"}))
    assert await connection.execute("SELECT 1")
    await connection.close()


async def test_a_database_that_cannot_be_reached_is_left_to_the_pool(url: URL) -> None:
    connection = DirectConnection(url.update_query_dict({"host": "/nowhere"}))
    assert await connection.execute("SELECT 1") is None
    await connection.close()
