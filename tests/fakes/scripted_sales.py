"""The scripted service with a run of the sales agent: its emails, their trajectories and its node scores."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI

from learnloop_sales.environment import SalesEmail
from learnloop_sales.scenarios import home_world
from learnloop_service.app.schemas.ask import AskOut, Email
from learnloop_service.app.schemas.base import Page
from learnloop_service.app.schemas.results import NodeScores
from learnloop_service.app.schemas.runs import RunOut
from learnloop_service.app.schemas.trajectories import TrajectoryBrief
from tests.fakes.scripted_service import RUN_ID, STARTED, ScriptedService

SCENARIOS = SalesEmail().scenarios("test", 5, seed=0)
HOSTILE = "[bold red]Hello[/bold red] \x1b[31m<script>alert(1)</script>"
"""Body of an email that tries to attack the program that shows it."""
HOME = home_world(0)


class ScriptedSales(ScriptedService):
    """Its base model writes a hostile email to the first prospect and no other; the trained agent writes correctly."""

    def run(self) -> RunOut:
        request = {"environment": {"name": "sales_email", "config": {}}, "seed": 0}
        return super().run().model_copy(update={"environment": "sales_email", "judge": "grounding", "request": request})

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.get("/runs/{run_id}/trajectories")
        def trajectories(run_id: str, iteration: int, split: str, mode: str) -> Page[TrajectoryBrief]:
            rows = [_trajectory(f"t{n}", n, iteration) for n in range(len(SCENARIOS))]
            return Page(items=rows, next_cursor=None)

        @app.post("/ask")
        def ask(request: dict[str, Any]) -> AskOut:
            self.asks.append(request)
            number = next(n for n, scenario in enumerate(SCENARIOS) if scenario.task["prospect"] == request["prospect"])
            trained = "run_id" in request
            email = _email(number, trained)
            return AskOut(
                question=None,
                answer=email.body if email else None,
                source_ids=email.citations if email else [],
                success=trained,
                email=email,
                trajectory_id=f"{'trained' if trained else 'base'}-{number}",
                model="learnloop/sales@3",
                step=3 if trained else None,
            )

        @app.get("/trajectories/{trajectory_id}")
        def trajectory(trajectory_id: str) -> dict[str, Any]:
            """Return the outcome, the only part that the demo uses."""
            names = ("citations_read", "cited_product", "named_prospect", "named_company")
            return {"id": trajectory_id, "outcome": dict.fromkeys(names, trajectory_id.startswith("trained"))}

        @app.get("/runs/{run_id}/node-scores")
        def node_scores(run_id: str, iteration: int) -> NodeScores:
            """Return scores that fall with every iteration for nodes that lead nowhere."""
            falls = {id: 0.1 * iteration * (id not in HOME.graph.distance) for id in HOME.graph.nodes}
            scores = {id: 1.0 - fall for id, fall in falls.items()}
            return NodeScores(run_id=run_id, iteration=iteration, node_scores=scores, ranked=sorted(scores))

        app.mount("/", super().app())
        return app


def _email(number: int, trained: bool) -> Email | None:
    right: Mapping[str, Any] = SCENARIOS[number].reference["email"]
    if trained:
        return Email(**right)
    return Email(subject="A question", body=HOSTILE, citations=["ghost"]) if number == 0 else None


def _trajectory(id: str, number: int, iteration: int) -> TrajectoryBrief:
    scenario = SCENARIOS[number]
    return TrajectoryBrief(
        id=id,
        run_id=RUN_ID,
        kind="evaluation",
        iteration=iteration,
        split="test",
        mode="greedy",
        model="learnloop/tiny",
        step=0,
        scenario_id=scenario.id,
        scenario={"task": scenario.task, "reference": scenario.reference},
        outcome={},
        score=0.0,
        reward=0.0,
        advantage=None,
        success=False,
        error=None,
        turns=3,
        prompt_tokens=100,
        completion_tokens=40,
        seconds=0.5,
        started_at=STARTED,
    )
