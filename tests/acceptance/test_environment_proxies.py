"""A run on a machine with proxies in its environment: what stays on the machine does not pass through them."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from learnloop_service.app.cli.service_process import own_service
from learnloop_service.app.cli.watching import follow
from tests.acceptance.documented_blocks import TINY

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("forked_services")]


@pytest.fixture
def proxy() -> Iterator[tuple[str, list[object]]]:
    """The address of a server that accepts connections and closes them, and who connected."""
    connections: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            while True:
                try:
                    connection, peer = listening.accept()
                except OSError:
                    return
                connections.append((peer, connection.recv(100)))
                connection.close()

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}", connections
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize("scheme", ["http", "socks5"])
def test_a_run_asks_no_proxy_for_what_is_on_this_machine(
    scheme: str, proxy: tuple[str, list[object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, connections = proxy
    for name in ("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"{scheme}://{address}")
        monkeypatch.setenv(name.lower(), f"{scheme}://{address}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", "fd07:b51a:cc66:f0::/64")
    with own_service(tmp_path, waiting=lambda _: None) as service:
        run = follow(service, service.start_run(TINY)["run_id"], lambda _: None)
    assert run["status"] == "completed"
    assert run["error"] is None
    assert connections == []
