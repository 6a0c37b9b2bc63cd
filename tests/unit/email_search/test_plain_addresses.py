"""Addresses that look like most are not parsed, and come out as if they were."""

import re
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from environment.email_search import inbox
from environment.email_search.mail_addresses import people
from learnloop_mail.reading import mail_headers

_NOTHING = re.compile(r"(?!)")


@given(st.lists(st.from_regex(mail_headers._PLAIN, fullmatch=True), min_size=1, max_size=3))
def test_of_a_header(addresses: list[str]) -> None:
    quick = mail_headers.mailboxes(addresses)
    with patch.object(mail_headers, "_PLAIN", _NOTHING):
        assert mail_headers.mailboxes(addresses) == quick
    assert len(quick) == len(addresses)


@given(st.from_regex(inbox._PLAIN_ADDRESS, fullmatch=True))
def test_of_an_inbox(address: str) -> None:
    assert list(inbox._people([address])) == list(people(address))
