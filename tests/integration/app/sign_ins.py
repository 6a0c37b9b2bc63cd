"""Signing in as a browser does."""

from http.cookies import Morsel, SimpleCookie

import httpx

from tests.integration.app.keyed import Keyed, bearer

OWN_PAGE = {"sec-fetch-site": "same-origin"}


def set_cookie(response: httpx.Response) -> Morsel[str]:
    """The only cookie that a response sets."""
    (value,) = response.headers.get_list("set-cookie")
    (cookie,) = SimpleCookie(value).values()
    return cookie


async def sign_in(service: Keyed, key: str, **headers: str) -> dict[str, str]:
    """The header of a browser that has the cookie."""
    response = await service.client.post("/session", headers=bearer(key) | headers)
    assert response.status_code == 200, response.text
    cookie = set_cookie(response)
    service.client.cookies.clear()  # each request says which cookie it has
    return {"cookie": f"{cookie.key}={cookie.value}"}
