"""Prometheus metrics of this process. Each process counts only its own work, so the figures can be summed.

Facts in the database, such as the number of queued runs, are read from there instead (app/metrics/database.py). No
label has a value that a caller chooses, so the number of series is bounded.
"""

from dataclasses import dataclass
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

from learnloop_service.app.domain.release_state import Arm
from learnloop_service.app.domain.run_state import TERMINAL, RunStatus

disable_created_metrics()  # type: ignore[no-untyped-call]  # they double the number of series
RELEASED: Final = "released"
"""Status label for work that was released for another worker to continue."""
DAY_BUDGET: Final = "day_budget"
"""Status label for work that a project's or a key's budget for the day sent back into the queue."""
UNASSIGNED: Final = "unassigned"
"""Arm label for requests that a release cannot assign, so that the stable checkpoint answers."""
REGISTRY: Final = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)

_HTTP_S = (0.005, 0.02, 0.1, 0.5, 2, 10)
"""Buckets of request durations in seconds. There are few because there are a hundred routes, and the time of a scrape
grows with the number of lines."""
_WORK_S = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 14_400)
"""Buckets of work durations in seconds, from the tiny model on a laptop to models with billions of parameters."""

HTTP_REQUESTS = Counter(
    "learnloop_http_requests_total",
    "HTTP requests that were answered, by route template.",
    ("method", "route", "status"),
    registry=REGISTRY,
)
HTTP_SECONDS = Histogram(
    "learnloop_http_request_duration_seconds",
    "Time to the end of the response; of an event stream, to its beginning.",
    ("method", "route"),
    buckets=_HTTP_S,
    registry=REGISTRY,
)
EVENT_STREAMS = Gauge("learnloop_event_streams", "Open streams of server-sent events.", registry=REGISTRY)


@dataclass(frozen=True, slots=True)
class Work:
    """Metrics of one kind of claimed work in this process."""

    slots: Gauge
    driven: Gauge
    claimed: Counter
    ended: Counter
    """Labeled with a status or RELEASED."""


def _work(noun: str) -> Work:
    return Work(
        Gauge(
            f"learnloop_worker_{noun}_slots",
            f"{noun.capitalize()}s that this process may drive at the same time.",
            registry=REGISTRY,
        ),
        Gauge(f"learnloop_worker_{noun}s", f"{noun.capitalize()}s that this process drives now.", registry=REGISTRY),
        Counter(f"learnloop_{noun}s_claimed_total", f"Claims of {noun}s by this process.", registry=REGISTRY),
        Counter(
            f"learnloop_{noun}s_ended_total",
            f"Ends of this process's work on {noun}s: with a status, or released for another worker.",
            ("status",),
            registry=REGISTRY,
        ),
    )


