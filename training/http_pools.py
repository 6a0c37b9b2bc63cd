"""Many simultaneous requests to one server, without what httpx's connection pool costs then.

For each request and each response that pool looks at all its idle connections, once for every idle connection. At 64
conversations this was most of the time between the engine's reply and the next request.
"""

from itertools import cycle

import httpx


class SinglePools(httpx.AsyncBaseTransport):
    """Plain HTTP over as many connection pools as there are simultaneous requests, used in turns.

    A pool has one connection, and opens another where its turn comes while it is busy.
    """

    def __init__(self, requests_at_once: int) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=1)
        tls = httpx.create_ssl_context(verify=False)  # not used; each pool would make its own
        self._pools = [httpx.AsyncHTTPTransport(verify=tls, limits=limits) for _ in range(requests_at_once)]
        self._turns = cycle(self._pools)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await next(self._turns).handle_async_request(request)

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.aclose()
