"""Causes that are shares of rollouts with a symptom, above a bound."""

from collections.abc import Callable, Iterable, Mapping

from environment.json_type import Json
from training.diagnosis.detector import AllFacts, Detector, step_before
from training.diagnosis.diagnosis import Remedy, Severity, Span
from training.diagnosis.facts import MAX_EXAMPLES, Form, GroupFacts
from training.diagnosis.shares import Observed, share_spans

_MOST_TOKENS = 32_768
_LONGEST_S = 86_400
"""Limits of the request's fields (app/schemas/run_request.py)."""


class InfrastructureFailures(Detector):
    """Rollouts fail because a server, the network or a sandbox failed."""

    severity = Severity.WARNING
    bound = 0.1

    def spans(self, facts: AllFacts) -> list[Span]:
        return share_spans(share_of_groups(facts, _infrastructure), self.bound, self.config.all_iterations)

    def summary(self, facts: AllFacts, span: Span) -> str:
        figures = share_figures(facts, span, _infrastructure, self.bound)
        return (
            f"{_percent(figures['share'])} of the rollouts failed because a server, the network or a limit of time did."
        )

    def evidence(self, facts: AllFacts, span: Span) -> Mapping[str, Json]:
        since = [each for each in facts if each.iteration >= span.first]
        errors = list(dict.fromkeys(error for each in reversed(since) for error in each.errors))[:3]
        return share_figures(facts, span, _infrastructure, self.bound) | {
            "timeouts": sum(each.timeouts for each in since),
            "errors": errors,
            "trajectories": examples_of(facts, span, "infrastructure"),
        }

    def remedy(self, facts: AllFacts, span: Span) -> Remedy:
        since = [each for each in facts if each.iteration >= span.first]
        failures = sum(group.infrastructure for each in since for group in each.groups)
        checkpoint = step_before(facts, span.first)
        if 2 * sum(each.timeouts for each in since) >= failures:
            limit = min(2 * self.config.rollout_timeout_s, _LONGEST_S)
            text = f"Give rollouts more time: {limit:g} s instead of {self.config.rollout_timeout_s:g} s."
            return Remedy(text, {"checkpoint": checkpoint, "rollout_timeout_s": limit})
        fewer = max(1, self.config.concurrency // 2)
        text = f"Make fewer rollouts simultaneously: {fewer} instead of {self.config.concurrency}."
        return Remedy(text, {"checkpoint": checkpoint, "concurrency": fewer})


class TruncatedReplies(Detector):
    """Replies are cut off at the token limit."""

    severity = Severity.WARNING
    bound = 0.1

    def spans(self, facts: AllFacts) -> list[Span]:
        return share_spans(share_of_groups(facts, _truncated), self.bound, self.config.all_iterations)

    def summary(self, facts: AllFacts, span: Span) -> str:
        figures = share_figures(facts, span, _truncated, self.bound)
        limit = self.config.max_completion_tokens
        return f"{_percent(figures['share'])} of the rollouts have a reply that was cut off at {limit} tokens."

    def evidence(self, facts: AllFacts, span: Span) -> Mapping[str, Json]:
        return share_figures(facts, span, _truncated, self.bound) | {
            "max_completion_tokens": self.config.max_completion_tokens,
            "trajectories": examples_of(facts, span, "truncated"),
        }

    def remedy(self, facts: AllFacts, span: Span) -> Remedy:
        limit = min(2 * self.config.max_completion_tokens, _MOST_TOKENS)
        request = {"checkpoint": step_before(facts, span.first), "max_completion_tokens": limit}
        return Remedy(f"Allow replies of {limit} tokens.", request)


class MalformedReplies(Detector):
    """Most replies are no valid tool calls."""

    severity = Severity.WARNING

    def spans(self, facts: AllFacts) -> list[Span]:
        return share_spans(share_of_groups(facts, _malformed), self._bound(facts), self.config.all_iterations)

    def _bound(self, facts: AllFacts) -> float:
        """Return the bound: above the baseline's share, because a base can begin badly and recover, but at most 0.6."""
        baseline = facts[0].evaluated_malformed or 0.0
        return round(min(max(0.4, baseline + 0.1), 0.6), 4)

    def summary(self, facts: AllFacts, span: Span) -> str:
        figures = share_figures(facts, span, _malformed, self._bound(facts))
        return f"{_percent(figures['share'])} of the rollouts ended with a reply that is not a valid tool call."

    def evidence(self, facts: AllFacts, span: Span) -> Mapping[str, Json]:
        forms = commonest(form for each in facts if each.iteration >= span.first for form in each.forms)
        return share_figures(facts, span, _malformed, self._bound(facts)) | {
            "forms": [{"count": form.count, "text": form.text, "trajectory_id": form.trajectory_id} for form in forms],
            "trajectories": examples_of(facts, span, "malformed"),
        }

    def remedy(self, facts: AllFacts, span: Span) -> Remedy:
        from_the_start = span.first <= self.config.supervised_iterations + 1
        if not from_the_start:
            text = "Go back to the checkpoint before it, and let each step move the policy less (max_kl)."
            return Remedy(text, {"checkpoint": step_before(facts, span.first), "train_options": {"max_kl": 0.005}})
        if facts[-1].has_oracle:
            text = "Learn the form of tool calls from the environment's own demonstrations first (warm_start)."
            return Remedy(text, {"checkpoint": facts[0].step, "warm_start": {"demonstrations": {"oracle": 64}}})
        return Remedy(
            "Show the model the form of tool calls first: store demonstrations and name them in warm_start, or start "
            "from a base model that can call tools."
        )


def share_of_groups(facts: AllFacts, count: Callable[[GroupFacts], int]) -> list[Observed]:
    """Return the share of each group's rollouts with a symptom, for iterations with groups."""
    return [
        Observed(each.iteration, tuple(count(group) / group.rollouts for group in each.groups))
        for each in facts
        if each.groups
    ]


def share_figures(facts: AllFacts, span: Span, count: Callable[[GroupFacts], int], bound: float) -> dict[str, Json]:
    """Return the share of rollouts with a symptom since the span began, and its bound."""
    groups = [group for each in facts if each.iteration >= span.first for group in each.groups]
    affected, rollouts = sum(map(count, groups)), sum(group.rollouts for group in groups)
    return {"share": round(affected / rollouts, 4), "bound": bound, "affected": affected, "rollouts": rollouts}


def examples_of(facts: AllFacts, span: Span, symptom: str) -> list[str]:
    """Return ids of up to five trajectories with a symptom, newest iteration first."""
    found = [id for each in reversed(facts) if each.iteration >= span.first for id in each.examples.get(symptom, ())]
    return found[:MAX_EXAMPLES]


def commonest(forms: Iterable[Form]) -> list[Form]:
    """Return the three commonest forms; those whose examples are equal are added up."""
    found: dict[str, Form] = {}
    for form in forms:
        known = found.get(form.text)
        found[form.text] = form if known is None else Form(known.count + form.count, known.text, known.trajectory_id)
    return sorted(found.values(), key=lambda form: (-form.count, form.text))[:3]


def _infrastructure(group: GroupFacts) -> int:
    return group.infrastructure


def _truncated(group: GroupFacts) -> int:
    return group.truncated


def _malformed(group: GroupFacts) -> int:
    return group.malformed


def _percent(share: Json) -> str:
    return f"{100 * float(share):.0f}%"
