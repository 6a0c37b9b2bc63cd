"""`learnloop runs diagnose`: why a run does not learn, and the fork that its remedy suggests."""

import json
from typing import Annotated, Any

import typer

from learnloop_service.app.cli.client import HERE, ServiceAt
from learnloop_service.app.cli.options import AsJson
from learnloop_service.app.cli.run_names import RunId
from learnloop_service.app.cli.terminal import Failure, print_json, results, say
from learnloop_service.environment.wording import counted

_STYLES = {"fault": "red", "warning": "yellow", "note": "dim"}
_DIAGNOSED = 2
"""Exit code for a run with an active warning or fault."""


def diagnose(
    run_id: RunId,
    fork: Annotated[
        bool, typer.Option("--fork", help="Start the fork that the remedy of the first cause suggests.")
    ] = False,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Say why a run does not learn. The exit code is 2 if there is a warning or fault now."""
    diagnosis = service.diagnosis(run_id)
    forked = service.ask_of(run_id, "fork", _fork_request(diagnosis)) if fork else None
    if as_json:
        print_json(diagnosis if forked is None else diagnosis | {"fork": forked})
    else:
        _print(diagnosis)
        if forked is not None:
            results.print(f"run {forked['run_id']} is {forked['status']}")
    raise typer.Exit(_DIAGNOSED if diagnosis["cause"] is not None and forked is None else 0)


def _fork_request(diagnosis: Any) -> Any:
    """Return the body of the fork for the first active cause that has one. Raises Failure."""
    active = [
        finding for finding in diagnosis["diagnoses"] if finding["state"] == "active" and finding["severity"] != "note"
    ]
    requests = [finding["remedy"]["request"] for finding in active if finding["remedy"]["how"] == "fork"]
    if not requests:
        raise Failure("no current cause of this run has a remedy that a fork can make")
    return requests[0]


def _print(diagnosis: Any) -> None:
    if not diagnosis["diagnoses"]:
        results.print("no cause of trouble was found")
    for finding in diagnosis["diagnoses"]:
        state = "" if finding["state"] == "active" else ", cleared"
        results.print(
            f"{finding['cause']} ({finding['severity']}{state}) since iteration {finding['first_iteration']}",
            style=_STYLES[finding["severity"]] if finding["state"] == "active" else "dim",
        )
        say(f"  {finding['summary']}")
        if finding["explained_by"]:
            say(f"  explained by {finding['explained_by']}")
        for name, value in finding["evidence"].items():
            if name == "forms":
                for form in value:
                    say(f"  {counted(form['count'], 'time')}, as in {form['trajectory_id']}: {form['text']!r}")
            else:
                say(f"  {name}: {value if isinstance(value, str) else json.dumps(value)}")
        say(f"  remedy: {finding['remedy']['text']}")
        if finding["remedy"]["request"] is not None:
            say(f"  fork with: {json.dumps(finding['remedy']['request'])}")
    if missing := diagnosis["not_examined"]:
        reasons = " ".join(dict.fromkeys(unexamined["reason"] for unexamined in missing))
        say(f"not examined, and listed by --json: {counted(len(missing), 'cause')}. {reasons}", "dim")
