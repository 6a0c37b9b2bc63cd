"""Shapes of what the API answers about a run's results."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

Json = Any


class LedgerRow(BaseModel):
    """What a phase of an iteration used. `wasted`: by work that led to nothing."""

    id: int
    iteration: int
    phase: str
    """rollout, judge, train, reflect, evaluate, or other: time that belongs to none of them."""
    seconds: float
    prompt_tokens: int
    completion_tokens: int
    usd: float | None
    """Of judge calls whose price is known; None: of none it is."""
    wasted: bool


class LedgerTotals(BaseModel):
    """The sums of all rows, and of the wasted ones among them."""

    seconds: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float | None = None
    wasted_tokens: int = 0
    wasted_usd: float | None = None


class RunCost(LedgerTotals):
    """What a run took so far: all of it as in its ledger, and its judge models. Prices count where they are known."""

    judge_usd: float = 0.0
    judge_prompt_tokens: int = 0
    judge_completion_tokens: int = 0


class BudgetState(BaseModel):
    """The limits of a run, and what counts against them. None is no limit."""

    max_usd: float | None
    max_minutes: float | None
    max_tokens: int | None
    spent_usd: float
    spent_minutes: float
    spent_tokens: int


class Ledger(BaseModel):
    """A page of a run's ledger in the order of iterations, with the sums and the budget of the whole run."""

    items: list[LedgerRow]
    next_cursor: str | None
    totals: LedgerTotals
    budget: BudgetState


class ShowcaseScenario(BaseModel):
    """What the agent was told to do."""

    id: str
    task: dict[str, Json]


class ShowcaseEmail(BaseModel):
    """The email that the agent wrote after an iteration. If it wrote none, `email_written` is false and it is empty."""

    iteration: int
    email_written: bool
    subject: str
    body: str
    citations: list[str]
    trajectory_id: str
    scenario: ShowcaseScenario
    reward: float | None
    success: bool | None


class NodeScores(BaseModel):
    """The score of each node after an iteration."""

    run_id: str
    iteration: int
    node_scores: dict[str, float]
    ranked: list[str]
    """Node ids, the best first; equal ones by id."""


class JudgeCallOut(BaseModel):
    """What one verdict of a judge model cost."""

    id: int
    iteration: int
    judge: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None
    requests: int
    seconds: float
    cached: bool
    error: str | None


class ResultItem(BaseModel):
    """One document of a run's results."""

    name: str
    content_type: str
    bytes: int | None
    """Of the file in the folder; None where it was not written."""
    url: str


class RunResults(BaseModel):
    """The documents of a run, in order; pass `next_cursor` as `cursor` for the next part."""

    run_id: str
    results_path: str
    error: str | None
    """Why the folder is not complete. The documents here are made from the database and always are."""
    items: list[ResultItem]
    next_cursor: str | None


class Difference(BaseModel):
    """A stored figure that is not what the stored trajectories give."""

    iteration: int
    what: str
    trajectory_id: str | None = None
    stored: Json
    recomputed: Json


class Verification(BaseModel):
    """Whether every stored figure of a run follows, bit for bit, from its stored trajectories."""

    run_id: str
    ok: bool
    iterations: int
    trajectories: int
    figures: int
    """How many were compared."""
    node_scores: int
    """How many of them are scores of nodes."""
    difference_count: int
    differences: list[Difference] = Field(max_length=100)
    """The first hundred."""
    verified_at: datetime
