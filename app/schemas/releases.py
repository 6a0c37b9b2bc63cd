"""Bodies of the requests and responses about releases."""

from datetime import datetime
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from learnloop_service.app.domain.release_rules import KINDS, OUTCOME, RAMP, Guardrail, ReleaseRules
from learnloop_service.app.domain.release_state import Arm, ReleaseReason, ReleaseState
from learnloop_service.app.schemas.base import RequestBody, RequestPart, ResponseModel, StartedOut
from learnloop_service.app.schemas.prompts import PromptChoice, PromptUsed
from learnloop_service.environment.json_type import Json

Share = Annotated[float, Field(gt=0, le=0.5)]
Tolerance = Annotated[float, Field(gt=0, lt=1)]
Score = Annotated[float, Field(ge=0, le=1)]


class FeedbackScores(RequestPart):
    """The outcome of each opinion, and of none."""

    thumbs_up: Score = 1.0
    """Outcome of a unit whose last opinion is a thumbs up."""
    none: Score = 0.5
    """Outcome of a unit that gave no opinion. Leaving such units out would compare different people in each arm."""
    thumbs_down: Score = 0.0
    """Outcome of a unit whose last opinion is a thumbs down."""


class OutcomeRule(RequestPart):
    """What the outcome of a user is when the window closes. Give exactly one; it is always in [0, 1]."""

    feedback: FeedbackScores | None = None
    """The user's last opinion."""
    event: Literal["opened", "replied", "call_booked", "opportunity", "closed_won"] | None = None
    """An outcome of an email: 1 if it, or one that is further along, came; otherwise 0."""
    session_reward: tuple[float, float] | None = None
    """The reward of the user's first session that ended with one, from `[low, high]` to [0, 1]; 0 without one."""
    value: str | None = Field(default=None, min_length=1, max_length=64)
    """The name of a feedback of the type `outcome`: its last value, 0 without one."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self.model_fields_set) != 1 or None in (getattr(self, name) for name in self.model_fields_set):
            raise ValueError("give exactly one of feedback, event, session_reward and value")
        if self.session_reward is not None and not self.session_reward[0] < self.session_reward[1]:
            raise ValueError("session_reward is [low, high] with low below high")
        return self


class NewReleaseRequest(PromptChoice, RequestBody):
    """A candidate, a checkpoint with its prompt, that is to earn the traffic of a promoted name."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"step": 12},
                {"prompt": "careful@2"},
                {
                    "model": "mail/agent",
                    "step": 12,
                    "ramp": [0.05, 0.2, 0.5],
                    "guardrails": {"malformed": 0.02, "cost": None},
                    "outcome": {"event": "call_booked"},
                    "window_hours": 72,
                    "max_days": 30,
                    "at_end": "return",
                },
            ]
        }
    )

    model: str | None = Field(default=None, min_length=1, max_length=300)
    """The candidate's model, as `NAME` or `PROJECT/NAME` of the name's project, also with `@STEP`. Default: the model
    of the name's current checkpoint."""
    step: int | None = Field(default=None, ge=0, lt=2**31)
    """The candidate's checkpoint. Default: the newest one of `model`; with only a prompt, the name's current one."""
    unit: Literal["user", "session"] = "user"
    """What is assigned to an arm: each user, or each session where a few users have many."""
    ramp: list[Share] = Field(default_factory=lambda: list(RAMP), min_length=1, max_length=10)
    """The probability, at most 0.5, that a user meets the candidate, for each stage. Rising."""
    guardrails: dict[Guardrail, Tolerance | None] = Field(default_factory=dict)
    """The tolerated increase of each guardrail, as a share. Those that are not named keep their default; null leaves
    one out."""
    outcome: OutcomeRule = Field(default_factory=lambda: OutcomeRule.model_validate(OUTCOME))
    """What the outcome of a user is. Its effect is shown with an interval; by `goal` it also decides."""
    window_hours: float = Field(default=168, gt=0, le=24 * 90)
    """How long after the first answer to a user the outcome is frozen. What comes later is shown as late."""
    goal: Literal["guardrails", "better", "not_worse"] = "guardrails"
    """What outcomes decide. `guardrails`: nothing. `better`: the candidate is promoted in the last stage when they show
    that it is better, and taken back when they show that it is worse, or not better by `worth`. `not_worse`: it is
    promoted when they show that it is not worse by `margin`, and taken back when it is."""
    margin: Tolerance | None = None
    """How much lower the mean outcome may be with the goal `not_worse`, as a share."""
    worth: Tolerance = 0.03
    """The least gain in the mean outcome for which `better` continues, as a share."""
    max_days: float = Field(default=60, gt=0, le=365)
    """How long users meet the candidate at most."""
    at_end: Literal["return", "promote"] = "return"
    """What happens after `max_days` without an alarm: every user gets the stable checkpoint again, or the candidate is
    promoted, whatever its outcomes show."""
    skip_trial: bool = False
    """Whether users meet the candidate without a trial on held-out scenarios."""
    trial_scenarios: int = Field(default=1_000, ge=1, le=1_000)
    """Maximum number of scenarios of the trial. If they decide nothing, traffic starts."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.model is None and self.step is None and "prompt" not in self.model_fields_set:
            raise ValueError("give model, or step, or both; or a prompt")
        if (self.goal == "not_worse") != (self.margin is not None):
            raise ValueError("give margin with the goal not_worse, and only with it")
        if self.step is not None and self.model is not None and "@" in self.model:
            raise ValueError("model names a step already; leave out step")
        return self

    @field_validator("ramp")
    @classmethod
    def _rises(cls, ramp: list[float]) -> list[float]:
        if any(later <= earlier for earlier, later in pairwise(ramp)):
            raise ValueError("each share must be larger than the one before")
        return ramp

    @field_validator("guardrails")
    @classmethod
    def _watches_something(cls, guardrails: dict[Guardrail, float | None]) -> dict[Guardrail, float | None]:
        if set(guardrails) == set(KINDS) and not any(limit is not None for limit in guardrails.values()):
            raise ValueError("at least one guardrail must be watched")
        return guardrails


class RollbackRequest(RequestBody):
    """What happens to the open sessions with the candidate."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"sessions": "end"}]})

    sessions: Literal["keep", "end"] = "keep"
    """`keep`: they keep the candidate to their end, because the tokens of a session must come from one policy. `end`:
    they are ended."""


