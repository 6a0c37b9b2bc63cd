"""The tools of the mail job over HTTP, for agents in any language; stands in for a team's own systems.

`POST /open {"session", "task"}` returns the opening `messages`, the `tools` and `max_turns`;
`POST /call {"session", "name", "arguments"}` returns the result's `content`, whether it is `final`, and if so the
`outcome`; `POST /end {"session", "reason"}` returns the outcome of an agent that stops without a final call. The
rewards are the built-in environment's.
"""

import json
from collections.abc import Mapping, Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from learnloop_service.environment.base import Episode, Json, Scenario, Split, ToolError
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.judges.base import Candidate
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.rollout.episode_tools import call_tool, out_of_turns

ENVIRONMENT = SyntheticEmailSearch()
JUDGE = ReferenceJudge()


def tasks(split: Split, count: int, seed: int) -> list[dict[str, Json]]:
    """Return scenarios of the environment `agent`, the ones that a run of `email_search` with that seed attempts."""
    return [
        {"id": scenario.id, "split": split, "task": {**scenario.task, "id": scenario.id, "split": split, "seed": seed}}
        for scenario in ENVIRONMENT.scenarios(split, count, seed)
    ]


class MailDesk:
    """The mailboxes that agents work in."""

    def __init__(self, scenarios: Sequence[Scenario]) -> None:
        self._scenarios = {scenario.id: scenario for scenario in scenarios}
        self._open: dict[str, Episode] = {}

    def app(self) -> Starlette:
        """Return the HTTP application."""
        return Starlette(
            routes=[
                Route(f"/{endpoint.__name__}", endpoint, methods=["POST"])
                for endpoint in (self.open, self.call, self.end)
            ]
        )

    async def open(self, request: Request) -> JSONResponse:
        body = await request.json()
        episode = self._open[body["session"]] = ENVIRONMENT.episode(self._scenarios[body["task"]["id"]])
        tools = [tool.openai() for tool in episode.tools]
        return JSONResponse({"messages": episode.messages(), "tools": tools, "max_turns": episode.max_turns})

    async def call(self, request: Request) -> JSONResponse:
        body = await request.json()
        episode, arguments = self._open[body["session"]], body["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        try:
            result = await call_tool(episode, body["name"], text, "call")
        except ToolError as error:
            episode.end("malformed", str(error))
            return JSONResponse({"content": str(error), "final": True, "outcome": await _outcome(episode)})
        reply: dict[str, Json] = {"content": result.content, "final": result.final}
        return JSONResponse(reply | ({"outcome": await _outcome(episode)} if result.final else {}))

    async def end(self, request: Request) -> JSONResponse:
        body = await request.json()
        episode = self._open[body["session"]]
        detail = out_of_turns(episode) if body["reason"] == "out_of_turns" else "no tool call in the reply"
        episode.end(body["reason"], detail)
        return JSONResponse({"outcome": await _outcome(episode)})


async def _outcome(episode: Episode) -> Mapping[str, Json]:
    """Return what the agent reports: the parts of the built-in environment's reward."""
    outcome = episode.outcome()
    [score] = (await JUDGE.judge(episode.scenario, [Candidate("it", outcome, ())])).scores
    return {"parts": ENVIRONMENT.reward(outcome, score.value or 0.0)}
