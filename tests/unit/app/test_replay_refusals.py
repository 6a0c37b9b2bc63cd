"""Which recorded rollouts are replayed, and why others are not."""

import re

import pytest

from learnloop_service.app.operations.start.what_if import refuses


@pytest.mark.parametrize(
    ("environment", "tools", "allowed"),
    [
        ("email_search", ["search_inbox"], ()),
        ("sales_email", ["look_up"], ()),
        ("openenv", ["step"], ("openenv",)),
        ("verifiers", [], ("verifiers",)),
        ("mcp", ["search", "read"], ("mcp/search", "mcp/read", "mcp/send")),
        ("mcp", ["send"], ("mcp",)),
    ],
)
def test_what_repeats_or_is_allowed_is_replayed(environment: str, tools: list[str], allowed: tuple[str, ...]) -> None:
    assert refuses(environment, tools, allowed) is None


@pytest.mark.parametrize(
    ("environment", "tools", "allowed", "message"),
    [
        ("mcp", ["search", "send"], ("mcp/search",), "makes calls of send again.*LEARNLOOP_REPLAY=mcp/send"),
        ("mcp", [], (), "makes an episode again.*LEARNLOOP_REPLAY=mcp"),
        ("openenv", ["step"], (), "LEARNLOOP_REPLAY=openenv/step"),
        ("agent", [], (), "LEARNLOOP_REPLAY=agent"),
        ("nobody_knows", ["x"], (), "nobody_knows may have effects"),
    ],
)
def test_anything_else_is_refused_by_name(
    environment: str, tools: list[str], allowed: tuple[str, ...], message: str
) -> None:
    assert re.search(message, refuses(environment, tools, allowed) or "nothing was refused")
