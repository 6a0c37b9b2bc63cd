"""The texts of a schema that it costs time and memory to enforce are found wherever they stand."""

import pytest

from learnloop_service.environment.json_type import Json
from learnloop_service.training.engine.http.schema_literals import Literal, literals

LONG = "ab" * 5000


def _object(properties: Json) -> Json:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"const": LONG}, "const"),
        ({"const": {"description": LONG}}, "const"),
        ({"enum": ["a", LONG]}, "enum"),
        ({"type": "string", "pattern": LONG}, "pattern"),
        (_object({LONG: {"type": "string"}}), "properties"),
        ({"type": "object", "patternProperties": {LONG: {}}}, "patternProperties"),
        ({"type": "object", "required": [LONG]}, "required"),
        (_object({"a": {"items": {"anyOf": [{}, {"pattern": LONG}]}}}), "properties.a.items.anyOf[1].pattern"),
        (_object({"pattern": {"const": LONG}}), "properties.pattern.const"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"const": LONG}}}, "$defs.a.const"),
    ],
)
def test_a_long_literal_is_found_with_its_place(schema: Json, path: str) -> None:
    largest = max(literals(schema), key=lambda literal: literal.size)
    assert largest.location == path
    assert 10_000 <= largest.size < 10_100


@pytest.mark.parametrize("keyword", ["title", "description", "$comment"])
def test_annotations_do_not_count(keyword: str) -> None:
    assert sum(literal.size for literal in literals(_object({"a": {"type": "string", keyword: LONG}}))) == 1


def test_many_short_literals_add_up() -> None:
    assert sum(literal.size for literal in literals({"enum": ["äb", 12, None]})) == 3 + 2 + 4


def test_places_in_deep_schemas_stay_short() -> None:
    schema: Json = {"const": 1}
    for _ in range(100):
        schema = _object({LONG: schema})
    assert max(len(literal.location) for literal in literals(schema)) < 200
    assert Literal("const", 1) in literals({"const": 1})
