"""The states of an agent's session, in which an agent that owns its loop works on one task."""

from enum import StrEnum


class AgentSessionState(StrEnum):
    """The state of a session. Only an open session answers calls."""

    OPEN = "open"
    ENDED = "ended"
    """Its outcome is known."""
    EXPIRED = "expired"
    """It did not end in time and is ignored."""
