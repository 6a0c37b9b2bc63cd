"""A run or an evaluation ends once, whatever its owner asks for in the same moment.

The long form is `python -m benchmarks.durability.races`.
"""

import pytest

from benchmarks.durability.races import ENDINGS, KINDS, races
from learnloop_service.app.db.database import make_engine, parse_url
from learnloop_service.app.db.migration import migrate


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_it_ends_once_whatever_is_asked_meanwhile(database_url: str, kind: str) -> None:
    engine = make_engine(parse_url(database_url))
    try:
        await migrate(engine)
        result = await races(engine, kind, examples=30, seed=1)
    finally:
        await engine.dispose()
    assert result["violations"] == []
    # Which of these endings came first is left to the machine; that all were tried is not.
    assert set(result["endings"]) == set(ENDINGS)
    assert sum(result["ends"].values()) == 30
