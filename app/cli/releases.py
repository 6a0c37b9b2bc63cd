"""`learnloop releases`: give a candidate a share of the users of a promoted name, watch it, and take it back."""

import time
from math import exp, log
from typing import Annotated

import typer
from rich.table import Table

from app.cli.client import Service
from app.cli.options import DEFAULT_URL, AsJson, Url
from app.cli.run_request import BadRunFile, overlay, parse_settings
from app.cli.terminal import Failure, plain, print_json, progress, results
from environment.json_type import Json
from training.protocol.model_name import ModelName

app = typer.Typer(
    no_args_is_help=True,
    help="Give a candidate a share of the users of a promoted name, which guardrails raise or take back.",
)

Name = Annotated[str, typer.Argument(metavar="PROJECT/NAME")]
ReleaseId = Annotated[str, typer.Argument(metavar="RELEASE_ID")]
_LIVE = ("trial", "running", "held")
_POLL_S = 2.0
_WHOLE = ("RELEASE", "STATE", "GUARDRAIL")
"""Columns that are never folded."""


class Releases:
    """The part of the API for releases."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def start(self, name: str, request: Json) -> Json:
        """Start a release of a candidate for the name."""
        return self._service.call("POST", f"/promotions/{_promoted(name)}/releases", json=request)

    def get(self, id: str) -> Json:
        """Return a release with its arms and guardrails."""
        return self._service.call("GET", f"/releases/{id}")

    def listed(self, name: str | None, limit: int) -> list[Json]:
        """Return the newest releases, of one name or of all."""
        path = "/releases" if name is None else f"/promotions/{_promoted(name)}/releases"
        items: list[Json] = self._service.call("GET", path, params={"limit": limit})["items"]
        return items

    def move(self, id: str, verb: str, body: Json = None) -> Json:
        """Hold, resume, roll back or promote a release."""
        return self._service.call("POST", f"/releases/{id}/{verb}", json=body)

    def verified(self, id: str) -> Json:
        """Compute the evidence of a release again from its observations."""
        return self._service.call("GET", f"/releases/{id}/verify")


@app.command()
def start(
    name: Name,
    model: Annotated[
        str | None, typer.Option(help="The candidate's model. Default: that of the name's checkpoint.")
    ] = None,
    step: Annotated[int | None, typer.Option(help="The candidate's checkpoint. Default: the newest one.")] = None,
    unit: Annotated[str | None, typer.Option(help="What is assigned to an arm: user (default) or session.")] = None,
    ramp: Annotated[
        list[float] | None, typer.Option(help="Share of a stage, at most 0.5. Repeat it for each stage.")
    ] = None,
    max_days: Annotated[float | None, typer.Option(help="How long users meet the candidate at most.")] = None,
    at_end: Annotated[str | None, typer.Option(help="What happens then: return (default) or promote.")] = None,
    skip_trial: Annotated[bool, typer.Option("--skip-trial", help="No trial on held-out scenarios before.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Any other field, such as outcome.event=call_booked."),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Start a release: first a trial on held-out scenarios, then a share of the users."""
    flags = {"model": model, "step": step, "unit": unit, "ramp": ramp or None, "max_days": max_days, "at_end": at_end}
    try:
        request = overlay({}, {**parse_settings(settings or ()), **flags, "skip_trial": skip_trial or None})
    except BadRunFile as error:
        raise typer.BadParameter(str(error)) from error
    with Service(url) as service:
        accepted = Releases(service).start(name, request)
    for warning in accepted["warnings"]:
        progress.print(plain(warning), style="yellow", soft_wrap=True)
    if as_json:
        print_json(accepted)
        return
    results.print(f"release {accepted['release_id']} of {accepted['candidate']} for {accepted['name']}", soft_wrap=True)
    results.print(plain(accepted["summary"]), soft_wrap=True)
    results.print(plain(accepted["forecast"]["note"]), soft_wrap=True)


