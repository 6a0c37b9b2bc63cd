"""`learnloop releases`: give a candidate a share of the users of a promoted name, watch it, and take it back."""

import time
from math import exp, log
from typing import Annotated

import typer
from rich.table import Column

from learnloop.operations import segment
from learnloop_service.app.cli.charts import figure
from learnloop_service.app.cli.client import HERE, Service, ServiceAt
from learnloop_service.app.cli.options import (
    AsJson,
    PromptOption,
    StartedBy,
    named_model,
    prompt_field,
    served,
    setting,
)
from learnloop_service.app.cli.run_names import run_option
from learnloop_service.app.cli.run_request import overlay, parse_settings
from learnloop_service.app.cli.terminal import (
    Failure,
    confirm,
    print_json,
    print_list,
    print_result,
    print_warnings,
    results,
    say,
    starter_of,
    table,
)
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted

app = typer.Typer(
    no_args_is_help=True,
    help="Give a candidate a share of the users of a promoted name; guardrails and outcomes decide on it.",
)

Name = Annotated[str, typer.Argument(metavar="PROJECT/NAME")]
ReleaseId = Annotated[str, typer.Argument(metavar="RELEASE_ID")]
_LIVE = ("trial", "running", "held")
_PROMOTED = ("promoted", "confirmed")
_POLL_S = 2.0
_WHOLE = {"RELEASE": 26, "STATE": None, "GUARDRAIL": None}
"""Columns that are never folded, with their least width: otherwise an id could not be copied."""


