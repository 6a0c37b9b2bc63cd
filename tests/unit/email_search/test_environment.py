"""The environment `email_search`: config, scenarios, a user's own question."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from learnloop_service.environment.base import Environment, Split
from learnloop_service.environment.email_search.environment import (
    ImportedEmailSearch,
    SyntheticEmailSearch,
    build,
    inbox_path,
)
from learnloop_service.environment.email_search.inbox import write_inbox
from learnloop_service.environment.email_search.synthetic import make_world
from learnloop_service.environment.explained import why_no_success

SPLITS: tuple[Split, ...] = get_args(Split)


@pytest.fixture
def imported(tmp_path: Path) -> ImportedEmailSearch:
    """An environment on an inbox file with 40 questions about its first mail."""
    world = make_world("train", 1, 0)
    write_inbox(inbox_path(tmp_path, "mine"), world.emails)
    rows = [{"question": f"{n}?", "answer": "x", "source_ids": [world.emails[0].id]} for n in range(40)]
    path = tmp_path / "inboxes" / "mine.questions.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    environment = build({"inbox": "mine"}, tmp_path)
    assert isinstance(environment, ImportedEmailSearch)
    return environment


def test_scenarios_are_numbered() -> None:
    environment: Environment = SyntheticEmailSearch()
    for split in SPLITS:
        ten = environment.scenarios(split, 10, 3)
        assert environment.scenarios(split, 4, 3, start=3) == ten[3:7]
        assert environment.scenarios(split, 0, 3) == []
        assert len({scenario.id for scenario in ten}) == 10
        assert {scenario.split for scenario in ten} == {split}
    assert environment.scenarios("train", 1, 3) != environment.scenarios("train", 1, 4)


async def test_every_seed_that_a_run_may_have_can_be_played() -> None:
    environment = SyntheticEmailSearch()
    for seed in (0, 999_999_999, 2**31 - 1):
        (scenario,) = environment.scenarios("train", 1, seed, start=2_500_000)
        (source,) = scenario.reference["source_ids"]
        episode = environment.episode(scenario)
        assert scenario.reference["answer"] in (await episode.call("read_email", {"email_id": source})).content
    environment.close()


async def test_a_question_about_a_synthetic_inbox() -> None:
    environment = SyntheticEmailSearch()
    task = {
        "question": "  Who leads it? ",
        "inbox_address": "test.0.17@inbox.example",
        "query_date": "2026-05-01T10:00",
    }
    scenario = environment.ask(task)
    assert scenario.task == {
        "question": "Who leads it?",
        "inbox_address": "test.0.17@inbox.example",
        "query_date": "2026-05-01",
    }
    assert scenario.reference == {}
    episode = environment.episode(scenario, max_turns=3)
    assert "You have 3 turns." in episode.messages()[0]["content"]
    await episode.call("return_final_answer", {"answer": "Tolu", "sources": ["a"]})
    answer = environment.answer(episode.outcome())
    assert "No search found an email" in answer.pop("note")
    assert answer == {"answer": "Tolu", "source_ids": ["a"], "success": True}


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"question": "Who?"}, "test.0.17@inbox.example, not ''"),
        ({"question": "Who?", "inbox_address": "me@x.example"}, "not 'me@x.example'"),
        ({"inbox_address": "test.0.1@inbox.example"}, "question"),
        ({"question": " ", "inbox_address": "test.0.1@inbox.example"}, "question"),
        ({"question": 3, "inbox_address": "test.0.1@inbox.example"}, "question"),
        ({"question": "Who?", "inbox_address": "test.0.1@inbox.example", "query_date": "soon"}, "query_date"),
    ],
)
def test_an_unfit_question_is_refused(task: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SyntheticEmailSearch().ask(task)


def test_an_imported_inbox_has_its_own_questions(imported: ImportedEmailSearch) -> None:
    train = imported.scenarios("train", 20, 0)
    assert imported.scenarios("train", 5, 0, start=10) == train[10:15]
    assert {scenario.task["inbox_address"] for scenario in train} == {"mine@inbox.example"}
    questions = {
        split: {scenario.task["question"] for scenario in imported.scenarios(split, 40, 0)} for split in SPLITS
    }
    assert set.union(*questions.values()) == {f"{n}?" for n in range(40)}
    assert sum(map(len, questions.values())) == 40
    imported.close()


def test_a_run_keeps_the_questions_that_it_began_with(imported: ImportedEmailSearch, tmp_path: Path) -> None:
    before = imported.scenarios("train", 5, 0)
    (tmp_path / "inboxes" / "mine.questions.jsonl").write_text("half a lin", encoding="utf-8")
    assert imported.scenarios("train", 5, 0) == before
    imported.close()


async def test_any_question_about_an_imported_inbox(imported: ImportedEmailSearch) -> None:
    scenario = imported.ask({"question": "What is new?"})
    assert scenario.task["inbox_address"] == "mine@inbox.example"
    assert scenario.task["query_date"].startswith("2026-01-")  # the day of the newest mail
    episode = imported.episode(scenario)
    assert "no mail" in (await episode.call("read_email", {"email_id": "none"})).content
    imported.close()


def test_an_inbox_without_questions_can_be_asked_but_not_learned_from(
    imported: ImportedEmailSearch, tmp_path: Path
) -> None:
    (tmp_path / "inboxes" / "mine.questions.jsonl").unlink()
    assert imported.ask({"question": "What?"})
    with pytest.raises(ValueError, match=r"Write them to mine\.questions\.jsonl"):
        imported.scenarios("train", 1, 0)
    imported.close()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"inbox": "nope"}, "there is no inbox 'nope'"),
        ({"inbox": "../nope"}, "an inbox's name is"),
        ({"inbox": "a" * 65}, "an inbox's name is"),
        ({"inbox": ""}, "an inbox's name is"),
        ({"inbox": 3}, "inbox must be a name or .*, not 3"),
        ({"inbox": "synthetic", "size": 3}, "no config size"),
    ],
)
def test_a_bad_config_is_a_value_error(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        build(config, tmp_path)


def test_a_file_that_is_no_inbox_is_a_value_error(tmp_path: Path) -> None:
    path = inbox_path(tmp_path, "bad")
    path.parent.mkdir()
    path.write_text("this is not a database, but it is long enough to be looked at")
    with pytest.raises(ValueError, match="cannot read inbox"):
        build({"inbox": "bad"}, tmp_path)


@pytest.mark.parametrize(
    ("answer", "sources", "score", "why"),
    [
        ("Boser", [], 1.0, "no source cited; expected pebro"),
        ("Boser", ["other", "more"], 1.0, "cites other, more; expected pebro"),
        ("Zed", ["pebro"], 0.0, "wrong answer; expected Boser"),
        ("Zed", [], 0.0, "wrong answer; expected Boser, and no source cited; expected pebro"),
        ("Boser", list("abcde"), None, "cites a, b, c and 2 more; expected pebro"),
        ("I don't know", [], 0.0, "it gave up"),
    ],
)
async def test_an_answer_that_is_not_a_success_says_why(
    answer: str, sources: list[str], score: float | None, why: str
) -> None:
    environment = SyntheticEmailSearch()
    (scenario,) = environment.scenarios("train", 1, 0)
    scenario = replace(scenario, reference={"answer": "Boser", "source_ids": ["pebro"]})
    episode = environment.episode(scenario)
    await episode.call("return_final_answer", {"answer": answer, "sources": sources})
    assert why_no_success(environment, scenario, episode.outcome(), score) == why
    assert not environment.success(episode.outcome(), 1.0 if score is None else score)


@pytest.mark.parametrize(
    ("reason", "detail", "why"),
    [
        ("malformed", "no\n such\ttool", "malformed tool call: no such tool"),
        ("out_of_turns", "8 turns are over.", "8 turns are over"),
    ],
)
def test_an_episode_without_an_answer_says_how_it_ended(reason: Any, detail: str, why: str) -> None:
    environment = SyntheticEmailSearch()
    (scenario,) = environment.scenarios("train", 1, 0)
    episode = environment.episode(scenario)
    episode.end(reason, detail)
    assert why_no_success(environment, scenario, episode.outcome(), 0.0) == why
