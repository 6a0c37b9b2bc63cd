"""A run ends once, whatever its owner asks for in the same moment.

The long form is `python -m benchmarks.durability.races`.
"""

from app.db.migration import migrate
from app.db.session import make_engine, parse_url
from app.domain.run_state import TERMINAL
from benchmarks.durability.races import races


async def test_a_run_ends_once_whatever_is_asked_meanwhile(database_url: str) -> None:
    engine = make_engine(parse_url(database_url))
    try:
        await migrate(engine)
        result = await races(engine, examples=30, seed=1)
    finally:
        await engine.dispose()
    assert result["violations"] == []
    assert set(result["ends"]) == TERMINAL
