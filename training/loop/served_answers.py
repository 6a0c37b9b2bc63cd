"""Learns from answers that were served to users, whose outcomes are frozen: one step of the policy gradient in an
iteration, each answer once.

The advantage of an answer is its outcome minus what was expected of it before, which needs no group (Williams 1992).
All sequences of a session have it, and all tokens weigh the same: dividing by the length would let long failures cost
less (Dr. GRPO).
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from learnloop_service.training.backends.art_import import import_art
from learnloop_service.training.backends.base import Policy, ScoringPolicy, TrainRequest
from learnloop_service.training.call_sequences import SampledCall, TokenSequence, joined, sequences_of
from learnloop_service.training.journal import SERVED_RATIOS, SERVED_USED, IterationJournal
from learnloop_service.training.loop.run_record import Lesson, RunRecord
from learnloop_service.training.rollout.chat import sampled_ids
from learnloop_service.training.rollout.histories import PROMPT_TOKEN_IDS, record
from learnloop_service.training.rollout.model_calls import AnsweredCall
from learnloop_service.training.statistics.off_policy import LEAST_EFFECTIVE, ScoredAnswer, effective_share, gain
from learnloop_service.training.types import RunConfig

if TYPE_CHECKING:  # importing art takes seconds
    from art import TrajectoryGroup

ANSWERS, WITHDRAWN, DAMAGED = "served_answers", "served_withdrawn", "served_damaged"
"""Training metrics: how many answers an iteration trained on, and how many it could not, because they were deleted or
consent was withdrawn, or because their tokens are not those that were frozen."""
GAIN, GAIN_LOW, GAIN_HIGH, HELD_OUT, MOVED = (
    f"served_{name}" for name in ("gain", "gain_low", "gain_high", "held_out", "kl")
)
"""Training metrics: the estimated gain over the start on held-out answers with its 90% interval, their number, and by
how many nats such an answer has moved."""
TOO_FAR = "served_moved_too_far"
"""Training metric of a run whose newest step is not used, and which takes no further one: by how many nats that step
has moved answers. The other metrics are of the step before."""
EFFECTIVE = "served_effective_share/"
"""Training metric of each other checkpoint, whose name follows: see `effective_share`."""
ANSWER_KL = 0.2
"""How far a run may move the policy from where it starts, in nats an answer."""
MOST_MOVED = 0.4
"""By how many nats a run may move a held-out answer on average: steps add up to more than their square roots."""
OPTIONS = {
    "scale_rewards": False,
    "token_weighting": "token",
    "mask_prob_ratio": True,
    "epsilon": 1,
    "epsilon_high": 3,
    "min_probability": 0.01,
}
"""Options of each step. A token whose probability is more than four times the recorded one is left out, and one that
was hardly ever sampled, so that no single answer makes itself much likelier."""
_START = 0
"""The step at which the run's new model begins, with the weights of the checkpoint that it starts from."""
_FULL_WEIGHT_TOKENS = 2_048
"""A session with more sampled tokens weighs less, so that no single outcome decides a step."""
_AT_ONCE = 128
"""Number of answers whose tokens are in memory at the same time while they are scored."""


class AnswerRow(NamedTuple):
    """A served session as it was frozen. `sha256` is the hash of its tokens, `tokens` the number of those that can be
    trained on, and `iteration` the one that trains on it, from 1, or 0 if it is held out."""

    id: str
    checkpoint: str
    sha256: str
    tokens: int
    outcome: float
    forecast: float
    iteration: int

    @property
    def advantage(self) -> float:
        """How much better than expected it went, in [-1, 1]."""
        return (self.outcome - self.forecast) * min(1.0, _FULL_WEIGHT_TOKENS / self.tokens)


ReadAnswers = Callable[[Sequence[AnswerRow]], Awaitable[Mapping[str, Sequence[AnsweredCall] | None]]]
"""Reads the freely sampled calls of those sessions that are still there and still have consent, by session; None for
one whose tokens are not those that were frozen."""


