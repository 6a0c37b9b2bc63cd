"""Names and addresses of header fields: the same on every Python, and nothing that came is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.environment.email_search.mail_addresses import people


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("bob@x.example <bob@x.example>", [("bob@x.example", "bob@x.example")]),
        ("Bob Miller [IT] <bob@x.example>", [("Bob Miller [IT]", "bob@x.example")]),
        ("build[bot] <n@x.example>, {A} <a@x.example>", [("build[bot]", "n@x.example"), ("{A}", "a@x.example")]),
        ("Sad :( <e@x.example>, Happy :) <h@x.example>", [("Sad :(", "e@x.example"), ("Happy :)", "h@x.example")]),
        ("Orr, Bob <b@x.example>; Lee, A <a@x.example>;", [("Orr, Bob", "b@x.example"), ("Lee, A", "a@x.example")]),
        ("a@x.example, Miller, Bob, Jr. <b@x.example>", [("", "a@x.example"), ("Miller, Bob, Jr.", "b@x.example")]),
        ("a@x.example;b@x.example; ", [("", "a@x.example"), ("", "b@x.example")]),
        (", Ann <a@x.example>,,", [("Ann", "a@x.example")]),
        ("Team: a@x.example, Bo <b@x.example>;", [("", "a@x.example"), ("Bo", "b@x.example")]),
        ("Support: Help <s@x.example>", [("Support: Help", "s@x.example")]),
        ("undisclosed-recipients:;", []),
        ("Undisclosed recipients:", []),
        ('"Bob <b@x.example>, "Ann" <a@x.example>', [("Bob", "b@x.example"), ("Ann", "a@x.example")]),
        ('"Bob <b@x.example>', [("Bob", "b@x.example")]),
        ('Ann "A" Lee <a@x.example>', [("Ann A Lee", "a@x.example")]),
        (r'"Ann \"A\" Lee" <a@x.example>', [('Ann "A" Lee', "a@x.example")]),
        ("Bob <b@x.example", [("Bob", "b@x.example")]),
        ("<<b@x.example>>", [("", "b@x.example")]),
        ("Bob <b@x.example> Ann <a@x.example>", [("Bob", "b@x.example"), ("Ann", "a@x.example")]),
        ("b@x.example a@x.example", [("", "b@x.example"), ("", "a@x.example")]),
        ("Bob <b@x.example> (IT)", [("Bob (IT)", "b@x.example")]),
        ("Bob (the (big) one) <b@x.example>", [("Bob (the (big) one)", "b@x.example")]),
        ("b@x.example (Bob)", [("Bob", "b@x.example")]),
        ("Bob [mailto:b@x.example]", [("Bob", "b@x.example")]),
        ("<mailto:b@x.example>", [("", "b@x.example")]),
        ("Bob < b @ x.example >", [("Bob", "b@x.example")]),
        ("<@relay.example,@other.example:b@x.example>", [("", "b@x.example")]),
        ('J <"john doe"@x.example>', [("J", '"john doe"@x.example')]),
        ("<b@[IPv6:2001:db8::1]>, c@[192.0.2.1]", [("", "b@[IPv6:2001:db8::1]"), ("", "c@[192.0.2.1]")]),
        ("=?utf-8?q?Lee, Ann?= <a@x.example>", [("=?utf-8?q?Lee, Ann?=", "a@x.example")]),
        ("Ann <ann at x.example>, bo at x.example (Bo)", [("Ann", "ann@x.example"), ("Bo", "bo@x.example")]),
        ("Meet at noon.example <m@x.example>", [("Meet at noon.example", "m@x.example")]),
        ("root, Ann Lee", [("", "root"), ("Ann Lee", "")]),
        ("", []),
    ],
)  # fmt: skip
def test_fields_as_programs_and_people_write_them(field: str, expected: list[tuple[str, str]]) -> None:
    assert list(people(field)) == expected


_word = st.from_regex(r"[\w.'!#$%&*+/=?^{|}~ -]{0,12}", fullmatch=True).map(str.strip)
_address = st.from_regex(r"[a-z0-9_+-]{1,12}(?:\.[a-z0-9]{1,5})?@[a-z0-9-]{1,12}\.[a-z]{2,5}", fullmatch=True)
_odd_name = st.lists(
    _word | st.sampled_from([":-)", "[IT]", "(HR)", '"', "a@b.example", "R&D:", "\\", ">", "@"]), max_size=4
)


@given(st.lists(st.tuples(_odd_name.map(" ".join), _address), min_size=1, max_size=5))
def test_no_name_costs_an_address(mailboxes: list[tuple[str, str]]) -> None:
    field = ", ".join(f"{name} <{address}>" for name, address in mailboxes)
    read = [address for _, address in people(field)]
    assert [address for address in read if address in {expected for _, expected in mailboxes}] == [
        expected for _, expected in mailboxes
    ]
