"""The sockets that the service listens on, on the machine's own addresses."""

import socket
from ipaddress import ip_address

import pytest

from learnloop_service.app.processes.listening import CannotListen, taken_port


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=5):
            return True
    except ConnectionRefusedError:
        return False


@pytest.mark.parametrize(
    ("host", "heard"),
    [
        ("::", ("127.0.0.1", "::1")),
        ("0:0::0", ("127.0.0.1", "::1")),
        ("::1", ("::1",)),
        ("0.0.0.0", ("127.0.0.1",)),
        ("127.0.0.1", ("127.0.0.1",)),
    ],
)
def test_all_addresses_of_ipv6_are_those_of_ipv4_as_well(host: str, heard: tuple[str, ...]) -> None:
    with taken_port(host, 0) as sockets:
        for listener in sockets:
            listener.listen()
        [port] = {listener.getsockname()[1] for listener in sockets}
        assert tuple(address for address in ("127.0.0.1", "::1") if _answers(address, port)) == heard
        if "127.0.0.1" in heard:
            [listening] = [listener for listener in sockets if listener.family == socket.AF_INET]
            with socket.create_connection(("127.0.0.1", port)), listening.accept()[0] as accepted:
                assert ip_address(accepted.getpeername()[0]).version == 4, "limits know clients by their address"


def test_a_port_that_is_taken_for_ipv4_only_is_named() -> None:
    with taken_port("127.0.0.1", 0) as [occupant]:
        occupant.listen()
        with (
            pytest.raises(CannotListen, match="another process listens there"),
            taken_port("::", occupant.getsockname()[1]),
        ):
            pass
