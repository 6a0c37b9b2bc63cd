"""`learnloop webhooks`: endpoints that receive events, and the deliveries to them."""

from datetime import datetime
from typing import Annotated, Self

import typer
from rich.table import Table

from app.cli.client import Service
from app.cli.options import DEFAULT_URL, AsJson, Url
from app.cli.terminal import plain, print_json, results
from environment.json_type import Json

app = typer.Typer(no_args_is_help=True, help="Manage webhook endpoints and inspect deliveries.")

Id = Annotated[str, typer.Argument(metavar="WEBHOOK_ID")]
DeliveryId = Annotated[str, typer.Argument(metavar="DELIVERY_ID")]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of items.")]


class WebhookService(Service):
    """The part of the API for webhooks."""

    def __enter__(self) -> Self:
        return self

    def listed(self, path: str, limit: int, **filters: str | None) -> list[Json]:
        """Return the items of a list, newest first."""
        return self._page(f"/webhooks{path}", limit, filters)

    def do(self, method: str, path: str, body: Json = None) -> Json:
        """Send any other request."""
        return self._call(method, f"/webhooks{path}", json=body)


@app.command("list")
def list_(
    run_id: Annotated[str | None, typer.Option(help="Only endpoints of this run.")] = None,
    limit: Limit = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List webhook endpoints, newest first."""
    with WebhookService(url) as service:
        found = service.listed("", limit, run_id=run_id)
    if as_json:
        print_json(found)
        return
    results.print(_endpoints(found) if found else "no webhooks")


@app.command()
def add(
    to: Annotated[str, typer.Argument(metavar="URL_OF_RECEIVER", help="URL to send events to.")],
    event: Annotated[list[str] | None, typer.Option(help="Event type to send; repeatable. \\[default: all]")] = None,
    run_id: Annotated[str | None, typer.Option(help="Only events of this run.")] = None,
    project: Annotated[str | None, typer.Option(help="Events of all runs of this project.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Add a webhook endpoint. Its secret is shown only once."""
    given = {"url": to, "events": event or None, "run_id": run_id, "project": project}
    with WebhookService(url) as service:
        made = service.do("POST", "", {name: value for name, value in given.items() if value is not None})
    _print_secret(made, as_json)


@app.command()
def remove(id: Id, url: Url = DEFAULT_URL) -> None:
    """Delete a webhook endpoint. Waiting deliveries to it are not sent."""
    with WebhookService(url) as service:
        service.do("DELETE", f"/{id}")
    results.print(f"webhook {id} is deleted")


@app.command()
def enable(id: Id, url: Url = DEFAULT_URL) -> None:
    """Enable a webhook endpoint again."""
    with WebhookService(url) as service:
        service.do("PATCH", f"/{id}", {"enabled": True})
    results.print(f"webhook {id} is enabled")


@app.command()
def disable(id: Id, url: Url = DEFAULT_URL) -> None:
    """Disable a webhook endpoint. Waiting deliveries to it count as failed."""
    with WebhookService(url) as service:
        service.do("PATCH", f"/{id}", {"enabled": False})
    results.print(f"webhook {id} is disabled")


@app.command("rotate-secret")
def rotate_secret(
    id: Id,
    overlap_hours: Annotated[
        float, typer.Option(min=0, max=72, help="How long messages are also signed with the old secret.")
    ] = 24,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Create a new secret for a webhook endpoint. It is shown only once."""
    with WebhookService(url) as service:
        made = service.do("POST", f"/{id}/rotate-secret", {"overlap_hours": overlap_hours})
    _print_secret(made, as_json)


@app.command("test")
def send_test(id: Id, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Send a test message now. The exit code is 1 if it was not delivered."""
    with WebhookService(url) as service:
        went = service.do("POST", f"/{id}/test")
    if as_json:
        print_json(went)
    else:
        said = "delivered" if went["delivered"] else went["error"]
        results.print(plain(f"{said} ({went['seconds']:.2f} s)"), soft_wrap=True)
    raise typer.Exit(0 if went["delivered"] else 1)


@app.command()
def deliveries(
    id: Id,
    state: Annotated[
        str | None, typer.Option(help="Only deliveries in this state: pending, delivered or failed.")
    ] = None,
    limit: Limit = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the deliveries to a webhook endpoint, newest first."""
    with WebhookService(url) as service:
        found = service.listed(f"/{id}/deliveries", limit, state=state)
    if as_json:
        print_json(found)
        return
    results.print(_deliveries(found) if found else "no deliveries")


@app.command()
def delivery(id: DeliveryId, url: Url = DEFAULT_URL) -> None:
    """Show a delivery as JSON, with its body and all attempts."""
    with WebhookService(url) as service:
        print_json(service.do("GET", f"/deliveries/{id}"))


@app.command()
def redeliver(id: DeliveryId, url: Url = DEFAULT_URL) -> None:
    """Send a delivery again with the same id."""
    with WebhookService(url) as service:
        service.do("POST", f"/deliveries/{id}/redeliver")
    results.print(f"delivery {id} is queued")


@app.command()
def replay(
    id: Id,
    run_id: Annotated[str, typer.Argument(metavar="RUN_ID")],
    after_seq: Annotated[int, typer.Option(min=0, help="Only events whose seq is greater than this.")] = 0,
    url: Url = DEFAULT_URL,
) -> None:
    """Send all past events of a run to a webhook endpoint, whether or not it already received them."""
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
    for name in ("SCOPE", "EVENTS", "STATE", "URL"):
        table.add_column(name, overflow="fold")
    for each in found:
        of = each["run_id"] or each["project"] or "all projects"
        state = "enabled" if each["enabled"] else f"disabled: {each['disabled_reason']}"
        table.add_row(each["id"], of, ", ".join(each["events"]) or "all", plain(state), plain(each["url"]))
    return table


def _deliveries(found: list[Json]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("DELIVERY", no_wrap=True, min_width=26)
    for name in ("EVENT", "STATE", "ATTEMPTS", "CREATED", "LAST ERROR"):
        table.add_column(name, overflow="fold")
    for each in found:
        created = f"{datetime.fromisoformat(each['created_at']).astimezone():%d %b %H:%M}"
        event, error = each["event_type"] or "-", plain(each["last_error"] or "-")
        table.add_row(each["id"], event, each["state"], str(each["attempts"]), created, error)
    return table
