"""Exploring: a share of the consented sessions of a promoted name is sampled from the model's own distribution.

Answers teach only where another answer was possible, and clients usually ask for the most likely one. The coin of a
session has a salt apart from that of releases, so it says nothing about the arm that the session meets, and the
sessions that it leaves alone show what exploring costs users.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from statistics import fmean

from sqlalchemy import func, select

from learnloop_service.app.agent_sessions.canonical import EXPLORED
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, Release
from learnloop_service.app.domain.release_rules import OUTCOME
from learnloop_service.app.feedback.outcomes import outcome_of, session_events
from learnloop_service.app.releases.assignment import fraction
from learnloop_service.app.schemas.intervals import IntervalOut
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import signed
from learnloop_service.training.protocol.model_name import ModelName
from learnloop_service.training.statistics.two_arms import Cell, arm_mean, effect_interval

_NEWEST = 10_000
"""Maximum number of sessions that are compared."""
_UNKNOWN = "What exploring costs is not known: it takes closed windows of explored and of other sessions."
_WHO = "Users whose agents ask for the most likely answer (temperature 0) lose most."
_DEAR = "That is more than 3 points: train on tasks that are attempted anew first, and explore later."
_DEAR_POINTS = 3.0


def explore_columns(explore: Mapping[str, Json] | None, session_id: str) -> Mapping[str, Json]:
    """Toss the coin of a session, and return the values for the columns of its row. `explore` is its promotion's."""
    if not explore or not explore["share"]:
        return {}
    explored = fraction(bytes.fromhex(explore["salt"]), "explore", session_id) < explore["share"]
    return {
        "explored": explored,
        "explore_share": explore["share"],
        **({"sampling": asdict(EXPLORED)} if explored else {}),
    }


async def price_of_exploring(database: Database, project: str, name: str) -> tuple[IntervalOut | None, list[str]]:
    """Return the outcome of explored sessions less that of the others, in points (None without sessions of both), and
    what that means, in sentences. The outcome is that of the name's newest release, or the default of releases."""
    newest = select(Release.rules).where(Release.project == project, Release.name == name)
    async with database() as tx:
        rules = (await tx.execute(newest.order_by(Release.id.desc()).limit(1))).scalar_one_or_none() or {}
    rule: Mapping[str, Json] = rules.get("outcome", OUTCOME)
    cells = await _cells(database, ModelName(project, name), rule, timedelta(hours=rules.get("window_hours", 168)))
    explored, others = (arm_mean(cells, candidate=side).units for side in (True, False))
    if not explored or not others:
        return None, [_UNKNOWN, _WHO]
    forecast = round(20 * fmean(cell.value for cell in cells.elements())) / 20
    price = IntervalOut.points(_mean(cells, True) - _mean(cells, False), *effect_interval(cells, forecast, 0.05))
    [(form, parameter)] = rule.items()
    of = f"`{parameter}`" if form in ("value", "event") else form.replace("_", " ")
    mean, low, high = (signed(part, 1) for part in (price.mean, price.low, price.high))
    points = f"{mean} points (95% interval {low} to {high})"
    costs = f"Explored sessions have {points} of {of}, over {explored:,} and {others:,} other ones."
    return price, [costs, _WHO, *([_DEAR] if price.mean < -_DEAR_POINTS else [])]


async def _cells(database: Database, name: ModelName, rule: Mapping[str, Json], window: timedelta) -> Counter[Cell]:
    """Count the newest sessions of the name whose windows are closed, by coin and outcome."""
    row = AgentSession
    of_name = (row.project == name.project, row.asked_model.in_((name.name, str(name))), row.explored.is_not(None))
    closed = select(row.id, row.explore_share, row.explored).where(
        *of_name, row.opened_at < func.clock_timestamp() - window
    )
    async with database() as tx:
        sessions = (await tx.execute(closed.order_by(row.id.desc()).limit(_NEWEST))).all()
        events = await session_events(tx, name.project, [session.id for session in sessions], window, rule)
    outcomes = [
        round(outcome_of(rule, events.get(session.id, ())), 2) for session in sessions
    ]  # so there are few cells
    return Counter(
        Cell(one.explore_share or 0.0, bool(one.explored), y) for one, y in zip(sessions, outcomes, strict=True)
    )


def _mean(cells: Mapping[Cell, int], explored: bool) -> float:
    """Return the mean outcome of one side, as if all sessions were on it: a share that was changed between good weeks
    and bad ones would otherwise look like an effect."""
    side = {cell: count for cell, count in cells.items() if cell.candidate is explored}
    weights = {cell: count / (cell.probability if explored else 1 - cell.probability) for cell, count in side.items()}
    return sum(weight * cell.value for cell, weight in weights.items()) / sum(weights.values())
