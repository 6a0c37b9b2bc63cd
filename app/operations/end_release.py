"""What follows once a release has ended at a person's request."""

from contextlib import suppress

from learnloop_service.app.db.tables import Release
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.errors import NotAllowed
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.app.instruments import RELEASE_DECISIONS
from learnloop_service.app.service import HandlerResources


async def after_overtaken(service: HandlerResources, release: Release | None, actor: str) -> None:
    """Count the release that a promotion, a trial or a withdrawal has ended (None: there was none), and cancel its
    trial."""
    if release is not None:
        RELEASE_DECISIONS.labels(EventType.RELEASE_ENDED.removeprefix("release.")).inc()
        await cancel_trial(service, release, actor)


async def cancel_trial(service: HandlerResources, release: Release, actor: str) -> None:
    """Cancel the trial of a release that has ended before its traffic. A trial that has ended, too, stays as it is."""
    if release.evaluation_id is None or release.started_at is not None:
        return
    with suppress(NotAllowed):
        await EvaluationStore(service.database).cancel(release.evaluation_id, actor)
    service.runner.nudge(release.evaluation_id)
