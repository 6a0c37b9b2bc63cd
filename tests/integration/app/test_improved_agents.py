"""An agent that nobody can change gets better by a prompt, and users get it under a promoted name."""

from pathlib import Path

from tests.conditions import answered
from tests.fakes.runner import runner
from tests.integration.app.fixed_agents import DESK, HINT, FixedAgent, environment, service
from tests.integration.app.own_agent_runs import SMALL
from tests.integration.app.served import run_with


async def test_the_texts_of_an_agent_are_found_improved_and_served(data_dir: Path, database_url: str) -> None:
    async with service(data_dir, database_url) as client, runner(FixedAgent()) as it:
        request = {
            "environment": environment(it.url),
            "judge": {"name": "reported"},
            "rungs": ["prompt"],
            "validation": 8,
            "target": 0.9,
            "wait_minutes": 60,
        }
        posted = await client.post("/improvements", json=request)
        assert posted.status_code == 202, posted.text
        id = posted.json()["id"]

        async def shown() -> dict[str, object]:
            improvement: dict[str, object] = (await client.get(f"/improvements/{id}")).raise_for_status().json()
            return improvement

        waiting = await answered(shown, lambda improvement: improvement["waits_until"] is not None)
        own = waiting["tried"][0]["prompt"]
        assert (own["name"], own["version"], waiting["tried"][0]["success"]["mean"]) == ("agent", 1, 0)
        material = (await client.get(f"/improvements/{id}/material")).raise_for_status().json()
        assert material["prompt"]["parts"]["system"] == DESK

        proposal = {"parts": {"system": f"{DESK}\r\n{HINT}"}}
        proposed = await client.post(f"/improvements/{id}/candidates", json=proposal)
        assert proposed.status_code == 201, proposed.text
        ended = await answered(shown, lambda improvement: improvement["status"] not in ("running", "paused"))
        assert (ended["status"], ended["champion"], ended["confirmed"]) == ("reached", 1, True), ended["reason"]

        trained = {"environment": environment(it.url), "judge": {"name": "reported"}, "model": {"name": "m"}} | SMALL
        run_id = (await client.post("/learn-loop", json=trained)).raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        better = ended["tried"][1]["prompt"]
        named = f"{better['name']}@{better['version']}"
        promoted = await client.post("/models/learnloop/m/promote", json={"step": 0, "as": "live", "prompt": named})
        assert promoted.status_code == 201, promoted.text
        question = {"role": "user", "content": "number 7?"}
        asked = {"model": "learnloop/live", "messages": [{"role": "system", "content": f"{DESK}\nHello"}, question]}
        reply = (await client.post("/v1/chat/completions", json=asked)).raise_for_status()
        assert "yes" in reply.text
        assert reply.headers["learnloop-prompt"] == f"{better['sha256'][:12]}; applied"
        changed = asked | {"messages": [{"role": "system", "content": "Another agent."}, question]}
        reply = (await client.post("/v1/chat/completions", json=changed)).raise_for_status()
        assert reply.headers["learnloop-prompt"].endswith("; not-found")
