"""Imported files, from the request to trained weights: a real service, and the engine with the shipped base."""

import asyncio
import csv
import io
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from typing import Any

import pytest
from sqlalchemy import URL

from learnloop_service.app.cli.client import Service, ServiceRefused
from learnloop_service.app.cli.service_process import own_service
from learnloop_service.app.cli.watching import follow
from tests.fakes.engine_process import ROOT
from tests.fakes.forked_learnloop import services
from tests.fixtures import MIGRATED, database

TEAMS = {"billing": ("invoice", "refund", "receipt"), "shipping": ("parcel", "courier", "tracking")}
PLACES = ("Lima", "Cairo", "Quito", "Tunis", "Bergen", "Turin", "Leeds", "Porto")
SMALL = {
    "groups_per_iteration": 2, "rollouts_per_group": 4, "max_completion_tokens": 8,
    "evaluation": {"scenarios": 4, "test_scenarios": 4, "samples": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, postgres: URL) -> Iterator[Service]:
    async def url() -> str:
        async with database(postgres, MIGRATED, keep=True) as database_url:
            return database_url

    variables = {"DATABASE_URL": asyncio.run(url())}
    with (
        services(),
        own_service(tmp_path_factory.mktemp("imports"), waiting=lambda _: None, variables=variables) as running,
    ):
        yield running


def tickets() -> bytes:
    file = io.StringIO()
    table = csv.writer(file, delimiter=";")
    table.writerow(["Ticket", "Team"])
    for team, subjects in TEAMS.items():
        table.writerows([[f"My {subject} in {city}?", team] for subject in subjects for city in PLACES])
    table.writerow(["", "billing"])
    return ("\ufeff" + file.getvalue()).encode("utf-16-le")


def test_a_preview_stores_nothing_and_the_same_file_makes_one_version(service: Service) -> None:
    previewed = service.import_file(tickets(), name="seen", preview=True)
    assert previewed["questions"]["rows"][0] == {"line": 2, "cells": ["My invoice in Lima?", "billing"]}
    assert (previewed["tasks"]["version"], previewed["tasks"]["count"]) == (None, 48)
    assert service.versions("scenarios", "seen") == []
    imported = service.import_file(tickets(), name="seen")
    again = service.import_file(tickets(), name="seen")
    assert imported["tasks"] == again["tasks"] == previewed["tasks"] | {"version": 1}
    assert imported["left_out"] == [{"reason": "it has no question", "count": 1, "lines": [50]}]
    [version] = service.versions("scenarios", "seen")
    assert (version["environment"], version["origin"]["source"]) == ("answers", "questions")


@pytest.mark.parametrize(
    ("content", "parameters", "place"),
    [
        (b"a,b,c\n1,2,3\n", {}, "query.question"),
        (tickets(), {"answer": "Group"}, "query.answer"),
        (b"question,answer\na,b\n", {}, "1 question, of which 1 differ"),
        (b"PK\x03\x04", {}, "not a valid XLSX file"),
    ],
)
def test_a_file_that_cannot_be_imported_is_refused(
    service: Service, content: bytes, parameters: Any, place: str
) -> None:
    with pytest.raises(ServiceRefused, match=place):
        service.import_file(content, name="wrong", **parameters)
    assert service.versions("scenarios", "wrong") == []


def test_the_guide_prints_what_its_file_becomes(service: Service) -> None:
    guide = (ROOT / "docs/guides/my_questions.md").read_text(encoding="utf-8")
    written = io.StringIO()
    with redirect_stdout(written):
        exec(guide.partition("```python\n")[2].partition("```")[0], {})
    imported = service.import_file(written.getvalue().encode(), name="guide")
    questions, tasks = imported["questions"], imported["tasks"]
    splits = f"{tasks['train']} train, {tasks['validation']} validation, {tasks['test']} test"
    assert f"{questions['different']} different questions, {questions['near_duplicates']} nearly the same" in guide
    assert f"tasks tickets@1: {tasks['count']} ({splits})" in guide
    assert f"warm_start.demonstrations.oracle={tasks['train']} " in guide


def test_imported_questions_are_learned(service: Service) -> None:
    imported = service.import_file(tickets(), name="tickets")
    tasks = imported["tasks"]
    accepted = service.start_run(
        {
            "environment": {"name": "answers", "config": {"scenarios": "tickets"}},
            "judge": {"name": "reference", "config": {"extra_words": 0}},
            "warm_start": {"demonstrations": {"oracle": tasks["train"]}, "epochs": 4},
            "iterations": 2,
            **SMALL,
        }
    )
    assert any("learnloop/tiny" in warning for warning in accepted["warnings"])
    run = follow(service, accepted["run_id"], lambda _: None)
    assert run["status"] == "completed", run
    learned = [iteration["supervised"] for iteration in service.iterations(run["run_id"]) if iteration["supervised"]]
    assert learned[-1]["held_out_loss"] < learned[0]["held_out_loss_before"] / 2
    rollouts = list(service.trajectories(run["run_id"]))
    assert {rollout["score"] for rollout in rollouts} <= {0.0, 1.0, None}
    assert any(rollout["iteration"] == 2 + len(learned) for rollout in rollouts)


def test_demonstrations_of_imported_conversations_are_learned(service: Service) -> None:
    lines = [
        {
            "messages": [
                {"role": "user", "content": f"When is {city} open? I am customer {number}."},
                {"role": "assistant", "content": "9 to 5"},
            ],
            "feedback": "up",
            "user": f"{city} {number}",
        }
        for city in PLACES
        for number in range(8)
    ]
    imported = service.import_file(b"\n".join(json.dumps(line).encode() for line in lines), name="chats")
    assert imported["kind"] == "conversations"
    count = imported["demonstrations"]["count"]
    started = service.start_run(
        {
            "warm_start": {"demonstrations": {"dataset": "chats"}, "epochs": 3},
            "iterations": 0,
            "evaluation": {"scenarios": 0, "test_scenarios": 0},
        }
    )
    run = follow(service, started["run_id"], lambda _: None)
    assert run["status"] == "completed", run
    assert run["request"]["warm_start"]["demonstrations"]["count"] == count
    learned = [iteration["supervised"] for iteration in service.iterations(run["run_id"]) if iteration["supervised"]]
    assert learned[-1]["held_out_loss"] < learned[0]["held_out_loss_before"] / 2
