"""Reads pages of the list of runs: filtered and sorted by the database, and with runs of the same settings as one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Float,
    Numeric,
    Select,
    Subquery,
    Text,
    case,
    cast,
    func,
    literal,
    literal_column,
    or_,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Run
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.runs import headlines
from learnloop_service.app.runs.cost import COST
from learnloop_service.app.schemas.runs import SameSettingsOut
from learnloop_service.app.statistics.verdict import VerdictState

Value = float | str
"""What a run is sorted by."""


class SortBy(StrEnum):
    """What a list of runs can be sorted by."""

    CREATED = "created"
    NAME = "name"
    """What the run is called, or its model."""
    ENVIRONMENT = "environment"
    STATUS = "status"
    VERDICT = "verdict"
    """Got worse, no change shown, learned."""
    SUCCESS = "success"
    """The latest held-out success."""
    GAIN = "gain"
    """The latest held-out success minus the first one."""
    ITERATIONS = "iterations"
    LEARNING_RATE = "learning_rate"
    TIME = "time"
    """From start to end."""
    TOKENS = "tokens"
    JUDGE_USD = "judge_usd"
    COST = "cost"
    """Calls whose price is known, and the time of the machine."""


@dataclass(frozen=True, slots=True)
class RunFilters:
    """Which runs are listed; None matches any."""

    project: str | None = None
    status: str | None = None
    search: str | None = None
    """Part of a run's id, name, model, environment, judge or tags."""
    tag: str | None = None
    starred: bool | None = None
    settings_hash: str | None = None
    since: datetime | None = None
    """When they were requested at the earliest."""
    started_by: str | None = None
    """Id or name of an API key, or an order."""


@dataclass(frozen=True, slots=True)
class Order:
    """How runs are sorted. Those without a value come last."""

    by: SortBy = SortBy.CREATED
    is_ascending: bool = False

    @property
    def is_by_text(self) -> bool:
        """Whether the values are texts, and not numbers."""
        return self.by in _TEXTS


class PageEnd(NamedTuple):
    """Where a page ended: what its last run was sorted by, and that run's id."""

    value: Value
    run_id: str


class Listed(NamedTuple):
    """A run as it is listed; if it stands for several, the newest of them."""

    run: Run
    value: Value
    same: SameSettingsOut | None
    cost_usd: float | None


_SEARCHED = (
    Run.id,
    func.coalesce(Run.name, ""),
    func.concat(Run.model_project, literal_column("'/'"), Run.model_name),
    Run.environment,
    Run.judge,
    cast(Run.tags, Text),
)
_TEXTS: Mapping[SortBy, ColumnElement[str]] = {
    SortBy.CREATED: Run.id.expression,
    SortBy.NAME: func.lower(func.coalesce(Run.name, Run.model_name)).collate("C"),
    SortBy.ENVIRONMENT: Run.environment.collate("C"),
    SortBy.STATUS: Run.status.collate("C"),
}
_RANKS = {VerdictState.GOT_WORSE: 0, VerdictState.NO_CHANGE_SHOWN: 1, VerdictState.LEARNED: 2}
_NUMBERS: Mapping[SortBy, ColumnElement[Any]] = {
    SortBy.VERDICT: case(_RANKS, value=headlines.STATE),
    SortBy.SUCCESS: headlines.LATEST,
    SortBy.GAIN: headlines.GAIN,
    SortBy.ITERATIONS: func.greatest(Run.next_iteration - 1, 0),
    SortBy.LEARNING_RATE: cast(Run.request["learning_rate"].astext, Float),
    SortBy.TIME: func.extract("epoch", Run.finished_at - Run.started_at),
    SortBy.TOKENS: Run.prompt_tokens + Run.completion_tokens,
    SortBy.JUDGE_USD: Run.judge_cost_usd.expression,
    SortBy.COST: COST,
}
_OF_HEADLINES = {SortBy.VERDICT, SortBy.SUCCESS, SortBy.GAIN}


