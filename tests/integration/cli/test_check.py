"""`learnloop check environment`: a table, a document, an exit code."""

import json
from pathlib import Path
from typing import Any

import pytest

from learnloop_service.environment.registry import names
from tests.integration.cli.conftest import Learnloop


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    return ["--scenarios", "4", "--data-dir", str(tmp_path)]


def test_a_sound_environment(learnloop: Learnloop, small: list[str]) -> None:
    ran = learnloop("check", "environment", "email_search", *small)
    assert ran.exit_code == 0, ran.stdout
    heading, *rows = ran.stdout.splitlines()
    assert heading.split() == ["AGENT", "ROLLOUTS", "REWARD", "SOLVED"]
    assert rows[0].split() == ["oracle", "4", "1.762", "100%"]
    assert "random" in rows[1]
    assert "failed" not in ran.stdout
    assert "the oracle solves 100% of the scenarios" in ran.stdout


def test_what_is_known_of_the_sales_agent(learnloop: Learnloop, small: list[str]) -> None:
    """Its success asks for names and citations, not for an email that says something; docs/environments.md says so."""
    ran = learnloop("check", "environment", "sales_email", "--json", *small)
    assert (ran.exit_code, ran.json["broken"]) == (1, True)
    [failed] = [finding for finding in ran.json["findings"] if finding["state"] == "failed"]
    assert failed["name"] == "cheating"
    assert failed["said"].startswith("the agent that calls get_relevant_context with every id solves 100%")


def test_questions_and_answers_are_sound(learnloop: Learnloop, small: list[str]) -> None:
    rows = [{"question": f"Which office has the number {number}?", "answer": f"office {number}"} for number in range(9)]
    ran = learnloop("check", "environment", "answers", "--config", json.dumps({"scenarios": rows}), "--json", *small)
    assert (ran.exit_code, ran.json["broken"]) == (0, False), ran.stdout


TASKS = [{"task": {"input": word}} for word in ("one", "two", "three")]
TEXTS = [{"task": word} for word in ("one", "two", "three")]
ELSEWHERE: dict[str, tuple[Any, str]] = {
    "agent": ({"runner": {"pull": {}}, "scenarios": TASKS}, "judge"),
    "mcp": ({"server": {"command": ["false"]}, "scenarios": TEXTS}, "episodes"),
    "openenv": ({"url": "http://127.0.0.1:65535", "scenarios": TEXTS}, "episodes"),
}
"""Environments that need something else to be there, with what the check finds where it is not."""


def test_every_shipped_environment_is_checked() -> None:
    """`verifiers`, which imports a package of the user's, is below among those that are refused."""
    assert set(names()) == {"answers", "email_search", "sales_email", "verifiers", *ELSEWHERE}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_an_environment_lacks_is_found(
    learnloop: Learnloop, small: list[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("LEARNLOOP_ENVIRONMENT_COMMANDS", "false")
    monkeypatch.setenv("LEARNLOOP_ENVIRONMENT_HOSTS", "127.0.0.1")
    monkeypatch.setenv("LEARNLOOP_ALLOWED_PRIVATE_HOSTS", "127.0.0.0/8")
    config, expected = ELSEWHERE[name]
    ran = learnloop("check", "environment", name, "--config", json.dumps(config), "--json", *small)
    assert ran.exit_code in (0, 1), ran.stderr
    assert [finding["name"] for finding in ran.json["findings"] if finding["state"] != "ok"] == [expected]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["chess"], 1, "Unknown environment 'chess'. Available: "),
        (["email_search", "--config", '{"colour": 1}'], 1, "cannot be used so: email_search knows no config colour"),
        (["verifiers", "--config", '{"env": "wordle"}'], 1, "'wordle' may not be loaded here"),
        (["email_search", "--config", "[]"], 2, "it must be a JSON object"),
        (["email_search", "--config", "{"], 2, "is not JSON"),
    ],
)
def test_what_cannot_be_checked(
    learnloop: Learnloop, small: list[str], arguments: list[str], code: int, said: str
) -> None:
    ran = learnloop("check", "environment", *arguments, *small)
    assert ran.exit_code == code
    assert said in " ".join(ran.stderr.replace("│", " ").split())
