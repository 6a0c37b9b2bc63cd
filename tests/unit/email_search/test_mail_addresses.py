"""Names and addresses of header fields: the same on every Python, and nothing that came is lost."""

import email.utils
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environment.email_search.inbox import Email, Inbox
from environment.email_search.mail_addresses import people
from learnloop_mail.reading.mail_headers import mailboxes
from learnloop_mail.reading.mail_message import decode_mail


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


def test_a_field_that_is_encoded_as_a_whole() -> None:
    assert mailboxes(["=?utf-8?q?=C3=84nn_Lee_=3Ca=40x=2Eexample=3E?="]) == ("Änn Lee <a@x.example>",)


_word = st.from_regex(r"[\w.'!#$%&*+/=?^{|}~ -]{0,12}", fullmatch=True).map(str.strip)
_address = st.from_regex(r"[a-z0-9_+-]{1,12}(?:\.[a-z0-9]{1,5})?@[a-z0-9-]{1,12}\.[a-z]{2,5}", fullmatch=True)
_odd_name = st.lists(
    _word | st.sampled_from([":-)", "[IT]", "(HR)", '"', "a@b.example", "R&D:", "\\", ">", "@"]), max_size=4
)


@given(st.lists(st.tuples(_odd_name.map(" ".join), _address), min_size=1, max_size=5))
def test_no_name_costs_an_address(found: list[tuple[str, str]]) -> None:
    field = ", ".join(f"{name} <{address}>" for name, address in found)
    read = [address for _, address in people(field)]
    assert [address for address in read if address in {each for _, each in found}] == [each for _, each in found]


@given(st.lists(st.tuples(st.text(max_size=20), _address | st.just('"ann lee"@x.example')), max_size=4))
def test_a_written_mailbox_is_read_back_by_the_inbox(found: list[tuple[str, str]]) -> None:
    quoted = [(name.replace("\\", "").replace('"', ""), address) for name, address in found]
    written = mailboxes([f'"{name}" <{address}>' for name, address in quoted])
    assert [address for each in written for _, address in people(each)] == [address for _, address in quoted]
    inbox = Inbox.in_memory([Email("x", "<x>", "", written, None, "", "")])
    assert all(inbox.search([], recipient=address) for _, address in quoted)
    inbox.close()


@pytest.mark.parametrize(
    "unit", ['"', '"\\', "(", "((a)", "<", "<a", "=?a?q?", ":", "a:", ";", ",", "@", "a@b ", "\\", "@[", "'", "a at "]
)
def test_no_field_is_slow(unit: str) -> None:
    began = process_time()
    mailboxes([unit * (64_000 // len(unit))])
    assert process_time() - began < 5


@pytest.mark.parametrize("strict", [True, False])
def test_pythons_own_parser_is_not_asked(strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is strict depends on the patch release."""

    def parser(*_: object, **__: object) -> object:
        raise AssertionError("the result would depend on the release of Python")

    for name in ("getaddresses", "parseaddr") if strict else ("AddressList", "_AddressList", "_pre_parse_validation"):
        monkeypatch.setattr(email.utils, name, parser, raising=False)
    mail = decode_mail(b"From: Bob [IT] <bob@x.example>\nTo: Ann <ann@x.example>, , c@x.example (C)\n\nx")
    assert (mail.sender, mail.to) == ('"Bob [IT]" <bob@x.example>', ("Ann <ann@x.example>", "C <c@x.example>"))
