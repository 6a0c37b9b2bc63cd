"""Decides whether a proposed prompt can be tried.

A prompt is refused if it is much longer than the champion's, has control tokens, hidden characters, or addresses and
long numbers that the champion's texts lack, or copies a held-out task. What it copies of training rollouts is returned,
because examples are useful, but a person must have seen them before the prompt is promoted.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from unicodedata import name, normalize

from learnloop_service.app.improvements.addresses import new_addresses
from learnloop_service.app.improvements.copied_words import plain, shared_runs, spans, word_count
from learnloop_service.environment.base import Scenario
from learnloop_service.environment.json_type import Json
from learnloop_service.judges.injection import TEMPLATE_MARKS
from learnloop_service.training.prompt import ORIGINAL, TOOL, InvalidPrompt, Prompt

_TIMES, _ALWAYS_BYTES = 4, 8_192
"""A prompt can have this many times the champion's bytes, and this many in any case."""
_ANSWER_LENGTH = 12
"""Least number of characters of a reference answer that is looked for, as its words are compared."""
_WHOLE_WORDS = 5
"""Least number of words of a task's text that is looked for as a whole. Many questions have fewer than eight."""
_CONTROL_TOKEN = re.compile(
    rf"{TEMPLATE_MARKS}|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT)\]"
)
"""Control tokens of usual templates. Other words in brackets, such as [NAME], are for people to fill in."""
_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u2800\u3164\ue000-\uf8ff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff\U000f0000-\U0010ffff]"
)
"""Control and format characters, those for writing from right to left and for private use, and blank letters: with
these, a text can say to a model what no person reads in it."""
_JOINED = "[\u0600-\u1fff\ua000-\uabff\U00010a00-\U00011fff\U0001e900-\U0001e95f]"
"""Letters of scripts that join them."""
_EMOJI = "[\xa9\xae\u203c-\u3299\U0001f000-\U0001faff]"
_NEEDED = re.compile(
    f"(?<={_JOINED})[\u200c\u200d](?![\u200c\u200d])|(?<![\u200c\u200d])[\u200c\u200d](?={_JOINED})"
    f"|(?:(?<={_EMOJI})|(?<=\ufe0f))\u200d(?={_EMOJI})|(?:(?<={_EMOJI})|(?<=[#*0-9]))[\ufe0e\ufe0f]"
    "|(?<=[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])[\U000e0100-\U000e01ef]|(?<=[\u1820-\u18aa])[\u180b-\u180d]"
    # The flags of England, Scotland and Wales are written with invisible letters.
    "|(?<=\U0001f3f4)\U000e0067\U000e0062(?:\U000e0065\U000e006e\U000e0067|\U000e0073\U000e0063\U000e0074"
    "|\U000e0077\U000e006c\U000e0073)\U000e007f"
)
"""Hidden characters where they are needed: Persian and the languages of India join and separate letters with them,
emoji are put together with them, and Japanese and Mongolian choose forms of their characters."""


class CopiesHeldOut(InvalidPrompt):
    """A prompt that copies a task which is not for training, or its answer. It does not say of which task."""


@dataclass(frozen=True, slots=True)
class Quotation:
    """A passage that a prompt has copied of a training rollout."""

    part: str
    text: str
    """The passage as the prompt has it."""
    source: str
    """Id of the rollout."""


def check(
    prompt: Prompt,
    champion: Mapping[str, str],
    *,
    held_out: Sequence[Scenario],
    training: Sequence[Scenario],
    rollouts: Mapping[str, Sequence[str]],
    allow: Sequence[str] = (),
) -> list[Quotation]:
    """Return the passages that a prompt has copied of training rollouts. Raises InvalidPrompt if it cannot be tried.

    `champion` has the texts of the champion's parts, also of those that the environment has written. `rollouts` has the
    messages of training rollouts by id. `allow` has new addresses, hosts and numbers that are welcome. All texts are
    read, so call it in a thread.
    """
    before = "\n".join(_named(champion).values())
    _check_size(prompt, champion)
    for part, text in _named(prompt.parts).items():
        _check_characters(part, text, before)
        for address in new_addresses(text, before, allow):
            why = f"it has {address!r}, an address or a long number that the champion's texts do not have"
            raise InvalidPrompt(part, f"{why}. The improvement can allow it")
    known = shared_runs(prompt.parts.values(), [before])
    _check_held_out(prompt, before, known, held_out, training)
    return _quotations(prompt, known, rollouts)


def _check_size(prompt: Prompt, champion: Mapping[str, str]) -> None:
    sizes = {part: len(text.encode()) for part, text in champion.items()}
    most = max(_TIMES * sum(sizes.values()), _ALWAYS_BYTES)
    originals = (text.count(f"{{{ORIGINAL}}}") * sizes.get(part, 0) for part, text in prompt.parts.items())
    if (size := prompt.size + sum(originals)) > most:
        why = f"its texts have {size:,} bytes together, of at most {most:,}"
        raise InvalidPrompt(None, f"{why}: {_TIMES} times the champion's, or {_ALWAYS_BYTES:,}")


def _check_characters(part: str, text: str, before: str) -> None:
    for token in _CONTROL_TOKEN.finditer(normalize("NFKC", text)):
        if token[0] not in normalize("NFKC", before):
            raise InvalidPrompt(part, f"it has {token[0]!r}, a control token of chat templates")
    for character in _HIDDEN.findall(_NEEDED.sub("", text)):
        if character not in before:
            named = f"U+{ord(character):04X} {name(character, '')}".strip()
            raise InvalidPrompt(part, f"it has the character {named}, which readers cannot see")


def _check_held_out(
    prompt: Prompt, before: str, known: set[str], held_out: Sequence[Scenario], training: Sequence[Scenario]
) -> None:
    trained = list(texts_in([[scenario.task, scenario.reference] for scenario in training]))
    withheld = list(texts_in([[scenario.task, scenario.reference] for scenario in held_out]))
    public = "".join(map(plain, (before, *trained)))
    answers = map(plain, texts_in([scenario.reference for scenario in held_out]))
    whole = [words for words in answers if len(words.strip()) >= _ANSWER_LENGTH]
    tasks = texts_in([scenario.task for scenario in held_out])
    whole += [plain(text) for text in tasks if word_count(text) >= _WHOLE_WORDS]
    secrets = {words for words in whole if words not in public}
    for part, text in _named(prompt.parts).items():
        words, copied = plain(text), shared_runs([text], withheld) - known
        if any(secret in words for secret in secrets) or (copied and copied - shared_runs([text], trained)):
            raise CopiesHeldOut(part, "it has words of a task that is not for training, or of its answer")


def _quotations(prompt: Prompt, known: set[str], rollouts: Mapping[str, Sequence[str]]) -> list[Quotation]:
    sources = dict[str, str]()
    for id, texts in rollouts.items():
        for run in shared_runs(prompt.parts.values(), texts) - known:
            sources.setdefault(run, id)
    return [
        Quotation(part, passage, sources[run])
        for part, text in prompt.parts.items()
        for passage, run in spans(text, sources.keys())
    ]


def _named(parts: Mapping[str, str]) -> dict[str, str]:
    """Return the texts after the names of their parts, unless these are of tools: agents read those of files and
    skills as well."""
    return {part: text if part.startswith(TOOL) else f"{part}\n{text}" for part, text in parts.items()}


def texts_in(value: Json) -> Iterator[str]:
    """Yield the texts and numbers in a JSON value, without its keys."""
    if isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(item)
    elif value is not None and not isinstance(value, bool):
        yield str(value)
