"""The client's requests and types are those of the API.

What the last release had and is no more, `test_released_api` finds.
"""

import json
import types as python_types
from collections.abc import Iterator
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict
from urllib.parse import parse_qsl

import pytest

from learnloop import operations, types
from learnloop.steps import Open, Send
from learnloop_service.environment.json_type import Json
from tests.integration.app.api_file import current_api

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", dict: "object"}
OPERATIONS = [
    (operations.learn_loop({}, None), types.LearnLoopRequest, types.Accepted),
    (operations.run_state("{run_id}"), None, types.RunState),
    (operations.cancel("{run_id}"), None, types.Accepted),
    (operations.store_demonstrations("mine", [], None), None, types.Demonstrations),
    (operations.store_best_rollouts("{run_id}", "best", 1.0, 1, None), None, types.Demonstrations),
    (operations.ask({}, None, run_id="r"), types.Task, types.Answer),
    (operations.ask({}, None, model="m"), types.Task, types.Answer),
    (operations.events("{run_id}", 0), None, types.Event),
    (operations.open_session("m", {}), types.SessionRequest, types.SessionAccess),
    (operations.session_state("{id}"), None, types.SessionState),
    (operations.feedback("thumbs_up", {}), types.FeedbackEvent, types.FeedbackTaken),
    (operations.end_session("{id}", {"reward": 1.0}), types.Outcome, types.SessionState),
]


def alternatives(hint: Any) -> list[Any]:
    origin = get_origin(hint)
    if origin is NotRequired:
        return alternatives(get_args(hint)[0])
    return list(get_args(hint)) if origin in (Union, python_types.UnionType) else [hint]


class Api:
    def __init__(self, document: Json) -> None:
        self.document = document

    def forms(self, schema: Json) -> list[Json]:
        """What a schema allows, without references."""
        if "$ref" in schema:
            return self.forms(self.document["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
        several = schema.get("anyOf") or schema.get("oneOf")
        return [form for option in several for form in self.forms(option)] if several else [schema]

    def misfits(self, hint: Any, schema: Json, path: str, *, is_request: bool) -> Iterator[str]:
        """Where a value of that type could not be sent, or what is received is not of that type."""
        forms, hints = self.forms(schema), alternatives(hint)
        if is_request:
            pairs = [
                (option, [form for form in forms if self._kind(form) == self._kind_of(option)]) for option in hints
            ]
            yield from (f"{path} does not take {option}" for option, fits in pairs if not fits)
        else:
            pairs = [
                (option, [form]) for form in forms for option in hints if self._kind(form) == self._kind_of(option)
            ]
            kinds = {self._kind_of(option) for option in hints}
            yield from (f"{path} may be {self._kind(form)}" for form in forms if self._kind(form) not in kinds)
        for option, fitting in pairs:
            by_form = [list(self._inside(option, form, path, is_request=is_request)) for form in fitting]
            # One form of a request has to take it; whichever form a reply has, it is of the type.
            yield from (
                min(by_form, key=len, default=[]) if is_request else [misfit for one in by_form for misfit in one]
            )

    def _inside(self, hint: Any, form: Json, path: str, *, is_request: bool) -> Iterator[str]:
        if is_typeddict(hint):
            for name, member in get_type_hints(hint, include_extras=True).items():
                if name not in form.get("properties", {}):
                    yield f"{path} has no {name}"
                else:
                    yield from self.misfits(member, form["properties"][name], f"{path}.{name}", is_request=is_request)
        elif get_origin(hint) is list and get_args(hint)[0] is not Any:
            yield from self.misfits(get_args(hint)[0], form["items"], f"{path}[]", is_request=is_request)
        elif get_origin(hint) is Literal:
            ours, theirs = set(get_args(hint)), set(form.get("enum", ()))
            if not (ours <= theirs if is_request else theirs <= ours):
                yield f"{path} is one of {sorted(theirs)}"

    def _kind(self, form: Json) -> str:
        return str(form.get("type", "any"))

    def _kind_of(self, hint: Any) -> str:
        if is_typeddict(hint):
            return "object"
        if get_origin(hint) is Literal:
            return "string"
        return "array" if get_origin(hint) is list else _PLAIN[get_origin(hint) or hint]


@pytest.fixture(scope="module")
def api() -> Api:
    return Api(current_api())


@pytest.mark.parametrize(("operation", "sent", "received"), OPERATIONS)
def test_each_operation_is_one_of_the_api(api: Api, operation: Any, sent: Any, received: Any) -> None:
    step = next(operation)
    assert isinstance(step, Send | Open)
    method = step.method.lower() if isinstance(step, Send) else "get"
    path, _, query = step.path.replace("%7B", "{").replace("%7D", "}").partition("?")
    there = api.document["paths"][path][method]
    parameter_names = {parameter["name"].lower() for parameter in there.get("parameters", ())}
    assert {name for name in step.headers if name not in ("accept", "content-type")} <= parameter_names
    assert set(dict(parse_qsl(query))) <= parameter_names
    if sent is not None:
        [content] = there["requestBody"]["content"].values()
        assert list(api.misfits(sent, content["schema"], "body", is_request=True)) == []
        assert isinstance(step, Send)
        sent_names = json.loads(step.content or b"{}").keys()
        assert any(sent_names <= form["properties"].keys() for form in api.forms(content["schema"]))
    reply = next(reply for status, reply in there["responses"].items() if status.startswith("2"))
    [schema] = api.forms(reply["content"]["application/json"]["schema"])
    if received is types.Event:
        schema = schema["properties"]["items"]["items"]
    assert list(api.misfits(received, schema, "reply", is_request=False)) == []


def test_a_misfit_is_found(api: Api) -> None:
    schema = {"type": "object", "properties": {"status": {"type": "integer"}, "run_id": {"type": "string"}}}
    assert list(api.misfits(types.Accepted, schema, "reply", is_request=False)) == ["reply.status may be integer"]
    assert list(api.misfits(types.Budget, schema, "body", is_request=True)) == [
        "body has no max_usd",
        "body has no max_minutes",
        "body has no max_tokens",
    ]
    other = {"type": "string", "enum": ["queued", "lost"]}
    [misfit] = api.misfits(types.RunStatus, other, "status", is_request=False)
    assert misfit == "status is one of ['lost', 'queued']"
