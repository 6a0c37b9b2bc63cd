"""Rollouts that are rewritten so that filters have something to find."""

import json

from sqlalchemy import text

from tests.opened_database import opened_database

_SAID = 'The "kickoff" (50%) is on\n12 May, says Zoë.'


async def rewrite(database_url: str, run_id: str) -> None:
    """Make one training rollout of the second iteration give up after a search, and one of the first fail."""
    arguments = json.dumps({"keywords": ["Kickoff", "budget"]})
    messages = [
        {"role": "user", "content": _SAID},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "search_inbox", "arguments": arguments}}],
        },
        {"role": "tool", "content": [{"type": "text", "text": "No emails."}]},
    ]
    async with opened_database(database_url) as database, database.begin() as tx:
        mine = "WHERE run_id = :run_id AND kind = 'train'"
        change = f"""
            UPDATE trajectory SET messages = cast(:messages AS jsonb), outcome = '{{"finish": "gave_up"}}',
            reward_parts = '{{"answer": 0, "turns": 0.25}}' {mine} AND iteration = 2 AND success
        """
        await tx.execute(text(change), {"messages": json.dumps(messages), "run_id": run_id})
        fail = f"UPDATE trajectory SET error = 'too late' {mine} AND iteration = 1 AND NOT success"
        await tx.execute(text(fail), {"run_id": run_id})
