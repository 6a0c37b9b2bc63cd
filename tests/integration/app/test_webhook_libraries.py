"""S7: what we send, the reference libraries of Python and npm verify; what anybody changed on the way they do not."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from learnloop_service.app.security.webhook_signing import new_secret, signed_headers
from tests.fakes.faulty_receiver import faulty_receiver
from tests.integration.app.webhook_stage import stage

_PACKAGE = "standardwebhooks@1.0.0"
_SCRIPT = Path(__file__).parent / "verify_webhooks.js"


@dataclass(frozen=True)
class Message:
    """As a receiver with that secret gets it."""

    secret: str
    body: str
    headers: dict[str, str]

    def with_header(self, name: str, value: str) -> "Message":
        return replace(self, headers=self.headers | {name: value})


Verify = Callable[[Sequence[Message]], list[bool]]


def _by_python(messages: Sequence[Message]) -> list[bool]:
    def verified(message: Message) -> bool:
        try:
            Webhook(message.secret).verify(message.body, message.headers)
        except (WebhookVerificationError, ValueError):  # malformed headers; binascii.Error is a ValueError
            return False
        return True

    return [verified(message) for message in messages]


def _by_npm(directory: Path, messages: Sequence[Message]) -> list[bool]:
    document = json.dumps([asdict(message) for message in messages])
    script = shutil.copy(_SCRIPT, directory)  # node looks for packages beside it
    completed = subprocess.run(["node", script], input=document, capture_output=True, text=True, timeout=60, check=True)
    verdicts: list[bool] = json.loads(completed.stdout)
    return verdicts


@pytest.fixture(scope="module")
def npm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where npm has installed the package."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    directory = tmp_path_factory.mktemp("npm")
    install = ["npm", "install", "--no-audit", "--no-fund", "--fetch-retries=0", "--prefix", str(directory), _PACKAGE]
    try:
        subprocess.run(install, capture_output=True, text=True, timeout=60, check=True)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"npm cannot install {_PACKAGE}: {error.stderr[-300:]}")
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm cannot install {_PACKAGE} within a minute")
    return directory


@pytest.fixture(params=["python", "npm"])
def verify(request: pytest.FixtureRequest) -> Verify:
    """Which of these messages the library verifies."""
    return _by_python if request.param == "python" else partial(_by_npm, request.getfixturevalue("npm"))


def _message(*, age_s: float = 0.0) -> Message:
    secret, body = new_secret(), '{"type": "iteration.completed", "text": "Grüße \\u0041 ✓"}'
    sent_at = datetime.now(UTC) - timedelta(seconds=age_s)
    return Message(secret, body, signed_headers("01KAJ3M7F5T2V8Q9X0C4D6E8GA", sent_at, body, [secret]))


def _flipped(text: str) -> Iterator[str]:
    """The text with each of its characters changed in turn."""
    for at, was in enumerate(text):
        yield text[:at] + ("1" if was != "1" else "2") + text[at + 1 :]


async def test_what_a_receiver_gets_verifies_by_both_secrets_of_a_rotation(database_url: str, verify: Verify) -> None:
    async with stage(database_url) as here, faulty_receiver() as it:
        old = await here.endpoint(it.url)
        new = await here.endpoints.rotate(old.row.id, 1)
        await here.event(await here.run(), text="Grüße ✓", number=0.1)
        here.dispatcher()
        await here.settled()
    [arrival] = it.arrivals
    messages = [
        Message(secret, arrival.raw.decode(), arrival.headers) for secret in (new.secret, old.secret, new_secret())
    ]
    assert verify(messages) == [True, True, False]


@pytest.mark.parametrize("part", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_no_header_can_be_changed(verify: Verify, part: str) -> None:
    good = _message()
    values = [*_flipped(good.headers[part]), ""]
    if part == "webhook-signature":
        del values[-3]  # the last two bits before the padding are no part of the signature
    assert verify([good, *(good.with_header(part, value) for value in values)]) == [True] + [False] * len(values)


def test_neither_the_body_nor_the_secret_can_be_changed(verify: Verify) -> None:
    good = _message()
    changed = [replace(good, body=body) for body in (*_flipped(good.body), good.body + " ", good.body[1:])]
    changed += [replace(good, secret=new_secret())]
    assert verify([good, *changed]) == [True] + [False] * len(changed)


@pytest.mark.parametrize("age_s", [301, -310])
def test_a_message_is_good_for_five_minutes(verify: Verify, age_s: float) -> None:
    assert verify([_message(age_s=290), _message(age_s=age_s)]) == [True, False]
