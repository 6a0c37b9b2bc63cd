"""Requests and replies as JSON. Replies can have more members than are named here.

A test compares each type with the service's OpenAPI file.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict

RunStatus = Literal["queued", "running", "paused", "completed", "failed", "cancelled"]


class Named(TypedDict):
    """An environment, a judge or an agent, by name."""

    name: str
    config: NotRequired[dict[str, Any]]


class ModelChoice(TypedDict, total=False):
    """The model to train: a new or an existing one of the project, by name, and the base model of a new one."""

    name: str
    project: str
    base_model: str


class Budget(TypedDict, total=False):
    """Limits of a run."""

    max_usd: float
    max_minutes: float
    max_tokens: int


class Evaluation(TypedDict, total=False):
    """How often and on how many held-out scenarios the model is evaluated."""

    every: int
    scenarios: int
    test_scenarios: int
    samples: int
    seed: int


class Pipeline(TypedDict, total=False):
    """How far rollouts may run ahead of training."""

    max_staleness: int


class Demonstration(TypedDict):
    """A conversation to imitate, in OpenAI's format for fine-tuning."""

    messages: Sequence[Mapping[str, Any]]
    tools: NotRequired[Sequence[Mapping[str, Any]]]


class Demonstrations(TypedDict):
    """A version of stored demonstrations."""

    name: str
    version: int
    sha256: str
    count: int
    origin: dict[str, Any]
    created_at: str
    links: dict[str, str]


class StoredDemonstrations(TypedDict):
    """Stored demonstrations, as `NAME` (the newest version) or `NAME@VERSION`."""

    dataset: str


class OracleDemonstrations(TypedDict):
    """A number of training scenarios, solved by the environment's own oracle."""

    oracle: int


class WarmStart(TypedDict):
    """Supervised iterations on demonstrations, which precede those of reinforcement learning."""

    demonstrations: StoredDemonstrations | OracleDemonstrations
    epochs: NotRequired[int]
    batch_size: NotRequired[int]
    learning_rate: NotRequired[float]
    held_out: NotRequired[float]
    demonstrations_per_iteration: NotRequired[int]


class LearnLoopRequest(TypedDict, total=False):
    """The body of `POST /learn-loop`; every field has a default."""

    name: str
    environment: Named
    source: dict[str, Any]
    agent: Named
    judge: Named | list[dict[str, Any]]
    model: ModelChoice
    backend: str
    warm_start: WarmStart
    iterations: int
    groups_per_iteration: int
    rollouts_per_group: int
    replace_groups: bool
    scenario_sampling: Literal["passes", "difficulty"]
    end_when_learned: bool
    stop_when: dict[str, Any]
    max_turns: int
    max_completion_tokens: int
    learning_rate: float
    warmup_iterations: int
    temperature: float
    seed: int
    concurrency: int
    rollout_timeout_s: float
    train_options: dict[str, Any]
    pipeline: Pipeline
    evaluation: Evaluation
    budget: Budget
    checkpoints: dict[str, Any]
    on_no_signal: dict[str, Any]
    webhooks: list[dict[str, Any]]
    graph: list[dict[str, Any]] | dict[str, Any]
    depth: int


class Task(TypedDict, total=False):
    """A task for `POST /ask`: the fields of the included environments, or `input` for any other."""

    checkpoint: int
    environment: Named
    input: dict[str, Any]
    question: str
    inbox_address: str
    query_date: str
    prospect: str
    company: str
    role: str
    goal: str
    start: str | list[str]
    graph: str


class Accepted(TypedDict):
    """A run that was started, or that received a request."""

    run_id: str
    status: RunStatus


class RunModel(TypedDict):
    """The model that a run trains."""

    project: str
    name: str
    base_model: str


class Progress(TypedDict):
    """A run's progress: its iterations, and `done` of `total` parts of the current iteration's phase."""

    iterations_done: int
    iterations_total: int
    iteration: int | None
    phase: str | None
    done: int | None
    total: int | None


