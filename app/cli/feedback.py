"""`learnloop feedback`: feedback on sessions and on the emails of runs, and a market simulator that invents some."""

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Annotated
from uuid import uuid4

import typer
from rich.table import Column, Table
from rich.text import Text

from learnloop.operations import segment
from learnloop_service.app.cli.charts import figure
from learnloop_service.app.cli.client import HERE, Service, ServiceAt
from learnloop_service.app.cli.options import AsJson
from learnloop_service.app.cli.run_names import OptionalRunId, RunId
from learnloop_service.app.cli.terminal import (
    Failure,
    folded,
    number,
    plain,
    print_json,
    print_list,
    print_result,
    progress,
    results,
    whole,
)
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.plugins import PluginFault
from learnloop_service.environment.wording import counted
from learnloop_service.judges.base import SIMULATOR
from learnloop_service.judges.feedback import ONLINE
from learnloop_service.judges.markets import UnknownMarket, market

app = typer.Typer(
    no_args_is_help=True,
    help=f"Send and list feedback on sessions and on emails of runs, or let the {SIMULATOR} invent some.",
)
_MOST_EVENTS = 1_000
"""Maximum number of events in a request."""
SessionId = Annotated[str | None, typer.Option("--session", metavar="ID", help="A session outside of runs.")]