@app.command("list")
def list_(
    name: Annotated[str | None, typer.Argument(metavar="[PROJECT/NAME]")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Maximum number of releases.")] = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List releases, newest first: all, or those of a name."""
    with Service(url) as service:
        found = Releases(service).listed(name, limit)
    if as_json:
        print_json(found)
        return
    table = _table("RELEASE", "NAME", "CANDIDATE", "STATE", "SHARE", "SINCE")
    for each in found:
        state = each["state"] if each["reason"] is None else f"{each['state']} ({each['reason']})"
        share, since = f"{each['share']:.3g}", each["created_at"][:10]
        table.add_row(each["release_id"], each["name"], each["candidate"], state, share, since)
    results.print(table if found else "no releases")


@app.command()
def show(release_id: ReleaseId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a release: its arms, its guardrails with the evidence, and what the next stage lacks."""
    with Service(url) as service:
        found = Releases(service).get(release_id)
    print_json(found) if as_json else _print(found)


@app.command()
def watch(release_id: ReleaseId, url: Url = DEFAULT_URL) -> None:
    """Show a release whenever it changes, until it ends. Exits with 1 unless it was promoted."""
    shown = None
    with Service(url) as service:
        while True:
            found = Releases(service).get(release_id)
            line = (found["version"], found["summary"], found["next"])
            if line != shown:
                results.print(
                    plain(f"{found['state']}, share {found['share']:.3g}: {found['summary']}"), soft_wrap=True
                )
                if found["next"] is not None:
                    results.print(plain(f"  {found['next']}"), soft_wrap=True)
                shown = line
            if found["state"] not in _LIVE:
                _print_alarms(found)
                raise typer.Exit(0 if found["state"] == "promoted" else 1)
            time.sleep(_POLL_S)


@app.command()
def hold(release_id: ReleaseId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Keep the share as it is. Guardrails can still take the candidate back."""
    _moved(url, release_id, "hold", as_json)


@app.command()
def resume(release_id: ReleaseId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Let a held release go on."""
    _moved(url, release_id, "resume", as_json)


@app.command()
def rollback(
    release_id: ReleaseId,
    end_sessions: Annotated[
        bool, typer.Option("--end-sessions", help="Also end the open sessions with the candidate.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Take the candidate back: the next request of every user gets the stable checkpoint."""
    _moved(url, release_id, "rollback", as_json, {"sessions": "end" if end_sessions else "keep"})


@app.command()
def promote(
    release_id: ReleaseId,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Give the name to the candidate now, without evidence of its quality."""
    if not yes:
        if not progress.is_terminal:
            raise Failure("nothing was shown about the quality of the candidate; confirm with --yes")
        typer.confirm("Nothing was shown about the quality of the candidate. Promote it?", abort=True, err=True)
    _moved(url, release_id, "promote", as_json)


@app.command()
def verify(release_id: ReleaseId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Compute the evidence of a release and its events again from the observations. Exits with 1 if any differs."""
    with Service(url) as service:
        found = Releases(service).verified(release_id)
    if as_json:
        print_json(found)
    else:
        for each in found["differences"]:
            results.print(plain(each), style="red", soft_wrap=True)
        same = "is what they say" if found["verified"] else "differs"
        results.print(
            f"the evidence of {found['events']} events {same}, counted again from {found['observations']} observations"
        )
    raise typer.Exit(0 if found["verified"] else 1)


def _moved(url: str, release_id: str, verb: str, as_json: bool, body: Json = None) -> None:
    with Service(url) as service:
        found = Releases(service).move(release_id, verb, body)
    print_json(found) if as_json else results.print(plain(found["summary"]), soft_wrap=True)


def _promoted(name: str) -> ModelName:
    try:
        model = ModelName.parse(name)
    except ValueError as error:
        raise Failure(str(error)) from error
    if model.step is not None:
        raise Failure(f"{name!r} names a checkpoint; give PROJECT/NAME")
    return model


def _print(found: Json) -> None:
    results.print(f"release {found['release_id']} of {found['candidate']} for {found['name']}", soft_wrap=True)
    for sentence in (found["summary"], found["next"], found["quality"], found["forecast"]["note"]):
        if sentence is not None:
            results.print(plain(sentence), soft_wrap=True)
    _print_alarms(found)
    arms = _table("ARM", "CHECKPOINT", "USERS", "OPEN", "CLOSED", "OUTCOME", "LATE")
    for arm in found["arms"]:
        counted = [str(arm[each]) for each in ("units", "open_windows", "closed_windows")]
        arms.add_row(arm["arm"], arm["checkpoint"], *counted, _mean(arm["mean_outcome"]), str(arm["late_events"]))
    results.print(arms)
    rails = _table("GUARDRAIL", "CANDIDATE", "STABLE", "TOLERATED", "HARM", "RULED OUT")
    for each in found["guardrails"]:
        ruled_out = "-"
        if each["level"] is not None:
            ruled_out = f"{_of(each['ruled_out'], each['ruled_out_threshold'])} above +{each['level']:.3g}"
        rails.add_row(
            each["guardrail"],
            f"{_mean(each['candidate']['mean'])} ({each['candidate']['units']})",
            f"{_mean(each['stable']['mean'])} ({each['stable']['units']})",
            f"+{each['tolerance']:.3g}",
            _of(each["harm"], each["harm_threshold"]),
            ruled_out,
        )
    results.print(rails)


def _print_alarms(found: Json) -> None:
    """Print which guardrails the candidate broke."""
    for each in found["guardrails"]:
        if each["harm"] >= each["harm_threshold"]:
            stable, candidate = (_percent(each[arm]["mean"]) for arm in ("stable", "candidate"))
            evidence = _of(each["harm"], each["harm_threshold"])
            results.print(plain(f"{each['means']} {stable} → {candidate}, evidence {evidence}"), soft_wrap=True)


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        id_width = 26 if heading == "RELEASE" else None  # or it could not be copied
        table.add_column(heading, overflow="fold", min_width=id_width, no_wrap=heading in _WHOLE)
    return table


def _of(evidence: float, threshold: float) -> str:
    """Return the wealth of a bet beside the one that decides, as the page does. Both are given as logarithms."""
    most = 1_000_000
    wealth = f"{exp(evidence):,.1f}" if evidence < log(most) else f"over {most:,}"
    return f"{wealth} of {exp(threshold):,.0f}"


def _percent(mean: float | None) -> str:
    return "-" if mean is None else f"{100 * mean:.3g}%"


def _mean(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