@dataclass
class AnswersRecord(RunRecord):
    """The record of a run that learns from served answers. It starts from the checkpoint `start`."""

    config: RunConfig
    start: str
    rows: Sequence[AnswerRow]
    read: ReadAnswers
    left_out: Sequence[str] = ()
    _effective: dict[str, float] = field(default_factory=dict, init=False)
    """Effective share of the answers of each other checkpoint, once it is known."""
    _scored: dict[int, Mapping[str, float]] = field(default_factory=dict, init=False)
    """By how much a step raised the log-probabilities of held-out answers, by step."""
    _best: int = field(default=_START, init=False)

    async def lesson(self, journal: IterationJournal, policy: Policy, step: int) -> Lesson:
        """Return the step on the iteration's answers that can still be used."""
        used = json.loads(journal.kept.get(SERVED_USED, "null"))
        if used is None and await self._is_too_far(policy, step):
            return Lesson(None, {ANSWERS: 0, WITHDRAWN: 0, DAMAGED: 0})
        rows = [row for row in self.rows if row.iteration == journal.iteration]
        for name in sorted({row.checkpoint for row in self.rows} - {self.start, *self._effective}):
            of_other = [row for row in self.rows if row.checkpoint == name]
            self._effective[name] = effective_share([*(await self._log_ratios(policy, _START, of_other)).values()])
        rows = [row for row in rows if self._effective.get(row.checkpoint, 1.0) >= LEAST_EFFECTIVE]
        read = await self.read(rows if used is None else [row for row in rows if row.id in used])
        answers = [(row.advantage, calls) for row in rows if (calls := read.get(row.id)) is not None]
        damaged = sorted(id for id, calls in read.items() if calls is None)
        if used is None:
            await journal.keep(SERVED_USED, json.dumps(sorted(read.keys() - set(damaged))))
        metrics = {f"{EFFECTIVE}{name}": share for name, share in self._effective.items()}
        metrics |= {ANSWERS: len(answers), WITHDRAWN: len(rows) - len(read), DAMAGED: len(damaged)}
        rate = self.config.learning_rate * min(1.0, journal.iteration / self.config.warmup_iterations)
        request = TrainRequest([_group(answers)], rate, step, self.config.train_options) if answers else None
        return Lesson(request, metrics, damaged)

    async def measured(self, journal: IterationJournal, policy: Policy, step: int) -> Mapping[str, float]:
        """Return the estimated gain on the held-out answers of the checkpoint that the run started from."""
        metrics = dict[str, float]()
        if await self._is_too_far(policy, step):
            metrics[TOO_FAR] = estimated(self.rows, await self._held_out(policy, step))[MOVED]
            step -= 1
        kept = journal.kept.get(SERVED_RATIOS)
        ratios = await self._held_out(policy, step) if kept is None else json.loads(kept)
        if kept is None:
            journal.keep_soon(SERVED_RATIOS, json.dumps(ratios))
        metrics |= estimated(self.rows, ratios)
        self._best = _START if metrics.get(GAIN_HIGH, 0.0) < 0 else step
        return metrics

    def best_step(self, step: int) -> int:
        """Return the newest step that has not moved answers too far, or the start if that is shown to be better.
        Requiring a proof of the gain would cost most of it; a release is the proof."""
        return self._best

    async def _is_too_far(self, policy: Policy, step: int) -> bool:
        if step == _START:
            return False
        return estimated(self.rows, await self._held_out(policy, step)).get(MOVED, 0.0) > MOST_MOVED

    async def _held_out(self, policy: Policy, step: int) -> Mapping[str, float]:
        """Return by how much the step raises the log-probabilities of the held-out answers of the start."""
        if step not in self._scored:
            rows = [row for row in self.rows if row.iteration == 0 and row.checkpoint == self.start]
            self._scored[step] = await self._log_ratios(policy, step, rows)
        return self._scored[step]

    async def _log_ratios(self, policy: Policy, step: int, rows: Sequence[AnswerRow]) -> dict[str, float]:
        """Return by session the sum of the log-probabilities that the step gives to its tokens minus the recorded
        ones."""
        assert isinstance(policy, ScoringPolicy)
        ratios = dict[str, float]()
        for start in range(0, len(rows), _AT_ONCE):
            read = await self.read(rows[start : start + _AT_ONCE])
            parts = {id: _sequences(calls) for id, calls in read.items() if calls is not None}
            scores = iter(await policy.score_sequences(step, [part for of_one in parts.values() for part in of_one]))
            for id, of_one in parts.items():
                ratios[id] = fsum(fsum(next(scores)) - fsum(part.logprobs) for part in of_one)
        return ratios


def estimated(rows: Sequence[AnswerRow], ratios: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a step that follow from the log-ratios of held-out answers."""
    answers = [ScoredAnswer(ratios[row.id], row.outcome, row.forecast) for row in rows if row.id in ratios]
    moved = {MOVED: -fmean(answer.log_ratio for answer in answers)} if answers else {}
    gained = dict(zip((GAIN, GAIN_LOW, GAIN_HIGH), gain(answers) or (), strict=False))
    return {HELD_OUT: len(answers), **moved, **gained}


def _sequences(calls: Sequence[AnsweredCall]) -> list[TokenSequence]:
    """Return the sequences of a session, whose token ids are known."""
    sampled = [
        SampledCall(
            tuple((call.completion.model_extra or {})[PROMPT_TOKEN_IDS]),
            tuple(sampled_ids(choice) or ()),
            tuple(token.logprob for token in (choice.logprobs and choice.logprobs.content) or ()),
        )
        for call in calls
        for choice in call.completion.choices
    ]
    return [joined([sampled[number] for number in numbers]) for numbers in sequences_of(sampled)]


def _group(answers: Sequence[tuple[float, Sequence[AnsweredCall]]]) -> "TrajectoryGroup":
    art, trajectories = import_art(), []
    for advantage, calls in answers:
        trajectories.append(art.Trajectory(messages_and_choices=[], reward=advantage))
        record(trajectories[-1], calls)
    group: TrajectoryGroup = art.TrajectoryGroup(trajectories)
    return group
