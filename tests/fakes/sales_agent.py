"""A small knowledge graph, and scripted models that walk it well or carelessly, depending on the seed."""

import re
from collections.abc import Mapping
from random import Random
from typing import Any

from tests.fakes.scripted_chat import Reply, call

GRAPH: list[dict[str, Any]] = [
    {
        "id": "job-quotes",
        "content": "Customer Job: Quotes take the team 12 hours a week.",
        "edge": [
            {"target_id": "fact-office", "relationship": "linked to", "rationale": ""},
            {"target_id": "fact-lists", "relationship": "slowed by", "rationale": "each quote needs <b>data</b>"},
        ],
    },
    {
        "id": "fact-lists",
        "content": "The data for each quote comes from 7 lists.",
        "edge": [{"target_id": "feature-tavo", "relationship": "solved by", "rationale": "it merges lists"}],
    },
    {"id": "fact-office", "content": "Zürich moved the quote office to the north.", "edge": []},
    {"id": "feature-tavo", "content": "Product Feature: Tavo checks each quote in 9 seconds.", "edge": []},
]
"""A graph as CoDreamer's frontend posts it."""

WAY = ("job-quotes", "fact-lists", "feature-tavo")
SUBJECT = "Tavo für Sie"
_SAYS = "Quotes take the team 12 hours a week. Tavo checks each quote in 9 seconds. Shall we talk this week?"
_TASK = re.compile(r"Prospect: (\S+) .* at (.+)\. Goal:")


async def sales_agent(request: Mapping[str, Any]) -> Reply:
    """Act well when greedy. When sampled, read the way and cite it, write a page with a script, babble, or fail."""
    turn = sum(message["role"] == "assistant" for message in request["messages"])
    task = request["messages"][1]["content"]
    luck = 0.0 if request["temperature"] == 0 else Random(f"{task}:{request['seed']}").random()
    if turn == 0 and luck > 0.9:
        return Reply(status=400)
    if turn == 0 and luck > 0.8:
        return Reply(content="Dear Sir or Madam")
    if turn < len(WAY) and luck < 0.5:
        return call("get_relevant_context", node_id=WAY[turn])
    if luck >= 0.5:
        return call("finalize_email", subject="<script>alert(1)</script>", body=_SAYS, citations=[WAY[0]])
    names = _TASK.match(task)
    assert names
    body = f"Hi {names[1]}, a note for {names[2]}. {_SAYS}"
    return call("finalize_email", subject=SUBJECT, body=body, citations=list(WAY))


async def silent_agent(request: Mapping[str, Any]) -> Reply:
    """Read forever and never write an email. Half of the sampled rollouts end in babble, so that rewards differ."""
    if request["temperature"] and Random(request["seed"]).random() < 0.5:
        return Reply(content="Dear Sir or Madam")
    return call("get_relevant_context", node_id=WAY[0])
