"""Runs to be judged again."""

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from learnloop_service.training.loop.learn_loop import learn_loop
from tests.fakes.scripted_chat import Reply, call, scripted_chat
from tests.fakes.scripted_judge import KEY, Raw, ScriptedJudge, completion
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.ended_evaluations import reference
from tests.integration.app.served import served, settings_for

RUN = {
    "iterations": 2,
    "groups_per_iteration": 2,
    "rollouts_per_group": 4,
    "evaluation": {"every": 1, "scenarios": 2, "test_scenarios": 0, "samples": 2},
}


@asynccontextmanager
async def rejudging_service(
    data_dir: Path, database_url: str, judge: ScriptedJudge, **more: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A service whose agent is right every other time, and whose judge model accepts its other answers, too."""
    turn = itertools.count()

    async def answer(request: Any) -> Reply:
        right = reference(request)
        if next(turn) % 2:
            return call("return_final_answer", answer="no idea at all", sources=right["source_ids"])
        return call("return_final_answer", answer=right["answer"], sources=right["source_ids"])

    def opinion(request: Any) -> Raw:
        said = json.loads(request["messages"][1]["content"])["agent_answer"]
        document = json.dumps({"explanation": f"on {said}", "correct": said == "no idea at all"})
        return Raw(body=json.dumps(completion(document) | {"usage": {"prompt_tokens": 30, "completion_tokens": 5}}))

    judge.reply = opinion  # type: ignore[method-assign]
    model = {"judge_model": "openai/gpt-4.1-mini", "judge_base_url": judge.url, "judge_api_key": KEY}
    async with scripted_chat(answer) as chat:
        settings = settings_for(data_dir, database_url, **model, **more)
        backend = ScriptedBackend(chat.url)
        async with served(settings, learn_loop, backend) as client:  # type: ignore[arg-type]
            yield client
