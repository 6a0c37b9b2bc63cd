"""`learnloop keys`: API keys."""

from datetime import UTC, datetime
from typing import Annotated, Any, Self

import typer
from rich.table import Table

from app.cli.client import Service
from app.cli.options import DEFAULT_URL, AsJson, DataDir, Url
from app.cli.serve import settings_with
from app.cli.terminal import Failure, print_json, progress, results
from environment.json_type import Json

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke API keys.")

_SHOWN = {"id", "project", "name", "prefix", "scopes", "created_at", "expires_at", "key"}


class KeyService(Service):
    """The part of the API for keys."""

    def __enter__(self) -> Self:
        return self

    def create_key(self, request: Json) -> Json:
        """Create a key, and return it with its secret."""
        return self._call("POST", "/keys", json=request)

    def keys(self, limit: int) -> list[Json]:
        """Return the newest keys, newest first."""
        return self._page("/keys", limit, {})

    def revoke_key(self, key_id: str) -> Json:
        """Revoke a key."""
        return self._call("DELETE", f"/keys/{key_id}")


@app.command()
def create(
    name: Annotated[str, typer.Option(help="What the key is for.")],
    project: Annotated[str | None, typer.Option(help="The project that the key gives access to; * for all.")] = None,
    scope: Annotated[
        list[str] | None, typer.Option(help="read, write or operator; repeatable. \\[default: read and write]")
    ] = None,
    expires_days: Annotated[
        int | None, typer.Option(min=1, max=3_650, help="Days until the key expires. \\[default: never]")
    ] = None,
    bootstrap: Annotated[
        bool, typer.Option("--bootstrap", help="Create an operator key for all projects directly in the database.")
    ] = False,
    data_dir: DataDir = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it. It is shown only once: the service stores only its hash."""
    if bootstrap:
        if project is not None or scope is not None or expires_days is not None:
            raise Failure(
                "--bootstrap creates a key with all scopes for all projects; omit --project, --scope and --expires-days"
            )
        made = _bootstrap(settings_with(data_dir=data_dir), name)
    else:
        request = {"project": project, "name": name, "expires_days": expires_days}
        with KeyService(url) as service:
            made = service.create_key(request if scope is None else {**request, "scopes": scope})
    if as_json:
        print_json(made)
        return
    progress.print(
        f"key {made['id']} for {made['project']}: {', '.join(made['scopes'])}; not shown again", soft_wrap=True
    )
    results.print(made["key"], soft_wrap=True)


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of keys.")] = 50,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List API keys, newest first."""
    with KeyService(url) as service:
        found = service.keys(limit)
    if as_json:
        print_json(found)
        return
    results.print(_table(found) if found else "no keys")


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID")], url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Revoke a key. Every replica refuses it within 5 seconds."""
    with KeyService(url) as service:
        row = service.revoke_key(key_id)
    print_json(row) if as_json else results.print(f"key {key_id} ({row['name']}) is revoked", soft_wrap=True)


def _bootstrap(settings: Any, name: str) -> Json:
    import asyncio

    from app.auth.bootstrap import first_key
    from app.db.database import DatabaseUrlError
    from app.db.migration import SchemaError
    from app.logs import configure_logs
    from app.processes.data_directory import DataDirectoryError
    from app.processes.postgres import EmbeddedPostgresError

    configure_logs("warning", settings.log_format)  # logs go to stderr, because stdout is for the key
    try:
        new = asyncio.run(first_key(settings, name))
    except DataDirectoryError as error:
        raise Failure(f"{error}; or start the service with LEARNLOOP_OPERATOR_KEY and use that key") from error
    except (DatabaseUrlError, SchemaError, EmbeddedPostgresError) as error:
        raise Failure(str(error)) from error
    return {name: getattr(new.row, name) for name in sorted(_SHOWN - {"key"})} | {"key": new.key}


def _state(key: Json) -> str:
    if key["revoked_at"] is not None:
        return "revoked"
    expires_at = key["expires_at"]
    if expires_at is None:
        return "valid"
    expired = datetime.fromisoformat(expires_at) <= datetime.now(UTC)
    return "expired" if expired else f"until {expires_at[:10]}"


def _table(found: list[Json]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("KEY", "PREFIX", "PROJECT", "SCOPES", "STATE", "NAME"):
        table.add_column(heading, no_wrap=heading in ("KEY", "PREFIX"))
    for key in found:
        table.add_row(key["id"], key["prefix"], key["project"], " ".join(key["scopes"]), _state(key), key["name"])
    return table
