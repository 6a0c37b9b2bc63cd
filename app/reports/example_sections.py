"""The part of a report with held-out tasks in full, before and after training."""

from collections.abc import Mapping
from itertools import takewhile

from learnloop_service.app.db.json_text import canonical
from learnloop_service.app.reports.examples import changes
from learnloop_service.app.reports.format import number
from learnloop_service.app.reports.html import Html, h
from learnloop_service.app.reports.rollouts import compared
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted, in_words

_TITLES = ("question", "goal", "task", "prompt", "input")
"""Fields of a task that say what it is, in order of preference."""
_WHO = {"system": "instructions", "user": "task", "assistant": "agent", "tool": "result", "cut": "left out"}


def examples_section(report: Json) -> Html:
    """Return the section. Without two evaluations it says that there is nothing to compare yet."""
    items = report["examples"]["items"]
    if not items:
        return h(
            "section",
            h("h2", "Held-out tasks, before and after"),
            h(
                "p",
                "There are not two held-out evaluations to compare, or their rollouts were deleted.",
                class_="muted",
            ),
        )
    return h(
        "section",
        h("h2", f"{_COUNTS.get(len(items)) or counted(len(items), 'held-out task')}, before and after"),
        _changes(report),
        h("p", "The agent never trains on them. ", report["examples"]["rule"], class_="muted"),
        *(_example(number, item) for number, item in enumerate(items, 1)),
    )


def _changes(report: Json) -> Html | None:
    if (ends := compared(report)) is None:
        return None
    changed = changes(*ends, report["scenarios"])
    return h(
        "p",
        f"Of {counted(sum(changed), 'task')}, ",
        h("strong", f"{changed.better:,} got better", class_="good"),
        ", ",
        h("strong", f"{changed.worse:,} got worse", class_="bad"),
        f" and {changed.same:,} stayed the same.",
    )


_COUNTS = {
    1: "One held-out task",
    2: "Two held-out tasks",
    3: "Three held-out tasks",
    4: "Four held-out tasks",
    5: "Five held-out tasks",
}


def _example(number: int, item: Json) -> Html:
    task: Mapping[str, Json] = item["task"]
    name = next((name for name in _TITLES if isinstance(task.get(name), str)), None)
    others = {key: value for key, value in task.items() if key != name}
    return h(
        "article",
        h("h3", f"{number}. ", task[name] if name else item["scenario_id"], " ", h("span", item["why"], class_="chip")),
        h("p", " · ".join(f"{key}: {_plain(value)}" for key, value in others.items()), class_="muted small")
        if others
        else None,
        h("p", "Expected: ", h("strong", _expected(item["reference"]))) if item["reference"] else None,
        h("ol", *map(_message, shared), class_="talk") if (shared := _shared(item)) else None,
        h(
            "div",
            _side("Before training", item["before"], len(shared)),
            _side("After training", item["after"], len(shared)),
            class_="two",
        ),
    )


def _shared(item: Json) -> list[Json]:
    """Return the messages with which both conversations begin: instructions and task."""
    pairs = zip(item["before"]["messages"], item["after"]["messages"], strict=False)
    return [one for one, _ in takewhile(lambda pair: pair[0] == pair[1] and pair[0]["role"] != "assistant", pairs)]


def _side(title: str, side: Json, shared: int) -> Html:
    mark = {True: h("span", "✓ right", class_="good"), False: h("span", "✗ not right", class_="bad")}.get(
        side["success"]
    )
    several = f"{side['right']} of {counted(side['samples'], 'rollout')} right, reward {number(side['reward'])}"
    return h(
        "div",
        h("h4", title, " ", mark or h("span", "not judged", class_="muted")),
        h("p", _answer(side), class_="answer"),
        h("p", why, class_="bad small") if (why := side.get("why_no_success")) else None,
        h("p", f"step {side['step']} · {several}", class_="muted small"),
        h("p", side["score_explanation"], class_="muted small") if side["score_explanation"] else None,
        h("ol", *map(_message, side["messages"][shared:]), class_="talk"),
        class_="side",
    )


def _answer(side: Json) -> str:
    outcome = side["outcome"]
    if side["error"] is not None:
        return f"failed: {side['error']}"
    answer = outcome.get("answer", outcome.get("email"))
    if answer:
        sources = outcome.get("sources") or []
        return _plain(answer) + (f" (from {', '.join(map(_plain, sources))})" if sources else "")
    return f"no answer: {in_words(_plain(outcome.get('finish', 'unknown')))}"


def _expected(reference: Mapping[str, Json]) -> str:
    if not isinstance(reference.get("answer"), str):
        return _plain(dict(reference))
    sources = reference.get("source_ids") or []
    return str(reference["answer"]) + (f" (from {', '.join(map(_plain, sources))})" if sources else "")


def _message(message: Json) -> Html:
    calls = [h("code", f"{call['name']}({_arguments(call['arguments'])})") for call in message["calls"]]
    words = h("span", message["text"], class_="said", dir="auto") if message["text"] else None
    return h(
        "li", h("b", _WHO.get(message["role"], _plain(message["role"]))), " ", words, *calls, class_=_class(message)
    )


def _class(message: Json) -> str | None:
    return message["role"] if message["role"] in _WHO else None


def _arguments(text: str) -> str:
    """Return the arguments of a call without the outermost braces."""
    return text[1:-1] if text[:1] == "{" and text[-1:] == "}" else text


def _plain(value: Json) -> str:
    return value if isinstance(value, str) else canonical(value)
