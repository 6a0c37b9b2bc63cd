"""The API takes what it took at the last release, and answers with what it answered.

`docs/openapi.json` is the API of the last release. What is added since is no matter. At a release it is written anew:
`python -m tests.integration.app.test_released_api > docs/openapi.json`.
"""

import json
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy

import pytest

from learnloop_service.environment.json_type import Json
from tests.fakes.engine_process import ROOT
from tests.integration.app.api_file import current_api

RELEASED = ROOT / "docs" / "openapi.json"
SINCE: tuple[str, ...] = ()
"""Breaks that were decided on since the last release; each has its place in the notes of the next one."""


def breaks(old: Json, new: Json) -> Iterator[str]:
    """What a client of the old API could miss in the new one."""
    for path, operations in old["paths"].items():
        for method, was in operations.items():
            operation = f"{method.upper()} {path}"
            if (now := new["paths"].get(path, {}).get(method)) is None:
                yield f"{operation} is gone"
                continue
            yield from _parameters(was, now, operation)
            compare = _Comparison(old, new)
            yield from compare.contents(
                was.get("requestBody"), now.get("requestBody"), f"{operation} body", is_request=True
            )
            for status, reply in was["responses"].items():
                there = now["responses"].get(status)
                yield from compare.contents(reply, there, f"{operation} {status}", is_request=False)


def _parameters(was: Json, now: Json, operation: str) -> Iterator[str]:
    before, after = ({(p["in"], p["name"]): p for p in version.get("parameters", ())} for version in (was, now))
    for key in before.keys() - after.keys():
        yield f"{operation} takes no {key[1]} any more"
    for key, parameter in after.items():
        if parameter.get("required") and not before.get(key, {}).get("required"):
            yield f"{operation} must be given {key[1]} now"


class _Comparison:
    """Compares schemas of two documents; each pair of named ones once."""

    def __init__(self, old: Json, new: Json) -> None:
        self._documents = (old, new)
        self._seen: set[tuple[str, str, bool]] = set()

    def contents(self, was: Json, now: Json, path: str, *, is_request: bool) -> Iterator[str]:
        """What bodies lack that are sent by the client in a request, or to it."""
        for kind, content in (was or {}).get("content", {}).items():
            if kind not in (now or {}).get("content", {}):
                yield f"{path} is no {kind} any more"
            else:
                yield from self._schemas(
                    content.get("schema", {}), now["content"][kind].get("schema", {}), path, is_request
                )

    def _schemas(self, was: Json, now: Json, path: str, is_request: bool) -> Iterator[str]:
        key = (json.dumps(was, sort_keys=True), json.dumps(now, sort_keys=True), is_request)
        if key in self._seen:
            return
        self._seen.add(key)
        before, after = self._forms(was, 0), self._forms(now, 1)
        for kind in before.keys() - after.keys() if is_request else after.keys() - before.keys():
            if "any" not in (after if is_request else before):
                yield f"{path} {'takes no' if is_request else 'may be'} {kind} {'any more' if is_request else 'now'}"
        for kind in before.keys() & after.keys():
            yield from self._form(before[kind], after[kind], path, is_request)

    def _forms(self, schema: Json, side: int) -> dict[str, Json]:
        """The forms that a value may have, by type; objects of several kinds are told apart by their titles."""
        while "$ref" in schema:
            schema = self._documents[side]["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
        if several := schema.get("anyOf") or schema.get("oneOf"):
            return {kind: form for option in several for kind, form in self._forms(option, side).items()}
        return {str(schema.get("type", "any")): schema}

    def _form(self, was: Json, now: Json, path: str, is_request: bool) -> Iterator[str]:
        if is_request and (lost := set(was.get("enum", ())) - set(now.get("enum", was.get("enum", ())))):
            yield f"{path} takes no {', '.join(sorted(map(str, lost)))} any more"
        fields = now.get("properties", {})
        for name, field in was.get("properties", {}).items():
            if name not in fields:
                yield f"{path}.{name} is gone"
            else:
                yield from self._schemas(field, fields[name], f"{path}.{name}", is_request)
        had, has = set(was.get("required", ())), set(now.get("required", ()))
        for name in sorted(has - had if is_request else (had - has) & fields.keys()):
            yield f"{path}.{name} {'must be given' if is_request else 'may be missing'} now"
        if "items" in was:
            yield from self._schemas(was["items"], now.get("items", {}), f"{path}[]", is_request)


def test_no_client_of_the_last_release_misses_anything(api: Json) -> None:
    breaking = sorted(set(breaks(json.loads(RELEASED.read_text()), api)) - set(SINCE))
    assert not breaking, f"list them in SINCE if they must be, or write {RELEASED.name} anew at a release: {__doc__}"


def _drop_operation(api: Json) -> None:
    del api["paths"]["/runs/{run_id}/cancel"]["post"]


def _drop_field(api: Json) -> None:
    del api["components"]["schemas"]["RunOut"]["properties"]["status"]


def _demand_field(api: Json) -> None:
    api["components"]["schemas"]["ForkRequest"]["required"] = ["seed"]


def _drop_setting(api: Json) -> None:
    del api["components"]["schemas"]["BudgetChoice"]["properties"]["max_usd"]


def _change_type(api: Json) -> None:
    api["components"]["schemas"]["Progress"]["properties"]["iterations_done"]["type"] = "string"


def _drop_parameter(api: Json) -> None:
    api["paths"]["/runs"]["get"]["parameters"].pop()


@pytest.mark.parametrize(
    "change", [_drop_operation, _drop_field, _demand_field, _drop_setting, _change_type, _drop_parameter]
)
def test_a_break_is_seen(change: Callable[[Json], None]) -> None:
    released = json.loads(RELEASED.read_text())
    changed = deepcopy(released)
    change(changed)
    assert list(breaks(released, changed))
    assert not list(breaks(released, released))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(current_api(), indent=1, ensure_ascii=False) + "\n")
