"""`learnloop inbox` in a data directory."""

import json
from pathlib import Path

import pytest

from learnloop_service.environment.email_search.environment import build
from tests.integration.cli.conftest import Learnloop


def test_a_made_inbox_can_be_learned_from(learnloop: Learnloop, tmp_path: Path) -> None:
    inbox = learnloop("inbox", "make", "acme", "--worlds", "12", "--data-dir", str(tmp_path), "--json").json
    assert inbox["questions"] == 12
    assert learnloop("inbox", "stats", "acme", "--data-dir", str(tmp_path), "--json").json["emails"] == inbox["emails"]
    environment = build({"inbox": "acme"}, tmp_path)
    (scenario,) = environment.scenarios("train", 1, seed=0)
    assert environment.scenarios("validation", 1, seed=0)
    assert environment.scenarios("test", 1, seed=0)
    environment.close()
    rows = [json.loads(line) for line in Path(inbox["questions_path"]).read_text().splitlines()]
    assert scenario.task["question"] in [row["question"] for row in rows]


def test_make_does_not_touch_an_inbox_that_is_there(learnloop: Learnloop, tmp_path: Path) -> None:
    arguments = ("inbox", "make", "acme", "--worlds", "1", "--data-dir", str(tmp_path))
    assert learnloop(*arguments).exit_code == 0
    before = (tmp_path / "inboxes" / "acme.sqlite").read_bytes()
    ran = learnloop(*arguments, "--seed", "1")
    assert ran.exit_code == 1
    assert "already" in ran.stderr
    assert (tmp_path / "inboxes" / "acme.sqlite").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("stats", "nope"), "there is no inbox 'nope'"),
        (("stats", "../nope"), "an inbox's name is"),
        (("make", "a b"), "an inbox's name is"),
    ],
)
def test_failures_are_one_line(
    learnloop: Learnloop, tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    ran = learnloop("inbox", *arguments, "--data-dir", str(tmp_path))
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert complaint in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_file_that_is_no_inbox_is_said(learnloop: Learnloop, tmp_path: Path) -> None:
    (tmp_path / "inboxes").mkdir()
    (tmp_path / "inboxes" / "bad.sqlite").write_text("this is not a database, but it is long enough to look at")
    ran = learnloop("inbox", "stats", "bad", "--data-dir", str(tmp_path))
    assert ran.exit_code == 1
    assert "cannot read inbox" in ran.stderr


def test_a_bad_setting_is_said(learnloop: Learnloop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEARNLOOP_PORT", "many")
    ran = learnloop("inbox", "stats", "a")
    assert ran.exit_code == 1
    assert "LEARNLOOP_PORT" in ran.stderr


def test_the_sources_of_questions_are_checked(learnloop: Learnloop, tmp_path: Path) -> None:
    inbox = learnloop("inbox", "make", "acme", "--worlds", "1", "--data-dir", str(tmp_path), "--json").json
    questions = Path(inbox["questions_path"])
    row = json.loads(questions.read_text())
    assert (
        sum(learnloop("inbox", "stats", "acme", "--data-dir", str(tmp_path), "--json").json["questions"].values()) == 1
    )
    questions.write_text(json.dumps(row | {"source_ids": [*row["source_ids"], "<2@x.example>"]}))
    ran = learnloop("inbox", "stats", "acme", "--data-dir", str(tmp_path))
    assert ran.exit_code == 1
    why = "acme.questions.jsonl line 1: no email of the inbox has the id or Message-ID '<2@x.example>'"
    assert why in ran.stderr
