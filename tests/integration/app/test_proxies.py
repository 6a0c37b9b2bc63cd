"""The service behind the real nginx, with the lines of docs/proxies.md, below a path prefix."""

import asyncio
import re
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest

from learnloop_service.app.cli.service_process import free_port
from tests.conditions import answered
from tests.fakes.engine_process import ROOT
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.keyed import OPERATOR_KEY, bearer
from tests.integration.app.served import served, settings_for
from tests.operators import over_stdio

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
_STREAM = {"accept": "text/event-stream"}


@contextmanager
def _nginx(directory: Path, port: int, upstream: int) -> Iterator[None]:
    """Run nginx with the page's lines, on other ports."""
    page = (ROOT / "docs/proxies.md").read_text(encoding="utf-8")
    lines = re.findall(r"```nginx\n(.*?)```", page, re.DOTALL)[0]
    server = lines.replace("listen 8080;", f"listen 127.0.0.1:{port};").replace(
        "127.0.0.1:8000", f"127.0.0.1:{upstream}"
    )
    paths = " ".join(
        f"{kind}_temp_path {directory}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    file = directory / "nginx.conf"
    file.write_text(
        f"daemon off; master_process off; pid {directory}/pid; error_log {directory}/errors;\n"
        f"events {{}}\nhttp {{ access_log off; {paths}\n{server}}}\n"
    )
    assert NGINX is not None
    process = subprocess.Popen([NGINX, "-p", str(directory), "-c", str(file), "-e", f"{directory}/errors"])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
async def proxied(
    data_dir: Path, database_url: str, tmp_path: Path
) -> AsyncIterator[tuple[httpx.AsyncClient, ScriptedLoop]]:
    """A client of a service behind nginx; its second iteration waits for its gate."""
    if NGINX is None:
        pytest.skip("there is no nginx here: apt-get install nginx-light")
    loop, port = ScriptedLoop(gates={1: threading.Event()}), free_port()
    url = f"http://127.0.0.1:{port}/learnloop"
    settings = settings_for(data_dir, database_url, operator_key=OPERATOR_KEY, public_url=url)
    async with served(settings, loop) as direct:
        assert direct.base_url.port is not None
        with _nginx(tmp_path, port, direct.base_url.port):
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
                await answered(lambda: _status(client), lambda status: status == 200, 30)
                try:
                    yield client, loop
                finally:
                    loop.gates[1].set()


async def _status(client: httpx.AsyncClient) -> int:
    try:
        return (await client.get("/health/live")).status_code
    except httpx.TransportError:  # nginx does not listen yet
        return 0


async def test_below_a_prefix_pages_and_answers_are_found(
    proxied: tuple[httpx.AsyncClient, ScriptedLoop],
) -> None:
    client, _ = proxied
    assert (await client.get("/runs")).status_code == 401
    for path in ("/", "/docs", "/ui/runs/one", "/ui/runs/one/trajectories/a%2Fb"):
        page = await client.get(path)
        base = re.findall(r'<base href="([^"]+)">', page.text) or ["./"]
        root = urljoin(str(page.url), base[0])
        assert root == f"{client.base_url}", path
        links = re.findall(r"""(?:src|href|url)(?:=|: )["']([^"'{]+\.[a-z]+)["']""", page.text)
        assert len(links) >= 3
        for link in links:
            assert (await client.get(urljoin(root, link))).status_code == 200, (path, link)
    api = (await client.get("/openapi.json")).json()
    assert urljoin(f"{client.base_url}openapi.json", api["servers"][0]["url"]) == str(client.base_url)

    key = bearer(OPERATOR_KEY)
    signed_in = await client.post("/session", headers=key)
    assert signed_in.status_code == 200
    page_headers = {"origin": f"http://127.0.0.1:{client.base_url.port}"}  # as the page's requests have it
    assert (await client.post("/learn-loop", json={"iterations": 1}, headers=page_headers)).status_code == 202
    assert (await client.post("/learn-loop", json={}, headers={"origin": "http://evil.example"})).status_code == 403


async def test_events_arrive_while_the_run_goes(proxied: tuple[httpx.AsyncClient, ScriptedLoop]) -> None:
    client, loop = proxied
    key = bearer(OPERATOR_KEY)
    started = (await client.post("/learn-loop", json={"iterations": 1}, headers=key)).raise_for_status().json()
    assert (await client.get(started["results_path"], headers=key)).status_code == 200
    event_types: list[str] = []
    async with (
        asyncio.timeout(120),
        client.stream("GET", f"/runs/{started['run_id']}/events", headers=key | _STREAM) as stream,
    ):
        assert stream.headers["content-type"].startswith("text/event-stream")
        async for line in stream.aiter_lines():
            if line.startswith("event: "):
                event_types.append(line.removeprefix("event: "))
            if line == "event: iteration.completed":  # the run waits, so nothing else would push these lines out
                loop.gates[1].set()
    assert event_types[0] == "run.created"
    assert event_types[-1] == "run.completed"


async def test_operators_reach_it_over_mcp(proxied: tuple[httpx.AsyncClient, ScriptedLoop]) -> None:
    client, loop = proxied
    loop.gates[1].set()
    async with over_stdio(str(client.base_url), key=OPERATOR_KEY) as operator:
        started = await operator.ask("start_run", iterations=1)
        state = await operator.ask("watch", kind="runs", id=started["run_id"], seconds=60)
        assert state["events"][0]["type"] == "run.created"
