"""No spelling, no name and no name server leads a user's URL inside."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from learnloop_service.app.security.address_guard import AddressGuard, AddressRefused, GuardedTransport, is_admissible

REFUSED = [
    "http://127.0.0.1/",
    "http://127.8.8.8/",
    "http://2130706433/",
    "http://0177.0.0.1/",
    "http://0300.0250.1.1/",
    "http://0x7f.0.0.1/",
    "http://0x7f000001/",
    "http://127.1/",
    "http://127.0.1/",
    "http://0/",
    "http://１２７.０.０.１/",  # noqa: RUF001
    "http://127。0。0。1/",
    "http://localhost/",
    "http://10.0.0.1/",
    "http://172.16.0.1/",
    "http://192.168.1.1/",
    "http://100.64.0.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://100.100.100.200/",
    "http://168.63.129.16/",
    "http://192.0.0.8/",
    "http://192.88.99.1/",
    "http://198.18.0.1/",
    "http://224.0.0.1/",
    "http://255.255.255.255/",
    "http://[::]/",
    "http://[::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[::127.0.0.1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[64:ff9b:1::a00:1]/",
    "http://[2002:7f00:1::]/",
    "http://[2001:0:7f00:1::]/",
    "http://[2001:db8::1]/",
    "http://[3fff::1]/",
    "http://[fe80::1]/",
    "http://[fe80::1%25lo]/",
    "http://[fc00::1]/",
    "http://[fd00:ec2::254]/",
    "http://[fec0::1]/",
    "http://[ff02::1]/",
    "http://user@8.8.8.8/",
    "http://user:password@8.8.8.8/",
    "http://@8.8.8.8/",
    "http://8.8.8.8\\@127.0.0.1/",
    "http://8.8.8.8 /",
    "http://8.8.8.8/\r\nHost: inside",
    "http://8.8.8.8:22/",
    "http://8.8.8.8:0/",
    "http://8.8.8.8:99999/",
    "http://8.8.8.8:80:80/",
    "http://8.8.8.8:+80/",
    "http://8.8.8.8:-80/",
    "http://8.8.8.8: 80/",
    "http://8.8.8.8:8_0/",
    "http://8.8.8.8:\uff18\uff10/",
    "http://8.8.8.8:\u0668\u0660/",
    "http://[2606:4700::1111]:+80/",
    "ftp://8.8.8.8/",
    "file:///etc/passwd",
    "gopher://8.8.8.8/",
    "//8.8.8.8/",
    "http:///path",
    "8.8.8.8",
    "",
]


@pytest.mark.parametrize("url", REFUSED)
async def test_no_form_of_a_private_address_is_taken(url: str) -> None:
    with pytest.raises(AddressRefused):
        await AddressGuard().check(url)


@pytest.mark.parametrize(
    "url", ["http://8.8.8.8/", "https://8.8.8.8:8443/x?y=1", "HTTPS://1.1.1.1:443", "http://[2606:4700::1111]/"]
)
async def test_public_addresses_are_taken(url: str) -> None:
    await AddressGuard().check(url)


class Names:
    """A name server that gives its answers one after the other; the last one again and again."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def resolve(self, host: str, port: int) -> list[str]:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.mark.parametrize(
    "answer",
    [["8.8.8.8", "10.0.0.1"], ["10.0.0.1", "8.8.8.8"], ["8.8.8.8", "::1"], ["fe80::1%eth0"], ["::ffff:10.0.0.1"], []],
)
async def test_one_private_address_spoils_the_name(answer: list[str]) -> None:
    with pytest.raises(AddressRefused):
        await AddressGuard(resolve=Names(answer).resolve).check("https://mixed.example/")


async def test_the_operator_admits_names_and_networks() -> None:
    inside = Names(["10.1.2.3"])
    for admitted in ("crm.internal", "CRM.internal.", "10.1.0.0/16", "10.1.2.3"):
        await AddressGuard([admitted], inside.resolve).check("http://crm.internal/hook")
    for other in ("internal", "xcrm.internal", "10.2.0.0/16"):
        with pytest.raises(AddressRefused):
            await AddressGuard([other], inside.resolve).check("http://crm.internal/hook")


@pytest.mark.parametrize(
    ("entry", "good"), [("a.b-c", True), ("10.0.0.0/8", True), ("10.0.0.1/8", False), ("a b", False)]
)
def test_what_may_be_admitted(entry: str, good: bool) -> None:
    assert is_admissible(entry) is good


@asynccontextmanager
async def _echo() -> AsyncIterator[tuple[int, list[str]]]:
    """A server on 127.0.0.1; its port and the request heads that it got."""
    heads: list[str] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], heads


def _client(guard: AddressGuard) -> httpx.AsyncClient:
    inner = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_keepalive_connections=0))
    return httpx.AsyncClient(transport=GuardedTransport(guard, inner), trust_env=False)


async def test_a_name_that_changes_its_address_is_refused_in_the_next_request() -> None:
    names = Names(["127.0.0.1"], ["127.0.0.2"])
    async with _echo() as (port, heads), _client(AddressGuard(["127.0.0.1"], names.resolve)) as client:
        url = f"http://rebinding.example:{port}/hook"
        assert (await client.post(url, content=b"x")).status_code == 200
        assert names.asked == 1
        assert f"Host: rebinding.example:{port}" in heads[0]
        with pytest.raises(AddressRefused):
            await client.post(url, content=b"x")
        assert names.asked == 2
        assert len(heads) == 1


async def test_an_address_that_does_not_answer_is_passed_over() -> None:
    names = Names(["127.0.0.3", "127.0.0.1"])
    async with _echo() as (port, heads), _client(AddressGuard(["127.0.0.0/8"], names.resolve)) as client:
        assert (await client.post(f"http://two.example:{port}/", content=b"x")).status_code == 200
        assert len(heads) == 1
