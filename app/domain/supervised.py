"""The figures of an iteration that trained on demonstrations, as they are shown: a part of its training metrics."""

from collections.abc import Mapping
from typing import Any

MARK = "demonstrations"
"""The metric that only such iterations have."""
METRICS: Mapping[str, str] = {
    "demonstrations": MARK,
    "tokens": "num_trainable_tokens",
    "loss": "loss",
    "held_out_loss_before": "held_out_loss_before",
    "held_out_loss": "held_out_loss",
    "seconds": "seconds",
}
"""Each figure's metric."""


def supervised_figures(metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    """None for any other iteration."""
    if MARK not in metrics:
        return None
    return {name: metrics.get(metric) for name, metric in METRICS.items()}
