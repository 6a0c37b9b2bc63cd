"""Bodies of the responses about trajectories."""

from datetime import datetime
from typing import Literal

from learnloop_service.app.schemas.base import ResponseModel
from learnloop_service.environment.json_type import Json
from learnloop_service.training.phases import Purpose

Split = Literal["train", "validation", "test"]
Mode = Literal["sampled", "greedy"]
Kind = Literal["train", "evaluation", "showcase", "ask", "what_if"]


class TrajectoryBrief(ResponseModel):
    """A trajectory, as listed: without messages, tools and explanations."""

    id: str
    """Id of the trajectory."""
    run_id: str | None
    """Id of the run that it belongs to. Null if a model was asked by name."""
    evaluation_id: str | None = None
    """Id of the evaluation that it belongs to; null for a rollout of a run and for a question."""
    copied_from: str | None = None
    """Id of the rollout of an earlier evaluation that it is a copy of, with a verdict of its own; null for a rollout
    that was made for this one."""
    kind: Kind
    """What the rollout was made for: training, an evaluation, the sample email of an iteration (`showcase`), a
    task given to `POST /ask`, or the continuation of another rollout from one of its turns (`what_if`)."""
    iteration: int | None
    """Iteration that it belongs to; 0 is the baseline. Null for `ask`."""
    split: Split
    """Split of its scenario: `train`, or the held-out `validation` and `test`."""
    mode: Mode
    """How tokens were picked: `sampled` at random, or `greedy`, always the most likely one."""
    model: str
    """Name of the model that made the rollout."""
    step: int | None
    """Step of the policy that made the rollout. Null if it is not known."""
    scenario_id: str
    """Id of the scenario. The rollouts of one scenario in one iteration are a group."""
    scenario: dict[str, Json]
    """The scenario: `task` is what the agent was given, `reference` what only judge and reward see."""
    outcome: dict[str, Json]
    """What the rollout produced, such as an answer or an email, and what the environment observed."""
    score: float | None
    """The judge's score in [0, 1]; null if it gave none."""
    reward: float | None
    """The number that training uses, computed by the environment; null without a score."""
    advantage: float | None
    """How far the reward is above or below the mean of its group, in standard deviations of the group; null if the
    rollout was not trained on."""
    success: bool | None
    """Whether the rollout did its task, by a check of the environment; null if that is not known."""
    why_no_success: str | None = None
    """Why it was not a success, in a clause of the environment such as "no source cited; expected pebro"; null if it
    was one, failed or has no score, or if the environment does not say."""
    inclusion: float | None = None
    """Probability from 0 to 1 with which its scenario was rolled out: 1 unless it is a replacement or drawn by
    difficulty (`scenario_sampling`). Figures weigh it by the inverse. Null for `ask`, and if an earlier version saved
    it."""
    replaces: str | None = None
    """Id of the scenario whose group its own replaces, because all rewards of that earlier group were equal; null for
    any other rollout. Figures of iterations leave replacements out."""
    error: str | None
    """Why the rollout failed; null if it did not."""
    failure: str | None = None
    """Kind of the failure: `timeout`, `agent`, or `other`; or, for reasons that are not the agent's, `agent_lost`,
    `backend_away`, `backend_error`, `model_not_found` or `environment`. Null if it did not fail, or was saved by an
    earlier version."""
    prompt_sha256: str | None = None
    """Hash of the stored prompt that it was made with; null for the environment's own texts."""
    turns: int
    """Number of turns: replies of the agent."""
    prompt_tokens: int
    """Number of prompt tokens, summed over all turns."""
    completion_tokens: int
    """Number of tokens that the agent generated."""
    seconds: float
    """Duration of the rollout in seconds."""
    started_at: datetime
    """When the rollout started."""


