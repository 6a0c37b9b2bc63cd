"""What outcome is expected of the users of a promoted name, from what was known before they met an arm of a release.

Nothing is used that an arm can change, or the outcome test would be biased: neither the length of the prompt, which
depends on an arm's own prompt and tokenizer, nor tools, which a client can choose by the checkpoint of its session.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from statistics import fmean

from sqlalchemy import and_, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.tables import AgentSession, Release, ReleaseUnit
from learnloop_service.app.domain.release_rules import ReleaseRules
from learnloop_service.app.feedback.forecast import Features, OutcomeForecast, cross_fitted, fit, session_features
from learnloop_service.app.feedback.outcomes import is_one_of, name_asked, outcome_of, session_events
from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.model_name import ModelName

_BEFORE = timedelta(days=60)
_MOST, _LEAST = 3_000, 30
"""Number of the newest sessions that a forecast uses at most, and at least."""
_STEPS = 20
_fitted: dict[tuple[str, date], OutcomeForecast | None] = {}
"""Forecasts of releases by day. What they are fitted on does not change any more once the day has begun."""


async def expected_outcomes(
    tx: AsyncSession, release: Release, exposed: Sequence[tuple[str, datetime]]
) -> list[float | None]:
    """Return what is expected of each unit by windows that were closed when the day of its exposure began, rounded to
    twentieths; None if these are few."""
    expected = list[float | None]()
    for features in await _features(tx, release, exposed):
        key = (release.id, features.at.astimezone(UTC).date())
        if key not in _fitted:
            _fitted[key] = await _fit(tx, release, datetime.combine(key[1], time(), UTC))
        forecast = _fitted[key]
        expected.append(None if forecast is None else round(_STEPS * forecast.expected(features)) / _STEPS)
    while len(_fitted) > _MOST:
        _fitted.pop(next(iter(_fitted)))
    return expected


async def outcome_variance(
    tx: AsyncSession, name: ModelName, rule: Mapping[str, Json], window: timedelta
) -> float | None:
    """Return what a forecast leaves of the variance of the outcomes of the last 60 days; None if these are few."""
    now = (await tx.execute(select(func.now()))).scalar_one()
    rows, users = await _history(tx, name, rule, window, now)
    missed = [outcome - expected for (_, outcome), expected in zip(rows, cross_fitted(rows, users), strict=True)]
    return fmean(miss * miss for miss in missed) if len(missed) >= _LEAST else None


async def _fit(tx: AsyncSession, release: Release, day: datetime) -> OutcomeForecast | None:
    rules, name = ReleaseRules.parse(release.rules), ModelName(release.project, release.name)
    rows, _ = await _history(tx, name, rules.outcome, timedelta(hours=rules.window_hours), day)
    return fit(rows) if len(rows) >= _LEAST else None


async def _history(
    tx: AsyncSession, name: ModelName, rule: Mapping[str, Json], window: timedelta, day: datetime
) -> tuple[list[tuple[Features, float]], list[str]]:
    """Return the features and outcomes, and the users, of the name's sessions of 60 days whose windows were closed
    before the day."""
    row, project = AgentSession, name.project
    asked = (row.project == project, name_asked(project) == str(name), row.entry.is_(None))
    opened = (row.opened_at > day - window - _BEFORE, row.opened_at < day - window)
    query = select(row.id, func.coalesce(row.user_hash, row.id)).where(*asked, *opened)
    users = dict((await tx.execute(query.order_by(row.opened_at.desc()).limit(_MOST))).all())
    features = await session_features(tx, project, list(users), window, rule)
    events = await session_events(tx, project, list(users), window, rule)
    return [(_usable(features[id]), outcome_of(rule, events.get(id, ()))) for id in users], list(users.values())


async def _features(tx: AsyncSession, release: Release, exposed: Sequence[tuple[str, datetime]]) -> list[Features]:
    """Return what was known of each unit when it was exposed: little, unless a session exposed it."""
    rules, row, unit = ReleaseRules.parse(release.rules), AgentSession, ReleaseUnit
    of_session = row.id if release.unit == "session" else row.user_hash
    its = and_(unit.release_id == row.release_id, unit.unit == of_session, unit.exposed_at >= row.opened_at)
    chosen = (row.release_id == release.id, is_one_of(unit.unit, [name for name, _ in exposed]))
    query = select(unit.unit, func.min(row.id)).join(unit, its).where(*chosen).group_by(unit.unit)
    ids, window = dict((await tx.execute(query)).all()), timedelta(hours=rules.window_hours)
    known = await session_features(tx, release.project, list(ids.values()), window, rules.outcome)
    return [replace(_usable(known[ids[name]]), at=at) if name in ids else Features(at) for name, at in exposed]


def _usable(features: Features) -> Features:
    return replace(features, prompt_tokens=0, tools=0, candidate=False)
