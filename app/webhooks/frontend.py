"""The operator's endpoint: FRONTEND_URL receives every iteration of every run."""

from pydantic import HttpUrl, SecretStr
from sqlalchemy.dialects.postgresql import insert

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import WebhookEndpoint
from learnloop_service.app.security.secret_box import SecretBox
from learnloop_service.app.webhooks.queue import disable
from learnloop_service.app.webhooks.sender import FRONTEND_ID

EVENTS = ("iteration.completed",)
"""CoDreamer's frontend expects an email and node scores in each body; no other event has them."""


async def keep_frontend_endpoint(
    database: Database, url: HttpUrl | None, secret: SecretStr | None, box: SecretBox
) -> None:
    """Update the endpoint's row from the settings; without FRONTEND_URL it is disabled.

    Several services can do this simultaneously, because it is one statement and they have the same settings.
    """
    async with database.begin() as tx:
        if url is None:
            await disable(tx, FRONTEND_ID, "FRONTEND_URL is not set any more")
            return
        row = {
            "url": str(url),
            "events": list(EVENTS),
            "secret": None if secret is None else box.seal(secret.get_secret_value(), FRONTEND_ID),
        }
        enabled = {"disabled_at": None, "disabled_reason": None}
        keep = insert(WebhookEndpoint).values(id=FRONTEND_ID, **row)
        await tx.execute(keep.on_conflict_do_update(index_elements=["id"], set_=row | enabled))
