"""A database in which every text that somebody else wrote is hostile: markup, scripts, control and direction marks, and
lines of a megabyte."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import insert
from ulid import ULID

from learnloop_service.app.agent_sessions.canonical import CanonicalRequest
from learnloop_service.app.agent_sessions.records import pack_answer, pack_request
from learnloop_service.app.db.tables import (
    AgentSession,
    ApiKey,
    Checkpoint,
    DatasetVersion,
    Document,
    Evaluation,
    EvaluationJob,
    Event,
    Feedback,
    Iteration,
    Promotion,
    Reflection,
    Release,
    ReleaseEvent,
    Run,
    Schedule,
    ScheduleRun,
    SessionCall,
    Trajectory,
    WebhookAttempt,
    WebhookDelivery,
    WebhookEndpoint,
)
from tests.fakes.stored_request import stored_request
from tests.integration.app.release_stage import rules
from tests.opened_database import opened_database

EVIL = "<img src=x onerror='globalThis.hacked=1'><script>globalThis.hacked=1</script>\u202egnp\u0007\u200b&lt;b&gt;"
LONG = "A" * 1_000_000
_NOW = datetime(2026, 1, 2, tzinfo=UTC)
_SHA = "a" * 64


class Ids:
    """Of the rows."""

    run = str(ULID())
    trajectory = f"t-{EVIL[:60]}"
    evaluation = str(ULID())
    what_if = str(ULID())
    rejudging = str(ULID())
    endpoint = str(ULID())
    delivery = str(ULID())
    session = str(ULID())
    release = str(ULID())
    schedule = str(ULID())


async def make_rows(database_url: str) -> None:
    """Fill every list of the dashboard."""
    async with opened_database(database_url) as database, database.begin() as tx:
        for table, rows in _rows():
            await tx.execute(insert(table), rows)


def _rows() -> list[tuple[Any, list[dict[str, Any]]]]:
    return [
        (Document, [{"project": "*", "sha256": _SHA, "kind": "graph", "content": _nodes()}]),
        (Run, [_run()]),
        (Iteration, [_iteration(number) for number in range(3)]),
        (Evaluation, [_evaluation(number) for number in (0, 2)]),
        (Checkpoint, [_checkpoint(number) for number in range(3)]),
        (Trajectory, list(_trajectories())),
        (Reflection, [_reflection(number) for number in range(3)]),
        (Event, [_event(number) for number in range(1, 4)]),
        (EvaluationJob, [_job()]),
        (EvaluationJob, [_what_if()]),
        (EvaluationJob, [_rejudging()]),
        (Trajectory, [_continuation()]),
        (WebhookEndpoint, [_endpoint()]),
        (WebhookDelivery, [_delivery()]),
        (
            WebhookAttempt,
            [{"delivery_id": Ids.delivery, "number": 1, "started_at": _NOW, "seconds": 1.0, "error": EVIL}],
        ),
        (ApiKey, [_key()]),
        (DatasetVersion, [_dataset(kind) for kind in ("inbox", "scenarios", "demonstrations")]),
        (Promotion, [_promotion()]),
        (Release, [_release()]),
        (ReleaseEvent, [_release_event(number, kind) for number, kind in enumerate(_RELEASE_EVENTS, 1)]),
        (Schedule, [_schedule()]),
        (ScheduleRun, [_due_time(1, run_id=Ids.run, evaluation_id=Ids.evaluation), _due_time(2, state="skipped")]),
        (AgentSession, [_session()]),
        (SessionCall, [_call(1, EVIL), _call(2, None)]),
        (Feedback, [_opinion()]),
    ]


def _nodes() -> list[dict[str, Any]]:
    first = {"id": EVIL, "content": f"Customer Job: {EVIL}", "edge": [{"target_id": "b", "relationship": EVIL}]}
    return [first, {"id": "b", "content": f"Product Feature: {EVIL}", "edge": []}]


def _run() -> dict[str, Any]:
    config = {"name": "sales_email", "config": {"graph": {"sha256": _SHA, "nodes": 2, "edges": 1}}}
    request = stored_request(
        environment=config,
        groups_per_iteration=1,
        rollouts_per_group=2,
        evaluation={"every": 1, "scenarios": 1, "test_scenarios": 1, "samples": 1},
        budget={"max_usd": 1.0, "max_minutes": None, "max_tokens": 5000},
        note=EVIL,
    )
    return {
        "id": Ids.run,
        "status": "failed",
        "request": request,
        "environment": "sales_email",
        "judge": EVIL,
        "backend": "embedded",
        "model_project": "learnloop",
        "model_name": EVIL,
        "base_model": EVIL,
        "wait_reason": EVIL,
        "warnings": [EVIL],
        "event_seq": 3,
        "iterations_total": 2,
        "next_iteration": 3,
        "step": 2,
        "best_step": 2,
        "best_success": 0.5,
        "rollouts": 4,
        "error": EVIL + LONG,
        "reproducible": False,
        "reproducible_reason": EVIL,
        "started_at": _NOW,
    }


def _iteration(number: int) -> dict[str, Any]:
    rewards = {"reward_mean": 0.1, "reward_median": 0.1, "reward_min": -1.0, "reward_max": 1.0}
    return {
        "run_id": Ids.run,
        "iteration": number,
        "step": number,
        "best_step": number,
        "reward_count": 2,
        "success": 0.5,
        "malformed": 0.1,
        "failed_rollouts": 0,
        "skipped_groups": {EVIL: 1},
        "no_signal": None,
        "train_metrics": {"loss": 0.1, "entropy": 0.2, "grad_norm": 1.0, EVIL: 1.0},
        "timing": {"rollout_s": 1.0, "total_s": 2.0},
    } | (rewards if number else dict.fromkeys(rewards))


def _evaluation(number: int) -> dict[str, Any]:
    place = {"run_id": Ids.run, "iteration": number, "split": "validation", "mode": "sampled", "step": number}
    return place | {"scenarios": 4, "success": 0.5, "mean_reward": 0.1, "malformed": 0.0, "turns": 2.0}


def _checkpoint(number: int) -> dict[str, Any]:
    made = {"run_id": Ids.run, "step": number, "iteration": number, "model": EVIL, "success": 0.5}
    return made | {"is_best": number == 2}


def _trajectories() -> list[dict[str, Any]]:
    kinds = [("train", 1, Ids.trajectory), ("train", 1, "t-2")]
    kinds += [("evaluation", number, f"e-{number}") for number in range(3)]
    kinds += [("showcase", number, f"s-{number}") for number in range(3)]
    return [_trajectory(kind, number, id) for kind, number, id in kinds]


def _trajectory(kind: str, number: int, id: str) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": EVIL, "arguments": '{"q": "' + "B" * 50_000 + '"}'}}
    messages = [
        {"role": "system", "content": EVIL},
        {"role": "user", "content": EVIL + LONG},
        {"role": "assistant", "content": f"{EVIL} {id}", "tool_calls": [call]},
        {"role": "tool", "content": LONG, "tool_call_id": "c"},
        {"role": EVIL, "content": EVIL},
    ]
    return {
        "id": id,
        "run_id": Ids.run,
        "kind": kind,
        "iteration": number,
        "split": "train" if kind == "train" else "validation",
        "mode": "greedy" if kind == "evaluation" else "sampled",
        "model": EVIL,
        "step": number,
        "scenario_id": EVIL,
        "scenario": {"task": {"prospect": EVIL, "company": EVIL, "goal": EVIL}, "reference": {EVIL: EVIL}},
        "messages": messages,
        "tokens": [{"message": 2, "texts": [EVIL, "b"], "logprobs": [-0.1, -3.0]}],
        "tools": [{"type": "function", "function": {"name": EVIL}}],
        "outcome": {
            "finish": EVIL,
            "email": {"subject": EVIL, "body": EVIL if id == "s-1" else EVIL + LONG, "citations": [EVIL, "b"]},
        },
        "score": 0.5,
        "score_explanation": EVIL,
        "score_parts": {EVIL: 0.5},
        "reward": 0.5 if id == "t-2" else 0.2,
        "reward_parts": {EVIL: -0.5},
        "advantage": 1.0,
        "success": True,
        "error": EVIL,
        "turns": 1,
        "prompt_tokens": 1,
        "completion_tokens": 2,
        "seconds": 1.0,
        "started_at": _NOW,
    }


def _reflection(number: int) -> dict[str, Any]:
    state = {"node_scores": {EVIL: 0.5, "b": 0.1 * number}, "graph": None}
    return {"run_id": Ids.run, "iteration": number, "state": state, "trajectory_id": f"s-{number}"}


def _event(seq: int) -> dict[str, Any]:
    data = {"error": EVIL, "message": EVIL, EVIL: LONG}
    return {"run_id": Ids.run, "seq": seq, "type": "run.failed", "iteration": 1, "actor": EVIL, "data": data}


def _job() -> dict[str, Any]:
    request = {"models": [{"label": EVIL, "model": EVIL}], "note": EVIL}
    base = {"id": Ids.evaluation, "project": "learnloop", "status": "failed", "request": request, "total": 4}
    return base | {"error": EVIL, "wait_reason": EVIL}


def _what_if() -> dict[str, Any]:
    what_if = {"trajectory_id": Ids.trajectory, "turns": [1], "edit": {"content": EVIL, "message": 1}}
    request = {
        "models": [{"label": EVIL, "kind": "trained", "model": EVIL, "step": 1}],
        "environment": {"name": "email_search"},
        "judge": {"name": "reference"},
        "split": "train",
        "scenarios": 1,
        "samples": 1,
        "seed": 0,
        "temperature": 1.0,
        "max_turns": 8,
        "max_completion_tokens": 256,
        "rollout_timeout_s": 60,
        "concurrency": 1,
        "what_if": what_if | {"search": None, "counts": False, "exact": True},
    }
    did = {"action": EVIL + LONG, "count": 1, "successes": 1, "is_original": False}
    success = {"mean": 1.0, "low": 0.2, "high": 1.0}
    continued = {"turn": 1, "label": EVIL, "count": 1, "success": success, "reward": 0.2, "turns": 1.0, "next": [did]}
    report = {
        "scenarios": 1,
        "samples": 1,
        "compared": {},
        "method": {"name": EVIL, "draws": 1, "level": 0.95},
        "models": [],
        "what_if": {
            "trajectory_id": Ids.trajectory,
            "prefix": "exact",
            "edited": True,
            "original": {"success": True, "reward": 0.2, "turns": 1, "next": EVIL},
            "continuations": [continued],
        },
    }
    counts = {"total": 1, "done": 1, "trajectory_id": Ids.trajectory}
    job = {"id": Ids.what_if, "project": "learnloop", "status": "completed", "request": request, "report": report}
    return job | counts


def _rejudging() -> dict[str, Any]:
    rejudge = {"run_id": Ids.run, "kinds": ["train", "evaluation"], "first": 0, "last": 1, "repeats": 2}
    request = {
        "models": [],
        "environment": {"name": "sales_email"},
        "judge": {"name": EVIL, "config": {EVIL: LONG}},
        "split": "test",
        "scenarios": 1,
        "samples": 1,
        "seed": 0,
        "temperature": 0.0,
        "max_completion_tokens": 256,
        "rollout_timeout_s": 60,
        "concurrency": 1,
        "rejudge": rejudge | {"rollouts": 2, "code": _SHA},
    }
    both = {"before": 0.2, "now": 1.0}
    counts = {"rollouts": 2, "flipped": 0.5, "gained": 1, "lost": 1, "correlation": None}
    changes = {**counts, "reward": both, "success": both}
    change = {"trajectory_id": Ids.trajectory, "iteration": 1, "reward": both, "advantage": both}
    report = {
        "scenarios": 1,
        "samples": 2,
        "compared": {},
        "method": {"name": EVIL, "draws": 0, "level": 0.95},
        "models": [],
        "rejudge": {
            "run_id": Ids.run,
            "repeats": 2,
            "code": _SHA,
            "all": changes,
            "iterations": [changes | {"iteration": 1}],
            "evaluations": [
                {"iteration": 0, "split": EVIL, "mode": EVIL, "step": 0, "success": both, "reward": both},
                {"iteration": 0, "split": "validation", "mode": "sampled", "step": 0, "success": both, "reward": both},
            ],
            "best_step": {"before": 0, "now": 1},
            "first_changed": 1,
            "first_mattering": 1,
            "noise": {"deviation": 0.1, "icc": None, "floor": None},
            "largest": [change | {"explanations": [EVIL + LONG, ""]}],
            "text": EVIL,
        },
    }
    job = {"id": Ids.rejudging, "project": "learnloop", "status": "completed", "request": request, "report": report}
    return job | {"total": 4, "done": 4, "run_id": Ids.run}


def _continuation() -> dict[str, Any]:
    made = _trajectory("what_if", 0, "w-1")
    return made | {"run_id": None, "iteration": None, "evaluation_id": Ids.what_if, "slot": "0/0/0"}


def _endpoint() -> dict[str, Any]:
    base = {"id": Ids.endpoint, "project": "learnloop", "url": f"https://x.example/{EVIL}", "events": []}
    return base | {"disabled_reason": EVIL, "disabled_at": _NOW}


def _delivery() -> dict[str, Any]:
    return {
        "id": Ids.delivery,
        "run_id": Ids.run,
        "endpoint_id": Ids.endpoint,
        "project": "learnloop",
        "receiver": Ids.endpoint,
        "event_seq": 1,
        "event_type": EVIL,
        "url": EVIL,
        "body": EVIL + LONG,
        "state": "failed",
        "attempts": 1,
        "last_error": EVIL,
    }


def _key() -> dict[str, Any]:
    base = {"id": str(ULID()), "project": "learnloop", "name": EVIL, "prefix": "ll_abcdefgh", "sha256": _SHA}
    return base | {"scopes": ["read"]}


def _dataset(kind: str) -> dict[str, Any]:
    base = {"id": str(ULID()), "project": "learnloop", "kind": kind, "name": EVIL, "version": 1, "sha256": _SHA}
    return base | {"size": 1, "environment": "email_search", "origin": {"source": EVIL, EVIL: LONG}}


def _promotion() -> dict[str, Any]:
    base = {"project": "learnloop", "name": EVIL, "model_name": EVIL, "step": 1}
    base |= {"prompt_sha256": _SHA, "prompt_name": EVIL, "prompt_version": 1, "prompt_missed_at": _NOW}
    return base | {"backend": "embedded", "actor": EVIL, "evidence": {EVIL: EVIL}}


_RELEASE_EVENTS = ("started", "held", "resumed", "stage_changed", "rolled_back", "promoted", "ended")


def _release() -> dict[str, Any]:
    """One of the only promotion, which is held, so that nothing changes while the pages are read."""
    base = {"id": Ids.release, "project": "learnloop", "name": EVIL, "state": "held", "reason": "person"}
    candidate = {"promotion_id": 1, "backend": EVIL, "model_name": EVIL, "step": 2, "share": 0.05}
    known = {"rules": rules(outcome={"value": EVIL}).model_dump(mode="json"), "baseline": {"users": 1400, "days": 14}}
    return base | candidate | known | {"salt": bytes(16), "unit": "user", "actor": EVIL, "started_at": _NOW}


def _release_event(seq: int, kind: str) -> dict[str, Any]:
    alarm = {"harm": 9.0, "harm_threshold": 6.0, "candidate": {"mean": 0.5}, "stable": {"mean": 0.1}}
    evidence = {"guardrails": {EVIL: alarm}, "trial": {"decision": EVIL}}
    data = {"reason": "guardrail", "evidence": evidence, "quality": EVIL, EVIL: LONG}
    return {"release_id": Ids.release, "seq": seq, "type": f"release.{kind}", "actor": EVIL, "data": data}


def _schedule() -> dict[str, Any]:
    return {
        "id": Ids.schedule,
        "project": EVIL,
        "name": EVIL,
        "cron": "0 2 * * *",
        "run": {"source": {"sessions": {"model": EVIL}}},
        "promoted_name": "live",
        "then": "trial",
        "least_new_tasks": 1,
        "window_days": 1.0,
        "actor": EVIL,
        "next_due_at": _NOW,
    }


def _due_time(day: int, **more: Any) -> dict[str, Any]:
    due = {"schedule_id": Ids.schedule, "due_at": datetime(2026, 1, day, tzinfo=UTC), "state": "done", "detail": EVIL}
    return due | {"run_id": None, "evaluation_id": None, "started_from": EVIL, "tasks": 1, "users": 1} | more


def _session() -> dict[str, Any]:
    return {
        "id": Ids.session,
        "project": "learnloop",
        "asked_model": EVIL,
        "model": EVIL,
        "backend": "embedded",
        "seed": 1,
        "explicit_restart": False,
        "labels": {EVIL: EVIL + LONG},
        "state": "ended",
        "calls": 2,
        "outcome": {"parts": {EVIL: 1.0}, "output": EVIL + LONG, "reason": EVIL},
        "run_id": Ids.run,
        "iteration": 1,
        "entry": "rollout/train/0",
        "expires_at": _NOW,
        "ended_at": _NOW,
    }


def _call(number: int, reply: str | None) -> dict[str, Any]:
    said = {"role": "user", "content": EVIL + LONG}
    request = CanonicalRequest((said, {"role": EVIL, "content": EVIL}), (), {}, "")
    answer = {"choices": [{"message": {"role": "assistant", "content": reply}}], "usage": None}
    return {
        "session_id": Ids.session,
        "number": number,
        "digest": f"{number}" * 64,
        "occurrence": 0,
        "protocol": "chat",
        "request": pack_request(request),
        "answer": None if reply is None else pack_answer(answer),
        "seed": 1,
    }


def _opinion() -> dict[str, Any]:
    return {
        "id": str(ULID()),
        "project": "learnloop",
        "event_id": EVIL,
        "session_id": Ids.session,
        "type": "thumbs_down",
        "confidence": 1.0,
        "comment": EVIL + LONG,
        "source": "api",
        "occurred_at": _NOW,
    }