RUNS: Final = _work("run")
EVALUATIONS: Final = _work("evaluation")
LEASES_LOST = Counter(
    "learnloop_leases_lost_total",
    "Runs and evaluations that this process drove until another worker took them.",
    registry=REGISTRY,
)
ITERATION_SECONDS = Histogram(
    "learnloop_iteration_duration_seconds",
    "Duration of saved iterations, the baseline included.",
    buckets=_WORK_S,
    registry=REGISTRY,
)
PHASE_SECONDS = Histogram(
    "learnloop_phase_duration_seconds",
    "Duration of the phases of saved iterations.",
    ("phase",),
    buckets=_WORK_S,
    registry=REGISTRY,
)
GROUPS = Counter(
    "learnloop_groups_total",
    "Groups of training rollouts: trained on, or skipped (no_signal: equal rewards; unscored: no verdict).",
    ("result",),
    registry=REGISTRY,
)
PROMPT_REQUESTS = Counter(
    "learnloop_prompt_requests_total",
    "Requests to models with a prompt: applied in the request, not-used, or what it replaces was not-found.",
    ("delivery",),
    registry=REGISTRY,
)
DIAGNOSES = Counter(
    "learnloop_diagnoses_total",
    "Causes named why a run does not learn.",
    ("cause", "severity"),
    registry=REGISTRY,
)
STALENESS = Counter(
    "learnloop_staleness_steps_total",
    "Policy steps between the sampling of rollouts and the training on them, summed over saved iterations.",
    registry=REGISTRY,
)
DEMONSTRATIONS = Counter(
    "learnloop_demonstrations_total", "Demonstrations that saved iterations trained on.", registry=REGISTRY
)
SUPERVISED_TOKENS = Counter(
    "learnloop_supervised_tokens_total",
    "Tokens of assistant messages of demonstrations that saved iterations trained on.",
    registry=REGISTRY,
)
ROLLOUTS = Counter(
    "learnloop_rollouts_total",
    "Rollouts of saved iterations, evaluations and questions.",
    ("kind", "outcome"),
    registry=REGISTRY,
)
TOKENS = Counter(
    "learnloop_tokens_total", "Tokens of these rollouts: prompt or completion.", ("kind",), registry=REGISTRY
)
JUDGE_CALLS = Counter(
    "learnloop_judge_calls_total",
    "Verdicts asked of judge models: ok, cached or failed.",
    ("outcome",),
    registry=REGISTRY,
)
JUDGE_REQUESTS = Counter(
    "learnloop_judge_requests_total", "Requests to judge models, repairs and retries included.", registry=REGISTRY
)
JUDGE_TOKENS = Counter(
    "learnloop_judge_tokens_total", "Tokens of judge models: prompt or completion.", ("kind",), registry=REGISTRY
)
JUDGE_COST = Counter(
    "learnloop_judge_cost_dollars_total", "Price of judge models' calls, where it is known.", registry=REGISTRY
)
JUDGE_SECONDS = Histogram(
    "learnloop_judge_call_duration_seconds",
    "Time until a judge model's verdict, without those from the cache.",
    buckets=_WORK_S,
    registry=REGISTRY,
)
RELEASE_EXPOSURES = Counter(
    "learnloop_release_exposures_total",
    "Requests of names with a live release, by the arm that answers; unassigned ones name no user or session.",
    ("arm",),
    registry=REGISTRY,
)
RELEASE_OUTCOMES = Counter(
    "learnloop_release_outcomes_total",
    "Units of releases whose window was closed, by arm and by whether anything was reported about them in time.",
    ("arm", "reported"),
    registry=REGISTRY,
)
RELEASE_DECISIONS = Counter(
    "learnloop_release_decisions_total",
    "What happened to releases, by decision of the service or of a person.",
    ("decision",),
    registry=REGISTRY,
)
WEBHOOK_ATTEMPTS = Counter(
    "learnloop_webhook_attempts_total",
    "Attempts to send a delivery: delivered, retried later, or failed for good.",
    ("outcome",),
    registry=REGISTRY,
)
WEBHOOK_SECONDS = Histogram(
    "learnloop_webhook_attempt_duration_seconds",
    "Time until the receiver's answer.",
    buckets=_HTTP_S,
    registry=REGISTRY,
)

# `increase` does not see the first event of a series that begins with it, so the series that alerts use begin at 0.
for _counter, _values in (
    (RUNS.ended, (*TERMINAL, RunStatus.PAUSED, RELEASED, DAY_BUDGET)),
    (EVALUATIONS.ended, (*TERMINAL, RunStatus.PAUSED, RELEASED, DAY_BUDGET)),
    (GROUPS, ("trained", "no_signal", "unscored")),
    (TOKENS, ("prompt", "completion")),
    (JUDGE_CALLS, ("ok", "cached", "failed")),
    (JUDGE_TOKENS, ("prompt", "completion")),
    (WEBHOOK_ATTEMPTS, ("delivered", "retried", "failed")),
    (PROMPT_REQUESTS, ("applied", "not-found", "not-used")),
    (RELEASE_EXPOSURES, (*Arm, UNASSIGNED)),
    (
        RELEASE_DECISIONS,
        ("started", "stage_changed", "held", "resumed", "rolled_back", "promoted", "ended"),
    ),
):
    for _value in sorted(_values):
        _counter.labels(_value)
for _arm in sorted(Arm):
    for _reported in ("yes", "no"):
        RELEASE_OUTCOMES.labels(_arm, _reported)
for _kind in ("train", "evaluation", "showcase", "ask", "what_if"):
    for _outcome in ("ok", "failed"):
        ROLLOUTS.labels(_kind, _outcome)
