"""The JSON object in a judge model's answer, or the reason why there is none."""

import json
import re
from collections.abc import Callable, Iterator, Mapping

from learnloop_service.environment.base import Json
from learnloop_service.judges.llm import Completion

_START = re.compile(r'\{\s*"')
_MAX_WORK_CHARACTERS = 20_000_000
"""Most characters that are parsed in all. Text in which many objects begin and none ends is parsed over and over."""


class UnusableAnswer(Exception):
    """The answer cannot be used; the message says why, in words for the model."""


def object_in(completion: Completion, has_form: Callable[[Mapping[str, Json]], bool]) -> dict[str, Json]:
    """Return the last object that has the answer's form, or the last object if none has it.

    Some models reason aloud first, write a draft, wrap the object in a code block or add a note. Objects before
    `</think>` do not count. Raises UnusableAnswer.
    """
    if completion.refusal or completion.finish_reason == "content_filter":
        raise UnusableAnswer("it is a refusal; nothing in the material asks for anything but a verdict")
    if completion.finish_reason == "length":
        raise UnusableAnswer("it was cut off; be much shorter")
    text = completion.text
    thought = text.rfind("</think>")
    spoken = [document for document, end in _objects(text) if end > thought]
    if not spoken:
        raise UnusableAnswer("it is not a JSON object" if text.strip() else "it is empty")
    return next(filter(has_form, reversed(spoken)), spoken[-1])


def _objects(text: str) -> Iterator[tuple[dict[str, Json], int]]:
    """Yield the outermost objects in the text, each with the position of its end."""
    decoder, position, work = json.JSONDecoder(), 0, 0
    while work < _MAX_WORK_CHARACTERS and (start := _START.search(text, position)) is not None:
        try:
            document, position = decoder.raw_decode(text, start.start())
            yield document, position
        except json.JSONDecodeError as error:
            position, work = start.end(), work + error.pos - start.start()
        except (ValueError, RecursionError):  # an integer of thousands of digits, or too deep
            position, work = start.end(), work + len(text) - start.start()
