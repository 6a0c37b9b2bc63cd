"""What outcome is expected of an answer by what was known before it: a ridge regression in plain Python.

It is the baseline of training on served answers and the covariate of the outcome test. Both stay valid however bad it
is, if it depends on nothing that came after the answer began. Sums are exact, so the order of rows does not matter.
"""

import json
import zlib
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from math import fsum, log1p
from operator import mul

from sqlalchemy import and_, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.tables import AgentSession, SessionCall
from learnloop_service.app.domain.release_state import Arm
from learnloop_service.app.feedback.outcomes import is_one_of, name_asked, outcome_of, session_events
from learnloop_service.environment.json_type import Json

_FOLDS, _KINDS = 5, 8
_PENALTY = 20.0
"""What is added to the sum of squares of each column. Columns have a spread of about 1 where that is known."""
_PRIOR = 2
"""How many outcomes of an average user are added to a user's earlier ones."""
_MONTHS, _SATURDAY = timedelta(days=60), 5


@dataclass(frozen=True, slots=True)
class Features:
    """What was known of an answer before it began."""

    at: datetime
    is_new: bool = True
    """Whether the user had not asked before."""
    earlier: int = 0
    """Number of the user's earlier outcomes."""
    earlier_sum: float = 0.0
    prompt_tokens: int = 0
    tools: int = 0
    candidate: bool = False
    """Whether a release's candidate answers, which the test of that release must not use."""
    kind: str | None = None
    """The label `kind`."""


@dataclass(frozen=True, slots=True)
class OutcomeForecast:
    """A fitted regression."""

    mean: float
    since: datetime
    kinds: Sequence[str] = ()
    """The commonest values of the label `kind`."""
    weights: Sequence[float] = ()

    def expected(self, features: Features) -> float:
        """Return the expected outcome, in [0, 1]."""
        return min(1.0, max(0.0, self.mean + fsum(map(mul, self.weights, self.columns(features)))))

    def columns(self, features: Features) -> Sequence[float]:
        """Return the numbers that the weights are for."""
        return (
            1.0,
            4 * ((features.earlier_sum + _PRIOR * self.mean) / (features.earlier + _PRIOR) - self.mean),
            log1p(features.earlier),
            features.is_new,
            features.at.astimezone(UTC).weekday() >= _SATURDAY,
            (features.at - self.since) / _MONTHS,
            log1p(features.prompt_tokens),
            log1p(features.tools),
            features.candidate,
            *(features.kind == kind for kind in self.kinds),
        )


def fit(rows: Sequence[tuple[Features, float]]) -> OutcomeForecast:
    """Fit outcomes, in [0, 1]. Without rows 0.5 is expected of every answer."""
    if not rows:
        return OutcomeForecast(0.5, datetime.fromtimestamp(0, UTC))
    mean = fsum(outcome for _, outcome in rows) / len(rows)
    named = Counter(features.kind for features, _ in rows if features.kind is not None)
    kinds = sorted(named, key=lambda kind: (-named[kind], kind))[:_KINDS]
    forecast = OutcomeForecast(mean, min(features.at for features, _ in rows), kinds)
    table = list(zip(*(forecast.columns(features) for features, _ in rows), strict=True))
    residuals = [outcome - mean for _, outcome in rows]
    equations = [
        [*(fsum(map(mul, one, other)) + _PENALTY * (one is other) for other in table), fsum(map(mul, one, residuals))]
        for one in table
    ]
    return replace(forecast, weights=_solved(equations))


def cross_fitted(rows: Sequence[tuple[Features, float]], users: Sequence[str]) -> list[float]:
    """Return what is expected of each row by the rows of other users, in five folds of users."""
    folds = [int.from_bytes(sha256(f"fold\0{user}".encode()).digest()[:8]) % _FOLDS for user in users]
    forecasts = {
        fold: fit([row for row, of_row in zip(rows, folds, strict=True) if of_row != fold]) for fold in set(folds)
    }
    return [forecasts[fold].expected(features) for (features, _), fold in zip(rows, folds, strict=True)]


def r_squared(outcomes: Sequence[float], expected: Sequence[float]) -> float:
    """Return the share of the outcomes' variance that the forecasts explain; below 0 if the mean is better."""
    mean = fsum(outcomes) / max(1, len(outcomes))
    missed = fsum((outcome - forecast) ** 2 for outcome, forecast in zip(outcomes, expected, strict=True))
    total = fsum((outcome - mean) ** 2 for outcome in outcomes)
    return 1 - missed / total if total else 0.0


def _solved(equations: Sequence[Sequence[float]]) -> list[float]:
    """Solve linear equations, each with its right side last, by elimination. The penalty makes every pivot positive."""
    for pivot in range(len(equations)):
        row = [value / equations[pivot][pivot] for value in equations[pivot]]
        equations = [
            row if index == pivot else [value - other[pivot] * by for value, by in zip(other, row, strict=True)]
            for index, other in enumerate(equations)
        ]
    return [row[-1] for row in equations]


async def session_features(
    tx: AsyncSession, project: str, session_ids: Sequence[str], window: timedelta, rule: Mapping[str, Json]
) -> Mapping[str, Features]:
    """Return what was known of each of these sessions when it was opened.

    A user's earlier outcomes are those of sessions with the same name whose window was over by then.
    """
    row, name = AgentSession, name_asked(project)
    chosen = and_(row.project == project, is_one_of(row.id, session_ids))
    of_users = and_(row.project == project, row.user_hash.in_(select(row.user_hash).where(chosen)))
    query = select(row.id, row.user_hash, name, row.opened_at, row.arm, row.labels["kind"].astext)
    opened = (await tx.execute(query.where(or_(chosen, of_users)).order_by(row.opened_at, row.id))).all()
    events = await session_events(tx, project, [id for id, *_ in opened], window, rule)
    first = select(SessionCall.session_id, SessionCall.prompt_tokens, SessionCall.request).where(
        is_one_of(SessionCall.session_id, session_ids), SessionCall.number == 1
    )
    # A request is stored as compressed JSON: messages, tools and parameters.
    calls = {
        id: (tokens, len(json.loads(zlib.decompress(packed))[1])) for id, tokens, packed in await tx.execute(first)
    }
    times, sums = defaultdict[object, list[datetime]](list), defaultdict[object, list[float]](lambda: [0.0])
    known, chosen_ids = dict[str, Features](), frozenset(session_ids)
    for id, user, of_name, at, arm, kind in opened:
        user = (user, of_name) if user else id
        earlier = bisect_left(times[user], at - window)
        if id in chosen_ids:
            history = (not times[user], earlier, sums[user][earlier])
            known[id] = Features(at, *history, *calls.get(id, (0, 0)), arm == Arm.CANDIDATE, kind)
        times[user].append(at)
        sums[user].append(sums[user][-1] + outcome_of(rule, events.get(id, ())))
    return known
