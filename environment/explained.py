"""Why an outcome is not a success, in a clause, as far as its environment says so."""

from learnloop_service.environment.base import Environment, Explained, Outcome, Scenario

_MOST = 300
"""Maximum number of characters of a clause."""


def why_no_success(environment: Environment, scenario: Scenario, outcome: Outcome, score: float | None) -> str | None:
    """Return the environment's clause about an outcome that is not a success, in one line; None if it has none."""
    if not isinstance(environment, Explained):
        return None
    return shortened(environment.why_no_success(scenario, outcome, score) or "", _MOST) or None


def shortened(text: str, most: int) -> str:
    """Return the text in one line of at most `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def ending(outcome: Outcome) -> str:
    """Return how an episode ended without a result: the outcome's `detail`, or otherwise its `finish`."""
    how = str(outcome["finish"] or "unfinished").replace("_", " ")
    detail = shortened(str(outcome["detail"] or ""), 200)
    if outcome["finish"] == "malformed":
        return f"malformed tool call: {detail}" if detail else "malformed tool call"
    return detail.rstrip(".") or how


def too_low(name: str, value: float | None, least: float) -> str | None:
    """Return that a score or reward is below the least one of a success; None if it is not, or if there is none."""
    return None if value is None or value >= least else f"{name} {value:.4g} is below {least:g}"
