"""`learnloop feedback`: feedback on the emails of a run, and a market simulator that invents some."""

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Annotated, Any

import typer
from rich.table import Table

from app.cli.charts import figure
from app.cli.client import Service
from app.cli.options import DEFAULT_URL, AsJson, Url
from app.cli.runs import RunId
from app.cli.terminal import Failure, print_json, progress, results
from judges.base import SIMULATOR
from judges.feedback import ONLINE
from judges.market import Market

app = typer.Typer(no_args_is_help=True, help=f"List feedback on a run's emails, or let the {SIMULATOR} invent some.")

Json = Any


@app.command("list")
def list_(
    run_id: RunId,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of events.")] = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the feedback on a run's emails, newest first."""
    with Service(url) as service:
        found = service.feedback(run_id, limit)
    if as_json:
        print_json(found)
        return
    results.print(_events_table(found) if found else "no feedback")


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
    """The trajectories of a run's sample emails, one per iteration."""
    for brief in service.trajectories(run_id, kind="showcase", limit=200):
        yield service.trajectory(brief["id"])


def _event(seed: int, email: Json, kind: str) -> Json:
    """Ids are stable: simulating twice adds nothing."""
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
        table.add_row(each["type"], place, each["trajectory_id"], weight, source)
    return table
