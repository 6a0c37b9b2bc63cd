"""Waiting until a lease would have lapsed."""

import psycopg


def held_past_its_lease(database_url: str, table: str = "run") -> bool:
    """Blocks until the lease on the table's only row is over as it stands now; whether the row is held then."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        ends = connection.execute(f"SELECT lease_until FROM {table}".encode()).fetchone()
        query = f"SELECT clock_timestamp() > %s, lease_until > clock_timestamp() FROM {table}".encode()
        while True:
            [(over, held)] = connection.execute(query, ends).fetchall()
            if over:
                return bool(held)
