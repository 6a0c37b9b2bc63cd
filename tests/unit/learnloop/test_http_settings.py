"""Proxies and certificates of the environment: what they are used for, and what they must never see."""

import ssl
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop.http_settings import http_settings, proxy_of, route, spare_loopback, tls

PROXY = "http://proxy.example:3128"
VARIABLES = [
    name for upper in ("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY") for name in (upper, upper.lower())
]


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:8000", "http://127.8.9.1", "http://[::1]:80", "https://localhost", "http://engine.localhost:1"],
)
@pytest.mark.parametrize("proxy", [PROXY, "socks5://127.0.0.1:1080", "socks4://old.example", "nonsense"])
def test_no_proxy_sees_what_is_said_on_this_machine(url: str, proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, proxy)
    assert proxy_of(url) is None
    httpx.Client(**http_settings(url, None, 1.0)).close()


@pytest.mark.parametrize(
    ("variables", "proxy"),
    [
        ({"HTTPS_PROXY": PROXY}, PROXY),
        ({"https_proxy": "proxy.example:3128"}, PROXY),
        ({"HTTP_PROXY": PROXY}, None),
        ({"ALL_PROXY": "socks5://127.0.0.1:1080"}, "socks5://127.0.0.1:1080"),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "*"}, None),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "localhost, .wandb.example"}, None),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "*.wandb.example"}, None),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "api.wandb.example:443"}, None),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "wandb.example.other,other.example"}, PROXY),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "fd07:b51a:cc66:f0::/64,10.0.0.0/8"}, PROXY),
    ],
)
def test_what_goes_outside_uses_the_proxy_that_is_meant_for_it(
    variables: dict[str, str], proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxy_of("https://api.wandb.example/v1") == proxy
    httpx.Client(**route("https://api.wandb.example/v1")).close()


@pytest.mark.parametrize(
    ("host", "is_exempt"),
    [("10.1.2.3", True), ("[fd07:b51a:cc66:f0::2]", True), ("11.1.2.3", False), ("[fd08::1]", False)],
)
def test_no_proxy_names_networks_of_both_kinds(host: str, is_exempt: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", "fd07:b51a:cc66:f0::/64 10.0.0.0/8")
    assert (proxy_of(f"http://{host}:9000") is None) == is_exempt


entries = st.one_of(
    st.sampled_from(
        [
            "",
            "localhost",
            "::1",
            "fd07:b51a:cc66:f0::/64",
            "[::1]",
            "10.0.0.0/8",
            ".internal",
            "a.b:80",
            "a.b:x",
            "[::1]:80",
            "*",
        ]
    ),
    st.ip_addresses().map(str),
    st.from_regex(r"[a-z0-9-]{1,9}(\.[a-z]{1,5}){0,2}", fullmatch=True),
)


@given(st.lists(entries), st.sampled_from([",", ", ", " "]), st.sampled_from(["no_proxy", "NO_PROXY"]))
def test_clients_of_libraries_spare_this_machine(hosts: list[str], between: str, name: str) -> None:
    environ = {"HTTP_PROXY": PROXY, name: between.join(hosts)}
    spare_loopback(environ)
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in environ.items():
            patch.setenv(variable, value)
        with httpx.Client() as client:
            for url in ("http://127.0.0.1:1/", "http://localhost:1/", "http://[::1]:1/"):
                assert client._transport_for_url(httpx.URL(url)) is client._transport, environ


def test_an_environment_without_proxies_stays_as_it_is() -> None:
    environ = {"PATH": "/bin"}
    spare_loopback(environ)
    assert environ == {"PATH": "/bin"}


def test_certificates_of_the_environment_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = tmp_path / "no.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(nothing))
    tls.cache_clear()
    with pytest.raises((OSError, ssl.SSLError)):
        tls()
    monkeypatch.delenv("SSL_CERT_FILE")
    tls.cache_clear()
    assert tls().verify_mode == ssl.CERT_REQUIRED
