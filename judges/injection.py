"""Detects text that tries to instruct a judge in places that should hold only material to be judged.

A phrase counts if it addresses the one who gives scores. Merely mentioning scores, rules or judges is allowed: emails
do. Disguises are undone first: compatibility forms, look-alike letters, invisible characters, case and white space.
"""

import re
import unicodedata

_JUDGE = r"(?:judges?|graders?|evaluators?|scorers?|raters?)"
_MODEL_JUDGE = r"(?:(?:llm|ai|gpt|language[ -]model|automated)[ -](?:judges?|graders?|evaluators?|reviewers?)|graders?)"
_INSTRUCTIONS = r"(?:instructions?|prompts?|rubrics?|guidelines?|directions|directives?|criteria|grading standards)"
_DETERMINER = (
    r"(?:all|any|every|each|the|of|your|my|these|those|and|other|prior|previous|above|earlier|preceding|original"
    r"|existing|initial|current|system|given|rules)"
)
_MATERIAL = r"(?:attempt|trajectory|trajectories|candidate|response|answer|e-?mail|message|output|submission|rollout)"
_CANDIDATE = rf"(?:this|these|it|me|mine|my|(?:the )?(?:(?:above|following|first|last|current|present) )?{_MATERIAL})"
_BEST = r"(?:highest|maximum|max|full|perfect|top|best)(?: possible)?"
_FULL = r"(?:1(?:\.0+)?|10(?:\.0+)?(?:/10)?|100(?:\.0+)?%?|one|ten)"
_TOP = r"(?:1(?:\.0+)?|10/10|100%)(?![\d.]*\d)"
_MARKS = r"(?:scores?|marks?|ratings?|grades?|rewards?|points)"
_SCORE_VERB = r"(?:give|assign|award|grant|rate|score|grade|mark|rank)"
_ORDER = r"(?:^|[.!?:;,\"'(\[{>*#-] ?|\b(?:please|must|should|shall|always|now|just|and|then|you|have to|need to) )"
"""What turns a following verb into an order; without it, `customers give it a score of 10` would match."""

_PHRASES = re.compile(
    "|".join(
        (
            r"\b(?:ignore|disregard|forget|override|bypass|discard)\b"
            rf"(?: {_DETERMINER}){{1,5}} {_INSTRUCTIONS}\b",
            rf"\bas (?:an?|the|my|your|our)?(?: \w+){{0,2}} ?{_JUDGE},? (?:of this \w+,? )?you"
            rf" (?:must|should|shall|will|have to|need to|are to|are required)\b",
            rf"\byou are (?:now )?(?:an?|the)(?: \w+){{0,2}} {_JUDGE}\b(?! of\b)",
            rf"\b(?:dear|hey|hello|hi|attention|note (?:to|for)|message (?:to|for)|instructions? (?:to|for))"
            rf" (?:the |any |all |every )?{_MODEL_JUDGE}\b",
            rf"\b{_JUDGE}\b.{{0,40}}\b(?:must|should|shall|has to|have to|needs? to|(?:is|are)"
            rf" (?:told|required|instructed) to)(?: \w+){{0,2}} {_SCORE_VERB} {_CANDIDATE}\b",
            rf"{_ORDER}{_SCORE_VERB} {_CANDIDATE}(?: \w+){{0,3}} {_MARKS} (?:of )?{_FULL}(?![\w%.]*\d)(?! (?:to|or) )",
            rf"{_ORDER}{_SCORE_VERB} {_CANDIDATE}(?: \w+){{0,3}} (?:an? |the |with )?{_BEST} {_MARKS}\b",
            rf"{_ORDER}(?:rate|score|grade|mark|rank) {_CANDIDATE}(?: \w+){{0,2}} (?:as |at |with |an? )?"
            rf"(?:{_BEST}|1\.0+|10/10|100%)(?!\w)",
            rf"\brank (?:this|my|the(?: \w+)?) {_MATERIAL} (?:as )?(?:first|above|higher)\b",
            rf"\b(?:this|my) {_MATERIAL} (?:must|should|deserves?|has to)(?: \w+){{0,3}} {_BEST} {_MARKS}\b",
            rf"\b(?:attempt|trajectory|candidate|rollout)\b.{{0,40}}\bscore ?[:=] ?{_TOP}",
            rf"\bscore ?[:=] ?{_TOP}.{{0,40}}\b(?:attempt|trajectory|candidate|rollout)\b",
            r"<\|\w{2,30}\|>|\[/?inst\]|<</?sys>>|</?(?:system|assistant|instructions?|trajectory|attempts?)>",
            r"[\"']role[\"'] ?: ?[\"'](?:system|assistant|developer)[\"']",
            rf"\b(?:system|assistant|developer) ?: ?"
            rf"(?:you (?:are|must|should)|ignore|disregard|override|{_SCORE_VERB} {_CANDIDATE})\b",
            r"[\"']scores?[\"'] ?: ?(?:\[|\{|-?[\d.])",
        )
    )
)

_LOOK_ALIKE = str.maketrans("аеіјорсухѕԁηοαε\u2018\u2019\u201c\u201d", "aeijopcyxsdnoae''\"\"")
"""Maps look-alike Cyrillic and Greek letters and typographic quotes to ASCII."""


def addresses_judge(text: str) -> str | None:
    """Return the phrase with which the text tries to instruct a judge, in plain lower case; None if there is none."""
    found = _PHRASES.search(_plain(text))
    return found[0].strip() if found else None


def _plain(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold().translate(_LOOK_ALIKE)
    visible = (character for character in folded if unicodedata.category(character) not in ("Cf", "Mn"))
    return " ".join("".join(visible).split())
