"""`learnloop inbox import` in a data directory."""

import json
import os
from pathlib import Path

from tests.integration.cli.conftest import Learnloop

MAIL = "From: Mara <mara@x.example>\nTo: jo@x.example\nSubject: Venue\nMessage-ID: <1@x.example>\n\nIt is Basel.\n"


def test_import_reports_and_leaves_out_what_is_there(learnloop: Learnloop, tmp_path: Path) -> None:
    (tmp_path / "a.eml").write_text(MAIL)
    arguments = ("inbox", "import", "mine", str(tmp_path / "a.eml"), "--data-dir", str(tmp_path / "data"), "--json")
    first, second = learnloop(*arguments).json, learnloop(*arguments).json
    assert (first["imported"], first["duplicates"]) == (1, 0)
    assert (second["imported"], second["duplicates"]) == (0, 1)
    stats = learnloop("inbox", "stats", "mine", "--data-dir", str(tmp_path / "data"))
    assert stats.stdout.split()[:2] == ["emails", "1"]


def test_mail_is_its_users_only(learnloop: Learnloop, tmp_path: Path) -> None:
    (tmp_path / "a.eml").write_text(MAIL)
    data, foreign = tmp_path / "data", tmp_path / "data" / "notes" / "my.txt"
    earlier = [data / "runs" / "01K" / "results" / "iter1.jsonl", data / "inboxes" / "old.sqlite", data / "service.log"]
    for path in (*earlier, foreign):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("what an earlier version left")
        for ancestor in (path, *path.parents[: len(path.relative_to(tmp_path).parts) - 1]):
            ancestor.chmod(0o755 if ancestor.is_dir() else 0o644)
    assert learnloop("inbox", "import", "mine", str(tmp_path / "a.eml"), "--data-dir", str(data)).exit_code == 0
    modes = {path: path.stat().st_mode & 0o777 for path in (data, *data.rglob("*"))}
    assert modes.pop(foreign) == 0o644, "what is not ours stays as it is"
    assert modes.pop(foreign.parent) == 0o755
    # As root, Postgres with its own account passes through to its files.
    assert modes.pop(data) == (0o701 if os.geteuid() == 0 else 0o700)
    assert {*earlier, data / "inboxes" / "mine.sqlite"} <= set(modes)
    assert {path: mode for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)} == {}


def test_a_source_that_is_not_there_is_named_in_one_line(learnloop: Learnloop, tmp_path: Path) -> None:
    ran = learnloop("inbox", "import", "a", "/nowhere.mbox", "--data-dir", str(tmp_path))
    assert (ran.exit_code, ran.stdout, ran.stderr.count("\n")) == (1, "", 1)
    assert "/nowhere.mbox" in ran.stderr


def test_the_sources_of_questions_are_checked(learnloop: Learnloop, tmp_path: Path) -> None:
    (tmp_path / "a.eml").write_text(MAIL)
    data = ("--data-dir", str(tmp_path / "data"))
    assert learnloop("inbox", "import", "mine", str(tmp_path / "a.eml"), *data, "--json").json["questions"] is None
    questions = tmp_path / "data" / "inboxes" / "mine.questions.jsonl"

    def ask_of(*sources: str) -> None:
        questions.write_text(json.dumps({"question": "Where?", "answer": "Basel", "source_ids": sources}))

    ask_of("<1@x.example>")
    assert sum(learnloop("inbox", "stats", "mine", *data, "--json").json["questions"].values()) == 1
    assert (
        "1 (1 train, 0 validation, 0 test)"
        in learnloop("inbox", "import", "mine", str(tmp_path / "a.eml"), *data).stdout
    )
    ask_of("<1@x.example>", "<2@x.example>")
    for arguments in (("stats", "mine"), ("import", "mine", str(tmp_path / "a.eml"))):
        ran = learnloop("inbox", *arguments, *data)
        assert ran.exit_code == 1
        assert (
            "mine.questions.jsonl line 1: no email of the inbox has the id or Message-ID '<2@x.example>'" in ran.stderr
        )
