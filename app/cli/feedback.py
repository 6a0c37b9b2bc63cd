"""`learnloop feedback`: feedback on sessions and on the emails of runs, and a market simulator that invents some."""

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Annotated
from uuid import uuid4

import typer
from rich.table import Table

from app.cli.charts import figure
from app.cli.client import Service
from app.cli.options import DEFAULT_URL, AsJson, Url
from app.cli.runs import RunId
from app.cli.terminal import Failure, plain, print_json, progress, results
from environment.json_type import Json
from judges.base import SIMULATOR
from judges.feedback import ONLINE
from judges.market import Market

app = typer.Typer(
    no_args_is_help=True,
    help=f"Send and list feedback on sessions and on emails of runs, or let the {SIMULATOR} invent some.",
)
SessionId = Annotated[str | None, typer.Option("--session", metavar="ID", help="A session outside of runs.")]


@app.command("list")
def list_(
    run_id: Annotated[str | None, typer.Argument(metavar="[RUN_ID]", show_default=False)] = None,
    session_id: SessionId = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of events.")] = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the feedback on a run's emails, or on a session, newest first."""
    if (run_id is None) == (session_id is None):
        raise Failure("give either RUN_ID or --session")
    with Service(url) as service:
        found = service.feedback(run_id, limit) if run_id else service.session_feedback(str(session_id), limit)
    if as_json:
        print_json(found)
        return
    table = _events_table if run_id else _opinions_table
    results.print(table(found) if found else "no feedback")


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
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Send one event: what somebody thought of a session, what happened to an email, or what came of an answer."""
    about = {"session_id": session_id, "trajectory_id": trajectory_id, "user": user, "model": model, "over": over}
    given = about | {"comment": comment, "confidence": confidence, "name": name, "value": value, "withdraws": withdraws}
    event = {"event_id": event_id or str(uuid4()), "type": type}
    with Service(url) as service:
        taken = service.send_feedback(event | {name: value for name, value in given.items() if value is not None})
    if as_json:
        print_json(taken)
    else:
        results.print("stored" if taken["accepted"] else "already known")


@app.command()
def simulate(
    run_id: RunId,
    seed: Annotated[int, typer.Option(help="Seed of the invented market.")] = 0,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Let a market simulator respond to the sample emails of a run. None of it is real."""
    market = Market(seed)
    with Service(url) as service:
        shown = [email for email in _showcases(service, run_id) if email["outcome"].get("email")]
        if not shown:
            raise Failure(f"run {run_id} has no sample email that the {SIMULATOR} could respond to")
        fates = [market.events(email["scenario"]["task"], email["outcome"]) for email in shown]
        events = [_event(seed, email, kind) for email, fate in zip(shown, fates, strict=True) for kind in fate]
        Random(seed).shuffle(events)  # real feedback arrives in no particular order
        replies = list(service.send_simulated(events))
    rows = _rows(shown, fates)
    sums = {name: sum(reply[name] for reply in replies) for name in ("accepted", "duplicates")}
    rejected = [each for reply in replies for each in reply["rejected"]]
    if as_json:
        print_json({"source": SIMULATOR, "seed": seed, "emails": rows, **sums, "rejected": rejected})
    else:
        results.print(_fates_table(seed, rows))
        results.print(f"{sums['accepted']} events stored, {sums['duplicates']} already known")
    for each in rejected:
        progress.print(f"rejected {each['event_id']}: {each['detail']}", soft_wrap=True)


def _showcases(service: Service, run_id: str) -> Iterator[Json]:
    """Yield the trajectories of a run's sample emails, one per iteration."""
    for brief in service.trajectories(run_id, kind="showcase", limit=200):
        yield service.trajectory(brief["id"])


def _event(seed: int, email: Json, kind: str) -> Json:
    """Return a feedback event. Its id is stable, so simulating twice adds nothing."""
    return {"event_id": f"{SIMULATOR}:{seed}:{email['id']}:{kind}", "type": kind, "trajectory_id": email["id"]}


def _rows(shown: Sequence[Json], fates: Sequence[Sequence[str]]) -> list[dict[str, Json]]:
    return [
        {
            "iteration": email["iteration"],
            "trajectory_id": email["id"],
            "subject": email["outcome"]["email"]["subject"],
            "outcome": fate[-1],
            "online": max(ONLINE[kind] for kind in fate),
        }
        for email, fate in zip(shown, fates, strict=True)
    ]


def _fates_table(seed: int, rows: Sequence[Mapping[str, Json]]) -> Table:
    table = Table(
        title=f"{SIMULATOR}, seed {seed}: invented outcomes",
        title_justify="left",
        box=None,
        pad_edge=False,
        min_width=60,
    )
    table.add_column("ITERATION", justify="right", no_wrap=True)
    table.add_column("SUBJECT", no_wrap=True, overflow="ellipsis", max_width=40)
    table.add_column("BEST OUTCOME", no_wrap=True)
    table.add_column("ONLINE", justify="right", no_wrap=True)
    for row in rows:
        table.add_row(str(row["iteration"]), " ".join(row["subject"].split()), row["outcome"], figure(row["online"], 1))
    return table


def _opinions_table(found: Sequence[Json]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("OPINION", no_wrap=True)
    table.add_column("CONFIDENCE", justify="right", no_wrap=True)
    table.add_column("OVER", no_wrap=True)
    table.add_column("COMMENT", overflow="fold")
    for each in found:
        table.add_row(_spoken(each), figure(each["confidence"]), each["over"] or "-", plain(each["comment"] or "-"))
    return table


def _events_table(found: Sequence[Json]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("EVENT", no_wrap=True)
    table.add_column("ITERATION", justify="right", no_wrap=True)
    table.add_column("TRAJECTORY", overflow="fold")
    table.add_column("CONFIDENCE", justify="right", no_wrap=True)
    table.add_column("SOURCE", no_wrap=True)
    for each in found:
        source = SIMULATOR if each["source"] == "simulator" else each["source"]
        place = "-" if each["iteration"] is None else str(each["iteration"])
        weight = "-" if each["type"] in ONLINE else figure(each["confidence"])
        table.add_row(_spoken(each), place, each["trajectory_id"], weight, source)
    return table


def _spoken(event: Json) -> str:
    return event["type"] if event["value"] is None else f"{plain(event['name'])} {figure(event['value'])}"
