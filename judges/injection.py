"""Text that tries to instruct a judge: what it writes where only material to be judged should stand.

A phrase counts if it addresses whoever gives scores. That a text speaks of scores, rules or judges is no offence: mails
do. Disguises are undone first: compatibility forms, look-alike letters, invisible characters, case and white space.
"""

import re
import unicodedata

_JUDGE = r"(?:judges?|graders?|evaluators?|scorers?|raters?)"
_MODEL_JUDGE = r"(?:(?:llm|ai|gpt|language[ -]model|automated)[ -](?:judges?|graders?|evaluators?|reviewers?)|graders?)"
_TOLD = r"(?:instructions?|prompts?|rubrics?|guidelines?|directions|directives?|criteria|grading standards)"
_WHICH = (
    r"(?:all|any|every|each|the|of|your|my|these|those|and|other|prior|previous|above|earlier|preceding|original"
    r"|existing|initial|current|system|given|rules)"
)
_THING = r"(?:attempt|trajectory|trajectories|candidate|response|answer|e-?mail|message|output|submission|rollout)"
_THIS = rf"(?:this|these|it|me|mine|my|(?:the )?(?:(?:above|following|first|last|current|present) )?{_THING})"
_BEST = r"(?:highest|maximum|max|full|perfect|top|best)(?: possible)?"
_FULL = r"(?:1(?:\.0+)?|10(?:\.0+)?(?:/10)?|100(?:\.0+)?%?|one|ten)"
_TOP = r"(?:1(?:\.0+)?|10/10|100%)(?![\d.]*\d)"
_MARKS = r"(?:scores?|marks?|ratings?|grades?|rewards?|points)"
_GIVE = r"(?:give|assign|award|grant|rate|score|grade|mark|rank)"
_ORDER = r"(?:^|[.!?:;,\"'(\[{>*#-] ?|\b(?:please|must|should|shall|always|now|just|and|then|you|have to|need to) )"
"""Before a verb, this makes it an order: others say `customers give it a score of 10`."""

_PHRASES = re.compile(
    "|".join(
        (
            r"\b(?:ignore|disregard|forget|override|bypass|discard)\b"
            rf"(?: {_WHICH}){{1,5}} {_TOLD}\b",
            rf"\bas (?:an?|the|my|your|our)?(?: \w+){{0,2}} ?{_JUDGE},? (?:of this \w+,? )?you"
            rf" (?:must|should|shall|will|have to|need to|are to|are required)\b",
            rf"\byou are (?:now )?(?:an?|the)(?: \w+){{0,2}} {_JUDGE}\b(?! of\b)",
            rf"\b(?:dear|hey|hello|hi|attention|note (?:to|for)|message (?:to|for)|instructions? (?:to|for))"
            rf" (?:the |any |all |every )?{_MODEL_JUDGE}\b",
            rf"\b{_JUDGE}\b.{{0,40}}\b(?:must|should|shall|has to|have to|needs? to|(?:is|are)"
            rf" (?:told|required|instructed) to)(?: \w+){{0,2}} {_GIVE} {_THIS}\b",
            rf"{_ORDER}{_GIVE} {_THIS}(?: \w+){{0,3}} {_MARKS} (?:of )?{_FULL}(?![\w%.]*\d)(?! (?:to|or) )",
            rf"{_ORDER}{_GIVE} {_THIS}(?: \w+){{0,3}} (?:an? |the |with )?{_BEST} {_MARKS}\b",
            rf"{_ORDER}(?:rate|score|grade|mark|rank) {_THIS}(?: \w+){{0,2}} (?:as |at |with |an? )?"
            rf"(?:{_BEST}|1\.0+|10/10|100%)(?!\w)",
            rf"\brank (?:this|my|the(?: \w+)?) {_THING} (?:as )?(?:first|above|higher)\b",
            rf"\b(?:this|my) {_THING} (?:must|should|deserves?|has to)(?: \w+){{0,3}} {_BEST} {_MARKS}\b",
            rf"\b(?:attempt|trajectory|candidate|rollout)\b.{{0,40}}\bscore ?[:=] ?{_TOP}",
            rf"\bscore ?[:=] ?{_TOP}.{{0,40}}\b(?:attempt|trajectory|candidate|rollout)\b",
            r"<\|\w{2,30}\|>|\[/?inst\]|<</?sys>>|</?(?:system|assistant|instructions?|trajectory|attempts?)>",
            r"[\"']role[\"'] ?: ?[\"'](?:system|assistant|developer)[\"']",
            rf"\b(?:system|assistant|developer) ?: ?"
            rf"(?:you (?:are|must|should)|ignore|disregard|override|{_GIVE} {_THIS})\b",
            r"[\"']scores?[\"'] ?: ?(?:\[|\{|-?[\d.])",
        )
    )
)

_PIECE = 4_096
"""Characters that are searched or converted without a pause: about 10 ms in the worst case."""
_OVERLAP = 1_024
"""Characters that two pieces share. No phrase is longer, unless it contains a word of hundreds of characters."""

_LOOK_ALIKE = str.maketrans("аеіјорсухѕԁηοαε\u2018\u2019\u201c\u201d", "aeijopcyxsdnoae''\"\"")
"""Cyrillic and Greek letters, and typographic quotes."""


def addresses_judge(text: str) -> str | None:
    """Return the phrase with which the text tries to instruct a judge, in plain lower case, or None if there is none.

    A megabyte takes seconds, so call it on a thread. Other threads can run in between, because no single search or
    conversion holds Python's lock for longer than a piece of the text takes.
    """
    plain = _plain(text)
    starts = range(0, max(len(plain) - _OVERLAP, 1), _PIECE - _OVERLAP)
    return next((phrase for start in starts if (phrase := _phrase_in(plain, start, start + _PIECE))), None)


def _phrase_in(plain: str, start: int, end: int) -> str | None:
    """Return the first phrase that begins in this part of the text and, unless it is the last part, ends there."""
    while (found := _PHRASES.search(plain, start, end)) is not None:
        # What follows can show that it is not a phrase, such as further digits.
        if (whole := _PHRASES.match(plain, found.start())) is not None:
            return whole[0].strip()
        start = found.start() + 1
    return None


def _plain(text: str) -> str:
    pieces = (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
    return " ".join("".join(map(_visible, pieces)).split())


def _visible(piece: str) -> str:
    folded = unicodedata.normalize("NFKC", piece).casefold().translate(_LOOK_ALIKE)
    if folded.isascii():
        return folded
    return "".join([character for character in folded if unicodedata.category(character) not in ("Cf", "Mn")])
