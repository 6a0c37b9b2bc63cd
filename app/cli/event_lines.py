"""Formats events of runs as lines of text."""

from datetime import datetime

from learnloop_service.environment.json_type import Json


def event_line(event: Json) -> str:
    """Return an event's number, time, type, iteration, and the scalar values of its data."""
    at = f"{datetime.fromisoformat(event['occurred_at']).astimezone():%d %b %H:%M:%S}"
    scalars = {name: value for name, value in event["data"].items() if isinstance(value, str | int | float)}
    if verdict := event["data"].get("verdict"):
        scalars["verdict"] = verdict["state"]
    where = f"iteration {event['iteration']}  " if event["iteration"] is not None else ""
    text = "  ".join(f"{name} {value}" for name, value in scalars.items() if name != "iteration")
    return f"{event['seq']:>4}  {at}  {event['type']:<22} {where}{text}".rstrip()
