"""Searches that find a given email by what a question says, like those of a person who knows the email."""

import re
import zlib
from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import date, timedelta

from learnloop_service.environment.base import Json
from learnloop_service.environment.email_search.inbox import Email, Inbox
from learnloop_service.environment.email_search.named_filters import QUOTED, Filters, filters_in

_WORD = re.compile(r"[^\W_]+")
_SHORTEST = 3
"""Fewest letters of a word used in a search."""
_MOST_KEYWORDS = 4
_SECOND_SEARCH_EVERY = 4
"""Every how many searches one begins with a search that finds nothing, if there is a natural one."""
_UNFILTERED = Filters()


@dataclass(frozen=True, slots=True)
class Search:
    """A search, and the ids of its hits, best match first."""

    keywords: list[str]
    filters: Filters
    hits: Sequence[str]

    @property
    def ids(self) -> Set[str]:
        """The ids of the hits."""
        return set(self.hits)

    @property
    def arguments(self) -> dict[str, Json]:
        """The arguments of the call of `search_inbox`."""
        first, end = _days(self.filters)
        filters = {
            "sender": self.filters.sender,
            "sent_after": first and first.isoformat(),
            "sent_before": end and end.isoformat(),
        }
        return {"keywords": self.keywords, **{key: value for key, value in filters.items() if value is not None}}


def search_by_words(inbox: Inbox, question: str, email_id: str, mailbox: str | None) -> list[Search]:
    """Return the search by words alone that finds the email, or nothing if no word of the question finds it."""
    email = inbox.read(email_id)
    if email is None:
        return []
    words = _shared_words(question, email)
    counts = _counts(inbox, words, mailbox)
    rare = sorted((word for word in words if counts.get(word)), key=lambda word: counts[word])
    search = _shortest(inbox, words, rare, email, _UNFILTERED, mailbox) if rare else None
    return [] if search is None else [search]


def searches_with_filters(
    inbox: Inbox, question: str, email_id: str, mailbox: str | None, scenario_id: str
) -> list[Search]:
    """Return the search that finds the email, by its sender and its day too if the question names them.

    Words in quotation marks are preferred. In one of four scenarios, which their ids decide, a search that finds
    nothing comes first: its keywords include the words for the sender and the day, which few emails contain, or a word
    of the question that the email lacks. It is left out where it would find something. Nothing is returned if no search
    finds the email.
    """
    email = inbox.read(email_id)
    if email is None:
        return []
    filters = filters_in(question, email)
    tries = [(" ".join(QUOTED.findall(question)), filters), (question, filters), (question, _UNFILTERED)]
    searches = (_filtered(inbox, text, email, tried, mailbox) for text, tried in tries)
    search = next((candidate for candidate in searches if candidate is not None), None)
    if search is None:
        return []
    if zlib.crc32(f"{scenario_id}:{email_id}".encode()) % _SECOND_SEARCH_EVERY:
        return [search]
    too_many = [*search.keywords, *_too_much(inbox, question, email, search, mailbox)]
    narrow = _run(inbox, too_many, _UNFILTERED, mailbox)
    return [search] if narrow.hits else [narrow, search]


def _filtered(inbox: Inbox, text: str, email: Email, filters: Filters, mailbox: str | None) -> Search | None:
    named = set(map(str.lower, filters.words))
    words = [word for word in _shared_words(text, email) if word.lower() not in named]
    counts = _counts(inbox, words, mailbox)
    # A count ends at the most hits of a search. Among words that are more frequent, long ones tell more.
    rare = sorted((word for word in words if counts.get(word)), key=lambda word: (counts[word], -len(word)))
    return _shortest(inbox, words, rare, email, filters, mailbox) if rare else None


def _shortest(
    inbox: Inbox, words: Sequence[str], rare: Sequence[str], email: Email, filters: Filters, mailbox: str | None
) -> Search | None:
    """Return the search with the fewest words (but two if there are two) that ranks the email first; else the one with
    the fewest hits that include it; None if none does. Its keywords are in the order of `words`, the first of `rare`
    preferred."""
    searches = [
        _run(inbox, [word for word in words if word in rare[:count]], filters, mailbox)
        for count in range(min(2, len(rare)), min(_MOST_KEYWORDS, len(rare)) + 1)
    ]
    at_top = [search for search in searches if search.hits[:1] == [email.id]]
    among = sorted((search for search in searches if email.id in search.hits), key=lambda search: len(search.hits))
    return next(iter(at_top or among), None)


def _too_much(inbox: Inbox, question: str, email: Email, search: Search, mailbox: str | None) -> Sequence[str]:
    """Return keywords that a person could add to the search so that it finds nothing."""
    if search.filters.words:
        return search.filters.words
    has = _words_of(email)
    lacking = list(dict.fromkeys(word for word in _WORD.findall(question) if word.lower() not in has))
    counts = _counts(inbox, lacking, mailbox)
    return sorted(counts, key=lambda word: counts[word])[:1]


def _counts(inbox: Inbox, words: Sequence[str], mailbox: str | None) -> dict[str, int]:
    """Return how many hits a search for each of the words has, without short words."""
    return {word: len(_run(inbox, [word], _UNFILTERED, mailbox).hits) for word in words if len(word) >= _SHORTEST}


def _shared_words(text: str, email: Email) -> list[str]:
    """Return the words of the text that the email has, in order, each once."""
    has = _words_of(email)
    return list(dict.fromkeys(word for word in _WORD.findall(text) if word.lower() in has))


def _words_of(email: Email) -> Set[str]:
    return set(map(str.lower, _WORD.findall(f"{email.subject} {email.body} {email.sender}")))


def _run(inbox: Inbox, keywords: list[str], filters: Filters, mailbox: str | None) -> Search:
    first, end = _days(filters)
    hits = inbox.search(keywords, sender=filters.sender, sent_after=first, sent_before=end, mailbox=mailbox)
    return Search(keywords, filters, [hit.id for hit in hits])


def _days(filters: Filters) -> tuple[date | None, date | None]:
    """Return the first day, inclusive, and the end, exclusive; None means open."""
    if filters.day is None:
        return None, None
    return filters.day, filters.day + timedelta(days=1) if filters.day < date.max else None
