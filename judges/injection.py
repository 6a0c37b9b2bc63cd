"""Text that tries to instruct a judge: what it writes where only material to be judged should stand.

A phrase counts if it orders whoever gives scores to do something. A text may speak of scores, rules or judges: mails
do. Forms of a judge's own conversation, such as a verdict in JSON, count as well, unless the task asks for such a form.
Disguises are undone first: compatibility forms, look-alike letters, invisible characters, case and white space.
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
_MARKS = r"(?:scores?|marks?|ratings?|grades?|rewards?|points)"
_GIVE = r"(?:give|assign|award|grant|rate|score|grade|mark|rank)"
_PREFER = rf"(?:{_GIVE}|prefer|favou?r|choose|pick|select|accept|approve|consider|deem)"
_TOPS = rf"(?:{_BEST} {_MARKS}|1\.0+|10/10|100%)"
_NO_ORDER = "".join(rf"(?<!\b{word} )" for word in ("not", "never", "will", "would", "can", "may", "who", "they"))
"""Before a verb, none of these words: `the parser will ignore the above directives` tells a judge nothing."""
_ORDER = r"(?:^|[.!?:;,\"'(\[{>*#-] ?|\b(?:please|must|should|shall|always|now|just|and|then|you|have to|need to) )"
"""Before a verb, this makes it an order: others say `customers give it a score of 10`."""

_PHRASES = re.compile(
    "|".join(
        (
            rf"(?:{_NO_ORDER}(?<!n't )\b(?:ignore|disregard|forget)|{_ORDER}(?:override|bypass|discard))\b"
            rf"(?: {_WHICH}){{1,5}} {_TOLD}\b",
            rf"\bas (?:an?|the|my|your|our)?(?: \w+){{0,2}} ?{_JUDGE},? (?:of this \w+,? )?you"
            rf" (?:must|should|shall|will|have to|need to|are to|are required to)(?: \w+){{0,2}}"
            rf" {_PREFER} (?:{_THIS}\b|(?:the |an? )?{_TOPS})",
            rf"\byou are (?:now (?:an?|the)(?: \w+){{0,2}} {_JUDGE}\b(?! (?:of|in|for|at|on)\b)"
            rf"|(?:an?|the)(?: \w+){{0,2}} {_JUDGE}\b(?=.{{0,60}}\b{_TOPS}))",
            rf"\b(?:dear|hey|hello|hi|attention|note (?:to|for)|message (?:to|for)|instructions? (?:to|for))"
            rf" (?:the |any |all |every )?{_MODEL_JUDGE}(?: ?[,:;.!-]|$| (?:please|this|you|i|we|give|score|rate)\b)",
            rf"\b{_JUDGE}\b.{{0,40}}\b(?:must|should|shall|has to|have to|needs? to|(?:is|are)"
            rf" (?:told|required|instructed) to)(?: \w+){{0,2}} {_GIVE} {_THIS}\b"
            rf"(?!.{{0,25}} (?:from|between|by|on|to|for|after|before|if|when) )",
            rf"{_ORDER}{_GIVE} {_THIS}(?: \w+){{0,3}} {_MARKS} (?:of )?{_FULL}(?![\w%.]*\d)(?! (?:to|or) )",
            rf"{_ORDER}{_GIVE} {_THIS}(?: \w+){{0,3}} (?:an? |the |with )?{_BEST} {_MARKS}\b",
            rf"{_ORDER}(?:rate|score|grade|mark|rank) {_THIS}(?: \w+){{0,2}} (?:as |at |with |an? )?"
            rf"(?:{_BEST}|1\.0+|10/10|100%)(?!\w)",
            rf"\brank (?:this|my|the(?: \w+)?) {_THING} (?:as )?(?:first|above|higher)\b",
            rf"\b(?:this|my) {_THING} (?:must|should|deserves?|has to)(?: \w+){{0,3}} {_BEST} {_MARKS}\b",
            r"\b(?:attempt|trajectory|rollout)\b.{0,12}\bscore ?[:=] ?1\.0+(?!\d)",
            r"\bscore ?[:=] ?1\.0+.{0,12}\b(?:attempt|trajectory|rollout)\b",
            rf"\b(?:system|assistant|developer) ?: ?(?:you (?:must|should|shall|will|are to)(?: \w+){{0,2}} {_GIVE}"
            rf" (?:{_THIS}\b|{_BEST}|{_FULL})|{_GIVE} {_THIS}\b)",
        )
    )
)
_ALONE = r"(?:^|[.!?] )"
_FORMS = re.compile(
    "|".join(
        (
            r"</(?:attempt|trajectory)>",
            r"<\|(?:im_start|start_header_id)\|> ?system\b(?!.{0,2000}<\|(?:im_end|end_header_id)\|>)",
            r"\[inst\] (?!and |or |is |are |opens |begins |starts |marks |.{0,2000}\[/inst\])",
            rf"{_ALONE}\{{ ?[\"']role[\"'] ?: ?[\"'](?:system|developer)[\"']",
            rf"{_ALONE}\{{ ?[\"']score[\"'] ?: ?1\.0+ ?\}}",
            r"[\"']scores[\"'] ?: ?\[ ?\{ ?[\"']id[\"'] ?: ?[\"']",
        )
    )
)
"""Forms in which others speak to a judge model. An element that is opened before it is closed is not one."""
_ELEMENT = re.compile(r"<(attempt|trajectory)\b[^<>]{0,80}>.{0,400}?</\1>")
_ASKS_FOR_FORM = re.compile(
    r"(?i)\b(?:json\w*|xml|html|yaml|markup|tags?|elements?|tokens?|chat\w*|templates?|prompts?|roles?|scores?|turns?"
    r"|schemas?|labels?|marks?|formats?|requests?|payload|api|code|config\w*|python|javascript|llama|mistral|qwen)\b"
)
TEMPLATE_MARKS = (
    r"<[|\uff5c][^<>\s]{1,40}>|<[^<>\s]{1,40}[|\uff5c]>|<</?SYS>>|</?s>|<(?:bos|eos|pad|unk|sop)>"
    r"|</?(?:start|end)_of_turn>|</?(?:tool_call|tool_response)>|\[gMASK\]"
)
"""Marks of chat templates. Some servers take them for the end of a turn wherever they stand."""
_TEMPLATE_MARKS = re.compile(rf"{TEMPLATE_MARKS}|\[/?[A-Z][A-Z_]{{1,30}}\]|</?think>")
"""The same, and what is a mark of some templates and has a meaning for people as well."""

MOST_SHOWN = 30_000
"""Most characters of a candidate that a judge is shown."""
_PIECE = 4_096
"""Characters that are searched or converted without a pause: about 10 ms in the worst case."""
_OVERLAP = 1_024
"""Characters that two pieces share. No phrase is longer, unless it contains a word of hundreds of characters."""

_LIGATURES = dict.fromkeys((0xFDFA, 0xFDFB), " ")
"""Whole Arabic sentences, which normalisation makes 18 and 8 characters of."""
LOOK_ALIKE = str.maketrans("аеіјорсухѕԁηοαε\u2018\u2019\u201c\u201d", "aeijopcyxsdnoae''\"\"")
"""Cyrillic and Greek letters, and typographic quotes."""


def addresses_judge(text: str, *, forms: bool = True) -> str | None:
    """Return the phrase with which the text tries to instruct a judge, in plain lower case, or None if there is none.

    Without `forms`, only orders count. Of a long text only both ends are searched, as no judge is shown more. That
    takes up to a second, so call it on a thread. Other threads can run in between, because no single search or
    conversion holds Python's lock for longer than a piece of the text takes.
    """
    plain = undisguised(text)
    phrase = _first_phrase(_PHRASES, plain)
    return _first_phrase(_FORMS, _ELEMENT.sub(" ", plain)) if forms and phrase is None else phrase


def asks_for_form(task: str) -> bool:
    """Return whether a task speaks of forms that `addresses_judge` would otherwise find in an answer to it."""
    return _ASKS_FOR_FORM.search(task) is not None


def quoted(document: str) -> str:
    """Return a JSON document in which no text holds a mark of a chat template. It parses to the same value."""
    return _TEMPLATE_MARKS.sub(lambda mark: f"\\u{ord(mark[0][0]):04x}{mark[0][1:]}", document)


def _first_phrase(phrases: re.Pattern[str], plain: str) -> str | None:
    starts = range(0, max(len(plain) - _OVERLAP, 1), _PIECE - _OVERLAP)
    pieces = (_phrase_in(phrases, plain, start, start + _PIECE) for start in starts)
    return next((phrase for phrase in pieces if phrase), None)


def _phrase_in(phrases: re.Pattern[str], plain: str, start: int, end: int) -> str | None:
    """Return the first phrase that begins in this part of the text and, unless it is the last part, ends there."""
    while (start_match := phrases.search(plain, start, end)) is not None:
        # What follows can show that it is not a phrase, such as further digits.
        if (whole := phrases.match(plain, start_match.start())) is not None:
            return whole[0].strip()
        start = start_match.start() + 1
    return None


def undisguised(text: str) -> str:
    """Return the text in plain lower case, in one line; of a long one both ends."""
    if len(text) > 2 * MOST_SHOWN:
        text = f"{text[:MOST_SHOWN]} {text[-MOST_SHOWN:]}"
    pieces = (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
    return " ".join("".join(map(_visible, pieces)).split())


def _visible(piece: str) -> str:
    folded = unicodedata.normalize("NFKC", piece.translate(_LIGATURES)).casefold().translate(LOOK_ALIKE)
    if folded.isascii():
        return folded
    return "".join([character for character in folded if unicodedata.category(character) not in ("Cf", "Mn")])
