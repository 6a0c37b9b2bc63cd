"""`learnloop worker`: a process that drives runs of a service elsewhere."""

from typing import Annotated

import typer

from app.cli.options import DataDir
from app.cli.serve import plainly, settings_with
from app.cli.terminal import Failure


def worker(
    max_concurrent_runs: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Runs at once. \\[default: LEARNLOOP_MAX_CONCURRENT_RUNS or 1]"),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Drive runs of the services that share DATABASE_URL, without an API, until Ctrl-C. Its runs are handed over then.

    It needs a data directory of its own. Settings come from the environment and .env; these flags win.
    """
    settings = settings_with(max_concurrent_runs=max_concurrent_runs, data_dir=data_dir)
    if settings.max_concurrent_runs == 0:
        raise Failure(
            "a worker drives at least one run: LEARNLOOP_MAX_CONCURRENT_RUNS is 0, which is for API processes"
        )
    from app.server import work

    with plainly():
        work(settings)
