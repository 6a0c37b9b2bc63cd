"""Checks whether a database accepts connections."""

import psycopg
from sqlalchemy import URL

from learnloop_service.app.db.connecting import connection_parameters


class NoConnection(Exception):
    """The database accepts no connections. The message is safe to show to clients; the cause is not."""


async def connect_once(url: URL) -> None:
    """Open a connection and close it: a server that accepts connections is up. Raises NoConnection.

    A query on a long-lived connection would prove less, because connections to a frozen server stay open.
    """
    options = connection_parameters(url)
    try:
        connection = await psycopg.AsyncConnection.connect(**options)
    except psycopg.Error as error:
        raise NoConnection("it takes no connections") from error
    await connection.close()
