"""`learnloop users`: the data of users."""

from typing import Annotated

import typer

from app.cli.client import Service
from app.cli.options import DEFAULT_URL, AsJson, Url
from app.cli.terminal import Failure, plain, print_json, progress, results

app = typer.Typer(no_args_is_help=True, help="Delete the data of users.")


@app.callback()
def _users() -> None:
    """Delete the data of users."""


@app.command()
def delete(
    user: Annotated[str, typer.Argument(help="Key of the user, as requests named it.")],
    project: Annotated[str | None, typer.Option(help="Only in this project. \\[default: that of the API key]")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Delete what a user asked, the feedback on it, and the tasks made from it. Repeating it is harmless.

    Exits with 1 if runs that have not ended still use tasks of the user.
    """
    if not yes:
        if not progress.is_terminal:
            raise Failure("this cannot be undone; confirm with --yes")
        typer.confirm("Delete everything of this user? This cannot be undone.", abort=True, err=True)
    body = {"user": user} | ({} if project is None else {"project": project})
    with Service(url) as service:
        found = service.call("POST", "/users/delete", json=body)
    if as_json:
        print_json(found)
    else:
        counted = [f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(found["deleted"].items()) if count]
        results.print(plain(f"deleted: {', '.join(counted) or 'nothing'}"), soft_wrap=True)
        for checkpoint in found["trained_checkpoints"]:
            results.print(plain(f"{checkpoint} may have been trained on tasks of the user; weights cannot be cleaned"))
        for id in found["unfinished"]:
            results.print(plain(f"{id} still uses tasks of the user; repeat this when it has ended"))
        for path in found["remaining"]:
            results.print(plain(f"{path} may still hold data of the user; DELETE on it deletes all of it"))
    raise typer.Exit(1 if found["unfinished"] else 0)
