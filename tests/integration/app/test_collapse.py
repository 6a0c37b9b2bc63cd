"""Runs whose policy breaks at every second step, over the real learn loop: only sampling and training are not real."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from learnloop_service.training.backends.base import ModelSpec, Policy, TrainOutcome
from learnloop_service.training.collapse import RESTORED
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.fakes.scripted_chat import scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedPolicy
from tests.integration.app.served import ended, served, settings_for, start
from tests.integration.training.scripted_runs import skilled
from tests.opened_database import execute

RUN = {
    "iterations": 7,
    "groups_per_iteration": 8,
    "rollouts_per_group": 4,
    "learning_rate": 0.001,
    "warmup_iterations": 1,
    "evaluation": {"scenarios": 0, "test_scenarios": 0},
    "checkpoints": {"keep_last": 1, "keep_best": 1},
}


def fragile(step: int, address: str, luck: float) -> bool:
    """Each training breaks the policy: it is good at the beginning and whenever it went back."""
    return luck < (0.85 if step % 2 == 0 else 0.1)


class Restoring(ScriptedPolicy):
    """Goes back to steps that were not deleted."""

    async def submit_restore(self, step: int, expected_step: int) -> str:
        assert step not in self.deleted, f"checkpoint {step} was deleted"
        self._step = expected_step + 1
        return f"restore-{step}"

    async def follow(self, job_id: str, expected_step: int) -> TrainOutcome:
        kind, _, step = job_id.partition("-")
        metrics = {RESTORED: float(step)} if kind == "restore" else {"loss": 0.5}
        return TrainOutcome(expected_step + 1, metrics)


class Backend(ScriptedBackend):
    def __init__(self, url: str, kind: type[ScriptedPolicy]) -> None:
        super().__init__(url)
        self._kind = kind

    async def register(self, model: ModelSpec) -> Policy:
        return self.policies.setdefault(model, self._kind(model, self.endpoint_url))

    @property
    def rates(self) -> list[float]:
        """The learning rates of all trainings."""
        [policy] = self.policies.values()
        return [request.learning_rate for request in policy.requests]


@asynccontextmanager
async def service(
    data_dir: Path, database_url: str, kind: type[ScriptedPolicy] = Restoring
) -> AsyncIterator[tuple[httpx.AsyncClient, Backend]]:
    async with scripted_chat(skilled(fragile)) as model:
        backend = Backend(model.url, kind)
        async with served(settings_for(data_dir, database_url), learn_loop, backend) as client:  # type: ignore[arg-type]
            yield client, backend


async def restored(client: httpx.AsyncClient, run_id: str) -> list[float | None]:
    items = (await client.get(f"/runs/{run_id}/iterations")).raise_for_status().json()["items"]
    return [point["train_metrics"].get(RESTORED) for point in sorted(items, key=lambda point: point["iteration"])][1:]


async def test_a_run_goes_back_twice_and_the_third_time_it_pauses_as_well(data_dir: Path, database_url: str) -> None:
    async with service(data_dir, database_url) as (client, backend):
        run_id = await start(client, RUN | {"on_collapse": "step_back"})
        run = await ended(client, run_id)
        assert (run["status"], run["progress"]["iterations_done"]) == ("paused", 6)
        assert "Since step 5, success fell from" in run["wait_reason"]
        assert "the run has gone back 3 times (on_collapse); resume the run" in run["wait_reason"]
        assert run["diagnosis"] == "policy_collapsed"
        assert await restored(client, run_id) == [None, 0, None, 2, None, 4]
        assert backend.rates == pytest.approx([0.001, 0.0005, 0.00025])

        # A worker that died before it paused the run: the next one pauses it, too.
        await execute(database_url, "UPDATE run SET status = 'queued' WHERE id = :id", id=run_id)
        again = await ended(client, run_id)
        assert (again["status"], again["progress"]) == ("paused", run["progress"])

        assert (await client.post(f"/runs/{run_id}/resume")).status_code == 202
        run = await ended(client, run_id)
        assert (run["status"], run["diagnosis"]) == ("completed", None)
        assert backend.rates[3:] == pytest.approx([0.000125]), "how often it went back follows from what was saved"
        events = (await client.get(f"/runs/{run_id}/events", params={"limit": 200})).json()["items"]
        named = [event["data"] for event in events if event["type"] == "run.diagnosis"]
        assert [(payload["cause"], payload["state"]) for payload in named] == [
            ("policy_collapsed", "active"),
            ("policy_collapsed", "cleared"),
        ] * 3
        assert "The run went back to the weights of step 0." in named[0]["summary"]


@pytest.mark.parametrize(
    ("action", "kind", "status", "why"),
    [
        ("pause", Restoring, "paused", "with step 0 as the last good one (on_collapse)"),
        ("step_back", ScriptedPolicy, "paused", "and the backend does not go back to it (on_collapse)"),
        ("continue", Restoring, "completed", None),
        (None, Restoring, "completed", None),  # as the tiny base has it by default
    ],
)
async def test_a_run_that_does_not_go_back_pauses_once_or_continues(
    data_dir: Path, database_url: str, action: str | None, kind: type[ScriptedPolicy], status: str, why: str | None
) -> None:
    async with service(data_dir, database_url, kind) as (client, backend):
        run_id = await start(client, RUN | {"iterations": 3, "on_collapse": action})
        run = await ended(client, run_id)
        assert run["status"] == status
        if why is not None:
            assert run["progress"]["iterations_done"] == 2
            assert why in run["wait_reason"]
            assert (await client.post(f"/runs/{run_id}/resume")).status_code == 202
            assert (await ended(client, run_id))["status"] == "completed"
        assert await restored(client, run_id) == [None] * 3
        assert backend.rates == pytest.approx([0.001] * 3)
        named = (await client.get(f"/runs/{run_id}/diagnosis")).json()["diagnoses"]
        assert "policy_collapsed" in [diagnosis["cause"] for diagnosis in named]
