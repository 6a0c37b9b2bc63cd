"""What may leave the machine."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from learnloop_service.app.settings import load_settings
from learnloop_service.app.tracing.redaction import HIDDEN, MAX_PAYLOAD, MAX_TEXT, Redactor, secrets_of

SECRETS = st.text(min_size=4, max_size=60).filter(lambda text: text.strip() == text and text not in HIDDEN)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=80)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4)
)
NAMES = """api_key apiKey X-Api-Key Authorization password client_secret hf_token token accessToken private_key
    Set-Cookie db_password OPENAI_API_KEY credentials passwd"""
NAMED = st.sampled_from(NAMES.split())


def flat(value: Any) -> str:
    """All texts of a value, as they are."""
    if isinstance(value, dict):
        return "\n".join(f"{key}\n{flat(item)}" for key, item in value.items())
    return "\n".join(map(flat, value)) if isinstance(value, list) else str(value)


@given(SECRETS, VALUES, st.text(max_size=30), st.text(max_size=30))
def test_a_configured_secret_is_nowhere(secret: str, value: Any, before: str, after: str) -> None:
    text = before + secret + after
    twice = json.dumps(json.dumps([text]))
    spelled = [text, json.dumps(text), twice, f"https://x.example/?q={quote(text)}"]
    assume(
        secret not in flat(Redactor().value([before, after, HIDDEN + before, value, "https://x.example/?q= deep er"]))
    )
    redacted = Redactor(["other secret", secret]).value([*spelled, {text: value, "deep": [{"er": spelled}]}])
    assert secret not in flat(redacted)


@pytest.mark.parametrize("secret", ['a"b\\c/d', "pässwörd/1", "with space+&=", "plain-one"])
def test_a_secret_is_known_in_every_spelling(secret: str) -> None:
    once = json.dumps({"x": secret})
    spelled = [secret, once, json.dumps(secret, ensure_ascii=False), json.dumps([once]), quote(secret)]
    for text in (*spelled, quote(secret, safe="")):
        clean = Redactor([secret]).clean_text(text)
        assert HIDDEN in clean
        assert clean == Redactor(["unknown"]).clean_text(clean)
        assert not any(part in clean for part in ("b", "ssw", "space", "plain"))


@given(VALUES)
def test_what_is_sent_is_json_that_any_server_reads(value: Any) -> None:
    redacted = Redactor().value(value)
    assert json.loads(json.dumps(redacted, allow_nan=False, ensure_ascii=False).encode()) == redacted


@given(st.lists(st.integers(-(2**53), 2**53) | st.text("abc xyz,.?!", max_size=50) | st.none() | st.booleans()))
def test_what_is_harmless_is_left_as_it_is(value: Any) -> None:
    assert Redactor(["something else"]).value({"messages": value}) == {"messages": value}


@given(NAMED, st.text(min_size=1, max_size=20))
def test_what_stands_under_a_secrets_name_is_left_out(name: str, value: str) -> None:
    assert Redactor().value({"a": [{name: value}]}) == {"a": [{name: HIDDEN}]}
    assert Redactor().value({name: [value, {"b": value}]}) == {name: HIDDEN}


@given(NAMED, st.from_regex(r"[A-Za-z0-9+/=_.-]{8,40}", fullmatch=True), st.sampled_from(["", "Bearer ", "Basic "]))
def test_what_follows_a_secrets_name_in_a_text_is_left_out(name: str, value: str, scheme: str) -> None:
    assume(value not in (name, HIDDEN))
    inner = json.dumps({name: scheme + value, "page": 2})
    for text in (inner, json.dumps({"arguments": inner}), f"{name}: {scheme}{value}", f"{name}={value}&page=2"):
        clean = Redactor().clean_text(f"please call {text}")
        assert value not in clean
        assert HIDDEN in clean
        assert clean.startswith("please call ")


@pytest.mark.parametrize(
    "secret",
    [
        "sk-ant-api03-Qm9vSGlzc2Vz",
        "sk-proj-abcdefgh12345678",
        "gsk_abcdefgh12345678",
        "hf_abcdefgh12345678",
        "ghp_abcdefgh12345678abcdefgh",
        "github_pat_11ABCDEFG0abcdefghijk",
        "AKIAIOSFODNN7EXAMPLE",
        "AIzaSyA-abcdefghijklmnopqrstuvw",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "whsec_abcdefgh12345678",
        f"ll_{'aB3-_x' * 7}A",
        f"ls_{'aB3-_x' * 7}A",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEabc\nabc=\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_what_looks_like_a_key_is_left_out(secret: str) -> None:
    assert Redactor().clean_text(f"it is {secret}, keep it") == f"it is {HIDDEN}, keep it"


def test_a_password_in_an_address_is_left_out() -> None:
    clean = Redactor().clean_text("postgresql://learner:p%40ss@db:5432/learnloop")
    assert clean == f"postgresql://learner:{HIDDEN}@db:5432/learnloop"


@pytest.mark.parametrize(
    "text",
    [
        "Basic understanding of tokens: none. The author and the secretary met at 10:30, see https://x.example/a:b",
        "A keynote on a sketchy risk-free disk; prompt_tokens=5, max_tokens: 7",
    ],
)
def test_plain_prose_is_left_as_it_is(text: str) -> None:
    assert Redactor().clean_text(text) == text


def test_names_that_only_resemble_a_secrets_are_left_as_they_are() -> None:
    value = {"prompt_tokens": 1, "tokens": [1, 2], "author": "x", "secretary": "y", "key": "k", "tokenizer": "t"}
    assert Redactor().value(value) == value
    assert Redactor().value({"api_key": None}) == {"api_key": None}


@given(st.integers(0, 60_000), st.integers(4, 4_000))
def test_a_clipped_text_shows_no_part_of_a_secret(before: int, length: int) -> None:
    secret = ("geheim" * 700)[: length - 1] + "!"
    clean = Redactor([secret]).clean_text("-" * before + secret + "-" * 30_000)
    assert "g" not in clean.replace(HIDDEN, "").replace("[cut: ", "")
    assert len(clean) <= MAX_TEXT + 60


def test_a_clipped_text_of_nothing_but_secrets_shows_no_part_of_one() -> None:
    clean = Redactor(["geheim" * 100]).clean_text("geheim" * 10_000)
    assert "geheim" not in clean
    assert Redactor().clean_text("x" * 50_000) == "x" * MAX_TEXT + " [cut: 50000 characters in all]"


def test_a_payload_is_bounded_in_size() -> None:
    huge = {
        "texts": ["x" * 50_000] * 100,
        "many": list(range(1_000_000)),
        "wide": {str(number): number for number in range(100_000)},
    }
    deep: Any = "bottom"
    for _ in range(5_000):
        deep = [deep]
    for value in (huge, [huge] * 100, deep, {"a": deep}):
        assert len(json.dumps(Redactor().value(value))) < 2 * MAX_PAYLOAD
    assert Redactor().value(list(range(1_500)))[-1] == "[500 more]"


def test_what_is_not_json_is_named_by_its_type_only() -> None:
    class Client:
        def __repr__(self) -> str:
            raise AssertionError

    redacted = Redactor().value(
        {"client": Client(), "path": Path("/home/x"), "bytes": b"secret", "n": float("nan"), 3: {1}}
    )
    assert redacted == {
        "client": "<Client>",
        "path": f"<{type(Path()).__name__}>",
        "bytes": "<bytes>",
        "n": "nan",
        "3": [1],
    }


def test_the_configured_secrets_are_all_secret_settings(tmp_path: Path) -> None:
    settings = load_settings(
        _env_file=None,
        data_dir=tmp_path,
        database_url="postgresql://learner:p%40ssword@db/learnloop",
        wandb_api_key="wandb-key",
        openai_api_key="openai-key",
        judge_model="openai/judge",
        judge_api_key="judge-key",
        models=[{"model": "openai/listed", "key": "listed-key"}],
    )
    url = "postgresql://learner:p%40ssword@db/learnloop"
    assert set(secrets_of(settings)) >= {url, "p@ssword", "wandb-key", "openai-key", "judge-key", "listed-key"}