class FinishedRollout(ResponseModel):
    """A rollout that has finished in an iteration that is not saved yet. It has no reward yet."""

    id: str
    """Id that its trajectory will have."""
    iteration: int
    """Iteration that it belongs to; 0 is the baseline."""
    purpose: Purpose
    """What it was made for: training, a sample email, or a held-out evaluation by split and mode."""
    scenario_id: str
    """Id of the scenario."""
    messages: list[Json]
    """All messages of the main conversation, in the form of OpenAI's chat completions."""
    outcome: dict[str, Json]
    """What it produced, and what the environment observed."""
    error: str | None
    """Why it failed; null if it did not."""
    turns: int
    """Number of turns: replies of the agent."""
    seconds: float
    """Duration of the rollout in seconds."""
    finished_at: datetime
    """When it was stored."""


class FinishedRollouts(ResponseModel):
    """The newest finished rollouts of the iterations in progress."""

    total: int
    """Number of rollouts that have finished in iterations that are not saved yet."""
    items: list[FinishedRollout]
    """The newest ones, newest first."""


class EndCounts(ResponseModel):
    """How many rollouts ended in one way."""

    end: str
    """`finish` of the outcome; `failed` for rollouts that failed, `other` for rare ends, empty if the environment does
    not say how they ended."""
    counts: list[int]
    """Number of rollouts in each column."""


class PartMeans(ResponseModel):
    """One part of the rewards."""

    part: str
    """Name of the part; `other` for the sum of small ones."""
    means: list[float | None]
    """Its mean in each column over the rollouts with a reward, where a rollout without it counts as 0; null without
    rewards."""


class Outcomes(ResponseModel):
    """How a run's rollouts ended and what their rewards are made of, in columns of iterations."""

    every: int
    """Number of iterations that share a column; there are up to 121 columns."""
    iterations: list[int]
    """The last iteration of each column. Columns without rollouts are left out."""
    ends: list[EndCounts]
    """Ways to end, the most frequent one first."""
    parts: list[PartMeans]
    """Parts of the reward, the largest one first."""


class SampledTurn(ResponseModel):
    """The tokens of one turn of the agent."""

    message: int
    """Place of the turn in `messages` of the trajectory, from 0."""
    texts: list[str]
    """The tokens as text, special ones included. Together they are what the model wrote, before tool calls were read
    from it."""
    logprobs: list[float]
    """Their natural log-probabilities, as the model's server reported them when it sampled them."""


class SampledTokens(ResponseModel):
    """What the agent sampled in a trajectory."""

    trajectory_id: str
    """Id of the trajectory."""
    turns: list[SampledTurn]
    """The turns, in order. Empty if the model's server reported no log-probabilities."""


class JudgeQuestionOut(ResponseModel):
    """What a judge asks a language model."""

    judge: str
    """Name of the judge."""
    model: str
    """The judge model as PROVIDER/MODEL."""
    messages: list[Json]
    """The messages, in OpenAI's form."""


class JudgeQuestions(ResponseModel):
    """What the judge of a run asks a language model about a rollout and the others of its group."""

    trajectory_id: str
    """Id of the trajectory."""
    questions: list[JudgeQuestionOut]
    """The questions, made again from the stored rollouts. Empty if the judge asks no language model about them."""


class History(ResponseModel):
    """A further conversation of a rollout, apart from its main one."""

    messages: list[Json]
    """All messages of the conversation, in the form of OpenAI's chat completions."""
    tools: list[Json]
    """The tools that the model was offered in it, in OpenAI's form."""


class TrajectoryOut(TrajectoryBrief):
    """A trajectory with its messages, tools and the details of its score and reward."""

    messages: list[Json]
    """All messages of the conversation, in the form of OpenAI's chat completions, with tool calls and their results."""
    tools: list[Json]
    """The tools that the agent was offered, in OpenAI's form."""
    additional_histories: list[History]
    """Further conversations, in the order in which they began: what an agent that owns its loop asked its model outside
    of `messages`, such as side questions, or what followed a rewritten history. Each is trained as a sequence of its
    own. Empty for the built-in loop."""
    score_explanation: str | None
    """Why the judge gave this score, or none."""
    score_parts: dict[str, float]
    """The parts that the score is made of, by name."""
    reward_parts: dict[str, float]
    """The terms that add up to the reward, by name."""
