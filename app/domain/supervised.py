"""Figures to show for an iteration that trained on demonstrations, taken from its training metrics."""

from collections.abc import Mapping
from typing import Any

MARK = "demonstrations"
"""The metric that only supervised iterations have."""
METRICS: Mapping[str, str] = {
    "demonstrations": MARK,
    "left_out": "overlong_demonstrations",
    "tokens": "num_trainable_tokens",
    "loss": "loss",
    "held_out_loss_before": "held_out_loss_before",
    "held_out_loss": "held_out_loss",
    "seconds": "seconds",
}
"""The training metric of each figure."""


def supervised_figures(metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the figures of a supervised iteration, or None for any other."""
    if MARK not in metrics:
        return None
    return {name: metrics.get(metric) for name, metric in METRICS.items()}
