"""A run says whether its backend repeats it to the bit, and keeps the worse answer of its backends."""

import threading
from pathlib import Path

from learnloop_service.training.backends.base import ModelSpec
from learnloop_service.training.protocol.model_facts import Reproducibility
from tests.conditions import until
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop, ScriptedPolicy
from tests.integration.app.served import run_with, served, settings_for


class OnProcessors(ScriptedBackend):
    """A backend that is reached on another processor each time; the answers are those processors'."""

    def __init__(self, *answers: Reproducibility) -> None:
        super().__init__()
        self._answers = list(answers)

    async def register(self, model: ModelSpec) -> ScriptedPolicy:
        policy = self.policies.setdefault(model, ScriptedPolicy(model, "http://127.0.0.1:9/v1"))
        policy.reproducibility = self._answers.pop(0)
        return policy


EXACT = Reproducibility(True, "all products are alike")
INEXACT = Reproducibility(False, "5 of 27 products differ")


async def test_a_run_says_whether_it_is_reproducible_and_why(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop(), OnProcessors(EXACT, INEXACT)) as client:
        for expected in (EXACT, INEXACT):
            run_id = (await client.post("/learn-loop", json={"iterations": 1})).json()["run_id"]
            run = await run_with(client, run_id, "completed")
            assert (run["reproducible"], run["reproducible_reason"]) == (expected.reproducible, expected.reason)


async def test_what_was_not_exact_once_stays_so(data_dir: Path, database_url: str) -> None:
    """The second life of the run finds a processor that is exact; its first iterations were made on another."""
    loop = ScriptedLoop(gates={1: threading.Event()})
    async with served(settings_for(data_dir, database_url), loop, OnProcessors(INEXACT, EXACT)) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 1})).json()["run_id"]
        await until(loop.has_entered(1).is_set)
        assert (await client.post(f"/runs/{run_id}/pause")).is_success
        await run_with(client, run_id, "paused")
        loop.gates[1].set()
        assert (await client.post(f"/runs/{run_id}/resume")).is_success
        run = await run_with(client, run_id, "completed")
        assert (run["reproducible"], run["reproducible_reason"]) == (False, INEXACT.reason)
