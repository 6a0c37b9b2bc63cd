"""A reply asks back if it has no tool call and ends in a question."""

import pytest

from learnloop_service.training.protocol.asks_back import asks_back, is_question

QUESTIONS = (
    "Could you say more?",
    "Which one?**\n\n",
    "(which one?)",
    "“Which one?”",
    "Could you say more? 😊",
    "Sure?👍🏽",
    "Really❓",
    "何ですか\N{FULLWIDTH QUESTION MARK}",
    "ماذا تريد\N{ARABIC QUESTION MARK}",
    "Πού;",
    "Γειά\N{GREEK QUESTION MARK}",
    "\N{ARMENIAN CAPITAL LETTER INI}նչպե\N{ARMENIAN QUESTION MARK}ն\N{ARMENIAN FULL STOP}",
    "ምንድን ነው፧",
)
NO_QUESTIONS = (
    "",
    " \n",
    "Done.",
    "Is it? Yes.",
    "x = 1;",
    "Լա\N{ARMENIAN QUESTION MARK}վ\N{ARMENIAN FULL STOP} Լավ\N{ARMENIAN FULL STOP}",
    "See https://a.example/?b=c",
    "Why? Because.",
)


@pytest.mark.parametrize("text", QUESTIONS)
def test_a_question_of_any_script(text: str) -> None:
    assert is_question(text)
    assert not is_question(f"{text} Yes.")


@pytest.mark.parametrize("text", NO_QUESTIONS)
def test_no_question(text: str) -> None:
    assert not is_question(text)


def test_completions_and_responses() -> None:
    def chat(**message: object) -> bool:
        return asks_back({"choices": [{"message": {"role": "assistant", **message}}]})

    assert chat(content="Which one?")
    assert chat(content=[{"type": "text", "text": "Which"}, {"type": "text", "text": " one?"}])
    assert not chat(content="Which one?", tool_calls=[{"id": "1"}])
    assert not chat(content=None)
    assert not asks_back({"choices": []})
    text = {"type": "message", "content": [{"type": "output_text", "text": "Which one?"}]}
    assert asks_back({"output": [{"type": "reasoning"}, text]})
    assert not asks_back({"output": [text, {"type": "function_call", "name": "search"}]})