class BestCheckpoint(TypedDict):
    """The newest checkpoint that cannot be told apart from the one with the best result on the validation scenarios,
    the share that it solved, and the 95% interval of that share."""

    step: int
    success: float | None
    interval: list[float] | None


class Verdict(TypedDict):
    """Whether a run learned: its first held-out evaluation compared with its latest one."""

    state: Literal[
        "learned",
        "got_worse",
        "no_change_shown",
        "too_early",
        "demonstrations_learned",
        "demonstrations_not_learned",
    ]
    points: float | None
    interval: list[float] | None
    on: dict[str, Any] | None
    text: str
    causes: list[str]


class RunState(TypedDict):
    """A run, as returned by `GET /runs/{run_id}`."""

    run_id: str
    status: RunStatus
    environment: str
    judge: str
    backend: str
    model: RunModel
    progress: Progress
    best_checkpoint: BestCheckpoint | None
    rollouts: int
    error: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    warnings: list[str]
    verdict: Verdict
    request: dict[str, Any]
    iterations: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    summary: dict[str, Any] | None


class Event(TypedDict):
    """Something that happened to a run; docs/events.md lists the types and the fields of `data`."""

    seq: int
    type: str
    version: int
    run_id: str
    iteration: int | None
    actor: str
    occurred_at: str
    data: dict[str, Any]


class Answer(TypedDict):
    """An agent's answer."""

    question: str | None
    answer: str | None
    source_ids: list[str]
    success: bool
    expected: str | None
    correct: bool | None
    sources_correct: bool | None
    note: str | None
    trajectory_id: str
    model: str
    step: int | None


class SessionLimits(TypedDict, total=False):
    """Limits of a session."""

    max_calls: int
    max_tokens: int


class SessionRequest(TypedDict, total=False):
    """The body of `POST /sessions`, besides the model."""

    ttl_s: float
    limits: SessionLimits
    restart: Literal["auto", "explicit"]
    project: str
    metadata: dict[str, Any]


class SessionAccess(TypedDict):
    """What an agent needs to work in a session."""

    id: str
    base_url: str
    api_key: str
    attempt: int
    expires_at: str


class Outcome(TypedDict, total=False):
    """How a session ended: a reward, parts of it, or an output for a judge; otherwise the reason why there is none."""

    reward: float
    parts: dict[str, float]
    output: str | dict[str, Any]
    reason: str
    facts: dict[str, bool]
    attempt: int


FeedbackType = Literal[
    "sent",
    "opened",
    "replied",
    "call_booked",
    "opportunity",
    "closed_won",
    "thumbs_up",
    "thumbs_down",
    "preferred",
    "outcome",
    "withdrawn",
]


class FeedbackEvent(TypedDict, total=False):
    """An event of `POST /feedback` without its type: its subject, and what belongs to the type."""

    event_id: str
    session_id: str
    trajectory_id: str
    run_id: str
    iteration: int
    user: str
    model: str
    over: str
    confidence: float
    comment: str
    name: str
    value: float
    withdraws: str
    occurred_at: str
    source: Literal["api", "simulator"]


class FeedbackTaken(TypedDict):
    """How many events were stored."""

    accepted: int
    duplicates: int
    links: dict[str, str]


class SessionOpinions(TypedDict):
    """A summary of people's opinions on a session."""

    events: int
    wins: float
    losses: float
    simulated: bool


class SessionState(TypedDict):
    """A session, as returned by `GET /sessions/{id}`."""

    id: str
    status: Literal["open", "ended", "expired"]
    project: str
    model: str
    checkpoint: str
    step: int | None
    attempt: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    reward: float | None
    feedback: SessionOpinions | None
    warnings: list[str]
    metadata: dict[str, Any]
    opened_at: str
    expires_at: str
    ended_at: str | None
