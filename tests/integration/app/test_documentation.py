"""The documentation page, which has to work without a network."""

import re
from pathlib import Path

from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import served, settings_for


async def test_the_page_loads_nothing_from_elsewhere(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        assert (await client.get("/")).headers["location"] == "/docs"
        page = await client.get("/docs")
        links = re.findall(r"""(?:src|href)=["']([^"']+)""", page.text)
        assert len(links) >= 2
        for link in links:
            assert link.startswith("/"), link
            assert (await client.get(link)).status_code == 200
