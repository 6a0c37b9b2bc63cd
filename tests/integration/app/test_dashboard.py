"""How the dashboard is served: to everybody, under a strict policy, and never two versions mixed."""

import re
from pathlib import Path

from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import served, settings_for


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
