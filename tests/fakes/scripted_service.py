"""An HTTP server that answers like the service, with runs that follow a test's script.

Replies are built from the service's own response classes, so they cannot drift from it. Tests use the real service
wherever they need no control over a run.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import uvicorn
from fastapi import FastAPI

from learnloop_service.app import errors
from learnloop_service.app.api.events import EventOut
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.schemas.ask import AskOut
from learnloop_service.app.schemas.base import Page
from learnloop_service.app.schemas.run_request import LearnLoopRequest
from learnloop_service.app.schemas.runs import (
    BestCheckpoint,
    DifferenceOut,
    ExpectedRollouts,
    ExpectedWork,
    IterationFigures,
    LearnLoopAccepted,
    ModelOut,
    Progress,
    Rewards,
    RunEvaluationOut,
    RunListed,
    RunOut,
    Tokens,
    VerdictOut,
)
from learnloop_service.app.schemas.trajectories import History, TrajectoryBrief, TrajectoryOut
from learnloop_service.app.statistics.verdict import verdict
from learnloop_service.training.statistics.difference import SuccessDifference

RUN_ID = "01KAJ3M7F5T2V8Q9X0C4D6E8GA"
STARTED = datetime(2026, 11, 21, 9, tzinfo=UTC)
REFERENCES = {f"test.0.{number}@inbox.example": f"{number + 1} March" for number in range(5)}


TRAJECTORY = TrajectoryOut(
    id=f"{RUN_ID}-1-train-0-0",
    run_id=RUN_ID,
    kind="train",
    iteration=1,
    split="train",
    mode="sampled",
    model="learnloop/mail",
    step=None,
    scenario_id="train:7",
    scenario={"task": {"question": "When?"}, "reference": {"answer": "14 March"}},
    outcome={"answer": "14 March"},
    score=0.75,
    reward=0.8,
    advantage=-0.5,
    success=False,
    why_no_success="no source cited; expected [b]pebro[/b]\x1b[31m",
    error=None,
    turns=2,
    prompt_tokens=1_200,
    completion_tokens=34,
    seconds=1.25,
    started_at=STARTED,
    messages=[
        {"role": "system", "content": "You answer [bold]questions[/bold]."},
        {"role": "user", "content": [{"type": "text", "text": "When?\u001b[31m"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {"name": "search_inbox", "arguments": '{"keywords": ["x"]}'}}],
        },
        {"role": "tool", "name": "search_inbox", "content": "y" * 5_000},
        {"role": "assistant", "content": "14 March"},
    ],
    additional_histories=[History(messages=[{"role": "user", "content": "Summarise."}], tools=[])],
    tools=[],
    score_explanation="The answer agrees with the reference.",
    score_parts={"agreement": 1.0},
    reward_parts={"answer": 1.0, "turns": -0.2},
)


@dataclass
class ScriptedService:
    """Its run advances by one iteration per read, and ends with `ends_as` after the last one (None: never)."""

    ends_as: RunStatus | None = RunStatus.COMPLETED
    iterations: int = 3
    posted: list[dict[str, Any]] = field(default_factory=list)
    asks: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of POST /evaluations, which are all refused."""
    releases: list[dict[str, Any]] = field(default_factory=list)
    """The same for releases."""
    listed: list[str] = field(default_factory=lambda: [RUN_ID, RUN_ID])
    """Ids in the list of runs, one on each page."""
    cancelled: bool = False
    reads: int = 0
    url: str = ""
    away_at: int | None = None
    """Number of the read of the run that fails as if the database were starting."""
    being_read: threading.Event = field(default_factory=threading.Event)

    def run(self) -> RunOut:
        """Return the current state of the run."""
        completed = min(self.reads, self.iterations)
        status = RunStatus.RUNNING
        if self.cancelled:
            status = RunStatus.CANCELLED
        elif self.ends_as is not None and self.reads > self.iterations:
            status = self.ends_as
        ended = status != RunStatus.RUNNING
        evaluations = [_evaluation(0, "sampled", 0.25), _evaluation(0, "greedy", 0.125)]
        if ended:
            evaluations += [_evaluation(completed, "sampled", 0.75), _evaluation(completed, "greedy", 0.5)]
        return RunOut(
            run_id=RUN_ID,
            status=status,
            environment="email_search",
            judge="reference",
            backend="embedded",
            on_engine=True,
            model=ModelOut(project="learnloop", name="mail", base_model="learnloop/tiny"),
            progress=Progress(
                iterations_done=completed,
                iterations_total=self.iterations,
                iteration=None if ended else completed,
                phase=None if ended else "rollout",
                done=None if ended else 16,
                total=None if ended else 64,
            ),
            best_checkpoint=BestCheckpoint(step=completed, success=0.5),
            rollouts=64 * completed,
            tokens=Tokens(prompt=10_000 * completed, completion=4_000 * completed),
            error="the engine ended" if status == RunStatus.FAILED else None,
            created_at=STARTED,
            started_at=STARTED,
            finished_at=STARTED + timedelta(seconds=20) if ended else None,
            links={},
            cancel_requested=self.cancelled,
            request={"environment": {"name": "email_search", "config": {}}, "seed": 0},
            iterations=[_iteration(number) for number in range(completed + 1)],
            evaluations=evaluations,
            verdict=VerdictOut.model_validate(asdict(verdict([evaluation.model_dump() for evaluation in evaluations]))),
            summary=None,
            webhooks={},
            last_event=min(self.reads, 7),
        )

    def app(self) -> FastAPI:
        """Return the app with the server's routes."""
        app = FastAPI()
        errors.install(app)

        @app.post("/learn-loop", status_code=202)
        def start(request: LearnLoopRequest) -> LearnLoopAccepted:
            self.posted.append(request.model_dump(exclude_unset=True))
            return LearnLoopAccepted(
                run_id=RUN_ID,
                status=RunStatus.QUEUED,
                results_path=f"/runs/{RUN_ID}",
                links={},
                expected=ExpectedWork(
                    rollouts=ExpectedRollouts(baseline=36, training=1_280, evaluations=120), seconds=250.0
                ),
            )

        @app.get("/runs")
        def runs(cursor: int = 0, limit: int = 100, search: str = "") -> Page[RunListed]:
            """Return a page with one run, or with none."""
            ids = [id for id in self.listed if search in id]
            listed = [
                RunListed.model_validate(
                    self.run().model_dump()
                    | {"run_id": id, "settings_hash": "a" * 32, "seed": 0, "learning_rate": 7e-4}
                    | {"judge_usd": 0.0, "curve": None}
                )
                for id in ids[cursor : cursor + 1]
            ]
            return Page(items=listed, next_cursor=str(cursor + 1) if cursor + 1 < len(ids) else None)

        @app.get("/runs/{run_id}")
        def run(run_id: str) -> RunOut:
            if run_id != RUN_ID:
                raise errors.NotFound(f"There is no run {run_id!r}.")
            self.reads += 1
            self.being_read.set()
            if self.reads == self.away_at:
                raise errors.Unavailable("The database is unreachable; retry.")
            return self.run()

        @app.get("/runs/{run_id}/events")
        def events(run_id: str, cursor: int = 0, limit: int = 50) -> Page[EventOut]:
            return Page(items=[_event(seq) for seq in range(cursor + 1, min(self.reads, 7) + 1)], next_cursor=None)

        @app.get("/trajectories/{trajectory_id}")
        def one_trajectory(trajectory_id: str) -> TrajectoryOut:
            if trajectory_id != TRAJECTORY.id:
                raise errors.NotFound(f"There is no trajectory {trajectory_id!r}.")
            return TRAJECTORY

        @app.post("/runs/{run_id}/cancel", status_code=202)
        def cancel(run_id: str) -> RunOut:
            self.cancelled = True
            return self.run()

        @app.get("/runs/{run_id}/trajectories")
        def trajectories(run_id: str, iteration: int, split: str, mode: str) -> Page[TrajectoryBrief]:
            """Return every scenario twice, as in sampled evaluations."""
            ids = [id for id in REFERENCES for _ in range(2)]
            return Page(items=[_trajectory(number, id, iteration) for number, id in enumerate(ids)], next_cursor=None)

        @app.post("/evaluations")
        def evaluate(request: dict[str, Any]) -> None:
            self.evaluations.append(request)
            raise errors.Conflict("This service evaluates nothing.")

        @app.post("/promotions/{project}/{name}/releases")
        def release(project: str, name: str, request: dict[str, Any]) -> None:
            self.releases.append(request)
            raise errors.Conflict("This service releases nothing.")

        @app.post("/ask")
        def ask(request: dict[str, Any]) -> AskOut:
            """Answer a question: the base model is always wrong, a trained agent always right."""
            self.asks.append(request)
            answer = REFERENCES.get(request.get("inbox_address", ""), "14 March")
            trained = "run_id" in request
            return AskOut(
                question=request.get("question"),
                answer=answer if trained else None,
                source_ids=["tolu"] if trained else [],
                success=trained,
                trajectory_id="trajectory-1",
                model="learnloop/mail@3",
                step=3,
            )

        return app


