"""Bodies of the responses about a run's results."""

from datetime import datetime

from pydantic import Field

from learnloop_service.app.schemas.base import ResponseModel
from learnloop_service.environment.json_type import Json


class LedgerRow(ResponseModel):
    """What one phase of an iteration used."""

    id: int
    """Number of the row, rising."""
    iteration: int
    """Iteration that the work belongs to; 0 is the baseline."""
    phase: str
    """Kind of work: rollout, judge, train, reflect, evaluate, or other (time between these)."""
    seconds: float
    """Duration in seconds; 0 for wasted work, which ran alongside other work."""
    prompt_tokens: int
    """Number of prompt tokens of the agent and the judges."""
    completion_tokens: int
    """Number of tokens that the agent and the judges generated."""
    usd: float | None
    """Price of the judge calls in US dollars; null if no price is known."""
    machine_usd: float | None = None
    """Price of its time in US dollars; null without a price of the machine."""
    wasted: bool
    """Whether the work was lost, for example because a worker died before saving it."""


class LedgerTotals(ResponseModel):
    """Sums over the whole ledger; `wasted_*` are the parts that led to nothing: lost or failed work, and groups
    that could not be trained on."""

    seconds: float = 0.0
    """Time that workers spent on the run, in seconds."""
    prompt_tokens: int = 0
    """Number of prompt tokens of the agent and the judges, wasted ones included."""
    completion_tokens: int = 0
    """Number of tokens that the agent and the judges generated, wasted ones included."""
    usd: float | None = None
    """Price of the judge calls in US dollars, wasted ones included; null if no price is known."""
    machine_usd: float | None = None
    """Price of `seconds` in US dollars; null without a price of the machine. No budget counts it."""
    wasted_tokens: int = 0
    """Number of prompt and generated tokens whose work was lost."""
    wasted_usd: float | None = None
    """Price in US dollars of the judge calls whose work was lost; null if no price is known."""


class RunCost(LedgerTotals):
    """What a run has used so far: the totals of its ledger, and the judge models' part of it. Calls without a known
    price count as 0 dollars."""

    machine_price_per_hour: float | None = None
    """US dollars that an hour of the machine cost when the run began; null if no price was known."""
    total_usd: float | None = None
    """What the run has cost in US dollars: `usd` and `machine_usd`, as far as they are known; null if neither is."""
    judge_usd: float = 0.0
    """Price of the judge calls in US dollars; calls without a known price count as 0."""
    judge_prompt_tokens: int = 0
    """Number of prompt tokens of the judge models."""
    judge_completion_tokens: int = 0
    """Number of tokens that the judge models generated."""


class BudgetState(ResponseModel):
    """The limits of a run, and how much of each is used. A null limit means no limit."""

    max_usd: float | None
    """Limit in US dollars for judge calls. Null: no limit."""
    max_minutes: float | None
    """Limit in minutes that workers spend on the run. Null: no limit."""
    max_tokens: int | None
    """Limit for prompt and completion tokens. Null: no limit."""
    spent_usd: float
    """US dollars spent on judge calls, as far as their price is known."""
    spent_minutes: float
    """Minutes that workers have spent on the run."""
    spent_tokens: int
    """Number of prompt and completion tokens used, wasted ones included."""


class Ledger(ResponseModel):
    """One page of a run's ledger, with the totals and the budget of the whole run."""

    items: list[LedgerRow]
    """The rows of this page, oldest first."""
    next_cursor: str | None
    """Pass it as `cursor` to get the next page; null on the last page."""
    totals: LedgerTotals
    """Sums over the whole ledger, not only this page."""
    budget: BudgetState
    """The limits of the run, and how much of each is used."""


class ShowcaseScenario(ResponseModel):
    """The task that the email was written for."""

    id: str
    """Id of the scenario."""
    task: dict[str, Json]
    """What the agent was given, which is the task of its scenario."""


