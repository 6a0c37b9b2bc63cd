"""Which database URLs are taken."""

import pytest

from learnloop_service.app.db.database import DatabaseUrlError, parse_url


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_postgres_urls_are_driven_by_psycopg(scheme: str) -> None:
    url = parse_url(f"{scheme}://user:secret@host:6432/name?sslmode=require")
    assert url.drivername == "postgresql+psycopg"
    assert url.username == "user"
    assert url.host == "host"
    assert url.port == 6432
    assert url.database == "name"
    assert url.query == {"sslmode": "require"}


@pytest.mark.parametrize(
    "text", ["sqlite:///x.db", "mysql://u:secret@h/d", "postgresql+asyncpg://u:secret@h/d", "h/secret", ""]
)
def test_anything_else_is_refused_with_what_would_be_right(text: str) -> None:
    with pytest.raises(DatabaseUrlError, match="postgresql://user:password@host/name") as caught:
        parse_url(text)
    assert "secret" not in str(caught.value)
