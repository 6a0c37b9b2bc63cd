"""`learnloop budget`: what a project or an API key may use a day."""

from typing import Annotated

import typer

from learnloop.operations import segment
from learnloop_service.app.cli.client import HERE, ServiceAt
from learnloop_service.app.cli.options import AsJson
from learnloop_service.app.cli.terminal import print_result
from learnloop_service.app.runs.budget import amount
from learnloop_service.environment.json_type import Json

app = typer.Typer(no_args_is_help=True, help="Limit what a project or an API key may use a day, until midnight UTC.")
Of = Annotated[
    str, typer.Argument(metavar="OWNER", help="project:NAME, such as project:learnloop, or key:ID of an API key.")
]
Most = Annotated[float | None, typer.Option(help="At most this much, in calls at the same time or a day.")]


@app.command()
def show(of: Of, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Show a budget, and what is used of it today."""
    _print(service.call("GET", f"/budgets/{segment(of)}"), as_json)


@app.command("set")
def set_(
    of: Of,
    usd: Most = None,
    tokens: Most = None,
    minutes: Most = None,
    usd_at_once: Most = None,
    tokens_at_once: Most = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Set a budget in place of the one before. What that had stopped continues."""
    given = {"usd": usd, "tokens": tokens, "minutes": minutes}
    given |= {"usd_at_once": usd_at_once, "tokens_at_once": tokens_at_once}
    body = {f"max_{name}": most for name, most in given.items()}
    _print(service.call("PUT", f"/budgets/{segment(of)}", json=body), as_json)


def _print(shown: Json, as_json: bool) -> None:
    lines = []
    for name, most in shown["budget"].items():
        unit, at_once, _ = name.removeprefix("max_").partition("_at_once")
        now = shown["used"][f"reserved_{unit}" if at_once else unit]
        limit = ", no limit" if most is None else f" of {amount(most)}"
        lines.append(f"{unit}{at_once.replace('_', ' ')}: {amount(now)}{limit}")
    print_result(shown, as_json, *lines, f"The day ends at {shown['resets_at']}.")
