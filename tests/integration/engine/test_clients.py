"""Other people's clients, unmodified, on the engine."""

import asyncio

import pytest

from tests.fakes.engine_process import EngineProcess
from tests.openai_clients import use_agents_sdk, use_langchain, use_sync_client


async def test_the_blocking_openai_client(engine: EngineProcess, caller: str) -> None:
    await asyncio.to_thread(use_sync_client, engine.base_url, "none", f"test/{caller}")


async def test_langchain(engine: EngineProcess, caller: str) -> None:
    await asyncio.to_thread(use_langchain, engine.base_url, "none", f"test/{caller}")


async def test_the_agents_sdk(engine: EngineProcess, caller: str) -> None:
    pytest.importorskip("agents", reason="openai-agents, of the extra dev, is not installed")
    await use_agents_sdk(engine.base_url, "none", f"test/{caller}")
