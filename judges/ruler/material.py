"""The part of a candidate that the judge model sees, and the digest by which two candidates are the same."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from learnloop_service.environment.base import Json
from learnloop_service.judges.base import Candidate
from learnloop_service.judges.injection import addresses_judge, asks_for_form

REMOVED = "[text that speaks to the judge was removed]"


@dataclass(frozen=True, slots=True)
class Material:
    """One candidate as data: messages without ids that differ by chance, texts that speak to the judge removed.

    `digest` is the hash of all of it: equal for candidates between which a judge could see no difference.
    """

    messages: Sequence[Json]
    outcome: Json
    digest: str


def material_of(candidate: Candidate) -> Material:
    """Return the part of the candidate that the judge model sees."""
    calls: dict[Json, str] = {}
    task = len(_task(candidate))
    messages = [_message(message, calls, is_task=index < task) for index, message in enumerate(candidate.messages)]
    outcome = _without_orders(dict(candidate.outcome))
    return Material(messages, outcome, digest([messages, outcome]))


def order_to_judge(candidate: Candidate) -> str | None:
    """Return the phrase with which the agent tries to instruct the judge in its own text; None if there is none."""
    email = candidate.outcome.get("email")
    final = [email.get("subject"), email.get("body")] if isinstance(email, Mapping) else []
    written = [[candidate.outcome.get("answer"), *final]]
    for message in candidate.messages:
        if message.get("role") == "assistant":
            written.append([message.get("content"), *map(_call, message.get("tool_calls") or ())])
    # Each message's texts both alone and as one: a phrase may be spread over a subject and a body.
    texts = (text for one in written for parts in [list(_texts(one))] for text in (*parts, "\n".join(parts)))
    forms = not any(map(asks_for_form, _texts([message.get("content") for message in _task(candidate)])))
    return next((phrase for text in texts if (phrase := addresses_judge(text, forms=forms))), None)


def _task(candidate: Candidate) -> list[Mapping[str, Json]]:
    """Return the messages before the agent's first one, which the environment's author wrote."""
    return list(takewhile(lambda message: message.get("role") not in ("assistant", "tool"), candidate.messages))


def digest(value: Json) -> str:
    """SHA-256 of the value as canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def canonical(value: Json) -> str:
    """JSON with sorted keys; characters that no encoding can carry are replaced."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return text.encode("utf-8", "replace").decode()


def _message(message: Mapping[str, Json], calls: dict[Json, str], *, is_task: bool) -> dict[str, Json]:
    cleaned: dict[str, Json] = {"role": message.get("role")}
    content = message.get("content")
    if content:
        # What the environment's author wrote, and what the agent wrote (checked before), stays as it is.
        stays = is_task or cleaned["role"] in ("system", "assistant")
        cleaned["content"] = content if stays else _without_orders(content)
    if message.get("tool_calls"):
        cleaned["tool_calls"] = [
            {"id": calls.setdefault(call.get("id"), f"call_{len(calls) + 1}"), **_call(call)}
            for call in message["tool_calls"]
        ]
    if message.get("tool_call_id") is not None:
        cleaned["tool_call_id"] = calls.get(message["tool_call_id"], "unknown")
    return cleaned


def _call(call: Mapping[str, Json]) -> dict[str, Json]:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    try:
        decoded = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        decoded = arguments
    return {"name": function.get("name"), "arguments": decoded}


def _without_orders(value: Json) -> Json:
    if isinstance(value, str):
        return REMOVED if addresses_judge(value, forms=False) else value
    if isinstance(value, Mapping):
        return {_without_orders(str(key)): _without_orders(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_orders(item) for item in value]
    return value


def _texts(value: Json) -> Iterator[str]:
    """Yield every string in the value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
