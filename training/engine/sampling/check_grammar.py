"""Run as a script: whether a grammar with its JSON schemas can be compiled, in a process that can be ended.

Some schemas of a few hundred bytes take minutes, or all memory, and no limit of llguidance ends that. So a grammar is
compiled here first, within the seconds and bytes of the arguments. Reads `{"text", "schemas": [[field, schema,
strict], ...]}` from stdin, writes `[field, fault]` of the first schema that cannot be enforced, or `null`.
"""

import json
import resource
import sys
from collections.abc import Iterable
from typing import Any

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

_END = 256


class _Bytes:
    """A vocabulary of single bytes: what takes long does so for any."""

    eos_token_id = _END
    bos_token_id = None
    special_token_ids = (_END,)
    tokens = (*(bytes([byte]) for byte in range(_END)), b"<end>")

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def main() -> int:
    seconds, memory = int(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    wanted: dict[str, Any] = json.load(sys.stdin)
    fault = _first_fault(wanted["schemas"])
    if fault is None:
        tokens = LLTokenizer(TokenizerWrapper(_Bytes()))
        LLMatcher(tokens, LLMatcher.grammar_from_lark(wanted["text"]), log_level=0).compute_bitmask()
    json.dump(fault, sys.stdout)
    return 0


def _first_fault(schemas: Iterable[tuple[str, dict[str, Any], bool]]) -> tuple[str, str] | None:
    for field, schema, strict in schemas:
        grammar = LLMatcher.grammar_from_json_schema(schema, overrides={"lenient": not strict})
        failed, messages = LLMatcher.validate_grammar_with_warnings(grammar)
        if failed:
            return field, messages[0]
    return None


if __name__ == "__main__":
    sys.exit(main())
