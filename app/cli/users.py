"""`learnloop users`: the data of users, and their consent to training on it."""

from typing import Annotated

import typer

from learnloop_service.app.cli.client import HERE, ServiceAt
from learnloop_service.app.cli.options import AsJson
from learnloop_service.app.cli.terminal import confirm, plain, print_json, print_result, results, say
from learnloop_service.environment.json_type import Json

app = typer.Typer(no_args_is_help=True, help="Change the consent of users to training, and delete their data.")

User = Annotated[str, typer.Argument(help="Key of the user, as requests named it.")]
OfProject = Annotated[str | None, typer.Option(help="Only in this project. \\[default: that of the API key]")]


@app.command()
def consent(
    user: User,
    train: Annotated[bool, typer.Option("--train/--no-train", help="Whether it may be trained on.")],
    project: OfProject = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Say whether the stored sessions and questions of a user may be trained on. Later ones say so themselves."""
    reply = service.call("POST", "/users/consent", json={"user": user, "project": project, "train": train})
    now = f"training on them is {'allowed' if train else 'refused'} now"
    print_result(reply, as_json, f"sessions and questions changed: {reply['changed']:,}; {now}", *_trained(reply))


@app.command()
def delete(
    user: User,
    project: OfProject = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Delete what a user asked, the feedback on it, and the tasks made from it. Repeating it is harmless.

    Exits with 1 if runs that have not ended still use tasks of the user.
    """
    if not yes:
        confirm("Delete everything of this user? This cannot be undone.", "this cannot be undone")
    reply = service.call("POST", "/users/delete", json={"user": user, "project": project})
    if as_json:
        print_json(reply)
    else:
        counted = [f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(reply["deleted"].items()) if count]
        say(f"deleted: {', '.join(counted) or 'nothing'}")
        for line in _trained(reply):
            results.print(plain(line))
        for id in reply["unfinished"]:
            results.print(plain(f"{id} still uses tasks of the user; repeat this when it has ended"))
        for path in reply["remaining"]:
            results.print(plain(f"{path} may still hold data of the user; DELETE on it deletes all of it"))
    raise typer.Exit(1 if reply["unfinished"] else 0)


def _trained(reply: Json) -> list[str]:
    return [
        f"{checkpoint} may have been trained on tasks of the user; weights cannot be cleaned"
        for checkpoint in reply["trained_checkpoints"]
    ]
