"""Creates the first operator key directly in the database, without an API key."""

from contextlib import AsyncExitStack

from sqlalchemy import URL

from learnloop_service.app.auth.caller import ANY_PROJECT
from learnloop_service.app.auth.keys import Keys, NewKey
from learnloop_service.app.auth.scopes import UNBOUND
from learnloop_service.app.db.database import make_database, make_engine, parse_url
from learnloop_service.app.db.migration import migrate
from learnloop_service.app.processes.data_directory import DataDirectory
from learnloop_service.app.processes.postgres import EmbeddedPostgres
from learnloop_service.app.settings import Settings


async def first_key(settings: Settings, name: str) -> NewKey:
    """Create a key with all scopes for all projects. With the embedded database, the service must not be running.

    Raises DataDirectoryError, DatabaseUrlError, EmbeddedPostgresError or SchemaError.
    """
    async with AsyncExitStack() as stack:
        database_engine = make_engine(await _url(settings, stack))
        stack.push_async_callback(database_engine.dispose)
        await migrate(database_engine)
        return await Keys(make_database(database_engine)).create(project=ANY_PROJECT, name=name, scopes=UNBOUND)


async def _url(settings: Settings, stack: AsyncExitStack) -> URL:
    if settings.database_url is not None:
        return parse_url(settings.database_url.get_secret_value())
    stack.callback(DataDirectory(settings.data_dir).release)
    postgres = EmbeddedPostgres(settings.data_dir)
    stack.push_async_callback(postgres.stop)
    await postgres.start()
    return postgres.url
