"""The core does not name what this package adds."""

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDERS = ("alembic", "app", "environment", "judges", "learnloop", "training")
_SUFFIXES = {".css", ".html", ".jinja", ".js", ".json", ".md", ".py", ".txt"}
_WORD = re.compile(r"learnloop[_-]mail|mbox|maildir|enron|\.eml\b|mailbox", re.IGNORECASE)
_AN_INBOX = "an inbox of one person, which the agent searches"
ALLOWED = {
    "app/cli/data_sources.py": ({"mailbox"}, "an example of the name of an entry point and of its option"),
    "app/cli/demo/questions.py": ({"mailbox"}, _AN_INBOX),
    "app/cli/demo/real_base.py": ({"mailbox"}, _AN_INBOX),
    "app/dashboard/static/pages/start.js": ({"mailbox"}, _AN_INBOX),
    "environment/email_search/environment.py": ({"mailbox"}, _AN_INBOX),
    "environment/email_search/inbox.py": ({"mailbox"}, _AN_INBOX),
    "environment/email_search/oracle_search.py": ({"mailbox"}, _AN_INBOX),
    "environment/email_search/synthetic.py": ({"mailbox"}, "RFC 5322's word for a name with an address"),
    "environment/email_search/tools.py": ({"mailbox"}, _AN_INBOX),
    "environment/known_plugins.json": ({"learnloop-mail", "mailbox"}, "what is said of a package that is missing"),
    "training/disk_need.py": ({"mailbox"}, "a run whose disk was measured"),
}
"""Words that files of the core have, and what they mean there."""


def test_the_core_names_nothing_of_it_except_what_is_listed() -> None:
    words_by_path = defaultdict[str, set[str]](set)
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in _SUFFIXES and not {"vendor", "__pycache__"} & set(path.parts):
                words = {word.lower() for word in _WORD.findall(path.read_text(encoding="utf-8"))}
                words_by_path[path.relative_to(ROOT).as_posix()] |= words
    allowed = {path: words for path, (words, _) in ALLOWED.items()}
    assert {path: words for path, words in words_by_path.items() if words} == allowed
