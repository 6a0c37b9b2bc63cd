"""Routes that an installed package adds to the API."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from learnloop_service.environment import plugins
from learnloop_service.environment.plugins import ROUTES
from tests.fakes.installed import installed
from tests.integration.app.keyed import keyed

_ROUTES = '''
"""Counts the lines of a file."""

from fastapi import Request

from learnloop_service.app.api.added_routes import AddedRoutes, AddedUpload
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.errors import InvalidRequest

router = keyed_router("documents")

@router.post("/lines")
async def count_lines(request: Request, name: str) -> dict[str, int]:
    """Count the lines of a file."""
    body = await request.body()
    if not body:
        raise InvalidRequest(("body",), "the body is empty")
    return {name: body.count(b"\\n")}

upload = AddedUpload(lambda settings: 2_000_000, "Upload lines", "A text.", ".txt", "line")
added = AddedRoutes(router, uploads={"/lines": upload})
'''


@pytest.fixture(autouse=True)
def package(tmp_path: Path) -> Iterator[None]:
    site = tmp_path / "site"
    site.mkdir()
    (site / "lines_of_files.py").write_text(_ROUTES)
    points = {"lines": "lines_of_files:added", "gone": "lines_of_files:gone", "other": "lines_of_files:router"}
    with installed(site, ROUTES, points):
        yield


async def test_they_have_the_keys_limits_and_errors_of_ours(data_dir: Path, database_url: str) -> None:
    async with keyed(data_dir, database_url) as service:
        client, headers = service.client, await service.headers("mail")
        assert (await client.post("/lines", params={"name": "a"}, content=b"1\n")).status_code == 401
        # Neither JSON nor as small as a body that is.
        counted = await client.post("/lines", params={"name": "a"}, content=b"no {\n" * 300_000, headers=headers)
        assert counted.json() == {"a": 300_000}
        for parameters, content, status, message in (
            ({"name": "a"}, b"", 422, "the body is empty"),
            ({"name": "a", "names": "b"}, b"1", 422, "names"),
            ({"name": "a"}, b"1\n" * 1_500_000, 413, "at most 2000000 bytes"),
        ):
            refused = await client.post("/lines", params=parameters, content=content, headers=headers)
            assert (refused.status_code, message in refused.text) == (status, True), refused.text
            assert refused.headers["content-type"] == "application/problem+json"
        [upload] = [
            listed_upload
            for listed_upload in (await client.get("/uploads", headers=headers)).json()["items"]
            if listed_upload["path"] == "/lines"
        ]
        assert (upload["label"], upload["accept"], upload["noun"]) == ("Upload lines", ".txt", "line")
        api = (await client.get("/openapi.json")).json()
        assert {"401", "422", "429"} <= set(api["paths"]["/lines"]["post"]["responses"])


async def test_those_that_cannot_be_loaded_are_left_out(data_dir: Path, database_url: str) -> None:
    async with keyed(data_dir, database_url) as service:
        headers = await service.headers("mail")
        assert (await service.client.get("/inboxes", headers=headers)).status_code == 200


async def test_a_request_to_those_of_a_missing_package_says_what_to_install(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered = plugins.registered
    monkeypatch.setattr(plugins, "registered", lambda group: {} if group == ROUTES else registered(group))
    async with keyed(data_dir, database_url) as service:
        headers = await service.headers("mail")
        for path, status in (("/inboxes", 405), ("/inboxes/mail/questions", 404)):
            refused = await service.client.post(path, json={}, headers=headers)
            assert refused.status_code == status
            assert refused.json()["detail"].endswith(
                "Some of what begins with /inboxes is not installed. It comes with learnloop-mail, which is not "
                "installed here (docs/install.md#plug-ins)."
            )
        assert "learnloop-mail" not in (await service.client.post("/runs", json={}, headers=headers)).text
        assert (await service.client.get("/inboxes", headers=headers)).json()["items"] == []
        assert (await service.client.get("/uploads", headers=headers)).json()["items"] == []
