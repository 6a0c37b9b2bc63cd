"""Reports: what they list, what they recompute, and that hostile text stays text."""

import json
import re
from copy import deepcopy
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from learnloop_service.app.reports.card import HEIGHT, WIDTH, card
from learnloop_service.app.reports.examples import DRAWN, FELL, UNSOLVED, changes, examples
from learnloop_service.app.reports.figures import figures
from learnloop_service.app.reports.html import h, visible
from learnloop_service.app.reports.page import page
from learnloop_service.app.reports.rollouts import MAX_LISTED, RolloutBatch, Row, listing
from learnloop_service.app.reports.signature import opened, public_text, sign, signing_key
from learnloop_service.app.reports.verify import DamagedReport, compared_with, page_differences, read_report, recomputed
from tests.unit.app.reports.documents import report

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\u202etxt.exe\x1b[31m]]>&lt;"


def _row(scenario: int, right: bool, id: str = "r") -> Row:
    return Row(id, scenario, float(right), float(right), right, "answered", 3, "0" * 64)


def test_every_figure_follows_from_the_rollouts() -> None:
    computed = figures(report())
    assert [figure for figure in computed if not figure.agrees] == []
    names = [figure.name for figure in computed]
    for part in ("iteration 3: reward median", "validation, sampled, step 4, after iteration 4: difference"):
        assert part in names
    assert {"verdict: text", "digest of iteration 2", "example 1, after training: reward"} <= set(names)


@pytest.mark.parametrize(
    ("path", "value", "names"),
    [
        (("iterations", "items", 2, "rewards", "mean"), 1.5, {"iteration 2: reward mean"}),
        (
            ("evaluations", "items", 2, "success"),
            0.99,
            {"validation, sampled, step 4, after iteration 4: success", "verdict: text", "verdict: on"},
        ),
        (("verdict", "text"), "Learned everything.", {"verdict: text"}),
        (("rollouts", "batches", 1, "rows", 0, 7), "f" * 64, {"digest of iteration 1"}),
        (("examples", "items", 0, "after", "success"), None, {"example 1, after training: success"}),
        (("examples", "rule"), "The best ones.", {"examples: rule"}),
    ],
)
def test_a_changed_figure_is_named(path: tuple[str | int, ...], value: object, names: set[str]) -> None:
    changed = deepcopy(report())
    *parents, last = path
    inner = changed
    for step in parents:
        inner = inner[step]
    inner[last] = value
    _, differences = recomputed(changed)
    assert {difference.name for difference in differences} == names


def test_a_changed_reward_moves_all_that_follows_from_it() -> None:
    changed = report()
    [batch] = [
        candidate
        for candidate in changed["rollouts"]["batches"]
        if (candidate["kind"], candidate["iteration"]) == ("train", 3)
    ]
    batch["rows"][0][3] = 2.5
    _, differences = recomputed(changed)
    assert {"iteration 3: reward mean", "iteration 3: reward max"} <= {difference.name for difference in differences}


def test_a_changed_text_of_the_page_is_named() -> None:
    document = report()
    content = page(document)
    assert page_differences(content, read_report(content)) == []
    sentence = document["verdict"]["text"]
    [difference] = page_differences(content.replace(f">{sentence}<", ">Learned it all.<"), document)
    assert difference.name == "page, head"
    assert difference.file == "Learned it all."
    assert difference.other == sentence
    [difference] = page_differences(content.replace("<td>2</td>", "<td>3</td>", 1), document)
    assert difference.name.startswith("page, ")
    assert difference.file == "3"


def test_a_report_is_compared_with_that_of_the_service() -> None:
    document, current = report(), report()
    assert compared_with(document, current, signed=False).differences == []
    current["examples"]["items"][1]["before"]["messages"][1]["text"] = "another"
    current["rollouts"]["batches"][0]["rows"][3][3] = 0.5
    current["settings"]["learning_rate"] = 0.1
    names = {difference.name for difference in compared_with(document, current, signed=False).differences}
    row = document["rollouts"]["batches"][0]["rows"][3][0]
    assert names == {
        "example 2.before.messages.2.text",
        f"rollout {row}: reward",
        "settings.learning_rate",
    }


def test_a_run_that_has_gone_on_is_compared_where_it_can_be() -> None:
    document, current = report(4), report(6)
    document["run"]["status"] = "running"
    document["iterations"]["items"][1]["rewards"]["max"] = 9.0
    comparison = compared_with(document, current, signed=True)
    assert "iteration 1.rewards.max" in {difference.name for difference in comparison.differences}
    assert comparison.not_compared == ["the run has gone on since, so what changes with it"]
    document["verdict"]["text"] = "Learned everything."
    names = {difference.name for difference in compared_with(document, current, signed=False).differences}
    assert {"run.status", "verdict.text"} < names, "the word of an unsigned file counts for nothing"


def test_only_the_file_that_was_signed_is_signed() -> None:
    key = signing_key(b"the key of a service")
    content = page(report())
    file = sign(content, key)
    assert opened(file) == (content, public_text(key), True)
    assert opened(content) == (content, None, False)
    assert not opened(file.replace("<td>2</td>", "<td>3</td>", 1)).valid
    assert not opened(file.replace(public_text(key), public_text(signing_key(b"another")))).valid
    assert not opened(f"{content}{sign('', key)}").valid
    for bad in ('{"key": 1}', "{}", '{"key": "\u00e9", "signature": "!"}'):
        assert opened(f'x<script type="application/json" id="signature">{bad}</script>\n').key == "(unreadable)"


