"""The budget of an improvement: what its evaluations and runs have left together."""

from collections.abc import Mapping

from learnloop_service.app.improvements.store import ImprovementRecord, ImprovementStore
from learnloop_service.app.schemas.improvements import PriceOut


async def remaining(
    store: ImprovementStore, record: ImprovementRecord, *, job: bool = False
) -> Mapping[str, float | None]:
    """Return what is left of each limit for a new job, or for the one in progress, whose own use then does not count.
    None is no limit. It is at most 0 if a limit was reached."""
    budget = record.improvement.request.get("budget") or {}
    if not any(budget.values()):
        return {}
    by_job = await store.used(record.candidates, evaluations_of(record))
    used = PriceOut.total(price for id, price in by_job.items() if not (job and id == record.improvement.job_id))
    spent = {"max_minutes": used.minutes, "max_usd": used.usd or 0.0, "max_tokens": used.tokens}
    return {name: None if limit is None else limit - spent[name] for name, limit in budget.items()}


def evaluations_of(record: ImprovementRecord) -> list[str]:
    """Return the ids of the pilot's and the test tasks' evaluations."""
    pilot, final = record.improvement.pilot, record.improvement.final
    return [*([pilot["evaluation_id"]] if pilot else ()), *(final["evaluation_ids"] if final else ())]
