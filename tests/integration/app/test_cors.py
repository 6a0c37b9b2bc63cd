"""Which pages may call the API from a browser."""

from pathlib import Path

import httpx

from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import served, settings_for

PAGE = "https://app.example"


async def _preflight(client: httpx.AsyncClient, origin: str) -> httpx.Response:
    preflight_headers = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    return await client.options("/learn-loop", headers={"origin": origin, **preflight_headers})


def _allowed(response: httpx.Response) -> tuple[str | None, str | None]:
    headers = response.headers
    return headers.get("access-control-allow-origin"), headers.get("access-control-allow-credentials")


async def test_by_default_no_page_may(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        for response in (await _preflight(client, PAGE), await client.get("/runs", headers={"origin": PAGE})):
            assert not [name for name in response.headers if name.startswith("access-control")]


async def test_origins_that_are_named_may_and_others_not(data_dir: Path, database_url: str) -> None:
    settings = settings_for(data_dir, database_url, cors_origins=f"{PAGE}, http://localhost:3000")
    async with served(settings, ScriptedLoop()) as client:
        for origin in (PAGE, "http://localhost:3000"):
            preflight = await _preflight(client, origin)
            assert (preflight.status_code, _allowed(preflight)) == (200, (origin, "true"))
            assert "content-type" in preflight.headers["access-control-allow-headers"].lower()
            assert _allowed(await client.get("/runs", headers={"origin": origin})) == (origin, "true")
        for origin in ("https://app.example.evil", "http://app.example", "null"):
            assert (await _preflight(client, origin)).status_code == 400
            assert _allowed(await client.get("/runs", headers={"origin": origin}))[0] is None


async def test_refusals_can_be_read_too(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url, cors_origins=PAGE), ScriptedLoop()) as client:
        huge = b" " * 1_000_001
        for response in (
            await client.post("/ask", content=huge, headers={"origin": PAGE}),
            await client.post("/learn-loop", json={"iterations": 0}, headers={"origin": PAGE}),
        ):
            assert response.status_code in (413, 422)
            assert _allowed(response)[0] == PAGE


async def test_a_star_lets_all_in_but_without_credentials(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url, cors_origins="*"), ScriptedLoop()) as client:
        headers = {"origin": PAGE, "cookie": "a=b"}
        for response in (await _preflight(client, PAGE), await client.get("/runs", headers=headers)):
            assert _allowed(response) == ("*", None)
