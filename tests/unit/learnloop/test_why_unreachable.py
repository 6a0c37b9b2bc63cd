"""Why a request reached no server, in words."""

import httpx
import pytest

from learnloop.errors import why_unreachable

_LOST = pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:9", "nothing listens there"),
        ("https://127.0.0.1:9", "nothing listens there"),
        ("http://nowhere.invalid", "its host name cannot be looked up"),
    ],
)


@_LOST
def test_real_failures(url: str, why: str) -> None:
    with pytest.raises(httpx.ConnectError) as lost:
        httpx.get(url, trust_env=False)
    assert why_unreachable(lost.value) == why


@_LOST
async def test_real_failures_of_the_asynchronous_client(url: str, why: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(httpx.ConnectError) as lost:
            await client.get(url)
    assert why_unreachable(lost.value) == why


def test_other_failures_keep_their_text() -> None:
    assert why_unreachable(httpx.ReadTimeout("")) == "it did not answer in time"
    assert why_unreachable(httpx.ConnectError("[Errno 101] Network is unreachable")) == "Network is unreachable"
    assert why_unreachable(httpx.ReadError("")) == "ReadError"
