"""Extraction of the JSON object from a judge model's answer."""

import json

from environment.base import Json
from judges.llm import Completion


class UnusableAnswer(Exception):
    """The answer cannot be used; the message explains why to the model."""


def object_in(completion: Completion) -> dict[str, Json]:
    """Return the object, which some models surround with text or code fences. Raises UnusableAnswer."""
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
