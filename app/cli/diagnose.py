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
    found = service.diagnosis(run_id)
    made = service.ask_of(run_id, "fork", _fork_request(found)) if fork else None
    if as_json:
        print_json(found if made is None else found | {"fork": made})
    else:
        _print(found)
        if made is not None:
            results.print(f"run {made['run_id']} is {made['status']}")
    raise typer.Exit(_DIAGNOSED if found["cause"] is not None and made is None else 0)


def _fork_request(found: Any) -> Any:
    """Return the body of the fork for the first active cause that has one. Raises Failure."""
    active = [each for each in found["diagnoses"] if each["state"] == "active" and each["severity"] != "note"]
    requests = [each["remedy"]["request"] for each in active if each["remedy"]["how"] == "fork"]
    if not requests:
        raise Failure("no current cause of this run has a remedy that a fork can make")
    return requests[0]


def _print(found: Any) -> None:
    if not found["diagnoses"]:
        results.print("no cause of trouble was found")
    for each in found["diagnoses"]:
        state = "" if each["state"] == "active" else ", cleared"
        results.print(
            f"{each['cause']} ({each['severity']}{state}) since iteration {each['first_iteration']}",
            style=_STYLES[each["severity"]] if each["state"] == "active" else "dim",
        )
        say(f"  {each['summary']}")
        if each["explained_by"]:
            say(f"  explained by {each['explained_by']}")
        for name, value in each["evidence"].items():
            if name == "forms":
                for form in value:
                    say(f"  {counted(form['count'], 'time')}, as in {form['trajectory_id']}: {form['text']!r}")
            else:
                say(f"  {name}: {value if isinstance(value, str) else json.dumps(value)}")
        say(f"  remedy: {each['remedy']['text']}")
        if each["remedy"]["request"] is not None:
            say(f"  fork with: {json.dumps(each['remedy']['request'])}")
    if missing := found["not_examined"]:
        reasons = " ".join(dict.fromkeys(each["reason"] for each in missing))
        say(f"not examined, and listed by --json: {counted(len(missing), 'cause')}. {reasons}", "dim")
