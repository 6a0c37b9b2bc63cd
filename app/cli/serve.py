"""`learnloop serve`, and the settings of commands that work in the data directory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from learnloop_service.app.cli.options import DataDir, MachinePrice
from learnloop_service.app.cli.terminal import Failure, failing_on
from learnloop_service.training.engine_libraries import missing_libraries
from learnloop_service.training.private_directory import keep_private

if TYPE_CHECKING:  # importing pydantic is slow
    from learnloop_service.app.settings import Settings


def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. \\[default: LEARNLOOP_HOST or 127.0.0.1]")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on. \\[default: LEARNLOOP_PORT or 8000]")
    ] = None,
    machine_price: MachinePrice = None,
    data_dir: DataDir = None,
) -> None:
    """Run the service until Ctrl-C. Settings come from the environment and .env; flags take precedence."""
    require_engine(data_dir)
    settings = settings_with(host=host, port=port, machine_price_per_hour=machine_price, data_dir=data_dir)
    from learnloop_service.app.server import serve as serve_until_stopped

    with plainly():
        serve_until_stopped(settings)


def require_engine(data_dir: Path | None = None) -> None:
    """Raise Failure if a service with this machine's settings would run an engine whose libraries are missing."""
    missing = missing_libraries()
    if missing is None:
        return
    from learnloop_service.training.backends.registry import is_on_engine

    settings = settings_with(data_dir=data_dir)
    if settings.engine_url is None and is_on_engine(settings.backend):
        raise Failure(f"{missing} (or name another engine: LEARNLOOP_ENGINE_URL; or backend: LEARNLOOP_BACKEND)")


@contextmanager
def plainly() -> Iterator[None]:
    """Turn errors that prevent a process from starting into a Failure. The imports are deferred: they take a second."""
    try:
        yield
    except Exception as error:
        from learnloop_service.app.db.database import DatabaseUrlError
        from learnloop_service.app.db.migration import SchemaError
        from learnloop_service.app.processes.data_directory import DataDirectoryError
        from learnloop_service.app.processes.listening import CannotListen
        from learnloop_service.app.processes.postgres import EmbeddedPostgresError
        from learnloop_service.app.tracing.tracer import TracingUnavailable

        foreseen = DataDirectoryError | DatabaseUrlError | SchemaError | EmbeddedPostgresError | CannotListen
        if isinstance(error, foreseen | TracingUnavailable):
            raise Failure(str(error)) from error
        raise


def settings_with(**flags: Any) -> "Settings":
    """Return the environment's settings, overridden by flags that are not None, and keep the data directory private.

    Raises Failure.
    """
    from learnloop_service.app.settings import SettingsError, load_settings

    with failing_on(SettingsError):
        settings = load_settings(**{name: value for name, value in flags.items() if value is not None})
    keep_private(settings.data_dir)
    return settings


def data_directory(flag: Path | None) -> Path:
    """Return the data directory for a command that works without a service. Raises Failure."""
    return settings_with(data_dir=flag).data_dir
