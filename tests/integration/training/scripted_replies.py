"""A question of the email environment, and what a scripted model replies to it."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from tests.fakes.scripted_chat import Reply, Script, call

ENVIRONMENT = SyntheticEmailSearch()
(SCENARIO,) = ENVIRONMENT.scenarios("train", 1, seed=0)
SOURCE = SCENARIO.reference["source_ids"][0]
RIGHT = call("return_final_answer", answer=SCENARIO.reference["answer"], sources=[SOURCE])
READ = call("read_email", email_id=SOURCE)


def in_turn(replies: Iterable[Reply]) -> Script:
    """These replies, one after the other."""
    remaining = iter(replies)

    async def script(request: Mapping[str, Any]) -> Reply:
        return next(remaining)

    return script


async def hang(request: Mapping[str, Any]) -> Reply:
    """Never reply."""
    await asyncio.Event().wait()
    raise AssertionError
