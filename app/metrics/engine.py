"""Prometheus metrics of the engine.

The engine is a separate process that several services can share. The figures in its replies to our health checks are
exported with its name as a label. They are the same in all processes that share it, so they must not be summed.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_GAUGES = {
    "batch_size": "Conversations that are sampled together now.",
    "requests_waiting": "Requests that wait for a place in the batch or for their prompt.",
    "cache_tokens": "Tokens whose keys and values the cache holds.",
    "cache_capacity_tokens": "Tokens that the cache has room for.",
    "cache_bytes": "Memory that the cache may take.",
}
_COUNTERS = {
    "decode_steps": "Steps in which every conversation of the batch got a token.",
    "sampled_tokens": "Tokens that were sampled.",
    "prefilled_tokens": "Tokens of prompts that were computed.",
    "reused_tokens": "Tokens of prompts that were in the cache.",
    "train_steps": "Training jobs that were done.",
}


def metrics(name: str, is_up: bool, health: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield the metrics of the named engine. `health` is its latest reply; empty if there was none."""
    up = GaugeMetricFamily("learnloop_engine_up", "Whether the engine answers.", labels=["engine"])
    up.add_metric([name], is_up)
    yield up
    figures = health.get("figures", {}) if is_up else {}
    for figure, help in _GAUGES.items():
        gauge = GaugeMetricFamily(f"learnloop_engine_{figure}", help, labels=["engine"])
        if figure in figures:
            gauge.add_metric([name], figures[figure])
        yield gauge
    for figure, help in _COUNTERS.items():
        counter = CounterMetricFamily(f"learnloop_engine_{figure}", help, labels=["engine"])
        if figure in figures:
            counter.add_metric([name], figures[figure])
        yield counter
    busy = CounterMetricFamily(
        "learnloop_engine_busy_seconds", "Time that the engine has spent at work.", labels=["engine", "work"]
    )
    for work, seconds in health.get("busy_seconds", {}).items() if is_up else ():
        busy.add_metric([name, work], seconds)
    yield busy
