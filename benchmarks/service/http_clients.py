"""Compare HTTP clients in the processor time of a request, as the service and rollouts send them to a model's server.

    python -m benchmarks.service.http_clients [--simultaneous 1 64 512] [--requests 640] [--json]

The server is a stand-in for a model on another machine. The clients take turns: httpx with its own transport, httpx on
our aiohttp transport (`training.rollout.http_transport`), and aiohttp itself, which the session gateway uses.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx

from benchmarks.engine.slow_model import slow_model
from training.rollout.http_transport import AiohttpTransport, client_session

_REPLY_S = 0.01
_BODY = {"model": "learnloop/tiny", "messages": [{"role": "user", "content": "Who wrote that? " * 30}]}
_UNLIMITED = httpx.Limits(max_connections=None, max_keepalive_connections=None)

Send = Callable[[], Awaitable[Any]]


async def _cost_ms(send: Send, simultaneous: int, requests: int) -> float:
    """Return the processor time of a request in milliseconds, after a first round that opens the connections."""
    rounds = max(1, requests // simultaneous)
    await asyncio.gather(*(send() for _ in range(simultaneous)))
    began = time.process_time()
    for _ in range(rounds):
        await asyncio.gather(*(send() for _ in range(simultaneous)))
    return 1000 * (time.process_time() - began) / (rounds * simultaneous)


async def _compare(url: str, simultaneous: int, requests: int) -> dict[str, Any]:
    async with (
        httpx.AsyncClient(timeout=600, limits=_UNLIMITED, trust_env=False) as plain,
        httpx.AsyncClient(timeout=600, transport=AiohttpTransport(), trust_env=False) as on_aiohttp,
        client_session() as session,
    ):

        def by_httpx(client: httpx.AsyncClient) -> Send:
            async def send() -> Any:
                return (await client.post(f"{url}/chat/completions", json=_BODY)).raise_for_status().json()

            return send

        async def by_aiohttp() -> Any:
            async with session.post(f"{url}/chat/completions", json=_BODY, raise_for_status=True) as reply:
                return await reply.json()

        clients = {"httpx": by_httpx(plain), "httpx on aiohttp": by_httpx(on_aiohttp), "aiohttp": by_aiohttp}
        costs = {name: await _cost_ms(send, simultaneous, requests) for name, send in clients.items()}
    return {"simultaneous": simultaneous, "cpu_ms": {name: round(cost, 2) for name, cost in costs.items()}}


def main() -> None:
    """Print the comparison as a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simultaneous", type=int, nargs="+", default=[1, 64, 512])
    parser.add_argument("--requests", type=int, default=640, help="in total, for each client and row")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with slow_model(_REPLY_S) as url:
        rows = [asyncio.run(_compare(url, count, options.requests)) for count in options.simultaneous]
    print(json.dumps(rows, indent=2) if options.json else _table(rows))


def _table(rows: Sequence[dict[str, Any]]) -> str:
    head = f"{'simultaneous':>12}" + "".join(f"{name:>20}" for name in rows[0]["cpu_ms"])
    lines = [
        f"{row['simultaneous']:>12}" + "".join(f"{cost:>17} ms" for cost in row["cpu_ms"].values()) for row in rows
    ]
    return "\n".join([head, *lines])


if __name__ == "__main__":
    main()
