"""What we sign, the reference library verifies; what somebody changed it does not."""

import binascii
from datetime import UTC, datetime, timedelta, timezone

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from app.security.webhook_signing import is_secret, new_secret, signed_headers

BODY = '{"type": "iteration.completed", "text": "Grüße \\u0041 ✓"}'
REFUSALS = (WebhookVerificationError, ValueError, binascii.Error)


def _headers(secret: str, at: datetime | None = None) -> dict[str, str]:
    return signed_headers("01KAJ3M7F5T2V8Q9X0C4D6E8GA", at or datetime.now(UTC), BODY, [secret])


def test_the_reference_library_verifies_it() -> None:
    secret = new_secret()
    assert Webhook(secret).verify(BODY, _headers(secret)) == {
        "type": "iteration.completed",
        "text": "Grüße A ✓",
    }


def test_a_time_of_another_zone_is_signed_right() -> None:
    secret = new_secret()
    Webhook(secret).verify(BODY, _headers(secret, datetime.now(timezone(timedelta(hours=5, minutes=30)))))


@pytest.mark.parametrize("part", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_any_changed_header_fails(part: str) -> None:
    secret = new_secret()
    good = _headers(secret)
    for at in range(len(good[part])):
        flipped = good[part][:at] + ("1" if good[part][at] != "1" else "2") + good[part][at + 1 :]
        if part == "webhook-signature" and at == len(good[part]) - 2:
            continue  # its last bits are not part of the signature
        with pytest.raises(REFUSALS):
            Webhook(secret).verify(BODY, good | {part: flipped})
    with pytest.raises(REFUSALS):
        Webhook(secret).verify(BODY, {name: value for name, value in good.items() if name != part})


def test_a_changed_body_and_another_secret_fail() -> None:
    secret = new_secret()
    for at in range(len(BODY)):
        with pytest.raises(REFUSALS):
            Webhook(secret).verify(BODY[:at] + "#" + BODY[at + 1 :], _headers(secret))
    with pytest.raises(REFUSALS):
        Webhook(new_secret()).verify(BODY, _headers(secret))


@pytest.mark.parametrize("late_s", [-310, 310])
def test_an_old_or_early_message_fails(late_s: int) -> None:
    secret = new_secret()
    with pytest.raises(REFUSALS):
        Webhook(secret).verify(BODY, _headers(secret, datetime.now(UTC) - timedelta(seconds=late_s)))


def test_in_a_rotation_both_secrets_verify() -> None:
    old, new = new_secret(), new_secret()
    headers = signed_headers("id", datetime.now(UTC), BODY, [new, old])
    assert headers["webhook-signature"].count("v1,") == 2
    for secret in (old, new):
        Webhook(secret).verify(BODY, headers)


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
