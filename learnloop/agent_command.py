"""The command `learnloop-agent`, which is also `learnloop agent`: does tasks of runs with an agent of one's own."""

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence

from learnloop.agent_worker import AgentWorker, CannotWork, passed_on
from learnloop.http_settings import DEFAULT_URL, KEY_VARIABLE, URL_VARIABLE

_MOST_TASKS = 1_024
_RUN = f"""\
Claim tasks of runs of the environment `agent` whose runner is `pull`, and start CMD for each of them.

CMD finds its model by OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL (or ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY),
its task as JSON in LEARNLOOP_TASK, and its session in LEARNLOOP_SESSION. If the rollout has a prompt, its texts by part
are in LEARNLOOP_PROMPT as JSON, and in LEARNLOOP_PROMPT_DIR as files. Of the variables of this command it gets PATH,
HOME, LANG, LC_ALL, LC_CTYPE, TZ, TMPDIR and those named by --env. The last line that it prints is the outcome, if it is
a JSON object such as {{"reward": 1}}; else it is the output that a judge scores. If CMD fails, it is started again for
the task; after three times in a row without a new answer of its model, the rollout counts for nothing. With --keep, CMD
reads for each task a line of JSON with these variables, prints the outcome as a line, and goes on. Ctrl-C gives the
tasks back. {KEY_VARIABLE} holds the API key of the service, if it wants one."""


def main(arguments: Sequence[str] | None = None, program: str = "learnloop-agent") -> int:
    """Run the command until SIGTERM or SIGINT, and return the exit status. `arguments` default to the process's own;
    `program` is the command's name in messages."""
    options = parser(program).parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    try:
        if not command:
            raise CannotWork(f"there is no command to start; give it as in: {program} run -- ./agent.sh")
        environment = passed_on(options.env, os.environ)
        name = socket.gethostname()
        worker = AgentWorker(
            options.url, command, environment, options.run, options.concurrency, name, options.once, options.keep
        )
        asyncio.run(_until_stopped(worker))
    except CannotWork as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 1
    return 0


def parser(program: str) -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    whole = argparse.ArgumentParser(program, description="Let your own agent do the tasks of runs.")
    run = whole.add_subparsers(required=True, metavar="run").add_parser(
        "run",
        usage="%(prog)s [options] -- CMD [ARGS]",
        help="claim tasks of runs, and start a command for each of them",
        description=_RUN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD [ARGS]", help="the agent")
    run.add_argument(
        "--env", action="append", default=[], metavar="NAME[=VALUE]", help="variable that CMD gets, too; repeatable"
    )
    run.add_argument("--run", metavar="RUN_ID", help="only tasks of this run")
    run.add_argument(
        "--concurrency", type=_task_count, default=1, metavar="N", help="maximum number of simultaneous tasks (1)"
    )
    run.add_argument("--keep", action="store_true", help="let CMD do one task after another, a line of JSON each")
    run.add_argument("--once", action="store_true", help="stop when no task has come for a minute")
    url = os.environ.get(URL_VARIABLE) or DEFAULT_URL
    run.add_argument("--url", default=url, help=f"URL of the service ({URL_VARIABLE}, or {DEFAULT_URL})")
    return whole


def _task_count(text: str) -> int:
    count = int(text)
    if not 1 <= count <= _MOST_TASKS:
        raise argparse.ArgumentTypeError(f"{count} is not a number from 1 to {_MOST_TASKS:,}")
    return count


async def _until_stopped(worker: AgentWorker) -> None:
    working = asyncio.ensure_future(worker.work())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, working.cancel)
    try:
        await working
    except asyncio.CancelledError:
        return
    except ExceptionGroup as group:
        failure = group.subgroup(CannotWork)
        raise (failure or group).exceptions[0] from group