@contextmanager
def serving(service: ScriptedService) -> Iterator[ScriptedService]:
    """Run the service in a thread, on a free port of 127.0.0.1."""
    server = uvicorn.Server(uvicorn.Config(service.app(), host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.005)
    service.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield service
    finally:
        server.should_exit = True
        thread.join()


def _iteration(number: int) -> IterationFigures:
    reward = number / 10
    return IterationFigures(
        iteration=number,
        step=number,
        rewards=Rewards(mean=reward, median=reward, min=-0.5, max=1.0, count=64),
        success=number / 8,
        malformed=0.125,
    )


_DIFFERENCE = DifferenceOut(**asdict(SuccessDifference(64, 40, 0.5, 0.375, 0.625, 0.125)))


def _evaluation(iteration: int, mode: Any, success: float) -> RunEvaluationOut:
    return RunEvaluationOut(
        iteration=iteration,
        split="test",
        mode=mode,
        step=iteration,
        scenarios=64,
        success=success,
        mean_reward=success - 0.125,
        malformed=0.0625,
        turns=3.5,
        difference=_DIFFERENCE if iteration else None,
    )


def _trajectory(number: int, scenario_id: str, iteration: int) -> TrajectoryBrief:
    return TrajectoryBrief(
        id=f"t{number}",
        run_id=RUN_ID,
        kind="evaluation",
        iteration=iteration,
        split="test",
        mode="sampled",
        model="learnloop/tiny",
        step=0,
        scenario_id=scenario_id,
        scenario={
            "task": {"question": "When is the kickoff?", "inbox_address": scenario_id, "query_date": "2026-04-01"},
            "reference": {"answer": REFERENCES[scenario_id], "source_ids": ["tolu"]},
        },
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


def _event(seq: int) -> EventOut:
    """Return an event. Only the third one is printed on a separate line."""
    kind, data = ("phase.completed", {"phase": "rollout"}) if seq != 3 else ("run.released", {"attempt": 1})
    return EventOut(
        seq=seq, type=kind, version=1, run_id=RUN_ID, iteration=None, actor="worker:a", occurred_at=STARTED, data=data
    )
