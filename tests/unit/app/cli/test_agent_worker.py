"""What a command that does a task has to say of it."""

from typing import Any

import pytest

from app.cli.agent_worker import outcome_of, variables


@pytest.mark.parametrize(
    ("status", "printed", "outcome"),
    [
        (0, 'thinking\n{"reward": 1}\n\n', {"reward": 1}),
        (0, '{"parts": {"right": 0.5}}', {"parts": {"right": 0.5}}),
        (0, '{"answer": 42}', {"output": '{"answer": 42}'}),
        (0, "It is 42.", {"output": "It is 42."}),
        (0, "42", {"output": "42"}),
        (0, "\n \n", {"reward": None, "reason": "the command printed nothing"}),
        (0, '{"reward": NaN}', {"reward": None, "reason": "the command printed reward is a finite number, not nan"}),
        (3, '{"reward": 1}', {"reward": None, "reason": "the command ended with status 3: no disk left"}),
        (-9, '{"reward": 1}', {"reward": None, "reason": "the command ended with signal SIGKILL: no disk left"}),
    ],
)
def test_the_last_line_is_the_outcome_unless_the_command_fails(status: int, printed: str, outcome: Any) -> None:
    assert outcome_of(status, printed, "no disk left\n") == outcome


def test_the_end_of_a_long_complaint_is_kept() -> None:
    reason = outcome_of(1, "", "x" * 10_000 + "the cause")["reason"]
    assert reason.endswith("the cause")
    assert len(reason) < 2_100


def test_a_command_finds_its_model_under_the_names_that_clients_read() -> None:
    session = {"id": "S", "base_url": "http://a/sessions/S/v1", "api_key": "las_k", "model": "p/m@1"}
    found = variables({"session": session, "task": {"a": "ü"}, "attempt": 2, "deadline": "soon"})
    assert (found["OPENAI_BASE_URL"], found["ANTHROPIC_BASE_URL"]) == ("http://a/sessions/S/v1", "http://a/sessions/S")
    assert (found["OPENAI_API_KEY"], found["ANTHROPIC_API_KEY"], found["OPENAI_MODEL"]) == ("las_k", "las_k", "p/m@1")
    assert (found["LEARNLOOP_TASK"], found["LEARNLOOP_ATTEMPT"]) == ('{"a": "ü"}', "2")
