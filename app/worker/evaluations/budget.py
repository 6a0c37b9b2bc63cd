"""The budget of an evaluation: like a run's, but it also counts the price of prompted models."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from learnloop_service.app.db.tables import EvaluationJob
from learnloop_service.app.domain.stored_evaluation import Slot, StoredEvaluation
from learnloop_service.app.domain.stored_request import StoredBudget
from learnloop_service.app.runs.budget import Meter, PriorUsage
from learnloop_service.environment.base import Environment, Scenario
from learnloop_service.judges.base import Judgement, Models
from learnloop_service.judges.prices import Price
from learnloop_service.training.budget import Estimates, Reservation, Usage, usage_of_calls
from learnloop_service.training.phases import Phase
from learnloop_service.training.prompt import Prompt
from learnloop_service.training.types import Rollout, RunConfig


def prices_of(request: StoredEvaluation, models: Models) -> tuple[Price | None, ...]:
    """Return the price of each model, or None if it is unknown or free. Raises UnknownModel."""
    return tuple(
        models.model(contestant.model).price if contestant.kind == "prompted" else None for contestant in request.models
    )


def _with_price(used: Usage, price: Price | None) -> Usage:
    """Return the usage with its cost."""
    if price is None:
        return used
    return replace(used, usd=price.of(used.prompt_tokens, used.completion_tokens))


def saved_usage(job: EvaluationJob, rows: Mapping[Slot, Any], prices: Sequence[Price | None]) -> Usage:
    """Return what the saved rollouts and verdicts used. Copies of earlier rollouts used nothing."""
    judge = Usage(job.judge.get("prompt_tokens", 0), job.judge.get("completion_tokens", 0), job.judge.get("usd"))
    made = [(slot, row) for slot, row in rows.items() if row.copied_from is None]
    used = ((Usage(row.prompt_tokens, row.completion_tokens), prices[slot.model]) for slot, row in made)
    return sum((_with_price(*pair) for pair in used), judge)


def meter_of(
    job: EvaluationJob, request: StoredEvaluation, rows: Mapping[Slot, Any], prices: Sequence[Price | None]
) -> Meter:
    """Return a meter that continues from the usage of earlier workers."""
    means = [row.prompt_tokens / row.turns for row in rows.values() if row.turns]
    used = saved_usage(job, rows, prices) + Usage(**job.lost)
    prior = PriorUsage(used, job.driven_s, prompt_per_turn=max(means, default=None))
    return Meter(request.budget or StoredBudget(), prior)


class EvaluationSpending:
    """Charges the calls of an evaluation to its meter. Used only on the evaluation's own event loop."""

    def __init__(
        self,
        meter: Meter,
        request: StoredEvaluation,
        environment: Environment,
        prices: Sequence[Price | None],
        prompts: Sequence[Prompt | None],
    ) -> None:
        config = RunConfig(max_turns=request.max_turns, max_completion_tokens=request.max_completion_tokens)
        self._meter = meter
        self._estimates = Estimates(config, environment, meter, *prompts)
        self._prices = prices

    @asynccontextmanager
    async def rollout(self, model: int, scenario: Scenario) -> AsyncIterator[Reservation]:
        """Reserve the budget of a rollout of that model. Raises BudgetReached."""
        price = self._prices[model]

        def most() -> Usage | None:
            worst_case = self._estimates.rollout(scenario)
            return None if worst_case is None else _with_price(worst_case, price)

        async with self._meter.reserve(Phase.EVALUATE, most) as reserved:
            yield _PricedReservation(reserved, price)

    def saw(self, rollout: Rollout) -> None:
        """Update the estimates with a finished rollout."""
        self._estimates.saw_rollout(rollout)

    @asynccontextmanager
    async def judging(self) -> AsyncIterator[Callable[[Judgement], None]]:
        """Reserve the budget of judging a scenario's rollouts, and yield a function that takes the judgement.

        Raises BudgetReached.
        """
        async with self._meter.reserve(Phase.EVALUATE, lambda: self._estimates.judging) as reserved:

            def judged(judgement: Judgement) -> None:
                self._estimates.saw_judgement(judgement)
                reserved.spend(usage_of_calls(judgement.calls))

            yield judged


@dataclass(frozen=True, slots=True)
class _PricedReservation:
    """A reservation that adds the price to the usage."""

    reservation: Reservation
    price: Price | None

    async def room_for(self, most: Callable[[], Usage]) -> None:
        await self.reservation.room_for(lambda: _with_price(most(), self.price))

    def spend(self, used: Usage) -> None:
        self.reservation.spend(_with_price(used, self.price))