class ForecastOut(ResponseModel):
    """What to expect if the candidate is like the stable checkpoint."""

    units_a_day: float
    """Users of the name a day in the 14 days before the release; sessions, if those are assigned."""
    enrolled_a_week: float
    """Units that are enrolled in a week of the last stage, in both arms together."""
    days: list[float | None]
    """Day on which each stage of the ramp begins, counted from the beginning of the traffic; null for stages that are
    not reached within `max_days`."""
    note: str
    """What this number of users can show."""


class ReleaseBrief(StartedOut):
    """A release: a candidate, and the share of a promoted name's users that meet it."""

    release_id: str
    """Id of the release."""
    name: str
    """The promoted name, as `PROJECT/NAME`."""
    state: ReleaseState
    """Where it is in its life: `trial`, `running`, `held`, `promoted`, `confirmed`, `rolled_back` or `overtaken`."""
    reason: ReleaseReason | None
    """Why it is held or was taken back; null otherwise."""
    summary: str
    """The state and its reason in a sentence."""
    candidate: str
    """The candidate's checkpoint, as `PROJECT/NAME@STEP`."""
    candidate_prompt: PromptUsed | None
    """The candidate's prompt; null for the environment's own texts."""
    stable: str
    """The checkpoint that the name meant when the release began, as `PROJECT/NAME@STEP`."""
    stable_prompt: PromptUsed | None
    """The prompt that the name had then; null for the environment's own texts."""
    share: float
    """Probability that a user meets the candidate now; 0 before its traffic starts and after the release has ended."""
    stage: int
    """Index of the stage in the ramp, from 0."""
    stages: int
    """Number of stages."""
    version: int
    """Raised by each change of state, stage or share."""
    evaluation_id: str | None
    """Id of the trial on held-out scenarios; null if it was skipped."""
    actor: str
    """Who started it."""
    created_at: datetime
    """When it was created."""
    started_at: datetime | None
    """When users could first meet the candidate; null before."""
    ended_at: datetime | None
    """When it ended; null while it is live."""


class ReleaseAccepted(ReleaseBrief):
    """A release that was accepted."""

    forecast: ForecastOut
    """What to expect."""
    warnings: list[str]
    """What its owner should know."""


class ArmOut(ResponseModel):
    """One arm of a release: a checkpoint with its prompt, and the enrolled units that meet it."""

    arm: Arm
    """`candidate` or `stable`."""
    checkpoint: str
    """Its checkpoint, as `PROJECT/NAME@STEP`."""
    prompt: PromptUsed | None
    """Its prompt; null for the environment's own texts."""
    backend: str
    """Name of the backend that has it."""
    run_id: str | None
    """Id of the run that made it; null if no run is known."""
    iteration: int | None
    """Iteration of that run which made it."""
    success: float | None
    """Its sampled success on held-out scenarios, from 0 to 1; null if it was not evaluated."""
    units: int
    """Enrolled users (or sessions) that have met it."""
    open_windows: int
    """Units whose outcome is not frozen yet."""
    closed_windows: int
    """Units whose outcome is frozen."""
    mean_outcome: float | None
    """Mean of the frozen outcomes, from 0 to 1; null without any."""
    late_events: int
    """Events that were received after the window of their unit was over. They are never counted."""


