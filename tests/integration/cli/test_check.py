"""`learnloop check environment`: a table, a document, an exit code."""

from pathlib import Path

import pytest

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
    [failed] = [each for each in ran.json["findings"] if each["state"] == "failed"]
    assert failed["name"] == "cheating"
    assert failed["said"].startswith("the agent that calls get_relevant_context with every id solves 100%")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["chess"], 1, "Unknown environment 'chess'. Available: "),
        (["email_search", "--config", '{"colour": 1}'], 1, "cannot be used so: email_search knows no config colour"),
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
