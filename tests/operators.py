"""Clients of `learnloop mcp`, by the SDK: over its standard streams and over HTTP."""

import json
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType

import httpx
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import TextContent, Tool

from learnloop_service.environment.json_type import Json

COMMAND = (sys.executable, "-m", "learnloop_service.app.cli", "mcp")
_MARKED = re.compile(r"<data (\w+)>\n(.*?)\n</data \1>", re.DOTALL)
_MORE = re.compile(r'call `more` with {"id": "(\w+)"}')


class Refused(Exception):
    """A tool answered with an error."""


@dataclass
class Operator:
    """A client that has connected; `texts` are all answers that it got."""

    session: ClientSession
    texts: list[str]

    async def tools(self) -> list[Tool]:
        return (await self.session.list_tools()).tools

    async def text(self, tool: str, /, **arguments: Json) -> str:
        """The answer as it is. Raises Refused."""
        result = await self.session.call_tool(tool, arguments)
        [block] = result.content
        assert isinstance(block, TextContent)
        self.texts.append(block.text)
        if result.isError:
            raise Refused(data_of(block.text) or block.text)
        return block.text

    async def ask(self, tool: str, /, **arguments: Json) -> Json:
        """The document that the answer has between its marks, with all parts of one that was cut. Raises Refused."""
        text = await self.text(tool, **arguments)
        whole = data_of(text)
        while (rest := more_in(text)) is not None:
            text = await self.text("more", id=rest)
            whole += data_of(text)
        return json.loads(whole)


def data_of(text: str) -> str:
    """What stands between the marks of an answer."""
    return "".join(match[2] for match in _MARKED.finditer(text))


def outside(text: str) -> str:
    """What an answer has outside of its marks."""
    return _MARKED.sub("", text)


def more_in(text: str) -> str | None:
    """The id of what was cut of an answer; None if nothing was."""
    match = _MORE.search(outside(text))
    return None if match is None else match[1]


@asynccontextmanager
async def over_stdio(url: str, *flags: str, key: str | None = None) -> AsyncIterator[Operator]:
    """Start the command for the service at that URL."""
    environment = {**os.environ, **({"LEARNLOOP_API_KEY": key} if key else {})}
    server = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], "--url", url, *flags], env=environment)
    async with stdio_client(server) as (reading, writing), ClientSession(reading, writing) as session:
        await session.initialize()
        yield Operator(session, [])


@asynccontextmanager
async def over_http(url: str, headers: Mapping[str, str] = MappingProxyType({})) -> AsyncIterator[Operator]:
    """Connect to an MCP server at that URL."""
    async with (
        httpx.AsyncClient(headers=dict(headers), timeout=120, trust_env=False) as client,
        streamable_http_client(url, http_client=client) as (reading, writing, _),
        ClientSession(reading, writing) as session,
    ):
        await session.initialize()
        yield Operator(session, [])
