"""Questions and answers as an environment, without any server."""

from pathlib import Path
from typing import Any

import pytest

from learnloop_service.environment.answers.environment import build
from learnloop_service.environment.base import Explained, Scenario, Solvable, ToolError
from learnloop_service.environment.registry import build as registered
from learnloop_service.judges.base import Candidate, JudgeServices
from learnloop_service.judges.registry import build as judge_named
from learnloop_service.training.environment_check.agents import play_turns
from learnloop_service.training.environment_check.play import play

ROWS = [{"question": f"What is {number} times 2?", "answer": str(number * 2)} for number in range(10)]
UNUSED = Path("unused")


async def test_its_oracle_answers_right_and_another_answer_is_explained() -> None:
    environment = registered("answers", {"scenarios": ROWS}, UNUSED)
    assert isinstance(environment, Solvable)
    assert isinstance(environment, Explained)
    [scenario] = environment.scenarios("validation", 1, seed=0)
    judge = judge_named(environment.default_judge, {}, JudgeServices(rubric=environment.rubric))
    for answer, is_right in ((environment.solution(scenario)[0], True), ("7 or so", False)):
        played = await play(environment, scenario, play_turns([answer]))
        judged = await judge.judge(scenario, [Candidate("1", played.outcome, played.messages)])
        score = judged.scores[0].value
        assert score == float(is_right)
        assert environment.success(played.outcome, score) == is_right
        assert environment.reward(played.outcome, score) == {"score": score, "malformed": 0.0}
    expected = scenario.reference["answer"]
    assert environment.why_no_success(scenario, played.outcome, 0.0) == f"answered '7 or so'; expected {expected!r}"
    environment.close()


async def test_facts_are_read_before_the_question_whatever_their_order() -> None:
    row = {"facts": "Lima is open from 9 to 5.", "question": "When is Lima open?", "answer": "9 to 5"}
    environment = build({"scenarios": [dict(reversed(row.items())), row | {"id": "b"}, row | {"id": "c"}]}, UNUSED)
    for split in ("train", "validation", "test"):
        [scenario] = environment.scenarios(split, 1, seed=0)
        episode = environment.episode(scenario)
        system, user = episode.messages()
        assert system["role"] == "system"
        assert user == {"role": "user", "content": "Lima is open from 9 to 5.\n\nWhen is Lima open?"}
    typed = environment.ask({"question": "Why?"})
    assert typed == Scenario("ask", "test", {"question": "Why?"})
    assert environment.episode(typed).messages()[1]["content"] == "Why?"
    assert episode.tools == ()
    assert episode.max_turns == 1
    with pytest.raises(ToolError, match="plain text"):
        await episode.call("search", {})


def test_with_a_server_it_has_the_tools_of_mcp() -> None:
    environment = build({"scenarios": ROWS, "server": {"command": ["server"]}}, UNUSED)
    assert environment.default_max_turns == 8
    with pytest.raises(ValueError, match="not allowed"):
        registered("answers", {"server": {"command": ["server"]}}, UNUSED, Nothing())
    registered("answers", {"scenarios": ROWS}, UNUSED, Nothing()).close()


class Nothing:
    """Access to nothing."""

    max_servers = 1

    def check_command(self, command: Any) -> None:
        raise ValueError("not allowed")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


@pytest.mark.parametrize(
    ("scenarios", "message"),
    [
        (ROWS[:2], "a list of 3 to 200000 questions"),
        ([*ROWS, {"question": "Why?"}], "scenario number 10: answer must be a string"),
        ([*ROWS, {"question": " ", "answer": "b"}], "scenario number 10: question must be a string"),
        ([*ROWS, {"task": "a", "answer": "b"}], "scenario number 10 has no task; it takes: id, question, facts"),
        ([*ROWS, ROWS[0] | {"facts": 3}], "scenario number 10: facts must be a string"),
    ],
)
def test_a_bad_row_is_named(scenarios: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build({"scenarios": scenarios}, UNUSED)
    with pytest.raises(ValueError, match="answers needs scenarios"):
        build({}, UNUSED).scenarios("train", 1, 0)
