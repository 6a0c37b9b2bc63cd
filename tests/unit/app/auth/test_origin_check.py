"""Without keys, only programs of this machine and welcome pages get in; with a cookie, only own pages."""

import pytest

from learnloop_service.app.auth.origin_check import refuse_foreign_pages, refuse_other_origins
from learnloop_service.app.errors import Forbidden


def headers(method: str = "GET", **named: str) -> dict[str, object]:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]
    return {"method": method, "headers": pairs}


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


OWN = {"host": "learn.example:8000", "origin": "http://learn.example:8000"}
FOREIGN: list[dict[str, str]] = [
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"},
    {"sec_fetch_site": "odd"},
    {"sec_fetch_site": "cross-site", **OWN},
    {"host": "learn.example:8000", "origin": "http://learn.example:9000"},
    {"host": "learn.example:8000", "origin": "http://evil.example"},
    {"host": "learn.example:8000", "origin": "http://learn.example:8000.evil.example"},
    {"host": "learn.example:8000", "origin": "null"},
]


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "DELETE"])
@pytest.mark.parametrize("named", FOREIGN)
def test_with_a_cookie_no_other_page_gets_in(method: str, named: dict[str, str]) -> None:
    with pytest.raises(Forbidden, match="only pages of this service"):
        refuse_other_origins(headers(method, **named))


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "DELETE"])
@pytest.mark.parametrize("named", [OWN, {"sec_fetch_site": "same-origin"}])
def test_with_a_cookie_pages_of_the_service_get_in(method: str, named: dict[str, str]) -> None:
    refuse_other_origins(headers(method, **named))


@pytest.mark.parametrize("named", [{}, {"sec_fetch_site": "none"}])
def test_with_a_cookie_reading_needs_no_page_but_changing_does(named: dict[str, str]) -> None:
    refuse_other_origins(headers("GET", **named))
    for method in ("POST", "PATCH", "DELETE"):
        with pytest.raises(Forbidden):
            refuse_other_origins(headers(method, **named))


@pytest.mark.parametrize("name", ["forwarded", "x_forwarded_for", "x_forwarded_host", "x_forwarded_proto", "x_real_ip"])
def test_without_keys_what_a_proxy_forwards_does_not_get_in(name: str) -> None:
    with pytest.raises(Forbidden, match=r"requires no API keys.*learnloop keys create --bootstrap"):
        refuse_foreign_pages(headers(host="127.0.0.1:8000", **{name: "10.0.0.7"}), ["*"])
