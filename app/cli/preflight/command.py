"""`learnloop preflight`: checks that a run has what it needs, before it takes hours or costs money."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from learnloop_service.app.cli.options import AsJson, DataDir, config_file, setting
from learnloop_service.app.cli.run_request import overlay, parse_settings, read_run_file
from learnloop_service.app.cli.serve import settings_with
from learnloop_service.app.cli.service_process import service_at
from learnloop_service.app.cli.terminal import print_finding, print_json

if TYPE_CHECKING:  # importing these takes seconds
    from learnloop_service.app.schemas.run_request import LearnLoopRequest
    from learnloop_service.app.settings import Settings
    from learnloop_service.training.backends.traits import Check


def preflight(
    file: Annotated[
        Path | None,
        typer.Argument(parser=config_file, metavar="FILE", help="YAML file with the fields of POST /learn-loop."),
    ] = None,
    set_: Annotated[list[str] | None, setting("Any field, such as judge.name=ruler; repeatable.")] = None,
    url: Annotated[
        str | None, typer.Option(help="Try the run at this service instead of one of the command's own.")
    ] = None,
    no_trial: Annotated[bool, typer.Option("--no-trial", help="Only look; start nothing.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Check what a run needs, and try one iteration in small. Exits with 1 if anything fails."""
    body = overlay(read_run_file(file) if file else {}, parse_settings(set_ or ()))
    settings = settings_with(data_dir=data_dir)
    request = _valid(body)
    checks = []
    for check in _checks(settings, request, body, url, trial=not no_trial):
        checks.append(check)
        if not as_json:
            print_finding(check.state, check.name, check.found, None if check.state == "ok" else check.remedy)
    if as_json:
        print_json([asdict(check) for check in checks])
    raise typer.Exit(1 if any(check.state == "failed" for check in checks) else 0)


def _valid(body: dict[str, Any]) -> "LearnLoopRequest":
    from pydantic import ValidationError

    from learnloop_service.app.schemas.run_request import LearnLoopRequest
    from learnloop_service.training.protocol.validation_message import message_of

    try:
        return LearnLoopRequest.model_validate(body)
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, detail['loc']))}: {message_of(detail)}" for detail in error.errors(include_url=False)
        ]
        raise typer.BadParameter("; ".join(lines)) from error


def _checks(
    settings: "Settings", request: "LearnLoopRequest", body: dict[str, Any], url: str | None, *, trial: bool
) -> Iterator["Check"]:
    """Yield the checks of this machine, unless the service is elsewhere, then the trial, unless it cannot succeed."""
    from learnloop_service.app.cli.preflight.checks import checks
    from learnloop_service.app.cli.preflight.trial import trial as tried
    from learnloop_service.app.operations.start.run_plan import request_with_defaults
    from learnloop_service.training.backends.traits import State

    failed = False
    for check in checks(settings, request) if url is None else ():
        failed = failed or check.state is State.FAILED
        yield check
    if not trial or failed:
        return

    def whole(is_demonstrated: bool) -> dict[str, Any]:
        return request_with_defaults(request, settings, after_demonstrations=is_demonstrated)

    with service_at(url, settings.data_dir) as service:
        yield from tried(service, whole, body)
