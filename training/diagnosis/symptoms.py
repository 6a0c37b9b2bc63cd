"""Causes that show in how rollouts end: failures, cut-off or malformed replies, used-up turns, and errors of tools."""

from collections.abc import Iterable

from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted
from learnloop_service.training.diagnosis import request_limits
from learnloop_service.training.diagnosis.detector import AllFacts
from learnloop_service.training.diagnosis.diagnosis import CausePeriod, Remedy, Severity
from learnloop_service.training.diagnosis.facts import Form, GroupFacts
from learnloop_service.training.diagnosis.share_detector import ShareAboveBaseline, ShareDetector, newest

_SHOWN = 3
"""Number of messages or forms that the evidence has."""


class InfrastructureFailures(ShareDetector):
    """Rollouts fail because a server, the network or a sandbox failed."""

    severity = Severity.WARNING
    bound = 0.1
    symptom = "infrastructure"

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        share = self.percent(facts, span)
        return f"{share} of the rollouts failed because a server, the network or a limit of time did."

    def evidence(self, facts: AllFacts, span: CausePeriod) -> dict[str, Json]:
        return super().evidence(facts, span) | {
            "timeouts": self._timeouts(facts, span),
            "errors": newest(facts, span, lambda iteration: iteration.errors)[:_SHOWN],
        }

    def _timeouts(self, facts: AllFacts, span: CausePeriod) -> int:
        return sum(iteration.timeouts for iteration in facts if iteration.iteration >= span.first)

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        failures, _ = self._totals(facts, span)
        if 2 * self._timeouts(facts, span) >= failures:
            limit = min(2 * self.config.rollout_timeout_s, request_limits.TIMEOUT_S)
            text = f"Give rollouts more time: {limit:g} s instead of {self.config.rollout_timeout_s:g} s."
            return self.fork(facts, span, text, rollout_timeout_s=limit)
        fewer = max(1, self.config.concurrency // 2)
        text = f"Make fewer rollouts simultaneously: {fewer} instead of {self.config.concurrency}."
        return self.fork(facts, span, text, concurrency=fewer)


class AgentErrors(ShareDetector):
    """An agent with a loop of its own raises errors."""

    severity = Severity.WARNING
    bound = 0.1
    symptom = "agent_errors"

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        return f"{self.percent(facts, span)} of the rollouts failed because the agent did."

    def evidence(self, facts: AllFacts, span: CausePeriod) -> dict[str, Json]:
        errors = newest(facts, span, lambda iteration: iteration.agent_errors)[:_SHOWN]
        return super().evidence(facts, span) | {"errors": errors}

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        return Remedy("Mend the agent: the evidence has its errors. A rollout that fails teaches nothing.")


class TruncatedReplies(ShareDetector):
    """Replies are cut off at the token limit."""

    severity = Severity.WARNING
    bound = 0.1
    symptom = "truncated"

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        share, limit = self.percent(facts, span), self.config.max_completion_tokens
        return f"{share} of the rollouts have a reply that was cut off at {counted(limit, 'token')}."

    def evidence(self, facts: AllFacts, span: CausePeriod) -> dict[str, Json]:
        return super().evidence(facts, span) | {"max_completion_tokens": self.config.max_completion_tokens}

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        limit = min(2 * self.config.max_completion_tokens, request_limits.COMPLETION_TOKENS)
        return self.fork(facts, span, f"Allow replies of {limit} tokens.", max_completion_tokens=limit)


class OutOfTurns(ShareAboveBaseline):
    """Rollouts end because their turns are used up."""

    severity = Severity.WARNING
    symptom = "out_of_turns"

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        return (
            f"{self.percent(facts, span)} of the rollouts ended because they had used up their "
            f"{counted(self._limit(facts), 'turn')}."
        )

    def _limit(self, facts: AllFacts) -> int:
        return next(
            (iteration.max_turns for iteration in reversed(facts) if iteration.max_turns), self.config.max_turns or 1
        )

    def evidence(self, facts: AllFacts, span: CausePeriod) -> dict[str, Json]:
        return super().evidence(facts, span) | {"max_turns": self._limit(facts)}

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        turns = min(2 * self._limit(facts), request_limits.TURNS)
        return self.fork(facts, span, f"Allow {counted(turns, 'turn')}.", max_turns=turns)


class MalformedReplies(ShareAboveBaseline):
    """Many rollouts end with a reply that is not a valid tool call."""

    severity = Severity.WARNING
    symptom = "malformed"

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        return f"{self.percent(facts, span)} of the rollouts ended with a reply that is not a valid tool call."

    def evidence(self, facts: AllFacts, span: CausePeriod) -> dict[str, Json]:
        forms = commonest(form for iteration in facts if iteration.iteration >= span.first for form in iteration.forms)
        return super().evidence(facts, span) | {
            "forms": [{"count": form.count, "text": form.text, "trajectory_id": form.trajectory_id} for form in forms],
        }

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        if span.first > self.config.supervised_iterations + 1:
            text = "Go back to the checkpoint before it, and let each step move the policy less (max_kl)."
            return self.fork(facts, span, text, train_options={"max_kl": 0.005})
        if facts[-1].has_oracle:
            text = "Learn the form of tool calls from the environment's own demonstrations first (warm_start)."
            return Remedy(text, {"checkpoint": facts[0].step, "warm_start": {"demonstrations": {"oracle": 64}}})
        return Remedy(
            "Show the model the form of tool calls first: store demonstrations and name them in warm_start, or start "
            "from a base model that can call tools."
        )


class ToolErrors(ShareAboveBaseline):
    """Most tool calls are answered by an error."""

    symptom = "tool_errors"
    unit = "calls"
    unknown = "The environment does not count errors of its tools; mostly a wrong call ends a rollout as malformed."

    def count(self, group: GroupFacts) -> tuple[float, float]:
        return group.tool_errors, group.tool_calls

    def summary(self, facts: AllFacts, span: CausePeriod) -> str:
        return f"{self.percent(facts, span)} of the tool calls were answered by an error."

    def remedy(self, facts: AllFacts, span: CausePeriod) -> Remedy:
        return Remedy(
            "Read the tools' answers in these rollouts: often a schema of arguments asks for what the model cannot "
            "know, or a server is broken."
        )


def commonest(forms: Iterable[Form]) -> list[Form]:
    """Return the three commonest forms. Counts of forms with equal examples are added up."""
    by_text: dict[str, Form] = {}
    for form in forms:
        first = by_text.get(form.text)
        by_text[form.text] = form if first is None else Form(first.count + form.count, first.text, first.trajectory_id)
    return sorted(by_text.values(), key=lambda form: (-form.count, form.text))[:_SHOWN]
