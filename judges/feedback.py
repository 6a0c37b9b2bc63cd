"""The judge `feedback`: what became of the agent's emails, and what people thought of them.

The signal `online` is the furthest outcome of an email (ONLINE); `human` is its share of wins among thumbs and
preferences, each weighted by its confidence. A candidate is scored

- by the evidence on itself, if there is some;
- else by an estimate from emails that cite what it cites: the mean of their values, weighted by the Jaccard overlap w
  of the citations, with the mean m of all evidence as one more value of weight 1: (sum of w * value + m) / (sum of w
  + 1). An email that shares no citation with any of them is taken for average;
- 0.0 without a final email, if there is evidence on others: nothing was sent, so nothing can come of it;
- not at all if there is no evidence.

Where an environment writes no emails there are no outcomes, and answers are not compared: only what people said of
that very answer counts. With `market` the market simulator answers each candidate's own email instead: an invented
market, and named as such wherever it shows.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

from learnloop_service.environment.base import Json, Outcome, Scenario
from learnloop_service.judges.base import (
    SIMULATOR,
    Candidate,
    Evidence,
    FeedbackSource,
    Judge,
    Judgement,
    JudgeServices,
    Score,
)
from learnloop_service.judges.markets import Market, market

NAME = "feedback"
ONLINE: Mapping[str, float] = {
    "sent": 0.0,
    "opened": 0.2,
    "replied": 0.4,
    "call_booked": 0.6,
    "opportunity": 0.8,
    "closed_won": 1.0,
}
"""The value of each outcome. An email's highest outcome counts."""
WINS = ("thumbs_up", "preferred")
LOSSES = ("thumbs_down",)
"""Events that count as losses. A preference also is a loss of the other email."""
_NO_EMAIL = "its outcomes are those of emails, and this rollout was not to write one"
_SIGNALS = ("online", "human")


def build(config: Mapping[str, Json], services: JudgeServices) -> Judge:
    """`signal` is online (the default) or human; `market` is None or `{"seed": int}`. Raises ValueError."""
    unknown = sorted(set(config) - {"signal", "market"})
    if unknown:
        raise ValueError(f"the judge feedback has no setting {', '.join(unknown)}; it takes: market, signal")
    signal, invented = config.get("signal", "online"), config.get("market")
    if signal not in _SIGNALS:
        raise ValueError(f"signal is one of {', '.join(_SIGNALS)}, not {signal!r}")
    if invented is None:
        return FeedbackJudge(signal, services.feedback)
    if signal != "online":
        raise ValueError("the market simulator gives outcomes only: leave out market, or take the signal online")
    if not isinstance(invented, dict) or set(invented) != {"seed"} or type(invented["seed"]) is not int:
        raise ValueError(f'market is {{"seed": a whole number}}, not {invented!r}')
    return MarketJudge(market(invented["seed"]))


class FeedbackJudge:
    """Scores by the feedback on the run's emails and on others of the same graph."""

    name = NAME

    def __init__(self, signal: str, feedback: FeedbackSource) -> None:
        self._signal = signal
        self._feedback = feedback

    def lacks(self, scenario: Scenario, outcome: Outcome) -> str | None:
        return _NO_EMAIL if self._signal == "online" and "email" not in outcome else None

    async def judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
        """Score all candidates by one reading of the evidence, so that they can be compared."""
        feedback = _FeedbackScores(self._signal, await self._feedback.evidence())
        return Judgement([feedback.score(candidate) for candidate in candidates])


class MarketJudge:
    """Scores by what the market simulator does with each candidate's own email."""

    name = NAME

    def __init__(self, market: Market) -> None:
        self._market = market

    def lacks(self, scenario: Scenario, outcome: Outcome) -> str | None:
        return None if "email" in outcome else _NO_EMAIL

    async def judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
        """Return one Score for each candidate; equal emails get equal scores."""
        return Judgement([self._score(scenario.task, candidate.outcome) for candidate in candidates])

    def _score(self, task: Mapping[str, Json], outcome: Outcome) -> Score:
        if "email" not in outcome:
            return Score(None, f"the {SIMULATOR}: {_NO_EMAIL}")
        events = self._market.events(task, outcome)
        if not events:
            return Score(0.0, f"no final email: the {SIMULATOR} got none")
        value = max(ONLINE[event] for event in events)
        return Score(value, f"{SIMULATOR}: {', '.join(events)}", {f"online ({SIMULATOR})": value})


class _FeedbackScores:
    """Scores from the evidence that has the signal."""

    def __init__(self, signal: str, evidence: Sequence[Evidence]) -> None:
        self._signal = signal
        self._values = [(email, value) for email in evidence if (value := _value(signal, email)) is not None]

    def score(self, candidate: Candidate) -> Score:
        for email, value in self._values:
            if email.trajectory_id == candidate.id:
                return self._scored(value, f"{self._signal} feedback on this very rollout", [email])
        if "email" not in candidate.outcome:
            return Score(None, f"there is no {self._signal} feedback on this rollout, and it has no email to compare")
        if not self._values:
            return Score(None, f"there is no {self._signal} feedback on emails of this graph yet")
        if candidate.outcome["email"] is None:
            return Score(0.0, "no final email: nothing was sent that something could come of")
        return self._estimated(frozenset(candidate.outcome["email"]["citations"]))

    def _estimated(self, citations: frozenset[str]) -> Score:
        overlaps = [_jaccard(citations, email.citations) for email, _ in self._values]
        similar = sum(overlap > 0 for overlap in overlaps)
        mean = fmean(value for _, value in self._values)
        weighted_sum = sum(overlap * value for overlap, (_, value) in zip(overlaps, self._values, strict=True))
        of = f"{len(self._values)} emails with {self._signal} feedback"
        how = (
            f"estimated from the {similar} of {of} that share citations"
            if similar
            else f"the mean of {of}: new citations"
        )
        return self._scored((weighted_sum + mean) / (sum(overlaps) + 1.0), how, [email for email, _ in self._values])

    def _scored(self, value: float, how: str, used: Sequence[Evidence]) -> Score:
        simulated = sum(email.simulated for email in used)
        if not simulated:
            return Score(value, how, {self._signal: value})
        explanation = f"{how} ({simulated} of {len(used)} heard from the {SIMULATOR})"
        return Score(value, explanation, {f"{self._signal} ({SIMULATOR})": value})


def _value(signal: str, evidence: Evidence) -> float | None:
    """Return what the evidence says by that signal, in [0, 1]; None if it lacks the signal."""
    if signal == "online":
        return evidence.online
    weight = evidence.wins + evidence.losses
    return evidence.wins / weight if weight else None


def _jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the Jaccard overlap, the shared part of all citations, in [0, 1]; 0 if both sets are empty."""
    return len(one & other) / len(one | other) if one & other else 0.0
