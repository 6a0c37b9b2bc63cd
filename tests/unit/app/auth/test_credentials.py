"""Which credential of a request counts, and how the cookie looks."""

import pytest

from learnloop_service.app.auth.credentials import Credential, credential_of, is_https, removed_cookies, sign_in_cookie
from learnloop_service.app.errors import Unauthorized


def headers(*named: tuple[str, str]) -> dict[str, object]:
    return {"scheme": "http", "headers": [(name.encode(), value.encode()) for name, value in named]}


@pytest.mark.parametrize(
    ("cookie", "token"),
    [
        ("learnloop_session=a", "a"),
        ("theme=dark; learnloop_session=a;", "a"),
        ("learnloop_session=a; __Host-learnloop_session=b", "b"),
        ("__Host-learnloop_session=b; learnloop_session=a", "b"),
    ],
)
def test_the_cookie_that_no_other_host_can_set_goes_first(cookie: str, token: str) -> None:
    assert credential_of(headers(("cookie", cookie))) == Credential(token, is_sign_in=True)


def test_a_key_goes_before_a_cookie() -> None:
    both = headers(("cookie", "learnloop_session=a"), ("authorization", "Bearer ll_b"))
    assert credential_of(both) == Credential("ll_b")
    assert removed_cookies(both) == []


@pytest.mark.parametrize("cookie", ["", "session=a", "xlearnloop_session=a", "a=learnloop_session", "theme=dark"])
def test_other_cookies_are_no_credentials(cookie: str) -> None:
    with pytest.raises(Unauthorized, match="required"):
        credential_of(headers(("cookie", cookie)))


def test_no_credential_is_printed() -> None:
    assert "ll_secret" not in repr(Credential("ll_secret"))


def test_over_https_the_cookie_never_travels_in_the_clear() -> None:
    assert sign_in_cookie("a", 60, secure=False) == "learnloop_session=a; Path=/; Max-Age=60; HttpOnly; SameSite=Strict"
    assert sign_in_cookie("a", 60, secure=True) == (
        "__Host-learnloop_session=a; Path=/; Max-Age=60; HttpOnly; SameSite=Strict; Secure"
    )
    assert not is_https(headers(("origin", "http://learn.example")))
    assert is_https(headers(("origin", "https://learn.example")))
    assert is_https(headers() | {"scheme": "https"})
