"""What the check of the documentation's length counts."""

import pytest

from scripts import check_docs
from scripts.check_docs import faults, mean_sentence, sentences

PAGE = """# A heading that is not counted

Two words. A [linked page](somewhere/far/away.md) has `learnloop runs show` in it:

    learnloop serve --host 0.0.0.0

| a table | is not counted |
| --- | --- |

- An item, which
  goes on
- Another one
"""


def test_prose_only_is_counted() -> None:
    texts = [sentence for sentence in sentences(PAGE) if sentence]
    assert texts == ["Two words", "A linked page has code in it:", "An item, which goes on", "Another one"]
    assert mean_sentence(PAGE) == (2 + 7 + 5 + 2) / 4


def test_a_page_without_prose() -> None:
    assert mean_sentence("# Heading\n\n    code\n") == 0.0


def test_long_sentences_are_named() -> None:
    pages = {"short.md": "One two three.", "long.md": "word " * 19}
    expected = ["long.md: the mean sentence has 19.0 words, more than 18"]
    assert list(faults(pages, {})) == list(faults({}, pages)) == expected


def test_too_many_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_docs, "MAX_WORDS", 3)
    assert list(faults({"a.md": "one two", "b.md": "three"}, {"a_guide.md": "four"})) == []
    [fault] = faults({"a.md": "one two", "b.md": "three four"}, {})
    assert fault == "README.md and docs/*.md have 4 words, more than 3"
