"""A backend and a learn loop that follow a script, for tests of the service around them.

The loop yields results like those of real rollouts, waits where a test requests it, and records its progress.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

from learnloop_service.environment.base import Environment, Json, Scenario
from learnloop_service.judges.base import Judge, Score
from learnloop_service.training.backends.base import Backend, Endpoint, ModelSpec, Policy, TrainOutcome, TrainRequest
from learnloop_service.training.journal import Journal
from learnloop_service.training.phases import Phase
from learnloop_service.training.protocol.model_facts import Reproducibility
from learnloop_service.training.types import (
    Evaluation,
    Group,
    IterationProgress,
    IterationResult,
    Resume,
    RewardSummary,
    Rollout,
    RunConfig,
    ScoredRollout,
    Timing,
)
from tests.policies import train

NOWHERE = "http://127.0.0.1:9/v1"


class ScriptedPolicy:
    """A policy that takes the next step on every train request."""

    settle_timeout_s = 0.0
    reproducibility = Reproducibility(True, "It is scripted.")

    def __init__(self, model: ModelSpec, endpoint_url: str) -> None:
        self.model = model
        self._url = endpoint_url
        self._step = 0
        self.deleted: set[int] = set()
        self.requests: list[TrainRequest] = []

    async def step(self) -> int:
        return self._step

    def endpoint(self, step: int | None = None) -> Endpoint:
        return Endpoint(
            self._url, "key", f"{self.model.project}/{self.model.name}@{self._step if step is None else step}"
        )

    async def submit(self, request: TrainRequest) -> str:
        self.requests.append(request)
        self._step = request.expected_step + 1
        return f"job-{self._step}"

    async def follow(self, job_id: str, expected_step: int) -> TrainOutcome:
        return TrainOutcome(expected_step + 1, {"loss": 0.5})

    async def metrics(self, step: int) -> dict[str, float]:
        return {}

    async def delete_checkpoints(self, keep: set[int]) -> list[int]:
        doomed = set(range(self._step)) - keep - self.deleted
        self.deleted |= doomed
        return sorted(doomed)


class ScriptedBackend:
    """Keeps its policies for its whole life; `close` does nothing."""

    name = "embedded"

    def __init__(self, endpoint_url: str = NOWHERE) -> None:
        self.endpoint_url = endpoint_url
        self.policies: dict[ModelSpec, ScriptedPolicy] = {}

    async def connect(self, name: str) -> Backend:
        return self

    async def register(self, model: ModelSpec) -> Policy:
        return self.policies.setdefault(model, ScriptedPolicy(model, self.endpoint_url))

    async def checkpoints(self, project: str, name: str) -> frozenset[int]:
        policies_of_model = [
            policy for model, policy in self.policies.items() if (model.project, model.name) == (project, name)
        ]
        steps = [set(range(await policy.step() + 1)) - policy.deleted for policy in policies_of_model]
        return frozenset().union(*steps)

    async def delete(self, model: ModelSpec) -> None:
        for spec in [spec for spec in self.policies if (spec.project, spec.name) == (model.project, model.name)]:
            del self.policies[spec]

    async def close(self) -> None:
        return None


@dataclass
class ScriptedTrajectory:
    """The part of `art.Trajectory` that is saved, without its import, which takes seconds."""

    reply: str = "the answer"
    tools: list[Json] = field(default_factory=lambda: [{"type": "function", "function": {"name": "search_inbox"}}])
    metrics: dict[str, float] = field(
        default_factory=lambda: {"turns": 2, "prompt_tokens": 100, "completion_tokens": 20}
    )
    additional_histories: tuple[()] = ()

    @property
    def messages_and_choices(self) -> list[Json]:
        return [{"role": "user", "content": "a question"}, {"role": "assistant", "content": self.reply}]


@dataclass
class ScriptedLoop:
    """Stands in for `learnloop_service.training.loop.learn_loop.learn_loop`.

    `gates[k]` holds iteration k back until it is set; `fail_at` makes an iteration raise `error`; `reply` is the reply
    of all agents. `has_entered(k)` is set when iteration k begins, `closed` when the generator has been closed. The
    events are threading's, because the loop runs on its own thread.
    """

    gates: dict[int, threading.Event] = field(default_factory=dict)
    fail_at: int | None = None
    error: Exception = field(default_factory=lambda: RuntimeError("scripted failure"))
    reply: str = "the answer"
    entered: dict[int, threading.Event] = field(default_factory=dict)
    closed: threading.Event = field(default_factory=threading.Event)
    held_out: dict[int, list[bool]] = field(default_factory=dict)
    """Which validation scenarios succeed after an iteration, in place of its usual evaluations. The baseline stays the
    best checkpoint."""

    def has_entered(self, iteration: int) -> threading.Event:
        return self.entered.setdefault(iteration, threading.Event())

    async def __call__(
        self,
        config: RunConfig,
        environment: Environment,
        judge: Judge,
        policy: Policy,
        *,
        progress: Callable[[IterationProgress], None],
        journal: Journal,
        resume: Resume | None,
        **_: object,
    ) -> AsyncGenerator[IterationResult, None]:
        try:
            for iteration in range(resume.iteration if resume else 0, config.iterations + 1):
                self.has_entered(iteration).set()
                progress(IterationProgress(iteration, Phase.ROLLOUT, 3, 64))
                while iteration in self.gates and not self.gates[iteration].is_set():
                    await asyncio.sleep(0.005)
                if iteration == self.fail_at:
                    raise self.error
                step = await policy.step()
                if iteration > 0:
                    step = (await train(policy, expected_step=step)).step
                result = scripted_result(policy, iteration, step, config.iterations, self.reply)
                if iteration in self.held_out:
                    result = _with_validation(result, self.held_out[iteration])
                yield result
        finally:
            self.closed.set()


def scripted_result(policy: Policy, iteration: int, step: int, last: int, reply: str) -> IterationResult:
    """Return a plausible iteration: one group of two, with evaluations at the baseline and at the end. Each step is
    better than the one before."""
    name = policy.endpoint(step).model.replace("/", "-")
    group = Group(_scenario("train"), tuple(_scored(f"{name}-{iteration}-{n}", "train", n, reply) for n in range(2)))
    evaluated = iteration in (0, last)
    return IterationResult(
        iteration=iteration,
        step=step,
        model=policy.endpoint(step).model,
        groups=(group,) if iteration else (),
        rewards=RewardSummary(0.1 * iteration, 0.1, 0.0, 1.0, 2)
        if iteration
        else RewardSummary(None, None, None, None, 0),
        success=0.5 if iteration else None,
        malformed=0.0 if iteration else None,
        failed_rollouts=0,
        skipped_groups={"no_signal": 1},
        train_metrics={"loss": float("nan")} if iteration else {},
        evaluations=tuple(_evaluation(name, mode, iteration, step, reply) for mode in _MODES) if evaluated else (),
        best_step=step,
        timing=Timing(rollout_s=1.0, total_s=2.0, prompt_tokens=1000, completion_tokens=100),
    )


_NO_REWARDS = RewardSummary(None, None, None, None, 0)
_MODES = (("validation", "sampled"), ("test", "sampled"), ("test", "greedy"))


def _evaluation(name: str, mode: tuple[Any, Any], iteration: int, step: int, reply: str) -> Evaluation:
    split, way = mode
    rollout = _scored(f"{name}-{iteration}-{split}-{way}", split, 0, reply)
    return Evaluation(split, way, step, 1, min(1.0, 0.2 + 0.1 * step), 0.3, 0.1, 2.0, (rollout,))


def _with_validation(result: IterationResult, successes: list[bool]) -> IterationResult:
    """Replace the evaluations with one of the validation split."""
    rollouts = []
    for number, success in enumerate(successes):
        one = _scored(f"{result.model.replace('/', '-')}-{result.iteration}-v{number}", "validation", 0, "an answer")
        task, reference = {"question": f"what {number}?"}, {"answer": "that", "source_ids": ["m1"]}
        scenario = Scenario(f"validation:{number}", "validation", task, reference)
        rollouts.append(
            replace(
                one,
                rollout=replace(one.rollout, scenario=scenario),
                success=success,
                why_no_success=None if success else WHY_NO_SUCCESS,
            )
        )
    share = sum(successes) / len(successes)
    evaluation = Evaluation(
        "validation", "sampled", result.step, len(successes), share, share, 0.0, 2.0, tuple(rollouts)
    )
    return replace(result, evaluations=(evaluation,), best_step=0)


WHY_NO_SUCCESS = "no source cited; expected <b>pebro</b>\u202e"
"""What its environment says of a rollout that is not a success, with what a page must not interpret."""


def _scenario(split: Any) -> Scenario:
    return Scenario(f"{split}:1", split, {"question": f"what of {split}?"}, {"answer": "that"})


def _scored(rollout_id: str, split: Any, n: int, reply: str) -> ScoredRollout:
    trajectory = cast(Any, ScriptedTrajectory(reply))
    rollout = Rollout(
        rollout_id,
        _scenario(split),
        trajectory,
        {"finish": None, "answer": reply},
        None,
        1_700_000_000.0,
        0.5,
    )
    verdict = Score(float(n), "as scripted", {"words": 1.0})
    why = None if n == 1 else WHY_NO_SUCCESS
    return ScoredRollout(rollout, verdict, float(n), {"answer": 1.0}, n == 1, 0.5, why_no_success=why)
