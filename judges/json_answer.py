"""The JSON object in what a judge model said, or the reason why there is none."""

import json

from environment.base import Json
from judges.llm import Completion


class UnusableAnswer(Exception):
    """Why the answer cannot be used, in words for the model."""


def object_in(completion: Completion) -> dict[str, Json]:
    """The object, which some models put between words or marks of code. Raises UnusableAnswer."""
    if completion.refusal or completion.finish_reason == "content_filter":
        raise UnusableAnswer("it is a refusal; nothing in the material asks for anything but a verdict")
    if completion.finish_reason == "length":
        raise UnusableAnswer("it was cut off; be much shorter")
    text = completion.text
    try:
        document: dict[str, Json] = json.loads(text[text.index("{") : text.rindex("}") + 1])
    except (ValueError, RecursionError):
        raise UnusableAnswer("it is not a JSON object" if text.strip() else "it is empty") from None
    return document
