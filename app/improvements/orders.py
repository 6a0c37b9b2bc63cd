"""Removes text from rollouts that gives orders to whoever reads them in order to write a prompt.

It is what an attacker would put into a task, a mail or a web page. What is written otherwise remains, so the guard
checks what a prompt has copied, and people what it says.
"""

import re

from learnloop_service.judges.injection import addresses_judge, undisguised

REMOVED = "[a sentence was removed here]"
_WRITERS = (
    r"(?:(?:prompt|ai|llm|gpt|language[ -]model|coding)[ -]?"
    r"(?:engineer|writer|author|optimi[sz]er|agent|assistant|model)s?|proposers?|optimi[sz]ers?"
    r"|who(?:ever|so)? (?:writes?|improves?|edits?|optimi[sz]es?)\b)"
)
_PROMPT = r"(?:prompts?|system (?:message|instructions?|text)|tool descriptions?|system\.txt|instructions of the agent)"
_WHOSE = r"(?:(?:the|your|every|each|any|this|an?|its|their|new|next|improved|better|revised|final|agent's|system) )*"
_ORDERS = re.compile(
    "|".join(
        (
            r"\b(?:add|append|include|insert|copy|paste|put|write|place|prepend|embed|quote|repeat|mention|state)\b"
            rf".{{0,300}}\b(?:in|into|to|inside|of|as) {_WHOSE}{_PROMPT}\b",
            rf"\b(?:rewrite|replace|change|update|edit|modify|extend|overwrite|set)\b {_WHOSE}{_PROMPT}\b",
            rf"\b(?:dear|hey|hello|hi|attention|note (?:to|for)|message (?:to|for)|instructions? (?:to|for))[:,]?"
            rf" (?:the |any |all |every )?{_WRITERS}",
            rf"\byou are (?:now )?(?:an?|the) {_WRITERS}",
            rf"\b(?:the|your|every|each|any|this) {_WHOSE}{_PROMPT} (?:must|shall|should|(?:has|needs?) to|will)\b",
            rf"\b(?:when|if|while|before|after) you (?:write|propose|improve|edit|optimi[sz]e)\b.{{0,60}}\b{_PROMPT}\b",
        )
    )
)
_BETWEEN_SENTENCES = re.compile(r"(\s*\n\s*|(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f\u0964\u06d4\u061f]))")


def without_orders(text: str) -> str:
    """Return the text without the sentences that give orders, or none of it if an order is in several sentences.

    It can take a second for a long text, so call it in a thread.
    """
    if not _gives_orders(text):
        return text
    pieces = _BETWEEN_SENTENCES.split(text)
    rest = "".join(REMOVED if _gives_orders(piece) else piece for piece in pieces)
    return REMOVED if _gives_orders(rest) else rest


def _gives_orders(text: str) -> bool:
    return addresses_judge(text, forms=False) is not None or _ORDERS.search(undisguised(text)) is not None
