"""A run's log: its events, and what failed in it, with a level each. Equal failures of an iteration are one line.

Nothing is stored for it. The events say what happened to the run, and failed rollouts and judge calls keep their
errors. What the service writes to its own log is about processes rather than about one run.
"""

from collections.abc import Collection

from sqlalchemy import RowMapping, text

from learnloop_service.app.db.database import Database
from learnloop_service.app.schemas.metrics import LogLevel, LogLine, RunLog

_LEVELS = tuple(LogLevel)
"""Worst first: a level's place is its rank in the statement below."""
_ERROR, _WARNING, _INFO = range(len(_LEVELS))
_LONGEST = 1_000
_LINES = f"""
    WITH lines AS (
        SELECT CASE
                WHEN type IN ('run.failed', 'journal.damaged') THEN {_ERROR}
                WHEN type IN ('iteration.no_signal', 'budget.reached', 'run.retried') THEN {_WARNING}
                WHEN type = 'run.paused' AND data->>'reason' IS NOT NULL THEN {_WARNING}
                WHEN type = 'run.diagnosis' AND data->>'state' = 'active' THEN {_WARNING}
                ELSE {_INFO} END AS rank,
            occurred_at AS at, type, iteration, seq, NULL AS trajectory_id,
            coalesce(data->>'message', data->>'summary', data->>'error', data->>'reason', data->>'limit',
                data->>'damaged', data->>'phase', data->>'url', data->>'worker') AS text,
            1 AS count, (data#>>'{{rewards,mean}}')::float AS mean,
            data#>>'{{supervised,demonstrations}}' AS demonstrations
        FROM event WHERE run_id = :run_id
        UNION ALL
        SELECT {_ERROR}, max(started_at + make_interval(secs => seconds)), 'rollout.failed', iteration, NULL, min(id),
            left(error, {_LONGEST}), count(*), NULL, NULL
        FROM trajectory WHERE run_id = :run_id AND error IS NOT NULL AND kind IN ('train', 'evaluation', 'showcase')
        GROUP BY iteration, left(error, {_LONGEST})
        UNION ALL
        SELECT {_ERROR}, max(finished_at), 'judge.failed', iteration, NULL, NULL,
            judge || ': ' || left(error, {_LONGEST}), count(*), NULL, NULL
        FROM judge_call JOIN iteration USING (run_id, iteration)
        WHERE run_id = :run_id AND error IS NOT NULL
        GROUP BY iteration, judge, left(error, {_LONGEST})
        UNION ALL
        SELECT {_ERROR}, finished_at, 'rollout.failed', iteration, NULL, NULL, 'The records were deleted.',
            failed_rollouts, NULL, NULL
        FROM iteration AS iterations WHERE run_id = :run_id AND failed_rollouts > 0 AND NOT EXISTS (
            SELECT FROM trajectory
            WHERE run_id = :run_id AND trajectory.iteration = iterations.iteration AND error IS NOT NULL
        )
    )
"""
_COUNTS = text(f"{_LINES} SELECT rank, count(*) FROM lines GROUP BY rank")
_PAGE = text(
    f"""
    {_LINES}
    SELECT rank, at, type, iteration, seq, trajectory_id, left(text, {_LONGEST}) AS text, count, mean,
        demonstrations
    FROM lines WHERE rank = ANY(:ranks)
    ORDER BY CASE WHEN CAST(:is_by_level AS boolean) THEN rank END, at DESC, seq DESC NULLS LAST, trajectory_id, text
    OFFSET :start LIMIT :limit
    """
)


async def run_log(
    database: Database, run_id: str, levels: Collection[LogLevel], *, is_by_level: bool, start: int, limit: int
) -> RunLog:
    """Return `limit` lines of these levels from number `start` on, newest first; with `is_by_level` the lines of the
    worst level come first."""
    ranks = [rank for rank, level in enumerate(_LEVELS) if level in levels]
    selection = {"run_id": run_id, "ranks": ranks, "is_by_level": is_by_level, "start": start, "limit": limit + 1}
    async with database() as tx:
        counts = {_LEVELS[rank]: count for rank, count in await tx.execute(_COUNTS, {"run_id": run_id})}
        rows = (await tx.execute(_PAGE, selection)).mappings().all()
    return RunLog(
        counts=dict.fromkeys(LogLevel, 0) | counts,
        items=[_line(row) for row in rows[:limit]],
        next_cursor=str(start + limit) if len(rows) > limit else None,
    )


def _line(row: RowMapping) -> LogLine:
    names = ("at", "type", "iteration", "seq", "trajectory_id", "count")
    return LogLine(level=_LEVELS[row["rank"]], text=_text(row), **{name: row[name] for name in names})


def _text(row: RowMapping) -> str:
    """Return what a line says; the figures of an iteration's event are put into words."""
    if row["demonstrations"] is not None:
        return f"learned {row['demonstrations']} demonstration{'' if row['demonstrations'] == '1' else 's'}"
    if row["mean"] is not None:
        return f"mean reward {row['mean']:.2f}".replace("-", "\N{MINUS SIGN}")
    if row["type"] == "iteration.completed":
        return "baseline measured" if row["iteration"] == 0 else "no reward"
    return row["text"] or ""