class ShowcaseEmail(ResponseModel):
    """The sample email: after each iteration the current agent writes one email for a fixed scenario."""

    iteration: int
    """Iteration after which it was written; 0 is the baseline."""
    email_written: bool
    """Whether the agent finished its email; if not, the texts are empty."""
    subject: str
    """Subject of the email."""
    body: str
    """Body of the email, as plain text: escape it before showing it on a page."""
    citations: list[str]
    """Ids of the cited nodes."""
    trajectory_id: str
    """Id of the stored trajectory, for `GET /trajectories/{trajectory_id}`."""
    scenario: ShowcaseScenario
    """The task that the email was written for; the same in every iteration."""
    reward: float | None
    """Reward of the rollout; null if it has none."""
    success: bool | None
    """Whether the email is grounded in what the agent read; null if that is not known."""


class NodeScores(ResponseModel):
    """How useful each node of the graph has been for emails, after an iteration."""

    run_id: str
    """Id of the run."""
    iteration: int
    """Iteration after which the scores are shown; 0 is the baseline."""
    node_scores: dict[str, float]
    """Score of each node in [0, 1], by node id."""
    ranked: list[str]
    """Node ids from the highest score to the lowest; equal ones by id."""


class JudgeCallOut(ResponseModel):
    """One verdict of a judge model, and what it cost."""

    id: int
    """Number of the call, rising."""
    iteration: int
    """Iteration that it belongs to; 0 is the baseline."""
    judge: str
    """Name of the judge."""
    model: str
    """The judge model as PROVIDER/MODEL."""
    prompt_tokens: int
    """Number of prompt tokens."""
    completion_tokens: int
    """Number of tokens that the judge model generated."""
    cost_usd: float | None
    """Price in US dollars; null if it is not known."""
    requests: int
    """Number of requests sent to the judge model, repeated ones included."""
    seconds: float
    """Duration in seconds."""
    cached: bool
    """Whether the verdict came from the cache."""
    error: str | None
    """Why there is no verdict; null if there is one."""


class ResultItem(ResponseModel):
    """One result document of a run."""

    name: str
    """Name of the document, such as `iter1_email.json`."""
    content_type: str
    """Media type of the document."""
    bytes: int | None
    """Size of the file in the results folder, in bytes; null if it was not written there."""
    url: str
    """Where to download it."""


class RunResults(ResponseModel):
    """One page of the result documents of a run."""

    run_id: str
    """Id of the run."""
    results_path: str
    """Path of this list; the documents are below it."""
    error: str | None
    """Why the results folder on disk is incomplete. Downloads are made from the database and always complete."""
    items: list[ResultItem]
    """The documents of this page."""
    next_cursor: str | None
    """Pass it as `cursor` to get the next page; null on the last page."""


class Difference(ResponseModel):
    """A stored figure that differs from the one recomputed from the stored trajectories."""

    iteration: int
    """Iteration of the figure."""
    what: str
    """Name of the figure."""
    trajectory_id: str | None = None
    """Id of the trajectory that the figure belongs to; null if it is a figure of the whole iteration."""
    stored: Json
    """The stored value."""
    recomputed: Json
    """The recomputed value."""


class LostRollout(ResponseModel):
    """A rollout that was lost for a reason that is not the agent's."""

    trajectory_id: str
    """Id of its trajectory."""
    iteration: int
    """Iteration that it belongs to."""
    failure: str
    """The kind of reason, as in `lost_rollouts` of an iteration."""
    error: str
    """What happened."""


class Verification(ResponseModel):
    """Whether every stored figure of a run equals, bit for bit, the one recomputed from its stored trajectories."""

    run_id: str
    """Id of the run."""
    ok: bool
    """Whether all figures are equal."""
    iterations: int
    """Number of iterations checked."""
    trajectories: int
    """Number of trajectories read."""
    rejudgings: int
    """Number of completed rejudgings of the run, whose figures were also compared."""
    figures: int
    """Number of figures compared."""
    node_scores: int
    """Number of node scores among them."""
    lost_rollouts: dict[str, int]
    """Number of rollouts that were lost for reasons that are not the agent's, by reason, as in the run's iterations.
    The figures can be equal nevertheless, but the same run without these losses trains other weights."""
    lost: list[LostRollout] = Field(max_length=100)
    """The first 100 of them."""
    difference_count: int
    """Number of figures that differ."""
    differences: list[Difference] = Field(max_length=100)
    """The first 100 differences."""
    verified_at: datetime
    """When the figures were compared."""
