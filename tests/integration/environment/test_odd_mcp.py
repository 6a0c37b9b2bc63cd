"""What a model reads of MCP servers that do not quite keep to the protocol: all that came, and no time-out."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from learnloop_service.app.runs.environment_access import EnvironmentAccess
from learnloop_service.app.settings import load_settings
from learnloop_service.environment.base import Environment, OpenedEpisode, Tool
from learnloop_service.environment.registry import build
from tests.fakes import odd_mcp_server
from tests.fakes.hostile_provider import HostileProvider, hostile_provider, saying
from tests.integration.environment.mcp_answers import NAMES_ITS_TOOLS

SERVER = [sys.executable, str(Path(odd_mcp_server.__file__))]
LOOK = {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]}
PROMISED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def environment(tools: Any, reply: str) -> Environment:
    command = [*SERVER, json.dumps(tools), reply]
    reach = EnvironmentAccess(load_settings(environment_commands=(shlex.join(command),)))
    return build("mcp", {"server": {"command": command}, "tool_timeout_s": 20}, Path("unused"), reach)


async def called(tested: Environment, name: str = "look", **arguments: Any) -> tuple[str, list[Tool]]:
    """Return what the model reads of one call, and the tools."""
    episode = tested.episode(tested.ask({"task": "x"}))
    assert isinstance(episode, OpenedEpisode)
    try:
        await episode.open()
        return (await episode.call(name, arguments)).content, list(episode.tools)
    finally:
        await episode.close()
        tested.close()


def text(*blocks: Any, **others: Any) -> dict[str, Any]:
    return {
        "content": [{"type": "text", "text": block} if isinstance(block, str) else block for block in blocks],
        **others,
    }


@pytest.mark.parametrize(
    ("result", "read"),
    [
        (text("42"), "42"),
        (text("2 projects.", structuredContent={"p": ["Linde", "Esche"]}), '2 projects.\n{"p": ["Linde", "Esche"]}'),
        (text('{ "p": [1.0] }', structuredContent={"p": [1]}), '{ "p": [1.0] }'),
        (text("5", structuredContent={"result": 5}), "5"),
        (text("five", structuredContent={"result": "five"}), "five"),
        (text("1", "2", structuredContent={"result": [1, 2]}), "1\n2"),
        (text("wrong", structuredContent={"n": "no number"}, isError=True), 'Error: wrong\n{"n": "no number"}'),
        ({"structuredContent": [1, 2]}, "[1, 2]"),
        (text("a", {"type": "video", "data": "A" * 900}),
         'a\n{"type": "video", "data": "[900 characters: not shown]"}'),
        (text({"type": "markdown", "text": "# b"}, "c"), "# b\nc"),
        (text({"type": "image"}), "[image, 0 bytes: not shown]"),
        (text({"type": "resource", "resource": {"uri": "u:x"}}), "[u:x, binary, 0 bytes: not shown]"),
        (text({"type": "resource_link", "uri": "u:x"}, 7, None), "[link: u:x]\n7\nnull"),
        ({"content": "bare"}, "bare"),
        ({"content": {"type": "text", "text": "one"}}, "one"),
        ({"content": None, "rows": [1]}, '{"rows": [1]}'),
        (text("x", _meta="odd", isError="no"), "x"),
        ({}, "(no content)"),
        ("bare", "bare"),
        (["a", {"b": 1}], 'a\n{"b": 1}'),
    ],
)  # fmt: skip
@pytest.mark.parametrize("promised", [False, True])
async def test_all_of_a_result_is_read(result: Any, read: str, promised: bool) -> None:
    tools = {"tools": [{**LOOK["tools"][0], "outputSchema": PROMISED}]} if promised else LOOK
    reply = f'{{"jsonrpc": "2.0", "id": ID, "result": {json.dumps(result)}}}'
    assert (await called(environment(tools, reply)))[0] == read


@pytest.mark.parametrize(
    ("reply", "read"),
    [
        (r'{"jsonrpc": "2.0", "id": ID, "result": {"content": [{"type": "text", "text": "a\ud83d b"}]}}', "a\ufffd b"),
        ('{"jsonrpc": "2.0", "id": ID, "result": {"content": "caf\xe9"}}', "caf\ufffd"),
        (
            r'{"jsonrpc": "2.0", "id": ID, "result": {"content": [], "n": NaN, "s": "\udc00"}}',
            '{"n": NaN, "s": "\ufffd"}',
        ),
        ('{"id": ID, "result": {"content": "x"}, "error": null}', "x"),
        ('{"jsonrpc": "2.0", "id": ID, "error": "no such row"}', "Error: no such row"),
        ('{"jsonrpc": "2.0", "id": ID, "error": {"code": "E7", "message": {"why": 1}}}', 'Error: {"why": 1}'),
        ('{"jsonrpc": "2.0", "id": ID, "result": {"content": [', "Error: the MCP server sent a malformed result"),
        ('{"level": "info", "id": ID}\n{"jsonrpc": "2.0", "id": ID, "result": {"content": "x"}}', "x"),
    ],
)
async def test_a_reply_that_is_not_quite_json_rpc_is_no_time_out(reply: str, read: str) -> None:
    assert (await called(environment(LOOK, reply)))[0] == read


async def test_half_an_emoji_from_the_model_reaches_the_server() -> None:
    tested = environment(LOOK, '{"jsonrpc": "2.0", "id": ID, "result": {"content": ARGUMENTS}}')
    read, _ = await called(tested, q="\ud83d", deep=[{"x\ud800": 1}])
    assert json.loads(read)["arguments"] == {"q": "\ufffd", "deep": [{"x\ufffd": 1}]}


async def test_one_odd_tool_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    odd = [
        {"name": "look"},
        {"name": "null", "inputSchema": None, "description": 7},
        {"name": "php", "inputSchema": {"type": "object", "properties": [], "required": None}},
        {
            "name": "list",
            "inputSchema": {"type": "array", "items": {"type": "string"}},
            "outputSchema": {"type": "array"},
        },
        {
            "name": "gemini",
            "inputSchema": {"type": "OBJECT", "properties": {"q": {"type": "STRING", "required": True}}},
        },
        {
            "name": "notes",
            "annotations": "read only",
            "icons": 3,
            "inputSchema": {"properties": {"a": {"type": "array"}}},
        },
        {"description": "no name"},
        {"name": ["x"]},
        "tool",
        None,
    ]
    reply = '{"jsonrpc": "2.0", "id": ID, "result": {"content": "x"}}'
    read, tools = await called(environment({"tools": odd, "nextCursor": 0}, reply))
    assert read == "x"
    nothing = {"type": "object", "properties": {}}
    assert {tool.name: tool.parameters for tool in tools} == {
        **dict.fromkeys(("look", "null", "php", "list"), nothing),
        "gemini": {"type": "object", "properties": {"q": {"type": "string"}}},
        "notes": {"type": "object", "properties": {"a": {"type": "array", "items": {}}}},
    }
    assert "4 of 10 tools of the MCP server have no name" in caplog.text


@pytest.mark.parametrize(
    ("reply", "read"),
    [
        (rb'{"jsonrpc": "2.0", "id": 2, "result": {"content": [{"type": "text", "text": "a\ud83d"}]}}', "a\ufffd"),
        (b'{"jsonrpc": "2.0", "id": 2, "result": ["x", "y"]}', "x\ny"),
        (b'{"jsonrpc": "2.0", "id": 2, "result": {"content": "caf\xe9"}}', "caf\ufffd"),
    ],
)
async def test_a_server_at_a_url_is_read_the_same_way(reply: bytes, read: str) -> None:
    async def answer(server: HostileProvider, writer: Any) -> None:
        posts = sum(head.startswith("POST") for head in server.heads)
        is_post = server.heads[-1].startswith("POST")
        await ((*NAMES_ITS_TOOLS, saying(reply))[posts - 1] if is_post else saying(b"", 405))(server, writer)

    async with hostile_provider(answer) as server:
        reach = EnvironmentAccess(load_settings(environment_hosts=("127.0.0.1",)))
        tested = build("mcp", {"server": {"url": server.url}}, Path("unused"), reach)
        assert (await called(tested, "add"))[0] == read
