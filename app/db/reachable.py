"""Whether a database takes connections."""

import psycopg
from sqlalchemy import URL


class NoConnection(Exception):
    """It takes none. The message is fit for everybody; the cause is not."""


async def connect_once(url: URL) -> None:
    """Connect and leave: a server that lets us in answers. Raises NoConnection.

    A query on a connection of long standing would tell less: those of a frozen server stay open.
    """
    options = url.translate_connect_args(username="user", database="dbname") | dict(url.query)
    try:
        connection = await psycopg.AsyncConnection.connect(**options)
    except psycopg.Error as error:
        raise NoConnection("it takes no connections") from error
    await connection.close()
