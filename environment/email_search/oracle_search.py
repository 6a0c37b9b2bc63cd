"""A search that finds a given email by words of a question, like one made by a person who knows the email."""

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass

from environment.email_search.inbox import Inbox

_WORD = re.compile(r"[^\W_]+")
_SHORTEST = 3
"""Fewest letters of a word used in a search."""
_MOST_KEYWORDS = 4


@dataclass(frozen=True, slots=True)
class FoundBy:
    """A search, and the ids of its hits."""

    keywords: list[str]
    found: Set[str]


def search_for(inbox: Inbox, question: str, email_id: str, mailbox: str | None) -> FoundBy | None:
    """Return the search with the fewest words (but two if the question has two that match) that ranks the email first;
    else the one with the fewest hits that include it. Rare words are preferred. None if no word of the question finds
    it."""
    email = inbox.read(email_id)
    if email is None:
        return None
    has = set(map(str.lower, _WORD.findall(f"{email.subject} {email.body} {email.sender}")))
    words = list(dict.fromkeys(word for word in _WORD.findall(question) if word.lower() in has))
    hits = {word: len(_hits(inbox, [word], mailbox)) for word in words if len(word) >= _SHORTEST}
    rare = sorted((word for word in hits if hits[word]), key=lambda word: hits[word])
    tried = []
    for count in range(min(2, len(rare)), min(_MOST_KEYWORDS, len(rare)) + 1):
        keywords = [word for word in words if word in rare[:count]]
        tried.append((keywords, _hits(inbox, keywords, mailbox)))
    at_top = [each for each in tried if each[1][:1] == [email_id]]
    among = sorted((each for each in tried if email_id in each[1]), key=lambda each: len(each[1]))
    chosen = next(iter(at_top or among), None)
    return None if chosen is None else FoundBy(chosen[0], set(chosen[1]))


def _hits(inbox: Inbox, keywords: Sequence[str], mailbox: str | None) -> list[str]:
    return [hit.id for hit in inbox.search(keywords, mailbox=mailbox)]
