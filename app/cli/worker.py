"""`learnloop worker`: a process that drives runs without an API."""

from typing import Annotated

import typer

from learnloop_service.app.cli.options import DataDir, MachinePrice
from learnloop_service.app.cli.serve import plainly, require_engine, settings_with
from learnloop_service.app.cli.terminal import Failure


def worker(
    max_concurrent_runs: Annotated[
        int | None,
        typer.Option(
            min=1, max=64, help="Maximum number of simultaneous runs. \\[default: LEARNLOOP_MAX_CONCURRENT_RUNS or 1]"
        ),
    ] = None,
    machine_price: MachinePrice = None,
    data_dir: DataDir = None,
) -> None:
    """Drive the runs in the database at DATABASE_URL, without an API, until Ctrl-C. Other workers then take them over.

    Each worker needs its own data directory. Settings come from the environment and .env; flags take precedence.
    """
    settings = settings_with(
        max_concurrent_runs=max_concurrent_runs, machine_price_per_hour=machine_price, data_dir=data_dir
    )
    if settings.max_concurrent_runs == 0:
        raise Failure("LEARNLOOP_MAX_CONCURRENT_RUNS is 0, which is only for API processes; a worker needs at least 1")
    require_engine(data_dir)
    from learnloop_service.app.server import work

    with plainly():
        work(settings)
