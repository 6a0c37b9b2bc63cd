"""`learnloop users`: the data of users."""

from typing import Annotated

import typer

from learnloop_service.app.cli.client import HERE, ServiceAt
from learnloop_service.app.cli.options import AsJson
from learnloop_service.app.cli.terminal import confirm, plain, print_json, results, say

app = typer.Typer(no_args_is_help=True, help="Delete the data of users.")


@app.callback()
def _users() -> None:
    """Delete the data of users."""


@app.command()
def delete(
    user: Annotated[str, typer.Argument(help="Key of the user, as requests named it.")],
    project: Annotated[str | None, typer.Option(help="Only in this project. \\[default: that of the API key]")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Delete what a user asked, the feedback on it, and the tasks made from it. Repeating it is harmless.

    Exits with 1 if runs that have not ended still use tasks of the user.
    """
    if not yes:
        confirm("Delete everything of this user? This cannot be undone.", "this cannot be undone")
    body = {"user": user} | ({} if project is None else {"project": project})
    reply = service.call("POST", "/users/delete", json=body)
    if as_json:
        print_json(reply)
    else:
        counted = [f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(reply["deleted"].items()) if count]
        say(f"deleted: {', '.join(counted) or 'nothing'}")
        for checkpoint in reply["trained_checkpoints"]:
            results.print(plain(f"{checkpoint} may have been trained on tasks of the user; weights cannot be cleaned"))
        for id in reply["unfinished"]:
            results.print(plain(f"{id} still uses tasks of the user; repeat this when it has ended"))
        for path in reply["remaining"]:
            results.print(plain(f"{path} may still hold data of the user; DELETE on it deletes all of it"))
    raise typer.Exit(1 if reply["unfinished"] else 0)
