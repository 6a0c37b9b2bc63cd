"""The time and the secrets of a signature. What receivers verify is tested in test_webhook_libraries.py."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from standardwebhooks import Webhook

from learnloop_service.app.security.webhook_signing import is_secret, new_secret, signed_headers

BODY = '{"type": "iteration.completed", "text": "Grüße \\u0041 ✓"}'


def test_a_time_of_another_zone_is_signed_right() -> None:
    secret = new_secret()
    sent_at = datetime.now(timezone(timedelta(hours=5, minutes=30)))
    Webhook(secret).verify(BODY, signed_headers("01KAJ3M7F5T2V8Q9X0C4D6E8GA", sent_at, BODY, [secret]))


def test_without_a_secret_there_is_no_signature() -> None:
    assert signed_headers("id", datetime.now(UTC), BODY, []).keys() == {"webhook-id", "webhook-timestamp"}


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("whsec_" + "A" * 32, True),
        ("whsec_" + "A" * 28, False),
        ("whsec_" + "A" * 88, False),
        ("whsec_" + "A" * 33, False),
        ("A" * 32, False),
        ("whsec_", False),
        ("whsec_" + "-" * 32, False),
    ],
)
def test_the_form_of_a_secret(text: str, good: bool) -> None:
    assert is_secret(text) is good
