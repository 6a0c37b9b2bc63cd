"""Keeps the documentation short: python -m scripts.check_docs

Prints what it found, and exits with 1 if README.md and docs/*.md together have more than `MAX_WORDS` words, or if the
mean sentence of one of these pages, or of a guide, has more than `MAX_MEAN` words. What is for developers is not
counted: benchmarks/README.md and docs/decisions.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

MAX_WORDS = 60_000
MAX_MEAN = 18.0
"""Words in a sentence of a page, on average."""

_CODE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_ENDS = re.compile(r"[.!?](?:[\"')*]*)(?:\s+|$)")


def sentences(page: str) -> Iterator[str]:
    """Yield the sentences of a page's prose: paragraphs and list items, without code, tables, headings and pictures.

    A piece of inline code is a word.
    """
    text = re.sub(r"`[^`\n]+`", "code", _LINK.sub(r"\1", _CODE.sub("", page)))
    paragraph: list[str] = []
    for line in (*text.splitlines(), ""):
        if line.startswith(("    ", "#", "|", "<", ">")) or not line.strip():
            yield from _ENDS.split(" ".join(paragraph))
            paragraph = []
            continue
        if re.match(r" *([-*]|\d+\.) ", line):
            yield from _ENDS.split(" ".join(paragraph))
            paragraph = []
        paragraph.append(line.strip().removeprefix("- "))


def mean_sentence(page: str) -> float:
    """Return the mean number of words in a sentence; 0 of a page without any."""
    lengths = [len(words) for sentence in sentences(page) if (words := re.findall(r"[^\W_][\w'.,%-]*", sentence))]
    return sum(lengths) / len(lengths) if lengths else 0.0


def faults(counted: Mapping[str, str], guides: Mapping[str, str]) -> Iterator[str]:
    """Yield what is too long, given the texts of pages by their names; the words of guides are not counted."""
    words = sum(len(page.split()) for page in counted.values())
    if words > MAX_WORDS:
        yield f"README.md and docs/*.md have {words:,} words, more than {MAX_WORDS:,}"
    for name, page in {**counted, **guides}.items():
        if (mean := mean_sentence(page)) > MAX_MEAN:
            yield f"{name}: the mean sentence has {mean:.1f} words, more than {MAX_MEAN:.0f}"


def main() -> None:
    docs = Path("docs")
    counted, guides = (
        {str(path): path.read_text(encoding="utf-8") for path in paths}
        for paths in ((Path("README.md"), *sorted(docs.glob("*.md"))), sorted((docs / "guides").glob("*.md")))
    )
    longest = max(mean_sentence(page) for page in (*counted.values(), *guides.values()))
    words = sum(len(page.split()) for page in counted.values())
    print(f"{words:,} words of {MAX_WORDS:,}; the page with the longest sentences has {longest:.1f} words in each")
    sys.exit("\n".join(faults(counted, guides)) or 0)


if __name__ == "__main__":
    main()
