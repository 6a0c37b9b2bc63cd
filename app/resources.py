"""Resources shared by the API and a worker, opened in order and closed in reverse."""

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from threading import Thread

import structlog
from sqlalchemy import URL, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from learnloop_service.app.aio.pulse import Pulse
from learnloop_service.app.auth.keys import Keys
from learnloop_service.app.backends import Backends, Connect
from learnloop_service.app.db.database import Database, make_database, make_engine, parse_url
from learnloop_service.app.db.migration import migrate_when_up
from learnloop_service.app.db.reachable import connect_once
from learnloop_service.app.db.tables import EvaluationJob, Run
from learnloop_service.app.processes.data_directory import DataDirectoryError
from learnloop_service.app.processes.engine import EngineHandle, held_engine
from learnloop_service.app.processes.postgres import EmbeddedPostgres
from learnloop_service.app.processes.state_file import DamagedFile, read_line, write_line
from learnloop_service.app.results.folders import remove_leftovers
from learnloop_service.app.settings import Settings
from learnloop_service.app.tracing.tracer import Tracing, open_tracing
from learnloop_service.training.garbage import freeze_gc

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Resources:
    """Resources that both the API and a worker use."""

    settings: Settings
    database_engine: AsyncEngine
    database_pulse: Pulse
    postgres: EmbeddedPostgres | None
    """None if the database is not ours to start and stop."""
    database: Database
    engine: EngineHandle
    engine_name: str
    """Name by which leases refer to the engine that this process can reach."""
    connect: Connect
    tracing: Tracing
    """Exports the spans of runs and asks if the settings name a receiver."""

    def reaches(self, engine: str | None) -> bool:
        """Return whether this process can reach the named engine. None stands for any engine."""
        return engine in (None, self.engine_name)

    def leave(self) -> None:
        """Announce that the process is about to stop."""
        if self.postgres is not None:
            self.postgres.leave()


@asynccontextmanager
async def open_resources(
    settings: Settings, connect: Connect | None, engine: EngineHandle | None
) -> AsyncIterator[Resources]:
    """Open the engine, database and tracer, and close each at the end. `connect` and `engine`: see `open_service`.

    Raises DataDirectoryError, DatabaseUrlError, EmbeddedPostgresError or SchemaError.
    """
    async with AsyncExitStack() as stack:
        if engine is None:
            engine = await stack.enter_async_context(held_engine(settings, start=connect is None))
        if connect is None:
            backends = Backends(settings, engine)
            stack.push_async_callback(backends.stop)
            connect = backends.connect
        Thread(target=_warm_up, name="warm-up", daemon=True).start()
        postgres = None
        if (url := _database_url(settings)) is None:
            postgres = EmbeddedPostgres(settings.data_dir, restart_after_s=settings.restart_after_s)
            stack.push_async_callback(postgres.stop)
            await postgres.start()
            url = postgres.url
        database_engine = make_engine(url)
        stack.push_async_callback(database_engine.dispose)
        await migrate_when_up(database_engine)
        database = make_database(database_engine)
        if settings.guarded is None and await Keys(database).any_exist():
            settings = settings.model_copy(update={"require_keys": "always"})
        await remove_leftovers(database, settings.data_dir, _database_name(settings))
        tracing = open_tracing(settings)
        stack.push_async_callback(tracing.close)
        pulse = Pulse(partial(connect_once, database_engine.url))
        await stack.enter_async_context(pulse.beating("database-pulse"))
        name = await _engine_name(settings, database)
        yield Resources(settings, database_engine, pulse, postgres, database, engine, name, connect, tracing)


async def _engine_name(settings: Settings, database: Database) -> str:
    """Return the engine's name. A shared engine's name is its URL. Engines with a common checkpoint store are named
    after the store, because each of them has all the models. Our own engine keeps its first name even if the data
    directory moves, because the directory holds its models.

    Raises DataDirectoryError.
    """
    if settings.engine_url is not None:
        return str(settings.engine_url)
    name = await _own_engine_name(settings, database)
    if (store := settings.engine_checkpoint_store) is None:
        return name
    # Our engine moves its existing models to the store, so other engines can now continue their runs.
    async with database.begin() as tx:
        for table in (Run, EvaluationJob):
            await tx.execute(update(table).where(table.engine == name).values(engine=store.rstrip("/")))
    return store.rstrip("/")


async def _own_engine_name(settings: Settings, database: Database) -> str:
    file, usual = settings.data_dir / "engine-name", f"{socket.gethostname()}:{settings.data_dir}"
    try:
        recorded = read_line(file, r"[^\x00-\x1f]+:/[^\x00-\x1f]+", "the name of an engine, HOST:DIRECTORY")
    except DamagedFile as error:
        recorded = await _recovered_name(settings, database, usual, error)
        log.warning("the name of the engine was restored", error=str(error), name=recorded)
        write_line(file, recorded)
    if recorded is None:
        write_line(file, usual)
    return recorded or usual


async def _recovered_name(settings: Settings, database: Database, usual: str, damage: DamagedFile) -> str:
    """Return our engine's name according to the runs that used it. Raises DataDirectoryError if there are several: with
    a wrong name, our runs would wait for an engine that does not exist."""
    query = select(Run.engine).where(Run.engine.is_not(None), ~Run.engine.contains("://")).distinct()
    async with database() as tx:
        names = sorted(str(name) for name in (await tx.execute(query)).scalars())
    if not names or usual in names:
        return usual
    if settings.database_url is None and len(names) == 1:  # no other service uses that database
        return names[0]
    raise DataDirectoryError(
        f"{damage}. Write into it the name that the engine of this directory had before, one of: {', '.join(names)}; "
        "or delete it, which makes this a new engine, without the models of earlier runs."
    ) from damage


def _database_name(settings: Settings) -> str:
    if (url := _database_url(settings)) is None:
        return "embedded"
    return f"{url.host or url.query.get('host', '')}:{url.port or 5432}/{url.database}"


def _database_url(settings: Settings) -> URL | None:
    """Return the URL of the database, or None for the embedded one. Raises DatabaseUrlError."""
    return None if settings.database_url is None else parse_url(settings.database_url.get_secret_value())


def _warm_up() -> None:
    """Import ART while Postgres and the engine start: the import takes seconds, and the first run needs it."""
    from learnloop_service.training.backends.art_import import import_art

    with freeze_gc():
        import_art()
