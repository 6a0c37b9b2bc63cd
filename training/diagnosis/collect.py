"""Computes an iteration's facts from its result."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from training.diagnosis.facts import MAX_EXAMPLES, Facts, Form, GroupFacts
from training.rollout.histories import messages_of
from training.types import FailureKind, Group, IterationResult, Rollout, RunConfig

if TYPE_CHECKING:  # importing it takes long
    from art import Trajectory
    from art.trajectories import History
    from openai.types.chat.chat_completion import Choice

_INFRASTRUCTURE = (FailureKind.BACKEND_AWAY, FailureKind.TIMEOUT, FailureKind.MODEL_NOT_FOUND)
_SHOWN = 200
"""Characters that are kept of an error or of a malformed reply."""
_STRING = re.compile(r'"(?:[^"\\]|\\.){13,}"?')
_DIGITS = re.compile(r"\d+")


def facts_of(result: IterationResult, config: RunConfig) -> Facts:
    """Return the facts that the result itself contains."""
    rollouts = [scored.rollout for group in result.groups for scored in group.rollouts]
    failures = [each.failure for each in rollouts if each.failure and each.failure.kind in _INFRASTRUCTURE]
    symptoms = {
        "infrastructure": [each.id for each in rollouts if _failed(each)],
        "truncated": [each.id for each in rollouts if truncated(each, config.max_completion_tokens)],
        "malformed": [each.id for each in rollouts if malformed(each)],
    }
    errors = dict.fromkeys(failure.message[:_SHOWN] for failure in failures)
    kl_div = result.train_metrics.get("kl_div")
    return Facts(
        iteration=result.iteration,
        step=result.step,
        sampled_step=result.sampled_step,
        staleness=result.staleness,
        kl_div=kl_div,
        groups=tuple(_group(group, config.max_completion_tokens) for group in result.groups),
        timeouts=sum(failure.kind is FailureKind.TIMEOUT for failure in failures),
        examples={symptom: tuple(ids[:MAX_EXAMPLES]) for symptom, ids in symptoms.items() if ids},
        errors=tuple(errors)[:3],
        forms=forms_of(rollouts),
        evaluated_malformed=next(
            (each.malformed for each in result.evaluations if (each.split, each.mode) == ("validation", "sampled")),
            None,
        ),
    )


def _group(group: Group, limit: int) -> GroupFacts:
    rollouts = [scored.rollout for scored in group.rollouts]
    cut = {each.id for each in rollouts if truncated(each, limit)}
    bad = {each.id for each in rollouts if malformed(each)}
    return GroupFacts(len(rollouts), sum(map(_failed, rollouts)), len(cut), len(bad), len(cut & bad))


def _failed(rollout: Rollout) -> bool:
    return rollout.failure is not None and rollout.failure.kind in _INFRASTRUCTURE


def malformed(rollout: Rollout) -> bool:
    """Return whether the rollout ended with a malformed reply."""
    return rollout.failure is None and rollout.outcome.get("finish") == "malformed"


def truncated(rollout: Rollout, limit: int) -> bool:
    """Return whether one of the rollout's replies was cut off at the limit of tokens."""
    return any(
        each.finish_reason == "length" or len((each.logprobs and each.logprobs.content) or ()) >= limit
        for each in choices_of(rollout)
    )


def choices_of(rollout: Rollout) -> "Iterator[Choice]":
    """Yield the replies that were sampled in a rollout."""
    histories: tuple[Trajectory | History, ...] = (rollout.trajectory, *rollout.trajectory.additional_histories)
    for history in histories:
        yield from (item for item in history.messages_and_choices if not isinstance(item, dict))


def forms_of(rollouts: Iterable[Rollout]) -> tuple[Form, ...]:
    """Return the three commonest forms of the malformed rollouts' last replies.

    Replies have the same form if they differ only in numbers and in the contents of long strings.
    """
    counts: Counter[str] = Counter()
    first: dict[str, tuple[str, str]] = {}
    for rollout in rollouts:
        if not malformed(rollout):
            continue
        text = _last_reply(rollout)
        form = _DIGITS.sub("0", _STRING.sub('"..."', " ".join(text.split())))
        counts[form] += 1
        first.setdefault(form, (text[:_SHOWN], rollout.id))
    common = sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:3]
    return tuple(Form(count, *first[form]) for form, count in common)


def _last_reply(rollout: Rollout) -> str:
    """Return what the model wrote last: its text, and its calls as `NAME(ARGUMENTS)`."""
    replies = [each for each in messages_of(rollout.trajectory) if each.get("role") == "assistant"]
    if not replies:
        return ""
    functions = [call["function"] for call in replies[-1].get("tool_calls") or () if "function" in call]
    calls = [f"{each['name']}({_text(each['arguments'])})" for each in functions]
    return " ".join([_text(replies[-1].get("content") or ""), *calls]).strip()


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