class RunList:
    """The list of runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self, filters: RunFilters, order: Order, after: PageEnd | None, limit: int, *, fold: bool = False
    ) -> list[Listed]:
        """Return at most `limit` runs after the end of the last page, `after`.

        With `fold`, runs of the same settings are one entry: the newest one, with the figures of all. Its value to sort
        by is then their mean, or the newest run's if it is a text.
        """
        entries = _folded(filters, order.by) if fold else _apart(filters, order.by)
        page = _paged(entries, order, after).limit(limit).subquery()
        query = select(Run, page.c.value, page.c.runs, COST).join(page, page.c.id == Run.id)
        async with self._database() as tx:
            listed = (await tx.execute(query.order_by(*_sorting(page, order)))).all()
            several = [run.settings_hash for run, _, runs, _ in listed if runs > 1]
            rows = (await tx.execute(_same(filters, several))).all() if several else []
        same = {settings_hash: _figures(figures) for settings_hash, *figures in rows}
        return [
            Listed(run, value, same.get(run.settings_hash) if runs > 1 else None, cost)
            for run, value, runs, cost in listed
        ]


def _apart(filters: RunFilters, by: SortBy) -> Subquery:
    """Select id and value of the runs."""
    return _matching(select(Run.id, _key(by).label("value"), literal(1).label("runs")), filters, by).subquery()


def _folded(filters: RunFilters, by: SortBy) -> Subquery:
    """Select id and value of the newest run of each settings."""
    runs = _matching(select(Run.id, Run.settings_hash, _key(by).label("value")), filters, by).subquery()
    newest = func.array_agg(aggregate_order_by(runs.c.value, runs.c.id.desc()), type_=ARRAY(Text))[1]
    # Rounded, because a sum of floats depends on their order, and the next page is asked for by this value.
    mean = cast(func.round(cast(func.avg(runs.c.value), Numeric), 9), Float)
    value = newest if by in _TEXTS else mean
    query = select(func.max(runs.c.id).label("id"), value.label("value"), func.count().label("runs"))
    return query.group_by(runs.c.settings_hash).subquery()


def _paged(entries: Subquery, order: Order, after: PageEnd | None) -> Select[Any, Any, Any]:
    """Select the entries after the end of the last page, in order. Those without a value come last."""
    last = float("inf") if order.is_ascending else float("-inf")
    value = entries.c.value if order.by in _TEXTS else func.coalesce(entries.c.value, literal(last, Float))
    valued = select(entries.c.id, value.label("value"), entries.c.runs).subquery()
    query = select(valued.c.id, valued.c.value, valued.c.runs).order_by(*_sorting(valued, order))
    if after is None:
        return query
    columns = _sorted_by(valued, order.by)
    here, there = tuple_(*columns), tuple_(*(literal(bound) for bound in after[-len(columns) :]))
    return query.where(here > there if order.is_ascending else here < there)


def _sorting(entries: Subquery, order: Order) -> list[ColumnElement[Any]]:
    return [column.asc() if order.is_ascending else column.desc() for column in _sorted_by(entries, order.by)]


def _sorted_by(entries: Subquery, by: SortBy) -> tuple[ColumnElement[Any], ...]:
    return (entries.c.id,) if by is SortBy.CREATED else (entries.c.value, entries.c.id)


def _same(filters: RunFilters, hashes: Sequence[str]) -> Select[Any, Any]:
    """Select the figures of the runs of each settings."""
    means = [func.avg(cast(value, Float)) for value in _NUMBERS.values()]
    spread = [of(headlines.GAIN) for of in (func.stddev_samp, func.min, func.max)]
    verdicts = [func.count().filter(headlines.STATE.in_([state])) for state in VerdictState]
    statuses = [func.count().filter(Run.status == status) for status in RunStatus]
    starred = func.count().filter(Run.starred)
    counts = (*verdicts, *statuses, starred)
    figures = (func.count(), func.avg(headlines.FIRST), *means, func.sum(COST), *spread, *counts)
    query = _matching(select(Run.settings_hash, *figures), filters, SortBy.GAIN)
    return query.where(Run.settings_hash.in_(hashes)).group_by(Run.settings_hash)


def _figures(row: Sequence[Any]) -> SameSettingsOut:
    rest = iter(row)
    return SameSettingsOut(
        runs=next(rest),
        first=next(rest),
        means={by: next(rest) for by in _NUMBERS},
        cost_usd=next(rest),
        gain_sd=next(rest),
        gain_low=next(rest),
        gain_high=next(rest),
        verdicts={state: count for state in VerdictState if (count := next(rest))},
        statuses={status: count for status in RunStatus if (count := next(rest))},
        starred=next(rest),
    )


def _matching(query: Select[Any, Any], filters: RunFilters, by: SortBy) -> Select[Any, Any]:
    """Return the query of the runs that match the filters, with their headlines if those are needed."""
    if by in _OF_HEADLINES:
        query = headlines.with_headlines(query)
    if filters.search is not None:
        # Names are mostly ASCII, and comparing them without the rules of a language takes half the time.
        matches = (column.collate("C").icontains(filters.search, autoescape=True) for column in _SEARCHED)
        query = query.where(or_(*matches))
    if filters.tag is not None:
        query = query.where(Run.tags.contains([filters.tag]))
    if filters.since is not None:
        query = query.where(Run.created_at >= filters.since)
    if filters.started_by is not None:
        query = query.where(Run.is_started_by(filters.started_by))
    exact = (
        (Run.model_project, filters.project),
        (Run.status, filters.status),
        (Run.starred, filters.starred),
        (Run.settings_hash, filters.settings_hash),
    )
    return query.where(*(column == value for column, value in exact if value is not None))


def _key(by: SortBy) -> ColumnElement[Any]:
    return _TEXTS[by] if by in _TEXTS else cast(_NUMBERS[by], Float)
