"""The signature of a service on a report's file: Ed25519 over the SHA-256 of the file without its last element."""

import base64
import binascii
import json
import re
from hashlib import sha256
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_ELEMENT = re.compile(r'<script type="application/json" id="signature">(\{[^<]*\})</script>\n\Z')


class Signed(NamedTuple):
    """A file taken apart."""

    content: str
    """The file without the signature."""
    key: str | None
    """The public key by which the file says that it is signed; None without a signature."""
    valid: bool
    """Whether that key's owner signed exactly this content."""


def signing_key(service_key: bytes) -> Ed25519PrivateKey:
    """Derive the key that signs reports from the service's own."""
    return Ed25519PrivateKey.from_private_bytes(sha256(b"learnloop reports\0" + service_key).digest())


def public_text(key: Ed25519PrivateKey) -> str:
    """Return the public key as the member `x` of a JSON Web Key (RFC 8037) has it."""
    return _text(key.public_key().public_bytes_raw())


def sign(content: str, key: Ed25519PrivateKey) -> str:
    """Return the file with the signature as its last element."""
    document = {"key": public_text(key), "signature": _text(key.sign(_digest(content)))}
    return f'{content}<script type="application/json" id="signature">{json.dumps(document)}</script>\n'


def opened(file: str) -> Signed:
    """Take a file apart, and check its signature against the key that it names."""
    if (match := _ELEMENT.search(file)) is None:
        return Signed(file, None, False)
    content = file[: match.start()]
    try:
        document = json.loads(match[1])
        key, signature = str(document["key"]), _bytes(str(document["signature"]))
        Ed25519PublicKey.from_public_bytes(_bytes(key)).verify(signature, _digest(content))
    except (ValueError, KeyError, InvalidSignature):
        return Signed(content, "(unreadable)", False)
    return Signed(content, key, True)


def _digest(content: str) -> bytes:
    return sha256(content.encode()).digest()


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    """Decode base64url without padding. Raises ValueError."""
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error as error:
        raise ValueError(str(error)) from error
