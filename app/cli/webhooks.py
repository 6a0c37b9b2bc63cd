"""`learnloop webhooks`: endpoints that receive events, and the deliveries to them."""

from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from learnloop.operations import segment
from learnloop_service.app.cli.client import HERE, Service, ServiceAt
from learnloop_service.app.cli.options import AsJson
from learnloop_service.app.cli.output_files import with_output
from learnloop_service.app.cli.run_names import RunId, run_option
from learnloop_service.app.cli.terminal import folded, plain, print_json, print_list, print_result, results, whole
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted

app = typer.Typer(no_args_is_help=True, help="Manage webhook endpoints and inspect deliveries.")

Id = Annotated[str, typer.Argument(metavar="WEBHOOK_ID")]
DeliveryId = Annotated[str, typer.Argument(metavar="DELIVERY_ID")]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of items.")]


@app.command("list")
def list_(
    run_id: Annotated[str | None, run_option("--run-id", "Only endpoints of this run.")] = None,
    limit: Limit = 20,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """List webhook endpoints, newest first."""
    columns = [whole("WEBHOOK", 26), *map(folded, ("SCOPE", "EVENTS", "STATE", "URL"))]
    print_list(service.newest("/webhooks", limit, run_id=run_id), as_json, "no webhooks", columns, _endpoint_row)


@app.command()
def add(
    to: Annotated[str, typer.Argument(metavar="URL_OF_RECEIVER", help="URL to send events to.")],
    event: Annotated[list[str] | None, typer.Option(help="Event type to send; repeatable. \\[default: all]")] = None,
    run_id: Annotated[str | None, run_option("--run-id", "Only events of this run.")] = None,
    project: Annotated[str | None, typer.Option(help="Events of all runs of this project.")] = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Add a webhook endpoint. Its secret is shown only once."""
    fields = {"url": to, "events": event or None, "run_id": run_id, "project": project}
    _print_secret(_post(service, "", {name: value for name, value in fields.items() if value is not None}), as_json)


@app.command()
def remove(id: Id, service: ServiceAt = HERE) -> None:
    """Delete a webhook endpoint. Waiting deliveries to it are not sent."""
    service.call("DELETE", f"/webhooks/{segment(id)}")
    results.print(f"webhook {id} is deleted")


@app.command()
def enable(id: Id, service: ServiceAt = HERE) -> None:
    """Enable a webhook endpoint again."""
    service.call("PATCH", f"/webhooks/{segment(id)}", json={"enabled": True})
    results.print(f"webhook {id} is enabled")


@app.command()
def disable(id: Id, service: ServiceAt = HERE) -> None:
    """Disable a webhook endpoint. Waiting deliveries to it count as failed."""
    service.call("PATCH", f"/webhooks/{segment(id)}", json={"enabled": False})
    results.print(f"webhook {id} is disabled")


@app.command("rotate-secret")
def rotate_secret(
    id: Id,
    overlap_hours: Annotated[
        float, typer.Option(min=0, max=72, help="How long messages are also signed with the old secret.")
    ] = 24,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Create a new secret for a webhook endpoint. It is shown only once."""
    _print_secret(_post(service, f"/{segment(id)}/rotate-secret", {"overlap_hours": overlap_hours}), as_json)


@app.command("test")
def send_test(id: Id, service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """Send a test message now. The exit code is 1 if it was not delivered."""
    went = _post(service, f"/{segment(id)}/test")
    outcome = "delivered" if went["delivered"] else went["error"]
    print_result(went, as_json, f"{outcome} ({went['seconds']:.2f} s)")
    raise typer.Exit(0 if went["delivered"] else 1)


@app.command()
def deliveries(
    id: Id,
    state: Annotated[
        str | None, typer.Option(help="Only deliveries in this state: pending, delivered or failed.")
    ] = None,
    limit: Limit = 20,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """List the deliveries to a webhook endpoint, newest first."""
    rows = service.newest(f"/webhooks/{segment(id)}/deliveries", limit, state=state)
    columns = [whole("DELIVERY", 26), *map(folded, ("EVENT", "STATE", "ATTEMPTS", "CREATED", "LAST ERROR"))]
    print_list(rows, as_json, "no deliveries", columns, _delivery_row)


@app.command()
@with_output
def delivery(id: DeliveryId, service: ServiceAt = HERE) -> None:
    """Show a delivery as JSON, with its body and all attempts."""
    print_json(service.call("GET", f"/webhooks/deliveries/{segment(id)}"))


@app.command()
def redeliver(id: DeliveryId, service: ServiceAt = HERE) -> None:
    """Send a delivery again with the same id."""
    _post(service, f"/deliveries/{segment(id)}/redeliver")
    results.print(f"delivery {id} is queued")


@app.command()
def replay(
    id: Id,
    run_id: RunId,
    after_seq: Annotated[int, typer.Option(min=0, help="Only events whose seq is greater than this.")] = 0,
    service: ServiceAt = HERE,
) -> None:
    """Send all past events of a run to a webhook endpoint, whether or not it already received them."""
    queued, after = 0, after_seq
    while after is not None:
        went = _post(service, f"/{segment(id)}/replay", {"run_id": run_id, "after_seq": after})
        queued += went["queued"]
        after = went["next_after_seq"]
    results.print(f"{counted(queued, 'event')} queued")


def _post(service: Service, path: str, body: Json = None) -> Json:
    return service.call("POST", f"/webhooks{path}", json=body)


def _print_secret(webhook: Json, as_json: bool) -> None:
    print_result(webhook, as_json, f"webhook {webhook['id']}", f"secret  {webhook['secret']}  (not shown again)")


def _endpoint_row(endpoint: Json) -> tuple[str | Text, ...]:
    of = endpoint["run_id"] or endpoint["project"] or "all projects"
    state = "enabled" if endpoint["enabled"] else f"disabled: {endpoint['disabled_reason']}"
    return endpoint["id"], of, ", ".join(endpoint["events"]) or "all", plain(state), plain(endpoint["url"])


def _delivery_row(delivery: Json) -> tuple[str | Text, ...]:
    created = f"{datetime.fromisoformat(delivery['created_at']).astimezone():%d %b %H:%M}"
    event, error = delivery["event_type"] or "-", plain(delivery["last_error"] or "-")
    return delivery["id"], event, delivery["state"], str(delivery["attempts"]), created, error
