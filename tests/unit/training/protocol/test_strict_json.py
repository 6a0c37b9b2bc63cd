"""JSON as the standard has it."""

import json

import pytest

from learnloop_service.training.protocol import strict_json


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "-Infinity",
        '[1, {"a": Infinity}]',
        "1e999",
        "-1" + "0" * 400 + ".0",
        "1" * 5000,
        r'"\ud800"',
        r'{"\uDFFF": 1}',
        r'"\ude00\ud83d"',
        "[" * 100_000,
        "",
        "[1",
    ],
)
def test_what_python_reads_although_it_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        strict_json.loads(text.encode())


def test_bytes_that_spell_a_surrogate_are_refused() -> None:
    with pytest.raises(ValueError, match="decode"):
        strict_json.loads(b'"\xed\xa0\x80"')


@pytest.mark.parametrize("text", [r'"\ud83d\ude00 \u0000 \\ud800"', "[1, 1.5e3, -0.0, true, null]", '{"a": {"b": ""}}'])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_everything_else_is_read_as_python_does(text: str, encoding: str) -> None:
    assert strict_json.loads(text.encode(encoding)) == json.loads(text)
