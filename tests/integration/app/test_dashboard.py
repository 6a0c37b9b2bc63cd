"""How the dashboard is served: to everybody, under a strict policy, and never two versions mixed."""

import re
from pathlib import Path
from urllib.parse import urljoin

import httpx

from learnloop_service.app.auth.scopes import Scope
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.keyed import bearer, keyed
from tests.integration.app.served import run_with, served, settings_for


async def test_the_page_may_load_its_own_files_only(data_dir: Path, database_url: str) -> None:
    settings = settings_for(data_dir, database_url, require_keys="always", operator_key="k" * 40)
    async with served(settings, ScriptedLoop()) as client:
        page = await client.get("/")
        policy = page.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert "<style" not in page.text
        assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", page.text))
        assert not re.findall(r"\s(?:style|on\w+)=", page.text)
        for link in re.findall(r'(?:src|href)="(assets/[^"]+)"', page.text):
            file = await client.get(f"/{link}")
            assert file.status_code == 200, link
            assert "immutable" in file.headers["cache-control"]
            assert file.headers["x-content-type-options"] == "nosniff"


async def test_browsers_find_an_icon_where_they_look_for_one(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url, require_keys="always"), ScriptedLoop()) as client:
        icon = await client.get("/favicon.ico")
        assert (icon.status_code, icon.headers["content-type"]) == (200, "image/svg+xml")
        assert b"<svg" in icon.content


async def test_there_is_no_file_of_another_version(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        assert (await client.get("/assets/0123456789abcdef/main.js")).status_code == 404
        version = re.findall(r'src="assets/(\w+)/main.js"', (await client.get("/")).text)[0]
        assert (await client.get(f"/assets/{version}/main.js")).headers["content-type"].startswith("text/javascript")
        assert (await client.get(f"/assets/{version}/../files.py")).status_code == 404
        assert (await client.get(f"/assets/{version}/tsconfig.json")).status_code == 404


async def test_a_page_finds_the_root_of_the_service_from_any_depth(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        for prefix in ("", "/tools/learnloop"):  # as a browser sees it, which a proxy may give another prefix
            for path in ("/", "/ui", "/ui/", "/ui/start", "/ui/runs/one/trajectories/a%2Fb?kind=train"):
                page = await client.get(path)
                assert page.headers["content-type"].startswith("text/html"), path
                base = re.findall(r'<base href="([^"]+)">', page.text)[0]
                assert urljoin(f"https://example.com{prefix}{path}", base) == f"https://example.com{prefix}/", path
        assert (await client.get("/runs", headers={"Accept": "text/html"})).json() == {"items": [], "next_cursor": None}


async def test_a_link_to_a_run_carries_its_name_and_verdict(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        body = {"iterations": 1, "model": {"name": "clerk"}}
        run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
        text = (await run_with(client, run_id, "completed"))["verdict"]["text"]
        for path in (run_id, f"{run_id}/held-out?held=test"):
            page = (await client.get(f"/ui/runs/{path}")).text
            assert f"<title>learnloop/clerk: {text}</title>" in page
            assert '<meta property="og:title" content="learnloop/clerk">' in page
            assert f'<meta property="og:description" content="{text}">' in page
        for path in ("/ui/runs/unknown", "/ui/runs/%00", f"/ui/runs/{'x' * 100}", "/ui/data"):
            assert _is_bare(await client.get(path)), path


async def test_a_link_shows_a_run_only_to_callers_who_may_read_it(data_dir: Path, database_url: str) -> None:
    async with keyed(data_dir, database_url) as service:
        write, read, other = [
            await service.headers(project, scopes)
            for project, scopes in (("ours", (Scope.WRITE,)), ("ours", (Scope.READ,)), ("theirs", (Scope.READ,)))
        ]
        started = await service.client.post("/learn-loop", json={"iterations": 1}, headers=write)
        run_id = started.raise_for_status().json()["run_id"]
        page, run = f"/ui/runs/{run_id}", (await service.client.get(f"/runs/{run_id}", headers=read)).json()
        assert f"<title>{run['name']}: " in (await service.client.get(page, headers=read)).text
        for headers in ({}, bearer("ll_wrong"), write, other):
            assert _is_bare(await service.client.get(page, headers=headers))
        assert (await service.client.post(page)).status_code == 401


def _is_bare(page: httpx.Response) -> bool:
    """Whether this is the dashboard's page without a word about any run."""
    return page.status_code == 200 and "<title>Learnloop</title>" in page.text and "og:" not in page.text


async def test_files_and_replies_are_compressed_but_no_event_stream(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        script = "/" + re.findall(r'src="(assets/\w+/main.js)"', (await client.get("/")).text)[0]
        plain, small = [
            await client.get(script, headers={"Accept-Encoding": encoding}) for encoding in ("identity", "gzip")
        ]
        assert plain.text == small.text  # httpx has decompressed it
        assert (plain.headers.get("content-encoding"), small.headers["content-encoding"]) == (None, "gzip")
        assert int(small.headers["content-length"]) < int(plain.headers["content-length"]) / 2
        assert plain.headers["vary"] == small.headers["vary"] == "Accept-Encoding"
        reply = await client.get("/openapi.json", headers={"Accept-Encoding": "gzip"})
        assert reply.headers["content-encoding"] == "gzip"
        assert "Accept-Encoding" in reply.headers["vary"]
        run_id = (await client.post("/learn-loop", json={"iterations": 1})).raise_for_status().json()["run_id"]
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "gzip"}
        async with client.stream("GET", f"/runs/{run_id}/events", headers=headers) as stream:
            assert "content-encoding" not in stream.headers
