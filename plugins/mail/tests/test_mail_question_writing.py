"""Questions that a language model writes: kept as they come, never paid for twice, and none of them twice."""

import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from learnloop_service.environment.registry import build
from tests.fakes.answering import Answer, answering
from tests.fakes.mailboxes import archive
from tests.integration.cli.conftest import Learnloop

EMAILS = 40


@dataclass
class Author:
    """A model that asks for the value in each email; every third question is one that it wrote before."""

    requests_left: int = 1_000
    """Requests that it answers before it refuses."""
    subjects: list[str] = field(default_factory=list)
    """Subjects of the emails in the requests."""

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        prompt = json.loads(body)["messages"][0]["content"]
        if self.requests_left == 0:
            return 401, {"content-type": "application/json"}, b'{"error": {"message": "no credit is left"}}'
        self.requests_left -= 1
        subject = prompt.partition("Subject: ")[2].partition("\n")[0]
        self.subjects.append(subject)
        number = int(subject.split()[1])
        question = "What is old?" if number % 3 == 0 else f"How large is the budget of topic {number}?"
        content = json.dumps({"questions": [{"question": question, "answer": f"{number + 100}", "how_realistic": 0.9}]})
        if number == 7:
            content = "I would rather not."
        reply = {
            "id": "c", "object": "chat.completion", "created": 0, "model": "gpt-4.1-mini",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
        }  # fmt: skip
        return 200, {"content-type": "application/json"}, json.dumps(reply).encode()


@pytest.fixture
def author(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Author]:
    monkeypatch.chdir(tmp_path)
    archive(tmp_path / "a.mbox", EMAILS)
    settings = {"DATA_DIR": str(tmp_path / "data"), "JUDGE_MODEL": "openai/gpt-4.1-mini", "JUDGE_API_KEY": "sk-1"}
    with answering((author := Author()).answer) as url:
        for name, value in (settings | {"JUDGE_BASE_URL": url, "JUDGE_CONCURRENCY": "4"}).items():
            monkeypatch.setenv(f"LEARNLOOP_{name}", value)
        yield author


def write(count: int) -> tuple[str, ...]:
    return ("data", "prepare", "m", "--emails", "a.mbox", "--questions", "llm", "--question-count", str(count))


def test_an_interrupted_command_continues_where_it_was(learnloop: Learnloop, author: Author, tmp_path: Path) -> None:
    author.requests_left = 11
    refused = learnloop(*write(20))
    assert refused.exit_code == 1
    assert "cannot be asked: HTTP 401" in refused.stderr
    assert "What it wrote so far is kept" in refused.stderr
    author.requests_left = 1_000
    (journal,) = (tmp_path / "data" / "datasets" / "written").glob("*.jsonl")
    with journal.open("a") as torn:
        torn.write('{"email": "cut o')
    version = learnloop(*write(20), "--json").json
    assert len(author.subjects) == len(set(author.subjects)), "no email was asked about twice"
    counts = version["counts"]["questions"]
    assert counts["emails"] == len(author.subjects)
    assert counts["cost_usd"] == pytest.approx(counts["emails"] * (100 * 0.4e-6 + 20 * 1.6e-6))
    assert sum(version["scenarios"][split] for split in ("train", "validation", "test")) == 20
    more = len(author.subjects)
    assert learnloop(*write(20), "--json").json["done"] == []
    assert len(author.subjects) == more
    larger = learnloop(*write(25), "--json").json
    assert larger["counts"]["questions"]["emails"] == len(author.subjects) > more
    assert len(author.subjects) == len(set(author.subjects))
    assert f"cost usd {larger['counts']['questions']['cost_usd']:.4f}" in " ".join(
        learnloop("data", "show", "m").stdout.split()
    )


def test_the_emails_run_out_and_what_is_no_question_is_counted(learnloop: Learnloop, author: Author) -> None:
    ran = learnloop(*write(500), "--json")
    assert ran.exit_code == 0, ran.stderr
    version = ran.json
    counts = version["counts"]["questions"]
    assert (counts["emails"], counts["unusable"], counts["repeated"]) == (EMAILS, 1, 13)
    rows = sum(version["scenarios"][split] for split in ("train", "validation", "test"))
    assert rows == EMAILS - 13 - 1


def test_tasks_for_the_tools_of_a_server(learnloop: Learnloop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[str] = []
    hours = [f"Convert {hour}:00." for hour in range(10)]
    answers = ["no JSON", {"tasks": hours}, {"tasks": ["Convert 3:00!", "", 7, "Add 5 days."]}]

    def answer(method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        prompts.append(json.loads(body)["messages"][0]["content"])
        content = json.dumps(answers[min(len(prompts), len(answers)) - 1])
        reply = {
            "id": "c", "object": "chat.completion", "created": 0, "model": "gpt-4.1-mini",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
        }  # fmt: skip
        return 200, {"content-type": "application/json"}, json.dumps(reply).encode()

    command = shlex.join([str(Path(sys.executable).with_name("mcp-server-time")), "--local-timezone", "Europe/Berlin"])
    with answering(answer) as at:
        for name, value in {
            "JUDGE_MODEL": "openai/gpt-4.1-mini",
            "JUDGE_API_KEY": "sk-1",
            "JUDGE_BASE_URL": at,
        }.items():
            monkeypatch.setenv(f"LEARNLOOP_{name}", value)
        command_result = learnloop("data", "tasks", str(tmp_path / "tasks.json"), "--command", command, "--count", "20")
    assert command_result.exit_code == 0, command_result.stderr
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    assert tasks == [{"task": task} for task in (*hours, "Add 5 days.")]
    assert "convert_time" in prompts[0]
    assert "- Convert 9:00." in prompts[2]
    environment = build("mcp", {"scenarios": tasks}, tmp_path)
    assert environment.scenarios("test", 1, seed=0)


def test_tasks_need_a_server_and_a_model(learnloop: Learnloop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "tasks.json")
    assert "give either --command or --url" in learnloop("data", "tasks", path).stderr
    assert "LEARNLOOP_JUDGE_MODEL" in learnloop("data", "tasks", path, "--command", "true").stderr
    assert "set OPENAI_API_KEY" in learnloop("data", "tasks", path, "--command", "true", "--model", "openai/x").stderr
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    ended = learnloop("data", "tasks", path, "--command", "true", "--model", "openai/x")
    assert "the MCP server ended with status 0" in ended.stderr
