"""Names and addresses of header fields: as an inbox finds them, and the same on every Python."""

import email.utils
import re
from time import process_time
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_mail.reading import mail_headers
from learnloop_mail.reading.mail_headers import mailboxes
from learnloop_mail.reading.mail_message import decode_mail
from learnloop_service.environment.email_search.inbox import Email, Inbox
from learnloop_service.environment.email_search.mail_addresses import people

_NOTHING = re.compile(r"(?!)")
_address = st.from_regex(r"[a-z0-9_+-]{1,12}(?:\.[a-z0-9]{1,5})?@[a-z0-9-]{1,12}\.[a-z]{2,5}", fullmatch=True)


def test_a_field_that_is_encoded_as_a_whole() -> None:
    assert mailboxes(["=?utf-8?q?=C3=84nn_Lee_=3Ca=40x=2Eexample=3E?="]) == ("Änn Lee <a@x.example>",)


@given(st.lists(st.tuples(st.text(max_size=20), _address | st.just('"ann lee"@x.example')), max_size=4))
def test_a_written_mailbox_is_read_back_by_the_inbox(pairs: list[tuple[str, str]]) -> None:
    quoted = [(name.replace("\\", "").replace('"', ""), address) for name, address in pairs]
    written = mailboxes([f'"{name}" <{address}>' for name, address in quoted])
    assert [address for field in written for _, address in people(field)] == [address for _, address in quoted]
    inbox = Inbox.in_memory([Email("x", "<x>", "", written, None, "", "")])
    assert all(inbox.search([], recipient=address) for _, address in quoted)
    inbox.close()


@given(st.lists(st.from_regex(mail_headers._PLAIN, fullmatch=True), min_size=1, max_size=3))
def test_addresses_that_look_like_most_are_not_parsed_and_come_out_the_same(addresses: list[str]) -> None:
    quick = mail_headers.mailboxes(addresses)
    with patch.object(mail_headers, "_PLAIN", _NOTHING):
        assert mail_headers.mailboxes(addresses) == quick
    assert len(quick) == len(addresses)


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
