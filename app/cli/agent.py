"""`learnloop agent run`: claims tasks of runs and runs a command for each of them."""

import asyncio
import os
import signal
import socket
from typing import Annotated

import typer

from app.cli.agent_worker import AgentWorker, passed_on
from app.cli.options import DEFAULT_URL, Url
from app.cli.terminal import Failure

app = typer.Typer(no_args_is_help=True, help="Let your own agent do the tasks of runs.")


@app.callback()
def agent() -> None:
    """Let your own agent do the tasks of runs."""


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(metavar="-- CMD [ARGS]", help="The agent, started for each task.")],
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME[=VALUE]", help="Variable that CMD gets, too; repeatable."),
    ] = None,
    run_id: Annotated[str | None, typer.Option("--run", help="Only tasks of this run.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=1_024, help="Maximum number of simultaneous tasks.")] = 1,
    once: Annotated[bool, typer.Option("--once", help="Stop when no task has come for a minute.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Claim tasks of runs of the environment `agent` whose runner is `pull`, and start CMD for each of them.

    CMD finds its model by OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL (or ANTHROPIC_BASE_URL and
    ANTHROPIC_API_KEY), its task as JSON in LEARNLOOP_TASK, and its session in LEARNLOOP_SESSION. Of the variables of
    this command it gets PATH, HOME, LANG, LC_ALL, LC_CTYPE, TZ, TMPDIR and those named by --env. The last line that it
    prints is the outcome, if it is a JSON object such as {"reward": 1}; else it is the output that a judge scores. If
    CMD fails, it is started again for the task; after three times in a row without a new answer of its model, the
    rollout counts for nothing. Ctrl-C gives the tasks back.
    """
    environment = passed_on(env or (), os.environ)
    worker = AgentWorker(url, command, environment, run_id, concurrency, name=socket.gethostname(), once=once)
    asyncio.run(_until_stopped(worker))


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
        failure = group.subgroup(Failure)
        raise (failure or group).exceptions[0] from group
