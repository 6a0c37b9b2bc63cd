"""Kill the first start of the embedded Postgres at many different moments, and check that the next start works.

Each trial kills a start and all its children with SIGKILL. The moments are spread over `--span` seconds after the
process has finished its imports; the default is a little more than a start takes on this machine now, and at least
1.5 s. The next start must answer. Prints each trial; fails if one did not come up.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg

from learnloop_service.app.processes.postgres import EmbeddedPostgres, EmbeddedPostgresError

_START = """
import asyncio, sys
from pathlib import Path
from learnloop_service.app.processes.postgres import EmbeddedPostgres

async def main():
    sys.stderr.write("begins\\n")
    await EmbeddedPostgres(Path(sys.argv[1])).start()
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def kill_a_start(data_dir: Path, after_s: float) -> str:
    """Kill a first start after that many seconds; return how far it got."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _START, str(data_dir)),
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert process.stderr is not None
    await process.stderr.readline()
    await asyncio.sleep(after_s)
    for running in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
        with suppress(psutil.NoSuchProcess):
            running.kill()
    await process.communicate()
    return _reached(data_dir)


def _reached(data_dir: Path) -> str:
    pid_file = data_dir / "postgres" / "postmaster.pid"
    if pid_file.exists():
        return "server up" if pid_file.read_text().rstrip().endswith("ready") else "server starting"
    if (data_dir / "postgres").exists():
        return "cluster made"
    return "initdb" if any(data_dir.glob("postgres.unfinished-*")) else "nothing yet"


async def start_again(data_dir: Path) -> float:
    """Start, query and stop; return the seconds until the answer. Raises EmbeddedPostgresError or psycopg.Error."""
    server = EmbeddedPostgres(data_dir)
    began = time.monotonic()
    try:
        await server.start()
        conninfo = f"host='{server.url.query['host']}' user=postgres dbname=postgres"
        async with await psycopg.AsyncConnection.connect(conninfo) as connection:
            await connection.execute("SELECT 1")
        return time.monotonic() - began
    finally:
        await server.stop()


async def _trials(kills: int, span_s: float | None) -> int:
    """Return how many starts did not come up."""
    bad = 0
    if span_s is None:
        with tempfile.TemporaryDirectory(prefix="learnloop-") as name:
            span_s = max(1.5, 1.2 * await start_again(Path(name)))
    for number in range(kills):
        after_s = span_s * (number + 0.5) / kills
        with tempfile.TemporaryDirectory(prefix="learnloop-") as name:
            reached = await kill_a_start(Path(name), after_s)
            try:
                outcome = f"up again in {await start_again(Path(name)):.2f} s"
            except (EmbeddedPostgresError, psycopg.Error) as error:
                bad, outcome = bad + 1, f"DOWN: {error}"
        sys.stdout.write(f"killed after {after_s:.3f} s ({reached}): {outcome}\n")
    return bad


def main() -> None:
    """Print the trials and a summary; exit with 1 if a start did not come up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--span", type=float, help="seconds")
    options = parser.parse_args()
    bad = asyncio.run(_trials(options.kills, options.span))
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    sys.stdout.write(f"{options.kills - bad} of {options.kills} came up again (load {load})\n")
    if bad:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
