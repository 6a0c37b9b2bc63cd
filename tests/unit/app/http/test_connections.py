"""Who is taken, and who has to go, when there are too many connections."""

from dataclasses import dataclass, field

from learnloop_service.app.http.connections import RESERVE, Connections


@dataclass(eq=False)
class _Connection:
    closed: list["_Connection"] = field(default_factory=list)

    def close_idle(self) -> None:
        self.closed.append(self)


def _opened(connections: Connections, count: int, address: str = "192.0.2.1") -> list[_Connection]:
    opened = [_Connection() for _ in range(count)]
    assert all(connections.admit(connection, address) for connection in opened)
    return opened


def test_there_are_never_more_than_the_limit() -> None:
    connections = Connections(3)
    opened = _opened(connections, 10)
    assert len(connections) == 3
    assert [bool(connection.closed) for connection in opened] == [True] * 7 + [False] * 3


def test_the_client_with_most_idle_connections_makes_room() -> None:
    connections = Connections(5)
    few = _opened(connections, 2, "192.0.2.1")
    many = _opened(connections, 3, "192.0.2.2")
    _opened(connections, 1, "192.0.2.3")
    assert not any(connection.closed for connection in few)
    assert [bool(connection.closed) for connection in many] == [True, False, False]


def test_a_busy_connection_is_not_closed() -> None:
    connections = Connections(2)
    first, second = _opened(connections, 2)
    connections.busy(first)
    _opened(connections, 1)
    assert first.closed == []
    assert bool(second.closed)


def test_one_whose_request_is_answered_waits_again() -> None:
    connections = Connections(2)
    first, second = _opened(connections, 2)
    for connection in (first, second):
        connections.busy(connection)
    connections.idle(second)
    _opened(connections, 1)
    assert first.closed == []
    assert bool(second.closed)


def test_if_all_are_busy_the_next_ones_may_only_ask_for_the_health() -> None:
    connections = Connections(2)
    for connection in _opened(connections, 2):
        connections.busy(connection)
    reserve = [_Connection() for _ in range(RESERVE + 1)]
    assert not any(connections.admit(connection, "192.0.2.1") for connection in reserve)
    assert [bool(connection.closed) for connection in reserve] == [True] + [False] * RESERVE
    assert len(connections) == 2


def test_one_client_has_its_own_limit_and_its_own_make_room() -> None:
    connections = Connections(10, 2)
    other = _opened(connections, 2, "192.0.2.1")
    _opened(connections, 5, "192.0.2.2")
    assert len(connections) == 4
    assert not any(connection.closed for connection in other)


def test_addresses_of_one_ipv6_network_are_one_client() -> None:
    connections = Connections(10, 2)
    first = _opened(connections, 1, "2001:db8::1")
    _opened(connections, 1, "2001:db8::2")
    _opened(connections, 1, "2001:db8::3")
    _opened(connections, 1, "2001:db8:0:1::1")
    assert first[0].closed
    assert len(connections) == 3


def test_what_is_closed_makes_room_once() -> None:
    connections = Connections(2)
    first, second = _opened(connections, 2)
    for _ in range(2):
        connections.remove(first)
    assert len(connections) == 1
    _opened(connections, 1)
    assert not second.closed
