"""`learnloop webhooks`: who hears of events, and what became of each message."""

from datetime import datetime
from typing import Annotated, Any, Self

import typer
from rich.table import Table

from app.cli.client import Service
from app.cli.options import DEFAULT_URL, AsJson, Url
from app.cli.terminal import plain, print_json, results

app = typer.Typer(no_args_is_help=True, help="Tell receivers of runs' events, and see what they were sent.")

Json = Any
Id = Annotated[str, typer.Argument(metavar="WEBHOOK_ID")]
DeliveryId = Annotated[str, typer.Argument(metavar="DELIVERY_ID")]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, newest first.")]


class WebhookService(Service):
    """The part of the API that is about webhooks."""

    def __enter__(self) -> Self:
        return self

    def listed(self, path: str, limit: int, **filters: str | None) -> list[Json]:
        """Items of a list, newest first."""
        return self._page(f"/webhooks{path}", limit, filters)

    def do(self, method: str, path: str, body: Json = None) -> Json:
        """Any other request."""
        return self._call(method, f"/webhooks{path}", json=body)


@app.command("list")
def list_(
    run_id: Annotated[str | None, typer.Option(help="Only those of that run.")] = None,
    limit: Limit = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List endpoints, newest first."""
    with WebhookService(url) as service:
        found = service.listed("", limit, run_id=run_id)
    if as_json:
        print_json(found)
        return
    results.print(_endpoints(found) if found else "no webhooks")


@app.command()
def add(
    to: Annotated[str, typer.Argument(metavar="URL_OF_RECEIVER", help="Where events are sent.")],
    event: Annotated[list[str] | None, typer.Option(help="A type to send; again for more. Default: all.")] = None,
    run_id: Annotated[str | None, typer.Option(help="Only events of that run.")] = None,
    project: Annotated[str | None, typer.Option(help="Events of all runs of that project.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Add an endpoint. Its secret is shown this once."""
    given = {"url": to, "events": event or None, "run_id": run_id, "project": project}
    with WebhookService(url) as service:
        made = service.do("POST", "", {name: value for name, value in given.items() if value is not None})
    _print_secret(made, as_json)


@app.command()
def remove(id: Id, url: Url = DEFAULT_URL) -> None:
    """Delete an endpoint; what waits for it is not sent any more."""
    with WebhookService(url) as service:
        service.do("DELETE", f"/{id}")
    results.print(f"webhook {id} is gone")


@app.command()
def enable(id: Id, url: Url = DEFAULT_URL) -> None:
    """Send to an endpoint again."""
    with WebhookService(url) as service:
        service.do("PATCH", f"/{id}", {"enabled": True})
    results.print(f"webhook {id} is enabled")


@app.command()
def disable(id: Id, url: Url = DEFAULT_URL) -> None:
    """Send nothing more to an endpoint; what waits for it becomes dead letters."""
    with WebhookService(url) as service:
        service.do("PATCH", f"/{id}", {"enabled": False})
    results.print(f"webhook {id} is disabled")


@app.command("rotate-secret")
def rotate_secret(
    id: Id,
    overlap_hours: Annotated[float, typer.Option(min=0, max=72, help="How long the old one signs too.")] = 24,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Give an endpoint a new secret, which is shown this once."""
    with WebhookService(url) as service:
        made = service.do("POST", f"/{id}/rotate-secret", {"overlap_hours": overlap_hours})
    _print_secret(made, as_json)


@app.command("test")
def send_test(id: Id, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Send a test message now. Exits with 1 if the receiver did not take it."""
    with WebhookService(url) as service:
        went = service.do("POST", f"/{id}/test")
    if as_json:
        print_json(went)
    else:
        said = "the receiver took it" if went["delivered"] else went["error"]
        results.print(plain(f"{said} ({went['seconds']:.2f} s)"), soft_wrap=True)
    raise typer.Exit(0 if went["delivered"] else 1)


@app.command()
def deliveries(
    id: Id,
    state: Annotated[str | None, typer.Option(help="pending, delivered or failed.")] = None,
    limit: Limit = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List what was queued for an endpoint, newest first."""
    with WebhookService(url) as service:
        found = service.listed(f"/{id}/deliveries", limit, state=state)
    if as_json:
        print_json(found)
        return
    results.print(_deliveries(found) if found else "no deliveries")


@app.command()
def delivery(id: DeliveryId, url: Url = DEFAULT_URL) -> None:
    """Show one delivery as JSON: its body and every attempt."""
    with WebhookService(url) as service:
        print_json(service.do("GET", f"/deliveries/{id}"))


@app.command()
def redeliver(id: DeliveryId, url: Url = DEFAULT_URL) -> None:
    """Send a delivery again under the same id."""
    with WebhookService(url) as service:
        service.do("POST", f"/deliveries/{id}/redeliver")
    results.print(f"delivery {id} is queued")


@app.command()
def replay(
    id: Id,
    run_id: Annotated[str, typer.Argument(metavar="RUN_ID")],
    after_seq: Annotated[int, typer.Option(min=0, help="Only events with a greater number.")] = 0,
    url: Url = DEFAULT_URL,
) -> None:
    """Send all events of a run's log to an endpoint, again or for the first time."""
    queued, after = 0, after_seq
    with WebhookService(url) as service:
        while True:
            went = service.do("POST", f"/{id}/replay", {"run_id": run_id, "after_seq": after})
            queued += went["queued"]
            if went["next_after_seq"] is None:
                break
            after = went["next_after_seq"]
    results.print(f"{queued} events queued")


def _print_secret(made: Json, as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    results.print(f"webhook {made['id']}")
    results.print(f"secret  {made['secret']}  (not shown again)", soft_wrap=True)


def _endpoints(found: list[Json]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("WEBHOOK", no_wrap=True, min_width=26)
    for name in ("OF", "EVENTS", "STATE", "URL"):
        table.add_column(name, overflow="fold")
    for each in found:
        of = each["run_id"] or each["project"] or "everything"
        state = "enabled" if each["enabled"] else f"disabled: {each['disabled_reason']}"
        table.add_row(each["id"], of, ", ".join(each["events"]) or "all", plain(state), plain(each["url"]))
    return table


def _deliveries(found: list[Json]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("DELIVERY", no_wrap=True, min_width=26)
    for name in ("EVENT", "STATE", "TRIES", "CREATED", "LAST ERROR"):
        table.add_column(name, overflow="fold")
    for each in found:
        created = f"{datetime.fromisoformat(each['created_at']).astimezone():%d %b %H:%M}"
        event, error = each["event_type"] or "-", plain(each["last_error"] or "-")
        table.add_row(each["id"], event, each["state"], str(each["attempts"]), created, error)
    return table
