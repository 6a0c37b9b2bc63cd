"""Connections for many requests at once."""

import asyncio

import httpx

from training.http_pools import SinglePools


async def _keep_alive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every request of a connection with the connection's own port."""
    port = str(writer.get_extra_info("peername")[1])
    while await reader.readline():
        while (await reader.readline()).strip():
            pass
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(port)}\r\n\r\n{port}".encode())
    writer.close()


async def test_connections_are_kept_and_no_request_waits_for_another() -> None:
    server = await asyncio.start_server(_keep_alive, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, httpx.AsyncClient(transport=SinglePools(3), trust_env=False) as client:
        one_by_one = [(await client.get(url)).text for _ in range(9)]
        assert len(set(one_by_one)) == 3
        at_once = await asyncio.gather(*(client.get(url) for _ in range(8)))
        assert len({response.text for response in at_once}) == 8
        after = [(await client.get(url)).text for _ in range(9)]
        assert len(set(after)) == 3
