"""What makes an email grounded, one condition at a time."""

from dataclasses import replace

import pytest

from learnloop_sales.graph import Edge, Kind, Node, build_graph
from learnloop_sales.grounding import GroundedEmail, Grounding, ground

GRAPH = build_graph(
    [
        Node("job", "Quotes take long.", Kind.CUSTOMER_JOB),
        Node("feature", "Korvane finds errors.", Kind.PRODUCT_FEATURE),
        Node("elsewhere", "Another product.", Kind.PRODUCT_FEATURE),
    ],
    [Edge("job", "feature", "solved by")],
)
TASK = {"prospect": "Mara Velin", "company": "Tolvani Works"}
GOOD = GroundedEmail("Korvane for Tolvani Works", "Hi Mara, shall we talk?", ("job", "feature"))
ALL = frozenset(GRAPH.nodes)


def check(email: GroundedEmail, read: frozenset[str] = ALL) -> Grounding:
    return ground(email, TASK, GRAPH, read, GRAPH.reachable(["job"]))


def test_a_good_email_is_grounded() -> None:
    assert check(GOOD).grounded
    assert check(replace(GOOD, citations=("feature",))).grounded


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("Dear Ms. Velin", True),
        ("HI MARA!", True),
        ("Hi Mara", True),
        ("Hi Maran", False),
        ("Hi Tamara", False),
        ("Hi there", False),
    ],
)
def test_the_prospect_is_named_by_a_whole_word(body: str, named: bool) -> None:
    assert check(replace(GOOD, body=body)).names_prospect is named


def test_the_company_is_named_in_full() -> None:
    assert not check(replace(GOOD, subject="Korvane for Tolvani")).grounded
    assert check(replace(GOOD, subject="Hello", body="Mara of\nTOLVANI  works")).grounded


def test_citations_must_exist_and_be_read() -> None:
    assert not check(replace(GOOD, citations=())).citations_read
    unread = check(GOOD, frozenset({"feature"}))
    assert (unread.unread, unread.unknown, unread.grounded) == (("job",), (), False)
    unknown = check(replace(GOOD, citations=("feature", "ghost")))
    assert (unknown.unread, unknown.unknown, unknown.grounded) == ((), ("ghost",), False)


def test_a_product_that_no_path_reaches_does_not_count() -> None:
    grounding = check(replace(GOOD, citations=("job", "elsewhere")))
    assert grounding.citations_read
    assert not grounding.cites_product
    assert not grounding.grounded