@app.command()
def start(
    name: Name,
    model: Annotated[
        str | None, typer.Option(help="The candidate's model. Default: that of the name's checkpoint.")
    ] = None,
    run: Annotated[
        str | None, run_option("--run", "The candidate is this run's best checkpoint, in place of --model and --step.")
    ] = None,
    step: Annotated[int | None, typer.Option(help="The candidate's checkpoint. Default: the newest one.")] = None,
    prompt: PromptOption = None,
    unit: Annotated[str | None, typer.Option(help="What is assigned to an arm: user (default) or session.")] = None,
    ramp: Annotated[
        list[float] | None, typer.Option(help="Share of a stage, at most 0.5. Repeat it for each stage.")
    ] = None,
    max_days: Annotated[float | None, typer.Option(help="How long users meet the candidate at most.")] = None,
    at_end: Annotated[str | None, typer.Option(help="What happens then: return (default) or promote.")] = None,
    goal: Annotated[
        str | None, typer.Option(help="What outcomes must show: guardrails (nothing, default), better or not_worse.")
    ] = None,
    margin: Annotated[float | None, typer.Option(help="How much worse they may be with not_worse, as a share.")] = None,
    skip_trial: Annotated[bool, typer.Option("--skip-trial", help="No trial on held-out scenarios before.")] = False,
    settings: Annotated[list[str] | None, setting("Any other field, such as outcome.event=call_booked.")] = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Start a release: first a trial on held-out scenarios, then a share of the users. With --prompt alone, the
    candidate is the name's checkpoint with that prompt."""
    if run is not None and (model is not None or step is not None):
        raise typer.BadParameter("names the checkpoint; omit --model and --step", param_hint="--run")
    candidate = {"model": model, "step": step} if run is None else _best_of(service.run(run))
    flags = {"unit": unit, "ramp": ramp or None, "max_days": max_days, "at_end": at_end, "goal": goal, "margin": margin}
    request = overlay({}, {**parse_settings(settings or ()), **candidate, **flags, "skip_trial": skip_trial or None})
    path = f"/promotions/{named_model(name)}/releases"
    accepted = service.call("POST", path, json={**request, **prompt_field(prompt)})
    print_warnings(accepted)
    print_result(accepted, as_json, _title(accepted), accepted["summary"], accepted["forecast"]["note"])


@app.command("list")
def list_(
    name: Annotated[str | None, typer.Argument(metavar="[PROJECT/NAME]")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Maximum number of releases.")] = 20,
    started_by: StartedBy = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """List releases, newest first: all, or those of a name."""
    path = "/releases" if name is None else f"/promotions/{named_model(name)}/releases"
    releases = service.newest(path, limit, started_by=started_by)
    columns = _columns("RELEASE", "NAME", "CANDIDATE", "STATE", "SHARE", "SINCE")
    print_list(releases, as_json, "no releases", columns, _row)


@app.command()
def show(release_id: ReleaseId, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Show a release: its effect on outcomes, its arms, its guardrails, and what the next stage lacks."""
    release = _release(service, release_id)
    print_json(release) if as_json else _print(release)


@app.command()
def watch(release_id: ReleaseId, service: ServiceAt = HERE) -> None:
    """Show a release whenever it changes, until it ends. Exits with 1 unless it was promoted."""
    printed = None
    while True:
        release = _release(service, release_id)
        line = (release["version"], release["summary"], release["next"])
        if line != printed:
            say(f"{release['state']}, share {release['share']:.3g}: {release['summary']}")
            if release["next"] is not None:
                say(f"  {release['next']}")
                say(f"  {release['quality']}")
            printed = line
        if release["state"] not in _LIVE:
            say(release["quality"])
            _print_alarms(release)
            raise typer.Exit(0 if release["state"] in _PROMOTED else 1)
        time.sleep(_POLL_S)


@app.command()
def hold(release_id: ReleaseId, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Keep the share as it is. Guardrails can still take the candidate back."""
    _move(service, release_id, "hold", as_json)


@app.command()
def resume(release_id: ReleaseId, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Let a held release go on."""
    _move(service, release_id, "resume", as_json)


@app.command()
def rollback(
    release_id: ReleaseId,
    end_sessions: Annotated[
        bool, typer.Option("--end-sessions", help="Also end the open sessions with the candidate.")
    ] = False,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Take the candidate back: the next request of every user gets the stable checkpoint."""
    _move(service, release_id, "rollback", as_json, {"sessions": "end" if end_sessions else "keep"})


@app.command()
def promote(
    release_id: ReleaseId,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Give the name to the candidate now, whatever its outcomes show."""
    if not yes:
        confirm(
            "Outcomes have not decided that users are better off with the candidate. Promote it?",
            "outcomes have not decided that users are better off with the candidate",
        )
    _move(service, release_id, "promote", as_json)


@app.command()
def verify(release_id: ReleaseId, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Compute the evidence of a release and its events again from the observations. Exits with 1 if any differs."""
    verification = service.call("GET", f"/releases/{segment(release_id)}/verify")
    if as_json:
        print_json(verification)
    else:
        for difference in verification["differences"]:
            say(difference, "red")
        same = "is what they say" if verification["verified"] else "differs"
        results.print(
            f"the evidence of {counted(verification['events'], 'event')} {same}, counted again from "
            f"{counted(verification['observations'], 'observation')}"
        )
    raise typer.Exit(0 if verification["verified"] else 1)


def _best_of(run: Json) -> dict[str, Json]:
    """Return the best checkpoint of a run as a candidate. Raises Failure."""
    best = run["best_checkpoint"]
    if best is None:
        raise Failure(f"run {run['run_id']} has no best checkpoint yet")
    return {"model": f"{run['model']['project']}/{run['model']['name']}", "step": best["step"]}


def _release(service: Service, id: str) -> Json:
    return service.call("GET", f"/releases/{segment(id)}")


def _move(service: Service, id: str, verb: str, as_json: bool, body: Json = None) -> None:
    release = service.call("POST", f"/releases/{segment(id)}/{verb}", json=body)
    print_result(release, as_json, release["summary"])


def _title(release: Json) -> str:
    return f"release {release['release_id']} of {_candidate(release)} for {release['name']}"


def _candidate(release: Json) -> str:
    return served(release["candidate"], release["candidate_prompt"])


def _row(release: Json) -> tuple[str, ...]:
    state = release["state"] if release["reason"] is None else f"{release['state']} ({release['reason']})"
    share, since = f"{release['share']:.3g}", release["created_at"][:10]
    return release["release_id"], release["name"], _candidate(release), state, share, since


def _print(release: Json) -> None:
    say(f"{_title(release)}{starter_of(release)}")
    for sentence in (release["summary"], release["next"], release["quality"], release["forecast"]["note"]):
        if sentence is not None:
            say(sentence)
    _print_alarms(release)
    arms = _columns("ARM", "CHECKPOINT", "USERS", "OPEN", "CLOSED", "OUTCOME", "LATE")
    results.print(table(arms, map(_arm_row, release["arms"])))
    rails = _columns("GUARDRAIL", "CANDIDATE", "STABLE", "TOLERATED", "HARM", "RULED OUT")
    results.print(table(rails, map(_guardrail_row, release["guardrails"])))


def _arm_row(arm: Json) -> tuple[str, ...]:
    counted = (str(arm[name]) for name in ("units", "open_windows", "closed_windows"))
    return (
        arm["arm"],
        served(arm["checkpoint"], arm["prompt"]),
        *counted,
        figure(arm["mean_outcome"], 3),
        str(arm["late_events"]),
    )


def _guardrail_row(rail: Json) -> tuple[str, ...]:
    ruled_out = "-"
    if rail["level"] is not None:
        ruled_out = f"{_of(rail['ruled_out'], rail['ruled_out_threshold'])} above +{rail['level']:.3g}"
    means = (f"{figure(rail[arm]['mean'], 3)} ({rail[arm]['units']})" for arm in ("candidate", "stable"))
    return rail["guardrail"], *means, f"+{rail['tolerance']:.3g}", _of(rail["harm"], rail["harm_threshold"]), ruled_out


def _print_alarms(release: Json) -> None:
    """Print which guardrails the candidate broke."""
    for guardrail in release["guardrails"]:
        if guardrail["harm"] >= guardrail["harm_threshold"]:
            stable, candidate = (_percent(guardrail[arm]["mean"]) for arm in ("stable", "candidate"))
            evidence = _of(guardrail["harm"], guardrail["harm_threshold"])
            say(f"{guardrail['means']} {stable} → {candidate}, evidence {evidence}")


def _columns(*headings: str) -> list[Column]:
    return [
        Column(heading, overflow="fold", no_wrap=heading in _WHOLE, min_width=_WHOLE.get(heading))
        for heading in headings
    ]


def _of(evidence: float, threshold: float) -> str:
    """Return the wealth of a bet and the wealth at which it is decided, as the page does, from their logarithms."""
    most = 1_000_000
    wealth = f"{exp(evidence):,.1f}" if evidence < log(most) else f"over {most:,}"
    return f"{wealth} of {exp(threshold):,.0f}"


def _percent(mean: float | None) -> str:
    return "-" if mean is None else f"{100 * mean:.3g}%"