@app.command("list")
def list_(
    run_id: OptionalRunId = None,
    session_id: SessionId = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of events.")] = 20,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """List the feedback on a run's emails, or on a session, newest first."""
    if (run_id is None) == (session_id is None):
        raise Failure("give either RUN_ID or --session")
    if run_id is not None:
        events = service.newest(f"/runs/{segment(run_id)}/feedback", limit)
        columns = [whole("EVENT"), number("ITERATION"), folded("TRAJECTORY"), number("CONFIDENCE"), whole("SOURCE")]
    else:
        events = service.newest(f"/sessions/{segment(str(session_id))}/feedback", limit)
        columns = [whole("OPINION"), number("CONFIDENCE"), whole("OVER"), folded("COMMENT")]
    print_list(events, as_json, "no feedback", columns, _event_row if run_id else _opinion_row)


@app.command()
def send(
    type: Annotated[
        str,
        typer.Argument(
            metavar="TYPE", help="thumbs_up, thumbs_down, preferred, outcome, withdrawn, or an outcome of an email."
        ),
    ],
    session_id: SessionId = None,
    trajectory_id: Annotated[
        str | None, typer.Option("--trajectory", metavar="ID", help="A trajectory with an email or an answer.")
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="Key of a user, for answers that are not stored. Needs --model.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="PROJECT/NAME", help="With --user: the promoted name that was asked.")
    ] = None,
    over: Annotated[
        str | None, typer.Option(metavar="ID", help="With preferred: the session or trajectory that was not.")
    ] = None,
    comment: Annotated[str | None, typer.Option(help="What was said with an opinion.")] = None,
    confidence: Annotated[float | None, typer.Option(help="Weight of an opinion, above 0 and at most 1.")] = None,
    name: Annotated[str | None, typer.Option(help="With outcome: its name, such as resolved.")] = None,
    value: Annotated[float | None, typer.Option(help="With outcome: its value, from 0 to 1.")] = None,
    withdraws: Annotated[
        str | None, typer.Option(metavar="EVENT_ID", help="With withdrawn: the event that no longer counts.")
    ] = None,
    event_id: Annotated[
        str | None, typer.Option(help="Your id of the event: sent again with it, it counts once. Default: a new one.")
    ] = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Send one event: what somebody thought of a session, what happened to an email, or what came of an answer."""
    about = {"session_id": session_id, "trajectory_id": trajectory_id, "user": user, "model": model, "over": over}
    parts = about | {"comment": comment, "confidence": confidence, "name": name, "value": value, "withdraws": withdraws}
    event: dict[str, Json] = {"event_id": event_id or str(uuid4()), "type": type}
    event |= {name: value for name, value in parts.items() if value is not None}
    reply = service.call("POST", "/feedback", json=event)
    print_result(reply, as_json, "stored" if reply["accepted"] else "already known")


@app.command()
def simulate(
    run_id: RunId,
    seed: Annotated[int, typer.Option(help="Seed of the invented market.")] = 0,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Let a market simulator respond to the sample emails of a run. None of it is real."""
    try:
        invented = market(seed)
    except (UnknownMarket, PluginFault) as error:
        raise Failure(str(error)) from error
    emails = [email for email in _showcases(service, run_id) if email["outcome"].get("email")]
    if not emails:
        raise Failure(f"run {run_id} has no sample email that the {SIMULATOR} could respond to")
    fates = [invented.events(email["scenario"]["task"], email["outcome"]) for email in emails]
    events = [_event(seed, email, kind) for email, fate in zip(emails, fates, strict=True) for kind in fate]
    Random(seed).shuffle(events)  # real feedback arrives in no particular order
    parts = [events[start : start + _MOST_EVENTS] for start in range(0, len(events), _MOST_EVENTS)]
    replies = [service.call("POST", "/feedback", json={"source": "simulator", "events": part}) for part in parts]
    rows = _rows(emails, fates)
    sums = {name: sum(reply[name] for reply in replies) for name in ("accepted", "duplicates")}
    rejected = [rejection for reply in replies for rejection in reply["rejected"]]
    if as_json:
        print_json({"source": SIMULATOR, "seed": seed, "emails": rows, **sums, "rejected": rejected})
    else:
        results.print(_fates_table(seed, rows))
        results.print(f"{counted(sums['accepted'], 'event')} stored, {sums['duplicates']} already known")
    for rejection in rejected:
        progress.print(f"rejected {rejection['event_id']}: {rejection['detail']}", soft_wrap=True)


def _showcases(service: Service, run_id: str) -> Iterator[Json]:
    """Yield the trajectories of a run's sample emails, one per iteration."""
    for brief in service.trajectories(run_id, kind="showcase", limit=200):
        yield service.trajectory(brief["id"])


def _event(seed: int, email: Json, kind: str) -> Json:
    """Return a feedback event. Its id is stable, so simulating twice adds nothing."""
    return {"event_id": f"{SIMULATOR}:{seed}:{email['id']}:{kind}", "type": kind, "trajectory_id": email["id"]}


def _rows(emails: Sequence[Json], fates: Sequence[Sequence[str]]) -> list[dict[str, Json]]:
    return [
        {
            "iteration": email["iteration"],
            "trajectory_id": email["id"],
            "subject": email["outcome"]["email"]["subject"],
            "outcome": fate[-1],
            "online": max(ONLINE[kind] for kind in fate),
        }
        for email, fate in zip(emails, fates, strict=True)
    ]


def _fates_table(seed: int, rows: Sequence[Mapping[str, Json]]) -> Table:
    table = Table(
        number("ITERATION"),
        Column("SUBJECT", no_wrap=True, overflow="ellipsis", max_width=40),
        whole("BEST OUTCOME"),
        number("ONLINE"),
        title=f"{SIMULATOR}, seed {seed}: invented outcomes",
        title_justify="left",
        box=None,
        pad_edge=False,
        min_width=60,
    )
    for row in rows:
        table.add_row(str(row["iteration"]), " ".join(row["subject"].split()), row["outcome"], figure(row["online"], 1))
    return table


def _opinion_row(opinion: Json) -> tuple[str | Text, ...]:
    over, comment = opinion["over"] or "-", plain(opinion["comment"] or "-")
    return _spoken(opinion), figure(opinion["confidence"]), over, comment


def _event_row(event: Json) -> tuple[str, ...]:
    source = SIMULATOR if event["source"] == "simulator" else event["source"]
    iteration = "-" if event["iteration"] is None else str(event["iteration"])
    weight = "-" if event["type"] in ONLINE else figure(event["confidence"])
    return _spoken(event), iteration, event["trajectory_id"], weight, source


def _spoken(event: Json) -> str:
    return event["type"] if event["value"] is None else f"{plain(event['name'])} {figure(event['value'])}"