@pytest.mark.parametrize("content", ["", "<html></html>", '<script type="application/json" id="report">{}</script>'])
def test_another_file_is_no_report(content: str) -> None:
    with pytest.raises(DamagedReport):
        read_report(content)


def test_data_that_makes_no_sense_is_said_to() -> None:
    damaged = report()
    damaged["rollouts"]["batches"][0]["rows"][0] = ["too", "short"]
    with pytest.raises(DamagedReport, match="cannot be computed"):
        recomputed(damaged)


# What is listed


def test_a_long_run_is_thinned_and_small() -> None:
    document = report(iterations=1_000, rollouts=64, every=10)
    assert document["rollouts"]["listed"] <= MAX_LISTED < document["rollouts"]["total"]
    assert [figure for figure in figures(document) if not figure.agrees] == []
    content = page(document)
    assert len(content.encode()) < 500_000
    assert re.search(r"Every \d+th iteration: [\d,]+ training rewards", content)
    assert sum(digest["rollouts"] for digest in document["digests"]) == document["rollouts"]["total"]


def test_all_rollouts_of_a_short_run_are_listed() -> None:
    document = report()
    assert document["rollouts"]["listed"] == document["rollouts"]["total"]
    assert "All 32 training rewards" in page(document)


def test_what_the_verdict_rests_on_is_listed_first() -> None:
    first, last = (RolloutBatch(n, "evaluation", "validation", "sampled", n) for n in (0, 7))
    sizes = {RolloutBatch(n, "train", "train", "sampled", None): 900 for n in range(1, 8)} | {first: 500, last: 500}
    chosen = listing(sizes, [first, last])
    assert {first, last} < chosen.batches
    assert sum(sizes[batch] for batch in chosen.batches) <= MAX_LISTED
    assert chosen.every > 1


def test_the_examples_do_not_flatter() -> None:
    ids = list("abcdefgh")
    before = [_row(n, n in (0, 1), f"b{n}") for n in range(8)]
    after = [_row(n, n not in (0, 3), f"a{n}") for n in range(8)]
    chosen = examples(before, after, ids)
    assert [example.why for example in chosen] == [FELL, UNSOLVED, DRAWN, DRAWN, DRAWN]
    assert [example.scenario for example in chosen[:2]] == ["a", "d"]
    assert examples(before, after, ids) == chosen
    assert changes(before, after, ids) == (5, 1, 2)


def test_a_fall_is_shown_by_the_rollouts_that_fell() -> None:
    before = [_row(0, False, "b0"), _row(0, True, "b1")]
    after = [_row(0, False, "a1"), _row(0, False, "a2")]
    [only] = examples(before, after, ["a"])
    assert only.why == FELL
    assert only.before.id == "b1"
    assert only.after.id == "a1"


# Text that others wrote


class _Elements(HTMLParser):
    def __init__(self, content: str) -> None:
        super().__init__()
        self.scripts = 0
        self.others: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.others.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_hostile_text_stays_text() -> None:
    document = report(text=HOSTILE)
    for name in ("model", "environment", "error", "base_model"):
        document["run"][name] = HOSTILE
    document["causes"] = [{"cause": HOSTILE, "severity": "fault", "summary": HOSTILE, "remedy": HOSTILE}]
    document["settings"] = {HOSTILE: HOSTILE}
    content = page(document)
    hostile, usual = _Elements(content), _Elements(page(report()))
    assert hostile.scripts == usual.scripts == 2
    assert hostile.others - usual.others <= {"em"}
    assert not any(name.startswith("on") for name in hostile.attributes)
    assert not {"src", "href", "style"} & hostile.attributes
    assert "\u202e" not in content
    assert "\x1b" not in content
    assert "⟨U+202E⟩" in content
    assert read_report(content)["run"]["model"] == HOSTILE
    assert page_differences(content, read_report(content)) == []
    drawn = card(document)
    ElementTree.fromstring(drawn)
    assert "\u202e" not in drawn


def test_text_is_escaped_and_markup_is_not() -> None:
    assert (
        h("p", "<b>", h("i", "&"), None, title='"', class_="x")
        == '<p title="&quot;" class="x">&lt;b&gt;<i>&amp;</i></p>'
    )
    assert visible("a\u200bb\u0007\n") == "a⟨U+200B⟩b␇\n"


def test_the_policy_allows_no_request_and_no_other_script() -> None:
    content = page(report())
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', content)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", content)


def test_a_page_does_not_depend_on_the_order_of_keys() -> None:
    document = report()
    assert page(json.loads(json.dumps(document, sort_keys=True))) == page(document)


@pytest.mark.parametrize("state", ["learned", "got_worse", "no_change_shown", "too_early"])
def test_the_card_is_drawn_for_every_verdict(state: str) -> None:
    document = report()
    document["verdict"]["state"] = state
    if state == "too_early":
        document["verdict"]["on"] = None
        document["evaluations"]["items"] = []
    root = ElementTree.fromstring(card(document))
    assert (root.get("width"), root.get("height")) == (str(WIDTH), str(HEIGHT))
