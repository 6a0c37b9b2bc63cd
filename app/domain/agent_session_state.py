"""States of an agent session: where a team's own agent works on one task."""

from enum import StrEnum


class AgentSessionState(StrEnum):
    """Only an open session answers calls."""

    OPEN = "open"
    ENDED = "ended"
    """Its outcome is known."""
    EXPIRED = "expired"
    """It did not end in time: it counts for nothing."""
