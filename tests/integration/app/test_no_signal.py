"""Runs that learn nothing: said in the log, in the run and when it is accepted, and stopped where they ask for it."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from learnloop_service.environment.email_search.inbox import write_inbox
from learnloop_service.environment.email_search.synthetic import make_world
from tests.fakes.scripted_chat import Reply
from tests.integration.app.runs_without_signal import RUN, WRONG, service, started
from tests.integration.app.served import ended
from tests.opened_database import execute


async def no_signals(client: httpx.AsyncClient, run_id: str) -> list[Any]:
    listed = await client.get(f"/runs/{run_id}/events", params={"limit": 200})
    return [event for event in listed.raise_for_status().json()["items"] if event["type"] == "iteration.no_signal"]


@pytest.mark.parametrize(
    ("reply", "cause", "said"),
    [
        (WRONG, "constant_reward", "all rollouts have the same reward"),
        (Reply(content="hello"), "malformed", "every rollout ended with a malformed tool call"),
    ],
)
async def test_a_run_that_learns_nothing_says_so(
    data_dir: Path, database_url: str, reply: Reply, cause: str, said: str
) -> None:
    async with service(data_dir, database_url, reply) as client:
        accepted = await started(client)
        run = await ended(client, accepted["run_id"])
        assert (run["status"], run["iterations"][-1]["step"]) == ("completed", 0)
        assert [point["no_signal"] for point in run["iterations"]] == [None, cause, cause, cause, cause]
        (warning,) = run["warnings"]
        assert warning.startswith("4 of 4 iterations taught nothing, the last of them iteration 4: ")
        assert said in warning
        events = await no_signals(client, run["run_id"])
        assert [(event["iteration"], event["data"]["in_a_row"]) for event in events] == [(n, n) for n in (1, 2, 3, 4)]
        assert {(event["data"]["cause"], event["data"]["groups"]) for event in events} == {(cause, 2)}
        assert said in events[0]["data"]["message"]
        ledger = (await client.get(f"/runs/{run['run_id']}/ledger", params={"limit": 200})).json()
        rollouts = [row for row in ledger["items"] if row["phase"] == "rollout" and row["prompt_tokens"]]
        assert [row["wasted"] for row in rollouts] == [True] * 4
        assert run["cost"]["wasted_tokens"] == sum(row["prompt_tokens"] + row["completion_tokens"] for row in rollouts)


async def test_a_run_pauses_by_its_rule_and_goes_on_when_it_is_resumed(data_dir: Path, database_url: str) -> None:
    async with service(data_dir, database_url) as client:
        run_id = (await started(client, on_no_signal={"action": "pause", "after": 2}))["run_id"]
        run = await ended(client, run_id)
        assert (run["status"], run["progress"]["iterations_done"]) == ("paused", 2)
        assert "2 iterations in a row taught nothing" in run["wait_reason"]
        assert "all rollouts have the same reward" in run["wait_reason"]
        assert (await client.post(f"/runs/{run_id}/resume")).status_code == 202
        # It counts anew, and what has no iteration left is not paused.
        assert (await ended(client, run_id))["status"] == "completed"


async def test_a_run_fails_by_its_rule_also_at_its_end(data_dir: Path, database_url: str) -> None:
    async with service(data_dir, database_url) as client:
        run_id = (await started(client, on_no_signal={"action": "fail", "after": 4}))["run_id"]
        run = await ended(client, run_id)
        assert (run["status"], run["progress"]["iterations_done"]) == ("failed", 4)
        assert "4 iterations in a row taught nothing" in run["error"]


async def test_a_worker_that_takes_over_keeps_to_the_rule_before_it_does_anything(
    data_dir: Path, database_url: str
) -> None:
    """The worker before saved the last iteration of the rule and died."""
    async with service(data_dir, database_url) as client:
        run_id = (await started(client, on_no_signal={"action": "pause", "after": 3}))["run_id"]
        assert (await ended(client, run_id))["progress"]["iterations_done"] == 3
        await execute(database_url, "UPDATE run SET status = 'queued' WHERE id = :id", id=run_id)
        run = await ended(client, run_id)
        assert (run["status"], run["progress"]["iterations_done"]) == ("paused", 3)


TASKS = [{"task": {"question": f"Why, {number}?"}} for number in range(3)]


async def test_what_can_be_foreseen_is_said_when_the_run_is_accepted(data_dir: Path, database_url: str) -> None:
    (data_dir / "inboxes").mkdir(parents=True)
    world = make_world("train", 0, 0)
    write_inbox(data_dir / "inboxes" / "mine.sqlite", world.emails)
    questions = [
        f'{{"question": "When, {n}?", "answer": "Now.", "source_ids": ["{world.source_id}"]}}' for n in range(60)
    ]
    (data_dir / "inboxes" / "mine.questions.jsonl").write_text("\n".join(questions))
    inbox_request = {"environment": {"name": "email_search", "config": {"inbox": "mine"}}, "iterations": 1}
    async with service(data_dir, database_url) as client:
        assert (await started(client, iterations=1))["warnings"] == []
        headers = {"Idempotency-Key": "one"}
        accepted, again = [
            (await client.post("/learn-loop", json=RUN | inbox_request, headers=headers)).json() for _ in range(2)
        ]
        (warning,) = accepted["warnings"]
        assert "learnloop/tiny only knows the emails and graphs that Learnloop invents" in warning
        assert again == accepted
        assert (await ended(client, accepted["run_id"]))["warnings"][0] == warning
        agent_request = {
            "environment": {"name": "agent", "config": {"runner": {"pull": {}}, "scenarios": TASKS}},
            "judge": {"name": "reported"},
        }
        (unsure,) = (await client.post("/learn-loop", json=RUN | agent_request)).json()["warnings"]
        assert "Unless your agent works with these" in unsure  # its tasks may well be of the kind that the base knows
