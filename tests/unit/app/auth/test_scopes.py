"""Which requests need which scope, and which need none."""

import pytest

from learnloop_service.app.auth.scopes import PUBLIC, Scope, is_public, needed, route_path


def test_the_public_paths_are_these_and_no_others() -> None:
    assert {
        "/",
        "/favicon.ico",
        "/health/live",
        "/health/ready",
        "/docs",
        "/openapi.json",
        "/.well-known/learnloop-report-key",
    } == PUBLIC
    assert is_public("/static-offline-docs/swagger-ui.css")
    for path in ("/runs", "/health", "/health/live/", "//", "/docs/", "/static-offline-docs", "/HEALTH/LIVE", ""):
        assert not is_public(path), path


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "/runs", Scope.READ),
        ("HEAD", "/runs", Scope.READ),
        ("POST", "/runs/a/cancel", Scope.WRITE),
        ("PATCH", "/webhooks/a", Scope.WRITE),
        ("DELETE", "/runs/a", Scope.WRITE),
        ("BREW", "/runs/a", Scope.WRITE),
        ("GET", "/keys", Scope.OPERATOR),
        ("DELETE", "/keys/a", Scope.OPERATOR),
        ("GET", "/keyshapes", Scope.READ),
    ],
)
def test_the_scope_a_request_needs(method: str, path: str, scope: Scope) -> None:
    assert needed(method, path) == scope


def test_a_prefix_of_a_proxy_is_no_part_of_the_path() -> None:
    assert route_path({"path": "/api/keys", "root_path": "/api"}) == "/keys"
    assert route_path({"path": "/api/keys", "root_path": "/api/"}) == "/keys"
    assert route_path({"path": "/apikeys", "root_path": "/api"}) == "/apikeys"
    assert route_path({"path": "/keys", "root_path": ""}) == "/keys"
    assert route_path({"path": "/keys"}) == "/keys"
