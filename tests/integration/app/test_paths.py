"""Names and ids that spell a path, wherever one is taken: nothing outside the data directory is read or made."""

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from learnloop_service.environment.json_type import Json
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import served, settings_for

SECRET = "outside-canary-5120"
_UP = [
    "../outside/secret",
    "../../outside/secret.json",
    "../outside/secret.sqlite",
    "./../outside/secret",
    "..",
    ".",
    "...",
    "../",
    "a/../../outside/secret",
    "..\\outside\\secret",
    "..\\..\\outside\\secret",
    "....//outside/secret",
    "..;/outside/secret",
    "..%2foutside%2fsecret",
    "%2e%2e%2foutside%2fsecret",
    "%252e%252e%252foutside",
    "..%c0%afoutside%c0%afsecret",
    "%uff0e%uff0e/outside",
    "\uff0e\uff0e/outside/secret",
    "..\u2215outside\u2215secret",
    "\u2024\u2024/outside/secret",
    "..\u200b/outside/secret",
]
_ABSOLUTE = [
    "/etc/passwd",
    "//etc/passwd",
    "///etc///passwd",
    "/proc/self/environ",
    "/proc/self/root/etc/passwd",
    "/dev/stdin",
    "{outside}/secret",
    "{outside}/secret.sqlite",
    "file:///etc/passwd",
    "file://{outside}/secret",
    "C:\\Windows\\win.ini",
    "\\\\host\\share",
    "~/.ssh/id_rsa",
    "~root",
    "$HOME/secret",
    "${{HOME}}",
    "`id`",
    "$(id)",
]
_ODD = [
    "link/secret",
    "link",
    "mail.zip/../../outside",
    "mail.tar::../outside/secret",
    "a\x00.json",
    "secret\x00",
    "a\nb",
    "a\tb",
    "-rf",
    "--help",
    "a" * 300,
    "nul",
    "con.json",
    " ",
    "*",
    "{{7*7}}",
]
FORMS = [*_UP, *_ABSOLUTE, *_ODD]


@dataclass(frozen=True)
class Place:
    """A data directory beside another one with a secret, and a link from the one to the other."""

    data_dir: Path
    outside: Path

    def forms(self) -> Iterator[str]:
        return (form.format(outside=self.outside) if "{outside}" in form else form for form in FORMS)

    def fingerprint(self) -> str:
        """A digest of every name and content outside."""
        digest = hashlib.sha256()
        for path in sorted(self.outside.parent.rglob("*")):
            if not path.is_relative_to(self.data_dir):
                digest.update(repr((str(path), path.read_bytes() if path.is_file() else None)).encode())
        return digest.hexdigest()


@pytest.fixture
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="learnloop-paths-") as name:
        folders = Place(Path(name) / "data", Path(name) / "outside")
        folders.outside.mkdir()
        for file in ("secret", "secret.json", "secret.sqlite", "passwd"):
            (folders.outside / file).write_text(SECRET)
        for folder in ("", "runs", "inboxes", "engine"):
            (folders.data_dir / folder).mkdir(parents=True, exist_ok=True)
            (folders.data_dir / folder / "link").symlink_to(folders.outside)
        yield folders


@pytest.fixture
async def client(place: Place, database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with served(settings_for(place.data_dir, database_url), ScriptedLoop()) as client:
        yield client


def test_there_are_enough_forms() -> None:
    assert len(set(FORMS)) >= 50


async def _raw(client: httpx.AsyncClient, method: str, target: str) -> bytes:
    """A request whose target nobody tidies up; the whole reply."""
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    writer.write(head.encode("latin-1", "replace"))
    async with asyncio.timeout(60):
        reply = await reader.read()
    writer.close()
    return reply


def _encoded(form: str) -> str:
    """Dots too: clients and servers fold plain ones before anybody looks."""
    return quote(form, safe="").replace(".", "%2E")


def _templates(api: Json) -> list[tuple[str, str]]:
    with_parameters = {
        path: methods for path, methods in api["paths"].items() if "{" in path and not path.startswith("/v1/")
    }
    return [(method.upper(), path) for path, methods in with_parameters.items() for method in methods]


async def test_no_parameter_of_a_path_leads_outside(client: httpx.AsyncClient, place: Place, api: Json) -> None:
    """Every operation, in its last parameter; its others name what there is."""
    run = (await client.post("/learn-loop", json={"iterations": 1})).json()["run_id"]
    before, requests = place.fingerprint(), 0
    for method, template in _templates(api):
        begin, _, end = template.rpartition("{")
        begin, end = begin.replace("{run_id}", run), end.partition("}")[2]
        # One operation of each kind of id in all forms, the others in a few.
        several = method == "GET" and not end
        for form in [*place.forms()] if several else ["../../outside/secret", "link/secret", "a\x00b"]:
            reply = await client.request(method, f"{begin}{_encoded(form)}{end}", json={})
            requests += 1
            assert 400 <= reply.status_code < 500, (method, template, form, reply.text)
            assert SECRET not in reply.text
            assert "root:" not in reply.text
    assert requests > 5 * len(FORMS)
    assert place.fingerprint() == before


async def test_no_spelling_of_a_target_leads_outside(client: httpx.AsyncClient, place: Place) -> None:
    before = place.fingerprint()
    for form in place.forms():
        plain = quote(form, safe="/%\\:;.~$*{}")
        for begin in ("/static-offline-docs/", "/runs/", "/"):
            reply = await _raw(client, "GET", begin + plain)
            assert SECRET.encode() not in reply
            assert b"root:" not in reply
    assert place.fingerprint() == before


def _bodies(form: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name in ("name", "base_model"):
        yield "/learn-loop", {"model": {name: form}, "iterations": 1}
    yield "/learn-loop", {"environment": {"name": form}}
    yield "/learn-loop", {"environment": {"config": {"inbox": form}}}
    yield "/learn-loop", {"graph": {"sha256": form}}
    yield "/webhooks", {"url": form}
    yield "/keys", {"name": "a", "project": form}


async def test_no_name_in_a_body_leads_outside(client: httpx.AsyncClient, place: Place) -> None:
    before = place.fingerprint()
    for form in place.forms():
        for path, body in _bodies(form):
            reply = await client.post(path, json=body)
            assert SECRET not in reply.text
            if reply.status_code in (201, 202):  # a name that is no path
                assert form in ("-rf", "--help", "nul", "con.json", "link") or (path, form) == ("/keys", "*"), body
            else:
                assert 400 <= reply.status_code < 500, (path, body, reply.text)
    assert place.fingerprint() == before
    names = {path.name for path in place.data_dir.rglob("*") if not path.is_relative_to(place.data_dir / "postgres")}
    assert not names & {"..", "passwd", "secret"}
