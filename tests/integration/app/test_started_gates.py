"""Gates that code of the service starts: with an error of its own, in the transaction of what they decide."""

from pathlib import Path

import pytest

from learnloop_service.app.domain.evaluation_state import EvaluationStatus
from learnloop_service.app.domain.stored_evaluation import Gate, GateEvaluation
from learnloop_service.app.errors import Conflict
from learnloop_service.app.evaluations.store import EvaluationStore
from tests.fakes.scripted_chat import scripted_chat
from tests.integration.app.hinted_prompts import HINTED, right_when_hinted, store
from tests.integration.app.started_evaluations import starting_service

MODELS = [{"model": "learnloop/tiny", "prompt": None}, {"prompt": "hinted@1"}]


async def test_a_gate_spends_the_error_that_its_caller_gives_it(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(right_when_hinted) as chat, starting_service(data_dir, database_url, chat) as service:
        await store(service.client, HINTED)
        request = {"models": MODELS, "scenarios": 24, "split": "validation"}
        tasks = {}
        for error in (0.05, 0.05 / 60):
            gate = Gate(error=error, exact=0.8, look_every=8)
            job = await service.ended(await service.start(request, GateEvaluation, gate=gate))
            assert job.status == EvaluationStatus.COMPLETED, job.error
            assert job.report is not None
            decided = job.report["gate"]
            assert (decided["decision"], decided["error"]) == ("better", error)
            tasks[error] = decided["tasks"]
        assert tasks[0.05] < tasks[0.05 / 60], "a smaller error needs more tasks"


async def test_a_refusal_in_its_transaction_leaves_no_evaluation(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(right_when_hinted) as chat, starting_service(data_dir, database_url, chat) as service:
        moved = Conflict("the improvement has moved on")
        with pytest.raises(Conflict, match="moved on"):
            await service.start({"models": MODELS[:1], "scenarios": 1}, refusal=moved)
        assert await EvaluationStore(service.database).listed(before=None, limit=1) == []
