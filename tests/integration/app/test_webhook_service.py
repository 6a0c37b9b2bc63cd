"""The running service sends events to those who asked for them over its API, and to the operator's receiver."""

from pathlib import Path

from standardwebhooks import Webhook

from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.security.webhook_signing import new_secret
from tests.conditions import answered, until
from tests.fakes.faulty_receiver import faulty_receiver
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import served, settings_for
from tests.integration.app.webhook_stage import stage


async def test_users_and_the_operator_hear_of_what_happens(data_dir: Path, database_url: str) -> None:
    secret = new_secret()
    async with faulty_receiver() as users, faulty_receiver() as operators:
        settings = settings_for(
            data_dir,
            database_url,
            frontend_url=operators.url,
            frontend_webhook_secret=secret,
            allowed_private_hosts="127.0.0.0/8",
        )
        async with served(settings, ScriptedLoop()) as client, stage(database_url) as here:
            endpoint = (await client.post("/webhooks", json={"url": users.url})).json()
            run_id = await here.run("learnloop")
            for kind in (EventType.RUN_STARTED, EventType.ITERATION_COMPLETED):
                await here.event(run_id, kind)
            await until(lambda: len(users.arrivals) == 2 and len(operators.arrivals) == 1)
        assert [arrival.body["type"] for arrival in users.arrivals] == ["run.started", "iteration.completed"]
        assert operators.arrivals[0].body["type"] == "iteration.completed"
        Webhook(endpoint["secret"]).verify(users.arrivals[1].raw, users.arrivals[1].headers)
        Webhook(secret).verify(operators.arrivals[0].raw, operators.arrivals[0].headers)


async def test_an_admission_that_is_taken_back_holds_for_what_is_sent_later(data_dir: Path, database_url: str) -> None:
    async with faulty_receiver() as users, stage(database_url) as here:
        admitted = settings_for(data_dir, database_url, allowed_private_hosts="127.0.0.0/8")
        async with served(admitted, ScriptedLoop()) as client:
            assert (await client.post("/webhooks", json={"url": users.url})).status_code == 201
        async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
            await here.event(await here.run("learnloop"))
            [row] = await here.deliveries()

            async def errors() -> list[str | None]:
                whole = (await client.get(f"/webhooks/deliveries/{row.id}")).json()
                return [attempt["error"] for attempt in whole["tries"]]

            await answered(
                errors, lambda messages: messages == ["the host '127.0.0.1' has an address that is not public"]
            )
        assert users.requests == 0
