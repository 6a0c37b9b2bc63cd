"""The states of a webhook delivery."""

from enum import StrEnum


class DeliveryState(StrEnum):
    """Where a delivery is between being queued and being settled."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    """A dead letter: only sent again on request."""
