"""Addresses that look like most are not parsed, and come out as if they were."""

from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.environment.email_search import inbox
from learnloop_service.environment.email_search.mail_addresses import people


@given(st.from_regex(inbox._PLAIN_ADDRESS, fullmatch=True))
def test_of_an_inbox(address: str) -> None:
    assert list(inbox._people([address])) == list(people(address))
