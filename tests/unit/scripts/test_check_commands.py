"""Which commands the documentation's check reads in a page, and what it says about them."""

import pytest

from scripts.check_commands import fault, written

PAGE = """Run `learnloop runs list`, or ``a ` b``:

    $ LEARNLOOP_URL=http://127.0.0.1:8000 learnloop runs show RUN_ID --json   # its figures
    learnloop agent run -- claude --print

```
learnloop report RUN_ID \\
  --card card.png | cat
```
"""


def test_commands_in_lines_blocks_and_backquotes() -> None:
    assert [words for words in written(PAGE) if words[0] == "learnloop"] == [
        ["learnloop", "report", "RUN_ID", "--card", "card.png"],
        ["learnloop", "runs", "show", "RUN_ID", "--json"],
        ["learnloop", "agent", "run"],
        ["learnloop", "runs", "list"],
    ]


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("learnloop runs fork RUN_ID --set a=1", None),
        ("learnloop report RUN_ID --card card.png", None),
        ("learnloop engine --any-flag", None),
        ("learnloop --help", None),
        ("learnloop runs frok RUN_ID", "`learnloop runs` has no command frok"),
        ("learnloop runs fork RUN_ID --sett=1", "`learnloop runs fork` has no option --sett=1"),
        ("learnloop nothing", "`learnloop` has no command nothing"),
        ("make test", None),
        ("make tset", "the Makefile has no target tset"),
        ("make a difference", "the Makefile has no target a"),
        ("python -m scripts.check_commands", None),
        ("python -m scripts.no_such", "there is no module scripts.no_such"),
        ("python -m benchmarks.no_such.module", "there is no module benchmarks.no_such.module"),
        ("git nothing --at-all", None),
    ],
)
def test_what_is_wrong(command: str, wrong: str | None) -> None:
    assert fault(command.split(), {"test"}) == wrong
