"""Signing secrets of webhook endpoints, and signed headers, as specified by Standard Webhooks."""

import base64
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime

_SECRET_BYTES = 32


def new_secret() -> str:
    """Generate a secret in the specification's format."""
    return "whsec_" + base64.b64encode(os.urandom(_SECRET_BYTES)).decode()


def is_secret(text: str) -> bool:
    """Return whether the text is a secret in the specification's format: `whsec_` and 24 to 64 bytes in base64."""
    encoded = re.fullmatch(r"whsec_([A-Za-z0-9+/]+={0,2})", text)
    try:
        return encoded is not None and 24 <= len(base64.b64decode(encoded[1], validate=True)) <= 64
    except ValueError:
        return False


def signed_headers(id: str, sent_at: datetime, body: str, secrets: Sequence[str]) -> dict[str, str]:
    """Return a message's headers, with one signature per secret."""
    from standardwebhooks import Webhook

    utc = sent_at.astimezone(UTC)  # the library treats the time of any other zone as UTC
    headers = {"webhook-id": id, "webhook-timestamp": str(int(utc.timestamp()))}
    if secrets:
        headers["webhook-signature"] = " ".join(Webhook(secret).sign(id, utc, body) for secret in secrets)
    return headers
