"""Groups texts that are nearly the same."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

_SIMILAR = 0.8
"""Least share of the words of two texts that both have."""
_MOST_COMPARED = 30
"""Maximum number of texts with the same rare word that a text is compared with, so that a big file takes seconds."""


def groups(texts: Sequence[Collection[str]], kinds: Sequence[str]) -> list[int]:
    """Return the number of each text's group. Texts, given as their words, are in the same group if they are of the
    same kind and at least four fifths of their words are the same. The order of the texts does not matter."""
    words = [frozenset(text) for text in texts]
    frequency = Counter(word for words_of_text in words for word in words_of_text)
    ordered = [sorted(words_of_text, key=lambda word: (frequency[word], word)) for words_of_text in words]
    parents = list(range(len(words)))
    having = defaultdict[tuple[str, str], list[int]](list)
    for number in sorted(parents, key=lambda index: (len(words[index]), ordered[index])):
        # Two similar texts share one of their rarest words: as many as may differ, and one more.
        rare = [(kinds[number], word) for word in ordered[number][: _rare(len(words[number]))]]
        for other in {other for key in rare for other in having[key][-_MOST_COMPARED:]}:
            both = len(words[number] & words[other])
            if both >= _SIMILAR * (len(words[number]) + len(words[other]) - both):
                parents[_root(parents, number)] = _root(parents, other)
        for key in rare:
            having[key].append(number)
    return [_root(parents, index) for index in range(len(words))]


def _rare(size: int) -> int:
    return size - math.ceil(_SIMILAR * size) + 1


def _root(parents: list[int], index: int) -> int:
    while parents[index] != index:
        parents[index] = index = parents[parents[index]]
    return index
