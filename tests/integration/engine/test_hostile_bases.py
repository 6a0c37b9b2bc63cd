"""Base models from outside that are made to stop the engine are refused, and others are answered meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.engine_process import EngineProcess
from tests.fakes.forked_module import ForkedModule
from tests.fakes.hostile_bases import HOSTILE, hostile_base, later_hostile_base
from tests.fakes.tiny_model import make_tiny_model

PATIENCE_S = 240.0

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The hostile bases, `later`, and a base with another template that is harmless, by name."""
    folder = tmp_path_factory.mktemp("bases")
    bases = {f"bad{number}": hostile_base(folder / f"bad{number}", name) for number, name in enumerate(HOSTILE)}
    good = make_tiny_model(folder / "good")
    (good / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    )
    return {**bases, "later": later_hostile_base(folder / "later"), "good": good}


@pytest.fixture(scope="module")
def engine(
    names: dict[str, Path], checking: ForkedModule, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineProcess]:
    flags = [part for name, base in names.items() for part in ("--base-model", f"{name}={base}")]
    with EngineProcess(tmp_path_factory.mktemp("engine"), *flags, run_module=checking.run_module) as process:
        yield process


@pytest.fixture
async def http(engine: EngineProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=engine.base_url.removesuffix("/v1"), timeout=PATIENCE_S) as client:
        yield client


async def _ask(http: httpx.AsyncClient, model: str, content: str = "hello") -> httpx.Response:
    body: Any = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 2}
    return await http.post("/v1/chat/completions", json=body)


@pytest.mark.parametrize("number", range(len(HOSTILE)), ids=list(HOSTILE))
async def test_a_hostile_base_is_refused_by_name_and_others_are_answered(http: httpx.AsyncClient, number: int) -> None:
    name, reason = f"bad{number}", list(HOSTILE.values())[number][1]
    question = asyncio.create_task(_ask(http, name))
    body = {"project": "p", "name": f"m{number}", "base_model": name}
    created = asyncio.create_task(http.post("/v1/preview/models", json=body))
    others = [await _ask(http, "learnloop/tiny") for _ in range(3)]
    assert [reply.status_code for reply in others] == [200] * 3
    for refused in (await question, await created):
        assert refused.status_code == 422, refused.text
        message = refused.json()["error"]["message"]
        assert f"the base model {name!r} cannot be used: " in message
        assert reason in message
    if number < 2:  # what only the check finds
        assert name not in [listed["id"] for listed in (await http.get("/v1/models")).json()["data"]]


async def test_a_template_of_its_own_is_rendered_as_transformers_does(
    http: httpx.AsyncClient, names: dict[str, Path]
) -> None:
    from transformers import AutoTokenizer

    messages = [{"role": "user", "content": "hello"}]
    reply = await http.post("/tokenize", json={"model": "good", "messages": messages})
    tokenizer: Any = AutoTokenizer.from_pretrained(names["good"])
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert reply.json()["tokens"] == tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(("content", "reason"), [("loop", "takes too long"), ("text", "too much memory")])
async def test_a_call_that_renders_too_long_is_refused(http: httpx.AsyncClient, content: str, reason: str) -> None:
    assert (await _ask(http, "later")).status_code == 200
    slow = [asyncio.create_task(_ask(http, "later", content)) for _ in range(2)]
    assert (await _ask(http, "learnloop/tiny")).status_code == 200
    for refused in await asyncio.gather(*slow):
        assert refused.status_code == 400, refused.text
        assert reason in refused.text, refused.text
    assert (await _ask(http, "later")).status_code == 200
