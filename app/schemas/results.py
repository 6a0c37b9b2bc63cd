"""Bodies of the responses about a run's results."""

from datetime import datetime
from typing import Any

from pydantic import Field

from app.schemas.base import ResponseModel

Json = Any


class LedgerRow(ResponseModel):
    """What one phase of an iteration used."""

    id: int
    iteration: int
    phase: str
    """rollout, judge, train, reflect, evaluate, or other (time between these)."""
    seconds: float
    prompt_tokens: int
    completion_tokens: int
    usd: float | None
    """Price of the judge calls; null if no price is known."""
    wasted: bool
    """Whether the work was lost, for example because a worker died before saving it."""


class LedgerTotals(ResponseModel):
    """Sums over the whole ledger; `wasted_*` are the parts that led to nothing: lost or failed work, and groups
    that could not be trained on."""

    seconds: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float | None = None
    wasted_tokens: int = 0
    wasted_usd: float | None = None


class RunCost(LedgerTotals):
    """What a run has used so far: the totals of its ledger, and the judge models' part of it. Calls without a known
    price count as 0 dollars."""

    judge_usd: float = 0.0
    judge_prompt_tokens: int = 0
    judge_completion_tokens: int = 0


class BudgetState(ResponseModel):
    """The limits of a run, and how much of each is used. A null limit means no limit."""

    max_usd: float | None
    max_minutes: float | None
    max_tokens: int | None
    spent_usd: float
    spent_minutes: float
    spent_tokens: int


class Ledger(ResponseModel):
    """One page of a run's ledger, with the totals and the budget of the whole run."""

    items: list[LedgerRow]
    next_cursor: str | None
    """Pass it as `cursor` to get the next page; null on the last page."""
    totals: LedgerTotals
    budget: BudgetState


class ShowcaseScenario(ResponseModel):
    """The task that the email was written for."""

    id: str
    task: dict[str, Json]


class ShowcaseEmail(ResponseModel):
    """The sample email: after each iteration the current agent writes one email for a fixed scenario."""

    iteration: int
    email_written: bool
    """False if the agent did not finish its email; the texts are empty then."""
    subject: str
    body: str
    citations: list[str]
    """Ids of the cited nodes."""
    trajectory_id: str
    scenario: ShowcaseScenario
    reward: float | None
    success: bool | None


class NodeScores(ResponseModel):
    """How useful each node of the graph has been for emails, after an iteration."""

    run_id: str
    iteration: int
    node_scores: dict[str, float]
    """Score in [0, 1] by node id."""
    ranked: list[str]
    """Node ids from the highest score to the lowest; equal ones by id."""


class JudgeCallOut(ResponseModel):
    """One verdict of a judge model, and what it cost."""

    id: int
    iteration: int
    judge: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None
    requests: int
    """Requests sent to the judge model, repeated ones included."""
    seconds: float
    cached: bool
    """Whether the verdict came from the cache."""
    error: str | None


class ResultItem(ResponseModel):
    """One result document of a run."""

    name: str
    content_type: str
    bytes: int | None
    """Size of the file in the results folder; null if it was not written there."""
    url: str
    """Where to download it."""


class RunResults(ResponseModel):
    """One page of the result documents of a run."""

    run_id: str
    results_path: str
    error: str | None
    """Why the results folder on disk is incomplete. Downloads are made from the database and always complete."""
    items: list[ResultItem]
    next_cursor: str | None
    """Pass it as `cursor` to get the next page; null on the last page."""


class Difference(ResponseModel):
    """A stored figure that differs from the one recomputed from the stored trajectories."""

    iteration: int
    what: str
    """Name of the figure."""
    trajectory_id: str | None = None
    stored: Json
    recomputed: Json


class Verification(ResponseModel):
    """Whether every stored figure of a run equals, bit for bit, the one recomputed from its stored trajectories."""

    run_id: str
    ok: bool
    iterations: int
    trajectories: int
    figures: int
    """Number of figures compared."""
    node_scores: int
    """Number of node scores among them."""
    difference_count: int
    differences: list[Difference] = Field(max_length=100)
    """The first 100 differences."""
    verified_at: datetime
