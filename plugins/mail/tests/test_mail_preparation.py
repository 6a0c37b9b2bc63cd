"""`learnloop data` in a data directory."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from learnloop_mail.preparation.recipe import read_recipe
from learnloop_service.environment.email_search.environment import build
from scripts.enron_layout import write_layout
from tests.fakes.engine_process import ROOT
from tests.fakes.hub_server import hub_server
from tests.fakes.mailboxes import archive
from tests.integration.cli.conftest import Learnloop, Ran

MAILBOXES = {"train": 12, "test": 9}
FILTERS = ("--drop-copies", "--max-body-characters", "5000", "--max-recipients", "30", "--min-realism", "0.5")


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layout")
    write_layout(folder, MAILBOXES["train"], MAILBOXES["test"])
    return folder


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEARNLOOP_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def prepared(learnloop: Learnloop, layout: Path, *more: str) -> Any:
    sources = ("--emails", str(layout / "emails"), "--questions", str(layout / "questions"))
    ran = learnloop("data", "prepare", "enron", *sources, *FILTERS, *more, "--json")
    assert ran.exit_code == 0, ran.stderr
    return ran.json


def environment_of(data_dir: Path, version: Any) -> Any:
    rows = json.loads((data_dir / "datasets" / "scenarios" / f"{version['scenarios']['sha256']}.json").read_text())
    return build({"inbox": {"sha256": version["inbox"]["sha256"]}, "scenarios": rows}, data_dir)


async def test_data_in_the_layout_of_art_e_becomes_scenarios(
    learnloop: Learnloop, layout: Path, data_dir: Path
) -> None:
    version = prepared(learnloop, layout)
    assert version["counts"]["emails"] == {
        "read": version["inbox"]["emails"] + 3,
        "kept": version["inbox"]["emails"],
        "too_long": 1,
        "too_many_recipients": 1,
        "copies": 1,
    }
    assert version["counts"]["questions"] == {"read": 27, "too_many_messages": 2, "excluded": 2, "unrealistic": 2}
    sizes = version["scenarios"]
    assert (sizes["train"], sizes["validation"] + sizes["test"]) == (12, 9)
    environment = environment_of(data_dir, version)
    [scenario] = environment.scenarios("test", 1, seed=0)
    assert scenario.task["inbox_address"].startswith("test.0.")
    episode = environment.episode(scenario)
    [source] = scenario.reference["source_ids"]
    assert (await episode.call("read_email", {"email_id": source})).content.startswith("From: ")
    # The whole inbox has emails of all mailboxes; an agent finds those of its own.
    hits = (await episode.call("search_inbox", {"keywords": [], "sent_after": "2000-01-01"})).content
    inbox = environment._inbox
    addresses = [set(inbox.read(line.split(" | ")[0]).bcc) for line in hits.splitlines()]
    assert addresses == [{scenario.task["inbox_address"]}] * 10
    environment.close()


def test_a_second_preparation_does_nothing_and_a_changed_setting_what_depends_on_it(
    learnloop: Learnloop, layout: Path, data_dir: Path
) -> None:
    first = prepared(learnloop, layout)
    files = {path: path.stat().st_mtime_ns for path in (data_dir / "datasets").rglob("*.*")}
    assert first.pop("done") == ["inbox", "questions"]
    assert prepared(learnloop, layout) == {**first, "done": []}
    assert {path: path.stat().st_mtime_ns for path in (data_dir / "datasets").rglob("*.*")} == files
    fewer = prepared(learnloop, layout, "--limit", "5")
    assert (fewer["done"], fewer["version"], fewer["inbox"]) == (["questions"], 2, first["inbox"])
    assert fewer["scenarios"]["train"] == 5
    other = prepared(learnloop, layout, "--limit", "5", "--max-emails", "10000")
    assert (other["done"], other["version"]) == (["inbox"], 2), "the same emails, so the same questions and version"
    output = learnloop("data", "prepare", "enron", "--config", str(recipe(layout, limit=5))).stdout
    assert "Nothing to do: the same inputs were prepared before." in output


def recipe(layout: Path, **more: Any) -> Path:
    path = layout / "recipe.yaml"
    settings = {"emails": str(layout / "emails"), "questions": str(layout / "questions"), "drop_copies": True}
    settings |= {"max_body_characters": 5000, "max_recipients": 30, "min_realism": 0.5}
    path.write_text(yaml.safe_dump(settings | more))
    return path


def test_sources_that_changed_are_read_again(learnloop: Learnloop, data_dir: Path, tmp_path: Path) -> None:
    archive(tmp_path / "a.mbox", 60)
    arguments = ("data", "prepare", "mine", "--emails", "a.mbox", "--questions", "none", "--json")
    assert learnloop(*arguments).json["inbox"]["emails"] == 60
    (tmp_path / "a.mbox").touch()
    assert learnloop(*arguments).json["done"] == []
    archive(tmp_path / "a.mbox", 61)
    again = learnloop(*arguments).json
    assert (again["done"], again["version"], again["inbox"]["emails"]) == (["inbox"], 2, 61)


def test_own_mail_gets_questions_by_templates(learnloop: Learnloop, data_dir: Path, tmp_path: Path) -> None:
    archive(tmp_path / "a.mbox", 60)
    version = learnloop("data", "prepare", "mine", "--emails", "a.mbox", "--question-count", "90", "--json").json
    sizes = [version["scenarios"][split] for split in ("train", "validation", "test")]
    assert (sum(sizes), min(sizes) > 0) == (90, True)
    environment = environment_of(data_dir, version)
    subjects = {
        split: {scenario.task["question"].split('"')[1] for scenario in environment.scenarios(split, 200, 0)}
        for split in ("train", "validation", "test")
    }
    environment.close()
    assert sum(map(len, subjects.values())) == len(set().union(*subjects.values()))


@pytest.mark.parametrize(
    ("count", "subject", "day", "more", "why", "remedy"),
    [
        (120, "Weekly report", "01", (), "of 0 in all (120 looked at). The emails are too similar", "`--drop-copies`"),
        (
            20,
            "Weekly report",
            "{:02}",
            (),
            "about 1 subject, and all questions about emails with the same",
            "add emails",
        ),
        (
            60,
            "Topic {}",
            "01",
            ("--question-count", "3"),
            "about 2 subjects, and",
            "raise `--question-count`, add emails",
        ),
    ],
)
def test_why_no_question_is_left_is_said_with_what_helps(
    learnloop: Learnloop,
    data_dir: Path,
    tmp_path: Path,
    count: int,
    subject: str,
    day: str,
    more: tuple[str, ...],
    why: str,
    remedy: str,
) -> None:
    archive(tmp_path / "a.mbox", count, subject, day)
    refused = learnloop("data", "prepare", "mine", "--emails", "a.mbox", *more)
    message = " ".join(refused.stderr.split())
    assert refused.exit_code == 1
    assert "no question is left for " in message
    assert why in message
    assert remedy in message
    assert "questions of your own with their splits (`--questions`" in message


def test_the_hub_is_asked_where_no_path_is_given(
    learnloop: Learnloop, layout: Path, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def files(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*")}

    local = prepared(learnloop, layout)
    arguments = ("--emails", "corbt/enron-emails", "--questions", "corbt/enron_emails_sample_questions", *FILTERS)
    with hub_server() as hub:
        hub.datasets["corbt/enron-emails"] = files(layout / "emails")
        hub.datasets["corbt/enron_emails_sample_questions"] = files(layout / "questions")
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        ran = learnloop("data", "prepare", "enron", *arguments, "--json")
        assert ran.exit_code == 0, ran.stderr
        version = ran.json
        assert (version["inbox"], version["scenarios"]) == (local["inbox"], local["scenarios"])
        none = learnloop("data", "prepare", "enron", "--emails", "corbt/none")
        assert f"{hub.url} has no data set corbt/none" in none.stderr
        hub.private_datasets.add("corbt/enron-emails")
        monkeypatch.setenv("LEARNLOOP_DATA_DIR", str(tmp_path / "another"))
        assert "or only for those with a token" in learnloop("data", "prepare", "enron", *arguments).stderr
        monkeypatch.setenv("HF_TOKEN", hub.token)
        assert learnloop("data", "prepare", "enron", *arguments).exit_code == 0
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    away = learnloop("data", "prepare", "enron", "--emails", "corbt/other")
    assert "A local copy does as well" in away.stderr


def test_list_and_show_tell_where_data_comes_from(learnloop: Learnloop, layout: Path, data_dir: Path) -> None:
    assert "No data is prepared" in learnloop("data", "list").stdout
    version = prepared(learnloop, layout)
    prepared(learnloop, layout, "--limit", "5")
    [listed] = learnloop("data", "list", "--json").json
    assert (listed["name"], listed["version"], listed["scenarios"]["train"]) == ("enron", 2, 5)
    assert "enron" in learnloop("data", "list").stdout
    description = learnloop("data", "show", "enron", "--version", "1", "--json").json
    assert description["versions"] == [1, 2]
    assert description["sources"] == version["sources"]
    assert description["recipe"]["exclude_questions"] == [49, 101, 129, 171, 208, 266, 327]
    text = learnloop("data", "show", "enron").stdout
    assert version["inbox"]["sha256"] in text
    assert "too long 1" in text


def failure(ran: Ran) -> str:
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert ran.stderr.count("\n") == 1
    return ran.stderr


def test_settings_that_are_not_there_are_named(learnloop: Learnloop) -> None:
    ran = learnloop("data", "prepare", "a", "--config", "none.yaml")
    assert ran.exit_code == 2
    assert "none.yaml" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "none"), "no prepared data 'none'"),
        (("show", "../x"), "no prepared data '../x'"),
        (("prepare",), "name is missing; emails is missing"),
        (("prepare", "a b", "--emails", "x"), "name: String should match"),
        (("prepare", "a", "--emails", "nowhere.mbox"), "cannot read nowhere.mbox: No such file"),
        (("prepare", "a", "--config", "list.yaml"), "list.yaml must contain the settings of a data set"),
        (("prepare", "a", "--config", "wrong.yaml"), "unknown setting 'emial'; there are: name, emails"),
        (("prepare", "a", "--emails", "empty.jsonl"), "no email passes the filter"),
        (("prepare", "a", "--emails", "a.mbox", "--inbox", "no@x.example"), "no email passes the filter: 9 read"),
        (("prepare", "a", "--emails", "a.mbox", "--questions", "empty.jsonl"), "no question is left for train"),
        (("prepare", "a", "--emails", "a.mbox", "--questions", "a.mbox"), "no dataset in a.mbox"),
        (("prepare", "a", "--emails", "a.mbox", "--question-model", "m"), "question_model is for questions: llm"),
        (("prepare", "a", "--emails", "a.mbox", "--questions", "llm"), "question_model: no model is named"),
    ],
)
def test_failures_are_one_line_and_leave_nothing(
    learnloop: Learnloop,
    data_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.delenv("LEARNLOOP_JUDGE_MODEL", raising=False)
    archive(tmp_path / "a.mbox", 9)
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "list.yaml").write_text("- a\n")
    (tmp_path / "wrong.yaml").write_text("emial: a.mbox\n")
    problem = failure(learnloop("data", *arguments))
    assert message in problem
    assert "Value error" not in problem  # what a library calls it
    assert learnloop("data", "list", "--json").json == []
    assert not list((data_dir / "datasets").glob("scratch/*"))


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "data").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_recipes_that_come_with_the_project_are_valid(path: Path) -> None:
    assert read_recipe(path, {}).name == path.stem
