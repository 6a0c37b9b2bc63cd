"""PgBouncer in front of the tests' Postgres."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import URL

from learnloop_service.app.cli.service_process import free_port
from learnloop_service.app.processes.postgres import server_account

PGBOUNCER = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")


@contextmanager
def pooled(
    database_url: URL, directory: Path, *settings: str, mode: str = "transaction", size: int = 2
) -> Iterator[URL]:
    """Yield the URL of the same database through a pooler with `size` connections and these further settings."""
    assert PGBOUNCER is not None
    port, folder = free_port(), directory / f"pooler-{mode}-{size}"
    folder.mkdir()
    (folder / "users").write_text('"postgres" ""\n')
    (folder / "pgbouncer.ini").write_text(
        "\n".join(
            [
                "[databases]",
                f"* = host={database_url.query['host']} user=postgres",
                "[pgbouncer]",
                f"listen_addr=127.0.0.1\nlisten_port={port}\nunix_socket_dir=",
                f"auth_type=any\nauth_file={folder}/users\nlogfile={folder}/log\npidfile={folder}/pid",
                f"pool_mode={mode}\ndefault_pool_size={size}\nmax_client_conn=500\nserver_lifetime=3600",
                *settings,
            ]
        )
    )
    account = server_account() if os.geteuid() == 0 else None  # it does not run as root
    if account is not None:
        directory.chmod(0o755)
        for path in (folder, *folder.iterdir()):
            os.chown(path, *account)
    user, group = account or (None, None)
    process = subprocess.Popen(
        [PGBOUNCER, str(folder / "pgbouncer.ini")], user=user, group=group, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for(port, process)
        yield URL.create(
            "postgresql", "postgres", None, "127.0.0.1", port, database_url.database, {"sslmode": "disable"}
        )
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    while process.poll() is None:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(0.02)
    raise AssertionError("the pooler ended")
