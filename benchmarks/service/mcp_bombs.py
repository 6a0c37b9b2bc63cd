"""Measure the memory of rollouts against MCP servers that send far too much, and the seconds until the rollouts fail.

    python -m benchmarks.service.mcp_bombs

A separate process per server opens episodes as a worker does. `peak MB` and `after MB` are its peak resident memory and
what was left when the episodes were over, both relative to `before MB`.
"""

import argparse
import asyncio
import gc
import json
import logging
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import psutil

from tests.fakes.hostile_provider import (
    Answer,
    drip,
    endless,
    endless_events,
    gzip_bomb,
    hostile_provider,
    saying,
    silent_events,
)

_MEMORY_LIMIT = 12_000_000_000
"""Address space limit in bytes of the process that connects to the server, to protect the machine."""
_TIMEOUT_S = 300
_NOTHING_LISTENS = "http://127.0.0.1:1025"


@dataclass(frozen=True)
class _Bomb:
    episodes: int
    """Number of concurrent episodes."""
    answer: Answer


def _json_of(start: bytes, piece: bytes, end: bytes, size: int) -> bytes:
    """Build a reply to `initialize` of about `size` bytes, most of it repetitions of `piece`."""
    head, tail = b'{"jsonrpc": "2.0", "id": 0, "result": {"x": ' + start, end + b"}}"
    return head + piece * ((size - len(head) - len(tail)) // len(piece)) + tail


def _bombs(gzip_mib: int) -> Mapping[str, _Bomb]:
    return {
        f"{gzip_mib} MiB in gzip": _Bomb(1, gzip_bomb(gzip_mib)),
        "31 MB of text": _Bomb(16, saying(_json_of(b'"', b"x", b'"', 31_000_000))),
        "31 MB of empty lists": _Bomb(1, saying(_json_of(b"[[]", b",[]", b"]", 31_000_000))),
        "7 MB of empty lists": _Bomb(16, saying(_json_of(b"[[]", b",[]", b"]", 7_000_000))),
        "a body without end": _Bomb(16, endless),
        "an event without end": _Bomb(16, endless_events),
        "comments without end": _Bomb(16, silent_events),
        "a byte now and then": _Bomb(16, drip),
    }


def main() -> None:
    """Print the measurements as a table or JSON."""
    parser = argparse.ArgumentParser(description="Meet MCP servers that send more than was asked for.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--gzip-mib", type=int, default=3_800, help="of gzip, unpacked: 1,000 times the wire's")
    parser.add_argument("--only", help="servers whose name contains this")
    parser.add_argument("--meet", help=argparse.SUPPRESS)
    parser.add_argument("--episodes", type=int, default=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.meet is not None:
        print(json.dumps(asyncio.run(_met(arguments.meet, arguments.episodes))))
        return
    bombs = {name: bomb for name, bomb in _bombs(arguments.gzip_mib).items() if (arguments.only or "") in name}
    if not arguments.json:
        print(f"{'server':<22} {'episodes':>8} {'seconds':>8} {'before MB':>9} {'peak MB':>8} {'after MB':>8}  error")
    rows = []
    for name, bomb in bombs.items():
        row = {"server": name, "episodes": bomb.episodes, **asyncio.run(_measured(bomb))}
        rows.append(row)
        if not arguments.json:
            figures = f"{row['before_mb']:>9.0f} {row['peak_mb']:>8.0f} {row['after_mb']:>8.0f}"
            print(f"{name:<22} {bomb.episodes:>8} {row['seconds']:>8.1f} {figures}  {row['error']}", flush=True)
    if arguments.json:
        print(json.dumps(rows, indent=2))


async def _measured(bomb: _Bomb) -> dict[str, Any]:
    async with hostile_provider(bomb.answer) as server, asyncio.timeout(_TIMEOUT_S):
        command = ("-m", __spec__.name, "--meet", server.url, "--episodes", str(bomb.episodes))
        child = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
        output, _ = await child.communicate()
        if child.returncode:
            raise RuntimeError(f"the process that met the server ended with {child.returncode}")
    found: dict[str, Any] = json.loads(output)
    return found


async def _met(url: str, sessions: int) -> dict[str, Any]:
    from app.runs.environment_access import EnvironmentAccess
    from app.settings import load_settings

    logging.disable()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT, _MEMORY_LIMIT))
    settings = load_settings(environment_hosts=("127.0.0.1",), environment_servers=sessions)
    await _episodes(_NOTHING_LISTENS, EnvironmentAccess(settings), 1)  # finishes imports before the measurement
    before, clock = _resident(), monotonic()
    errors = await _episodes(url, EnvironmentAccess(settings), sessions)
    seconds = monotonic() - clock
    gc.collect()
    after = _resident()
    return {
        "seconds": seconds,
        "before_mb": before,
        "peak_mb": _peak() - before,
        "after_mb": after - before,
        "error": " | ".join(sorted({error.partition("\n")[0] for error in errors})),
    }


async def _episodes(url: str, access: Any, count: int) -> list[str]:
    """Open that many concurrent episodes, all of which fail, and close them; return the errors."""
    from environment.mcp.config import parse
    from environment.mcp.environment import McpEnvironment

    tasks = [{"task": f"Task {number}."} for number in range(3)]
    environment = McpEnvironment(parse({"server": {"url": url}, "scenarios": tasks}))
    environment.admit(access)
    scenario = environment.ask({"task": "Anything."})
    episodes = [environment.episode(scenario) for _ in range(count)]
    opened = await asyncio.gather(*(episode.open() for episode in episodes), return_exceptions=True)
    await asyncio.gather(*(episode.close() for episode in episodes))
    environment.close()
    await asyncio.sleep(1)
    return [f"{type(each).__name__}: {each}" for each in opened]


def _resident() -> float:
    """Return resident memory in MB."""
    return psutil.Process().memory_info().rss / 1e6


def _peak() -> float:
    """Return peak memory in MB since this program was loaded; `ru_maxrss` would start with the parent's memory."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1_024 / 1e6


if __name__ == "__main__":
    main()
