"""Evaluations by scripted models, until they have ended."""

import httpx

from learnloop_service.environment.email_search import synthetic
from learnloop_service.environment.json_type import Json
from tests.conditions import answered


def reference(request: Json) -> Json:
    """The answer and sources of the question that the model is asked."""
    system = request["messages"][0]["content"]
    address = next(word.strip(".,") for word in system.split() if "@inbox.example" in word)
    place = synthetic.parse_address(address)
    assert place is not None
    return synthetic.make_world(*place).scenario("test").reference


async def ended(client: httpx.AsyncClient, id: str) -> Json:
    """The evaluation once it has ended."""

    async def ask() -> Json:
        return (await client.get(f"/evaluations/{id}")).raise_for_status().json()

    return await answered(ask, lambda found: found["status"] in ("completed", "failed", "cancelled", "paused"))
