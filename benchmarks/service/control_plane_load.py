"""Send requests over several connections, as fast as the service answers or paced; print the figures as JSON.

    python -m benchmarks.service.control_plane_load PORT PATH... [--seconds 10] [--connections 16] [--key KEY]
                                                [--body JSON] [--pace 0.1]

The connections take the paths in turn. It runs as a separate process without an HTTP library, so that it measures the
service rather than the client. With a body it POSTs. It fails if a connection breaks off or an answer is not 2xx.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

_WARM_S = 0.5
"""Uncounted time at the start, while connections open and late imports happen."""


class _Connection(asyncio.Protocol):
    """Repeats the same request as soon as it is answered, until time is up."""

    def __init__(self, request: bytes, since: float, until: float, pace: float) -> None:
        self._request, self._since, self._until, self._pace_s = request, since, until, pace
        self._received = bytearray()
        self._sent_at = 0.0
        self.taken_ms: list[float] = []
        self.answered = 0
        """All answers, including those during warm-up."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if not separator or len(body) < _content_length(head):
            return
        if not head.startswith(b"HTTP/1.1 2"):
            self._fail(bytes(self._received[:200]).decode(errors="replace"))
            return
        self._received.clear()
        now = time.monotonic()
        self.answered += 1
        if self._sent_at >= self._since:
            self.taken_ms.append(1e3 * (now - self._sent_at))
        if now >= self._until:
            self.over.set_result(None)
        elif (pause_s := self._pace_s - (now - self._sent_at)) > 0:
            asyncio.get_running_loop().call_later(pause_s, self._send)
        else:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self._fail("the connection broke off")

    def _send(self) -> None:
        self._sent_at = time.monotonic()
        self._transport.write(self._request)

    def _fail(self, why: str) -> None:
        self.over.set_exception(RuntimeError(why))


def _content_length(head: bytearray) -> int:
    _, _, after = head.lower().partition(b"content-length:")
    return int(after.partition(b"\r")[0])


def _request(port: int, path: str, key: str | None, body: str | None) -> bytes:
    content = b"" if body is None else body.encode()
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}"]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join([*lines, "", ""]).encode() + content


async def load(
    port: int, paths: Sequence[str], *, seconds: float, connections: int, pace: float, key: str | None, body: str | None
) -> dict[str, float]:
    """Return requests a second and latency percentiles in milliseconds. Raises RuntimeError."""
    since = time.monotonic() + _WARM_S
    loop, opened = asyncio.get_running_loop(), []
    for number in range(connections):
        request = _request(port, paths[number % len(paths)], key, body)
        make = partial(_Connection, request, since, since + seconds, pace)
        opened.append(await loop.create_connection(make, "127.0.0.1", port))
    await asyncio.gather(*(connection.over for _, connection in opened))
    for transport, _ in opened:
        transport.close()
    latencies_ms = sorted(latency_ms for _, connection in opened for latency_ms in connection.taken_ms)
    cuts = statistics.quantiles(latencies_ms, n=100, method="inclusive")
    return {
        "requests": len(latencies_ms),
        "all_requests": sum(connection.answered for _, connection in opened),
        "requests_per_s": round(len(latencies_ms) / seconds, 1),
        "p50_ms": round(cuts[49], 1),
        "p95_ms": round(cuts[94], 1),
        "p99_ms": round(cuts[98], 1),
        "max_ms": round(latencies_ms[-1], 1),
    }


def measured(
    port: int, paths: Sequence[str], seconds: float, connections: int, *, pace: float = 0.0, body: str | None = None
) -> Any:
    """Return the figures of this module as another process. Raises CalledProcessError."""
    command = [sys.executable, "-m", "benchmarks.service.control_plane_load", str(port), *paths]
    command += [f"--seconds={seconds}", f"--connections={connections}", f"--pace={pace}"]
    command += [f"--body={body}"] if body else []
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--key")
    parser.add_argument("--body")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds from one request of a connection to the next")
    options = vars(parser.parse_args())
    print(json.dumps(asyncio.run(load(options.pop("port"), options.pop("paths"), **options))))


if __name__ == "__main__":
    main()
