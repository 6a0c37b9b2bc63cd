"""The JSON object in what a judge model said, or the reason why there is none."""

import json
import re
from collections.abc import Callable, Iterator, Mapping

from learnloop_service.environment.base import Json
from learnloop_service.judges.llm import Completion

_START = re.compile(r'\{\s*"')
_MAX_WORK_CHARACTERS = 20_000_000
"""Bound on what is read again and again, where many objects begin and none ends."""


class UnusableAnswer(Exception):
    """Why the answer cannot be used, in words for the model."""


def object_in(completion: Completion, has_form: Callable[[Mapping[str, Json]], bool]) -> dict[str, Json]:
    """The last object that has the answer's form. Some models reason aloud before it, draft it, put it between marks of
    code or add a note; what stands before `</think>` is not an answer. If none has the form, the last object.

    Raises UnusableAnswer.
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
    """Each object that stands in no other one, and where it ends."""
    decoder, place, work = json.JSONDecoder(), 0, 0
    while work < _MAX_WORK_CHARACTERS and (start := _START.search(text, place)) is not None:
        try:
            document, place = decoder.raw_decode(text, start.start())
            yield document, place
        except json.JSONDecodeError as error:
            place, work = start.end(), work + error.pos - start.start()
        except (ValueError, RecursionError):  # an integer of thousands of digits, or too deep
            place, work = start.end(), work + len(text) - start.start()
