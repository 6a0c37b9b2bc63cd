"""Commands, run against a service in this process."""

import asyncio
from dataclasses import dataclass

import httpx

from tests.fakes.engine_process import ROOT
from tests.fakes.forked_learnloop import learnloop


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it wrote."""

    exit_code: int | None
    stdout: str
    stderr: str


async def run_command(client: httpx.AsyncClient, *arguments: str, group: str = "runs") -> Ran:
    """Run `learnloop GROUP` in a process of its own: the service's log goes to this one's output."""
    process = await asyncio.create_subprocess_exec(
        *learnloop(group, *arguments, "--url", str(client.base_url)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return Ran(process.returncode, out.decode(), err.decode())
