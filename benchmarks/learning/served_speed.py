"""How long it takes to explore, to freeze served answers, and to learn from them, and whether scores are exact.

    python -m benchmarks.learning.served_speed [--sessions 10000] [--opened 500] [--opening-only]

A real service, its engine and the tiny base model. Printed, each beside its goal: by how many milliseconds `POST
/sessions` is slower where its name explores, in pairs whose order alternates, with an interval; by how much the scores
of a checkpoint differ from the log-probabilities that it sampled the same tokens with; the seconds of a step on 300
answers; and the seconds until a run on 10,000 sessions is accepted, which freezes them. Exits with 1 if a goal is
missed.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Mapping
from math import sqrt
from statistics import median

import psycopg

from benchmarks import processes
from benchmarks.durability.harness import workplace
from benchmarks.learning.served_sessions import NAME, START, Ask, Stage, served_stage
from learnloop_service.environment.json_type import Json

_ANSWERS = 500
"""Three fifths of them are trained on."""
_PLAIN = "bench/plain"
"""A name of the same checkpoint that does not explore."""
_WARM = 20
"""Pairs of sessions that are opened before those that count."""
_GOALS: Mapping[str, float] = {
    "session_ms_more_high": 1.0,
    "score_difference": 1e-5,
    "step_s": 20.0,
    "freeze_s": 20.0,
}
_COPY_SESSIONS = """
INSERT INTO agent_session SELECT (jsonb_populate_record(s, jsonb_build_object(
    'id', left(md5(s.id || n), 26), 'user_hash', md5(s.user_hash || n) || md5(s.user_hash || n)))).*
FROM agent_session s, generate_series(1, %s) n WHERE s.may_train
"""
_COPY_CALLS = """
INSERT INTO session_call SELECT (jsonb_populate_record(c, jsonb_build_object(
    'session_id', left(md5(c.session_id || n), 26)))).*
FROM session_call c JOIN agent_session s ON s.id = c.session_id, generate_series(1, %s) n WHERE s.may_train
"""


def opening(stage: Stage, pairs: int) -> Mapping[str, Json]:
    """Return by how many milliseconds opening a session takes longer where the name explores: the median of that many
    pairs, in which the order alternates, with a 95% interval that makes no assumptions (of order statistics)."""
    body = {"step": 0, "as": "plain", "base_model": "learnloop/tiny"}
    stage.service.call("POST", "/models/bench/start/promote", json=body)

    def milliseconds(name: str, number: int) -> float:
        body = {"model": name, "user": f"visitor {name} {number}", "train": True}
        began = time.perf_counter()
        stage.service.call("POST", "/sessions", json=body)
        return 1_000 * (time.perf_counter() - began)

    usual, more = list[float](), list[float]()
    for number in range(_WARM + pairs):
        order = (_PLAIN, NAME) if number % 2 else (NAME, _PLAIN)
        taken = {name: milliseconds(name, number) for name in order}
        usual.append(taken[_PLAIN])
        more.append(taken[NAME] - taken[_PLAIN])
    more = sorted(more[_WARM:])
    outside = int(pairs / 2 - 1.96 * sqrt(pairs) / 2)
    with psycopg.connect(stage.database_url) as connection:
        connection.execute("DELETE FROM agent_session WHERE calls = 0")
    return {
        "session_ms": median(usual[_WARM:]),
        "session_ms_more": median(more),
        "session_ms_more_low": more[outside],
        "session_ms_more_high": more[-1 - outside],
    }


def learning(stage: Stage) -> Mapping[str, float]:
    """Return how exact scores are, and the seconds of a step."""
    asks = [Ask(f"user {number}", f"When is meeting {number}?") for number in range(_ANSWERS)]
    sessions = asyncio.run(stage.answer(asks))
    scored = stage.scores(START, [(one.prompt, one.tokens) for one in sessions])
    pairs = [
        pair for one, parts in zip(sessions, scored, strict=True) for pair in zip(one.logprobs, parts, strict=True)
    ]
    stage.report({one.id: float(one.tokens[-1] % 2) for one in sessions})
    run = stage.completed(stage.learn("speed", iterations=1))
    with psycopg.connect(stage.database_url) as connection:
        query = "SELECT train_metrics, timing FROM iteration WHERE run_id = %s AND iteration = 1"
        [[metrics, timing]] = connection.execute(query, (run["run_id"],)).fetchall()
    return {
        "scores": len(pairs),
        "score_difference": max(abs(logprob - score) for logprob, score in pairs),
        "step_answers": metrics["served_answers"],
        "step_s": timing["train_s"],
    }


def freezing(stage: Stage, number: int) -> Mapping[str, float]:
    """Return the seconds until a run on that many sessions is accepted."""
    copies = -(-number // _ANSWERS)
    with psycopg.connect(stage.database_url) as connection:
        for query in (_COPY_SESSIONS, _COPY_CALLS):
            connection.execute(query.encode(), (copies,))
    began = time.perf_counter()
    run_id = stage.learn("frozen", limit=number)
    seconds = time.perf_counter() - began
    stage.service.call("POST", f"/runs/{run_id}/cancel")
    return {"frozen_sessions": number, "freeze_s": seconds}


def main() -> None:
    """Print the figures; fail if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=10_000, help="that are frozen")
    parser.add_argument(
        "--opened", type=int, default=500, help="pairs of sessions that are opened with and without exploring"
    )
    parser.add_argument("--opening-only", action="store_true", help="measure nothing else")
    options = parser.parse_args()
    machine = processes.machine()
    with workplace() as directory, served_stage(directory) as stage:
        stage.promote()
        figures: dict[str, Json] = {**opening(stage, options.opened)}
        print(json.dumps(figures), flush=True)
        if not options.opening_only:
            figures |= learning(stage)
            print(json.dumps(figures), flush=True)
            figures |= freezing(stage, options.sessions)
    print(json.dumps({"machine": machine, "figures": figures, "goals": _GOALS}, indent=2))
    if missed := [name for name, most in _GOALS.items() if name in figures and not figures[name] <= most]:
        raise SystemExit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
