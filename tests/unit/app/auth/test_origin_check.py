"""Without keys, only programs of this machine and welcome pages get in."""

import pytest

from app.auth.origin_check import refuse_foreign_pages
from app.errors import Forbidden


def headers(**named: str) -> dict[str, list[tuple[bytes, bytes]]]:
    return {"headers": [(name.encode(), value.encode()) for name, value in named.items()]}


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "[::1]:8000", "LOCALHOST:1"])
@pytest.mark.parametrize("origin", [None, "http://{}", "https://app.example"])
def test_this_machine_and_welcome_pages(host: str, origin: str | None) -> None:
    more = {} if origin is None else {"origin": origin.format(host)}
    refuse_foreign_pages(headers(host=host, **more), ["https://app.example"])


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:9", "https://app.example.evil"])
def test_pages_of_other_sites_do_not_get_in(origin: str) -> None:
    with pytest.raises(Forbidden, match="LEARNLOOP_CORS_ORIGINS"):
        refuse_foreign_pages(headers(host="127.0.0.1:8000", origin=origin), ["https://app.example"])


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8000", "0.0.0.0:8000"])
def test_a_name_that_was_made_to_mean_loopback_does_not_get_in(host: str) -> None:
    with pytest.raises(Forbidden, match="LEARNLOOP_REQUIRE_KEYS"):
        refuse_foreign_pages(headers(host=host), [])
