"""`learnloop keys`: API keys."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.table import Column

from learnloop.operations import segment
from learnloop_service.app.cli.client import HERE, ServiceAt
from learnloop_service.app.cli.options import AsJson, DataDir
from learnloop_service.app.cli.serve import settings_with
from learnloop_service.app.cli.terminal import Failure, print_json, print_list, print_result, progress, say, whole
from learnloop_service.environment.json_type import Json

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke API keys.")

_SHOWN = {"id", "project", "name", "prefix", "scopes", "created_at", "expires_at", "key"}


@app.command()
def create(
    name: Annotated[str, typer.Option(help="What the key is for.")],
    project: Annotated[str | None, typer.Option(help="The project that the key gives access to; * for all.")] = None,
    scope: Annotated[
        list[str] | None, typer.Option(help="read, write or operator; repeatable. \\[default: read and write]")
    ] = None,
    improvement: Annotated[
        str | None, typer.Option(metavar="ID", help="Allow only to propose prompts for this improvement.")
    ] = None,
    expires_days: Annotated[
        int | None, typer.Option(min=1, max=3_650, help="Days until the key expires. \\[default: never]")
    ] = None,
    bootstrap: Annotated[
        bool, typer.Option("--bootstrap", help="Create an operator key for all projects directly in the database.")
    ] = False,
    data_dir: DataDir = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it. It is shown only once: the service stores only its hash."""
    if bootstrap:
        if (project, scope, improvement, expires_days) != (None, None, None, None):
            raise Failure(
                "--bootstrap creates a key with all scopes for all projects; omit --project, --scope, --improvement "
                "and --expires-days"
            )
        key = _bootstrap(settings_with(data_dir=data_dir), name)
    else:
        request = {"project": project, "name": name, "expires_days": expires_days, "improvement_id": improvement}
        scopes = scope or (None if improvement is None else ["propose"])
        key = service.call("POST", "/keys", json=request if scopes is None else {**request, "scopes": scopes})
    if as_json:
        print_json(key)
        return
    progress.print(f"key {key['id']} for {key['project']}: {', '.join(key['scopes'])}; not shown again", soft_wrap=True)
    say(key["key"])


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of keys.")] = 50,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """List API keys, newest first."""
    columns = (whole("KEY"), whole("PREFIX"), *map(Column, ("PROJECT", "SCOPES", "STATE", "NAME")))
    print_list(service.newest("/keys", limit), as_json, "no keys", columns, _row)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID")], service: ServiceAt = HERE, as_json: AsJson = False
) -> None:
    """Revoke a key. Every replica refuses it within 5 seconds."""
    row = service.call("DELETE", f"/keys/{segment(key_id)}")
    print_result(row, as_json, f"key {key_id} ({row['name']}) is revoked")


def _bootstrap(settings: Any, name: str) -> Json:
    import asyncio

    from learnloop_service.app.auth.bootstrap import first_key
    from learnloop_service.app.db.database import DatabaseUrlError
    from learnloop_service.app.db.migration import SchemaError
    from learnloop_service.app.logs import configure_logs
    from learnloop_service.app.processes.data_directory import DataDirectoryError
    from learnloop_service.app.processes.postgres import EmbeddedPostgresError

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


def _row(key: Json) -> tuple[str, ...]:
    return key["id"], key["prefix"], key["project"], " ".join(key["scopes"]), _state(key), key["name"]
