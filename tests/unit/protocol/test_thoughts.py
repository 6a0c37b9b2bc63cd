"""Thoughts in replies: a call in one is not made, and marks of thoughts in the arguments of a call are text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.training.protocol.tool_formats.formats import FORMATS, ToolFormat
from learnloop_service.training.protocol.tool_formats.thoughts import THOUGHT_MARKS, opens_thought, thoughts
from learnloop_service.training.protocol.tool_formats.written_calls import WrittenCall

REAL, DRAFT = WrittenCall("look_up", '{"word": "tide"}'), WrittenCall("delete_all", "{}")
formats = pytest.mark.parametrize("tool_format", FORMATS.values(), ids=FORMATS)
marks = pytest.mark.parametrize(("opening", "closing"), THOUGHT_MARKS.items(), ids=THOUGHT_MARKS)
words = st.text(st.sampled_from('abc {}[]"\n'), max_size=12)


def names_called(tool_format: ToolFormat, text: str, *, in_thought: bool = False) -> list[str]:
    reply = tool_format.read(text, in_thought=in_thought)
    assert reply.malformed is None
    return [call.name for call in reply.tool_calls]


@formats
@marks
def test_a_drafted_call_is_not_made(tool_format: ToolFormat, opening: str, closing: str) -> None:
    real, draft = tool_format.write([REAL]), tool_format.write([DRAFT])
    thought = f"{opening}\nMaybe {draft}? No.\n{closing}"
    assert names_called(tool_format, f"{thought}\n\n{real}") == ["look_up"]
    assert tool_format.read(f"{thought}\n\n{real}").content == (None if tool_format.in_channels else thought)
    assert names_called(tool_format, f"{thought}\n\nIt is four.") == []
    assert names_called(tool_format, f"{opening}\nMaybe {draft}") == []
    assert names_called(tool_format, f"Well. {thought} Then {real}") == ["look_up"]
    # the prompt opened the thought
    assert names_called(tool_format, f"Maybe {draft}? No.\n{closing}\n\n{real}") == ["look_up"]
    assert names_called(tool_format, f"Maybe {draft}? No.\n{closing}\n\n{real}", in_thought=True) == ["look_up"]
    assert names_called(tool_format, f"Maybe {draft}? Let me", in_thought=True) == []
    assert names_called(tool_format, f"{opening}After {tool_format.opening}{{ comes the name.{closing}{real}") == [
        "look_up"
    ]


@formats
@marks
@pytest.mark.parametrize("form", ["{open}", "{close}", "a {open} b {close} c", "{close}{open}"])
def test_marks_of_thoughts_in_arguments_are_text(
    tool_format: ToolFormat, opening: str, closing: str, form: str
) -> None:
    arguments = f'{{"text": "{form.format(open=opening, close=closing)}"}}'
    [call] = tool_format.read(tool_format.write([WrittenCall("write", arguments)])).tool_calls
    assert call.arguments == arguments
    thought = f"{opening}Hm.{closing}"
    if form.startswith("a"):
        [call] = tool_format.read(thought + tool_format.write([WrittenCall("write", arguments)])).tool_calls
        assert call.arguments == arguments


@given(tool_format=st.sampled_from(list(FORMATS.values())), thought=words, rest=words)
def test_no_text_is_lost(tool_format: ToolFormat, thought: str, rest: str) -> None:
    text = f"<think>{thought}</think>{rest}"
    reply = tool_format.read(text)
    assert reply.tool_calls or reply.content == text
    assert thoughts(text)[0] == (0, text.index("</think>") + len("</think>"))


def test_prompts_that_open_a_thought() -> None:
    assert opens_thought("<|im_start|>assistant\n<think>\n")
    assert not opens_thought("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not opens_thought("<|im_start|>assistant\n")