class ArmFigure(ResponseModel):
    """What one arm's units were like."""

    units: int
    """Number of units that it was measured on."""
    mean: float | None
    """Their mean, from 0 to 1; null without any."""


class GuardrailOut(ResponseModel):
    """A guardrail, and what the traffic says about it. Evidence is the natural logarithm of a bet's wealth: it can be
    looked at all the time, and may be acted upon from the threshold on."""

    guardrail: Guardrail
    """Its name."""
    means: str
    """What it measures, in plain words."""
    tolerance: float
    """The tolerated increase, as a share."""
    candidate: ArmFigure
    """The candidate's units."""
    stable: ArmFigure
    """All other units of the same time."""
    harm: float
    """Evidence that the candidate is worse by more than the tolerance."""
    harm_threshold: float
    """From here on the candidate is taken back."""
    level: float | None
    """Increase that must be ruled out to leave this stage; null in the last one."""
    ruled_out: float | None
    """Evidence that the increase is below `level`; null in the last stage."""
    ruled_out_threshold: float
    """From here on it is ruled out."""


class EffectOut(ResponseModel):
    """The candidate's effect on the mean outcome."""

    units: int
    """Number of units whose outcomes were counted."""
    effect: float
    """Mean outcome with the candidate less that with the stable checkpoint, given what was expected of each unit."""
    low: float
    """Lower end of its 95% interval."""
    high: float
    """Upper end of that interval."""


class ReleaseOut(ReleaseBrief):
    """A release with everything that is known about it."""

    unit: Literal["user", "session"]
    """What is assigned to an arm."""
    rules: ReleaseRules
    """Its rules."""
    arms: list[ArmOut]
    """The candidate and the stable arm."""
    guardrails: list[GuardrailOut]
    """What the traffic says about each guardrail, as of the latest look."""
    looks: int
    """Number of looks that found something new."""
    looked_at: datetime | None
    """When it was looked at last; null before the first look."""
    stage_since: datetime | None
    """When the stage began; null before the traffic started."""
    next: str | None
    """What the next stage or the end still lacks, in one sentence; null after the release has ended."""
    quality: str
    """What the release has shown about the quality of the candidate."""
    effect: EffectOut
    """The effect as of the latest look, with an interval that holds at every look."""
    confirmation: list[EffectOut]
    """After a promotion by outcomes: the effects in the first and in the second windows of the units whose windows were
    open at that time, with ordinary intervals; otherwise empty."""
    forecast: ForecastOut
    """What was to be expected when it was created."""
    salt: str | None
    """The salt of its assignment in hexadecimal digits, with which anyone can repeat it; null while it is live, because
    it would let clients choose their arm."""


class UnitOut(ResponseModel):
    """A user, or a session, that is enrolled in a release."""

    unit: str
    """Hash of the user's key, or the id of the session."""
    arm: Arm
    """The arm that it meets, until the release ends."""
    probability: float
    """Probability of that arm for an enrolled unit."""
    stage: int
    """Stage in which it was enrolled, from 0."""
    exposed_at: datetime
    """When it was first answered."""
    closed_at: datetime | None
    """When its window closed; null while it is open."""
    outcome: float | None
    """Its outcome, from 0 to 1; null while the window is open."""


class ReleaseEventOut(ResponseModel):
    """One event of a release. What `data` contains depends on the type; see docs/events.md."""

    seq: int
    """Sequence number within the release, from 1 without gaps."""
    type: str
    """What happened, such as `release.rolled_back`."""
    version: int
    """Version of the format of `data` for this type."""
    release_id: str
    """Id of the release."""
    actor: str
    """Who caused it: an API key, or `system` for the service."""
    occurred_at: datetime
    """When it happened, by the clock of the database."""
    data: dict[str, Json]
    """What happened in detail, with the evidence. Its members depend on the type, and new ones can be added."""


class ReleaseVerified(ResponseModel):
    """Whether the evidence of a release follows from its rows."""

    verified: bool
    """Whether nothing differs."""
    observations: int
    """Number of observations that were counted again."""
    events: int
    """Number of events whose evidence was computed again."""
    differences: list[str]
    """What differs, a sentence each."""


def outcome_json(rule: OutcomeRule) -> dict[str, Any]:
    """Return the rule as it is stored."""
    return rule.model_dump(mode="json", exclude_none=True)
