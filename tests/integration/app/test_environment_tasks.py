"""What environments say of their tasks, and that it is true."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from learnloop_service.environment import registry
from tests.fakes.installed import installed
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import served, settings_for

NAMES = [name for name in registry.names() if registry.traits(name).task]


def example_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first example of each property that has one."""
    return {name: field["examples"][0] for name, field in schema["properties"].items() if "examples" in field}


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_of_an_environment_are_a_task(name: str, tmp_path: Path) -> None:
    schema = registry.traits(name).task
    assert schema is not None
    Draft202012Validator.check_schema(schema)
    assert all("title" in field for field in schema["properties"].values())
    task = {**dict.fromkeys(schema["required"], "Do it."), **example_of(schema)}
    Draft202012Validator(schema).validate(task)
    environment = registry.build(name, {}, tmp_path)
    try:
        assert environment.ask(task).task.items() >= task.items()
        with pytest.raises(ValueError, match=r".+"):
            environment.ask({})
    finally:
        environment.close()


def test_our_environments_with_a_form_say_so() -> None:
    assert NAMES == ["answers", "email_search", "mcp", "sales_email"]


async def test_they_are_listed_with_it(data_dir: Path, database_url: str, tmp_path: Path) -> None:
    """What a package says of its tasks is passed on if it is a schema."""
    module = (
        "from learnloop_service.environment.traits import Traits\n"
        "TRAITS = Traits(task={})\ndef build(config, data_dir): ...\n"
    )
    schema = '{"properties": {"topic": {"title": "Topic"}}}'
    for name, task in {"good": schema, "odd": '"a topic"', "deep": '{"properties": {"topic": {1j}}}'}.items():
        (tmp_path / f"{name}.py").write_text(module.format(task))
    points = {name: f"{name}:build" for name in ("good", "odd", "deep", "broken")}
    with installed(tmp_path, registry.GROUP, points):
        async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
            items = (await client.get("/environments")).raise_for_status().json()["items"]
    tasks = {environment["name"]: environment["task"] for environment in items}
    assert tasks["email_search"]["required"] == ["question"]
    described = {environment["name"]: environment["description"] for environment in items}
    assert described["email_search"].startswith("Answers questions by searching a mailbox")
    assert (described["good"], described["broken"]) == ("", "")
    assert tasks["good"] == {"properties": {"topic": {"title": "Topic"}}}
    assert [tasks[name] for name in ("odd", "deep", "broken", "agent")] == [None] * 4
