"""The front page, and the documentation page, which has to work without a network."""

import re
from pathlib import Path

from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import served, settings_for


async def test_the_page_loads_nothing_from_elsewhere(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        page = await client.get("/docs")
        links = re.findall(r"""(?:src|href|url)(?:=|: )["']([^"']+)""", page.text)
        assert "openapi.json" in links
        assert len(links) >= 4
        for link in links:
            assert re.match(r"[a-z-]+[./]", link), link  # relative, so that it works below a proxy's prefix
            assert (await client.get(f"/{link}")).status_code == 200, link


async def test_the_front_page_is_json_for_programs_and_html_for_people(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        program = await client.get("/", headers={"accept": "application/json, text/plain, */*"})
        assert program.json()["name"] == "Learnloop"
        for path in program.json()["links"].values():
            assert (await client.get(path)).status_code in (200, 503), path  # no engine here
        for accept in ("text/html,application/xhtml+xml,application/json;q=0.9", "*/*"):
            page = await client.get("/", headers={"accept": accept})
            assert page.headers["content-type"].startswith("text/html")
            assert "Accept" in page.headers["vary"].split(", ")
            for link in re.findall(r'href="([^"]+)"', page.text):
                assert (await client.get(f"/{link}")).status_code == 200, link
