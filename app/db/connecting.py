"""Opens connections to Postgres, directly or through a pooler such as PgBouncer. All of them are opened here.

A pooler differs from a server in three ways. Many refuse the startup parameter `options`: settings are then made in
each transaction. In transaction mode, each transaction can meet another connection of the server: nothing is prepared
there. And what is heard by LISTEN is lost. A pooler is recognised by the process that it names, which is not the
server's.
"""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL

if TYPE_CHECKING:  # loaded with the first connection
    import psycopg

SERVER_SETTINGS = {
    "timezone": "UTC",
    "statement_timeout": "15000",
    "idle_in_transaction_session_timeout": "30000",
}
"""Settings of every connection. Times are in milliseconds."""
_CLIENT = {
    "application_name": "learnloop",
    "client_encoding": "UTF8",
    # When the operating system ends a connection to a machine that no longer answers, in seconds, seconds and probes.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}
_REFUSES_OPTIONS = re.compile(r"startup parameter|command-line options", re.IGNORECASE)
"""How PgBouncer, Neon, Odyssey and the proxy of Amazon RDS refuse the parameter."""
_USES = 5
"""Uses of a statement after which it is prepared, as psycopg has it."""
_SERVER_PROCESS = "SELECT pg_backend_pid()"
_refusing: set[URL] = set()
"""Databases that refused `options` in this process."""


async def connect(
    url: URL, settings: Mapping[str, str] = SERVER_SETTINGS, prepare_threshold: int = _USES, **more: Any
) -> "psycopg.AsyncConnection[Any]":
    """Open a connection in autocommit mode, with these settings if the server takes them. Statements are prepared after
    that many uses. Raises psycopg.Error."""
    import psycopg

    for parameters, has_settings in _tries(url, settings, more):
        try:
            connection = await psycopg.AsyncConnection.connect(**parameters)
        except psycopg.OperationalError as error:
            _require_refusal(url, has_settings, error)
        else:
            server_process = await (await connection.execute(_SERVER_PROCESS)).fetchone()
            _prepare_unless_pooled(connection, server_process, prepare_threshold)
            return connection
    raise AssertionError("the last try returns or raises")


def connect_blocking(url: URL, settings: Mapping[str, str], **more: Any) -> "psycopg.Connection[Any]":
    """Like `connect`, for a thread without an event loop."""
    import psycopg

    for parameters, has_settings in _tries(url, settings, more):
        try:
            connection = psycopg.connect(**parameters)
        except psycopg.OperationalError as error:
            _require_refusal(url, has_settings, error)
        else:
            _prepare_unless_pooled(connection, connection.execute(_SERVER_PROCESS).fetchone(), _USES)
            return connection
    raise AssertionError("the last try returns or raises")


def connection_parameters(url: URL) -> dict[str, Any]:
    """Return the parameters of a URL as keyword arguments for psycopg."""
    return url.translate_connect_args(username="user", database="dbname") | dict(url.query)


def is_pooled(connection: Any) -> bool:
    """Whether the connection leads through a pooler, so that nothing of it outlives a transaction."""
    return connection.prepare_threshold is None


def settings_of_transaction(settings: Mapping[str, str] = SERVER_SETTINGS) -> str:
    """Return the statement that makes these settings for the transaction in which it runs."""
    return "SELECT " + ", ".join(f"set_config('{name}', '{value}', true)" for name, value in settings.items())


def _tries(url: URL, settings: Mapping[str, str], more: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield the parameters to connect with, and whether they have the settings: at first they do, unless the database
    is known to refuse them."""
    parameters = _CLIENT | connection_parameters(url) | dict(more, autocommit=True, prepare_threshold=None)
    if url not in _refusing:
        ours = " ".join(f"-c {name}={value}" for name, value in settings.items())
        yield parameters | {"options": f"{parameters.get('options', '')} {ours}".strip()}, True
    yield parameters, False


def _require_refusal(url: URL, has_settings: bool, error: Exception) -> None:
    """Note that the database refuses the settings. Raises the error if it is another one."""
    if not has_settings or not _REFUSES_OPTIONS.search(str(error)):
        raise error
    _refusing.add(url)


def _prepare_unless_pooled(connection: Any, server_process: Any, prepare_threshold: int) -> None:
    if server_process[0] == connection.info.backend_pid:
        connection.prepare_threshold = prepare_threshold
